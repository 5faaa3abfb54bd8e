"""Who is answered: the person in front of the page, nobody else's site, and beyond this machine who knows the token."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the page needs the extra ui")

from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fedkeel.ui import guard as guarding
from fedkeel.ui.guard import HEADERS, LARGEST_BODY, Guard, is_loopback
from tests.ui.looking import BASE, client_of, csrf_of, keys, site_of

TOKEN = "a-token-that-is-long-enough"
PAGES = [
    "/",
    "/new",
    "/compare",
    "/login",
    "/events?run=x",
    "/run/x",
    "/run/x/accuracy.svg",
    "/job/1",
    "/static/live.js",
]


@pytest.mark.parametrize("address", PAGES)
def test_every_answer_has_the_headers(client: TestClient, address: str) -> None:
    headers = client.get(address).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "unsafe" not in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8423", 200),
        ("localhost:9999", 200),  # a tunnel has a port of its own
        ("[::1]:8423", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("evil.example:8423", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.168.1.5:8423", 421),
        ("", 421),
        ("127.0.0.1@evil.example", 421),
    ],
)
def test_only_by_its_own_names(client: TestClient, host: str, status: int) -> None:
    """A name that somebody else's DNS points at 127.0.0.1 is not one of ours."""
    assert client.get("/", headers={"host": host}).status_code == status


@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=60))
def test_no_other_text_is_a_name(text: str) -> None:
    names = {"localhost", "127.0.0.1", "::1"}
    known = Guard.of("127.0.0.1", 1, None).knows_host(text)
    host = text.strip().lower()
    assert known == (host.partition(":")[0] in names or (host[:1] == "[" and host[1:].partition("]")[0] in names))


def test_beyond_this_machine_by_addresses_and_its_own_name() -> None:
    guard = Guard.of("0.0.0.0", 80, TOKEN)
    assert guard.knows_host("192.168.1.5:8423")
    assert guard.knows_host("[fe80::1]:80")
    assert not guard.knows_host("evil.example")
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")] == [False] * 5


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this machine
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
)
def test_no_form_of_another_site(client: TestClient, headers: dict[str, str]) -> None:
    form = {"csrf": csrf_of(client), "experiment": "seed = 1"}
    assert client.post("/new", data=form, headers=headers).status_code == 403
    assert client.post("/new", data=form, headers={"origin": BASE, "sec-fetch-site": "same-origin"}).status_code == 200


def test_another_site_may_link_here_but_not_embed_or_ask(client: TestClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("no-cors", "script"), ("navigate", "iframe")):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        assert client.get("/", headers=headers).status_code == 403


def test_forms_need_the_token_of_their_own_browser(folder: Path) -> None:
    site = site_of(folder)
    with client_of(site) as one, client_of(site) as other, client_of(site) as stranger:
        mine, theirs = csrf_of(one), csrf_of(other)
        assert mine != theirs
        form = {"experiment": "seed = 1"}
        for bad in ({}, {"csrf": ""}, {"csrf": theirs}, {"csrf": mine[:-1] + "é"}):
            assert one.post("/new", data=form | bad).status_code == 403, bad
        assert stranger.post("/new", data=form | {"csrf": mine}).status_code == 403
        assert one.post("/new", data=form | {"csrf": mine}).status_code == 200
        with client_of(site_of(folder)) as later:  # another process has another key
            later.cookies = one.cookies
            assert later.post("/new", data=form | {"csrf": mine}).status_code == 403


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(client: TestClient) -> None:
    (cookie,) = client.get("/").headers.get_list("set-cookie")
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert not client.get("/").headers.get_list("set-cookie")


def test_a_get_changes_nothing_and_other_methods_are_refused(client: TestClient) -> None:
    key = next(iter(keys(client).values()))
    assert client.get(f"/run/{key}/stop").status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert client.request(method, "/").status_code == 405


def test_a_form_has_an_end(client: TestClient) -> None:
    answer = client.post("/new", content=b"a" * (LARGEST_BODY + 1))
    assert answer.status_code == 413
    assert client.post("/new", content=b"a=1&" * 2000).status_code == 403
    assert client.post("/new", content=b"\xff\xfe%ff").status_code == 403


def test_nothing_is_shown_without_the_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "PAUSE", 0)
    site = site_of(folder, TOKEN)
    with client_of(site) as client:
        for address in PAGES:
            answer = client.get(address)
            assert answer.status_code == (200 if address.startswith(("/login", "/static")) else 303), address
            assert "fedavg" not in answer.text
            assert not answer.headers.get_list("set-cookie")
        assert client.get("/", headers={"sec-fetch-dest": "image"}).status_code == 401
        assert client.post("/new", data={"csrf": "", "experiment": ""}).status_code == 401
        for wrong in ("", TOKEN[:-1], TOKEN + "x", "é"):
            answer = client.post("/login", data={"token": wrong})
            assert answer.headers["location"] == "/login?wrong=1"
            assert client.get("/").status_code == 303
        answer = client.post("/login", data={"token": TOKEN})
        assert answer.headers["location"] == "/"
        assert TOKEN not in str(answer.headers)
        assert "fedavg" in client.get("/").text
        assert client.post("/new", data={"csrf": csrf_of(client), "experiment": ""}).status_code == 200


def test_a_forged_cookie_is_none(folder: Path) -> None:
    site = site_of(folder, TOKEN)
    with client_of(site) as client:
        for value in ("x.y", ".", "", "a" * 32 + "." + "0" * 64, '"; drop'):
            answer = client.get("/", headers={"cookie": f"other=1; {site.guard.cookie}={value}; x"})
            assert answer.status_code == 303


def test_websockets_are_closed(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/events"):
        pass
