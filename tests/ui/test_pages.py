"""What the pages say of runs, whatever the runs are called and however they ended."""

import html
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the page needs the extra ui")

from starlette.testclient import TestClient

from fedkeel import api, config
from fedkeel.runs.lock import RunLock
from fedkeel.runs.overview import Overview
from fedkeel.runs.reported import Reported
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import FILE, Store
from fedkeel.ui import pages
from fedkeel.ui.app import excerpt
from fedkeel.ui.catalogue import Catalogue, Line
from fedkeel.ui.listing import COLUMNS, FALLING, Query
from fedkeel.ui.view import Views, version
from tests.ui.looking import client_of, experiment, keys, site_of, text_of

NASTY = "<script>alert(1)</script>\"'&{{7*7}}\x1b[31m\u202e"


def test_the_list_has_every_run(client: TestClient, folder: Path) -> None:
    page = text_of(client, "/")
    assert list(keys(client)) == ["fedavg-mnist5k-seed0", "feddc-mnist5k-seed0", "fedveca-mnist5k-seed0"]
    assert page.count('<svg class="spark"') == 3
    assert "3 runs, as of <time>" in page
    with closing(Store.reading(folder / "feddc-mnist5k-seed0")) as store:
        last = store.history().reported().last
    assert f"{last:.1%}" in page


def test_a_list_is_filtered_and_sorted(client: TestClient) -> None:
    assert list(keys(client, "/?q=DC+mnist")) == ["feddc-mnist5k-seed0"]
    assert list(keys(client, "/?state=running")) == []
    assert "No run fits the filter." in text_of(client, "/?q=nothing")
    names = list(keys(client))
    assert list(keys(client, "/?sort=name&order=down")) == names[::-1]
    assert 'aria-sort="descending"' in text_of(client, "/?sort=last")
    for odd in ("sort=__class__", "page=-1", "page=99999999999", "page=²", "order=x", "state=%00", "q=%ff"):
        assert client.get(f"/?{odd}").status_code == 200, odd


@given(
    st.lists(
        st.tuples(st.text("ab", max_size=3), st.one_of(st.none(), st.floats(0, 1), st.just(float("nan")))), max_size=12
    ),
    st.sampled_from(list(COLUMNS)),
    st.booleans(),
)
def test_sorting_loses_nobody_and_puts_unread_runs_last(
    runs: list[tuple[str, float | None]], column: str, down: bool
) -> None:
    lines = [
        Line(
            str(at),
            Path(name),
            name,
            None if last is None else Overview(name, Path(name), "finished", accuracy=Reported(last, last, last)),
        )
        for at, (name, last) in enumerate(runs)
    ]
    found = Query(sort=column, down=down).choose(lines)
    assert sorted(line.key for line in found) == sorted(line.key for line in lines)
    unread = [line.overview is None for line in found]
    assert unread == sorted(unread)
    if column == "last":
        values = [COLUMNS["last"][1](line.overview) for line in found if line.overview is not None]
        assert values == sorted(values, reverse=down)


def test_the_address_of_a_list_says_all_of_it() -> None:
    query = Query("a & b", "running", "last", True, 3)
    from urllib.parse import parse_qsl, urlsplit

    assert Query.of(dict(parse_qsl(urlsplit(query.address()).query))) == query
    assert set(FALLING) <= set(COLUMNS)


def test_many_runs_come_in_pages(folder: Path) -> None:
    for at in range(230):
        shutil.copytree(folder / "fedavg-mnist5k-seed0", folder / "many" / f"{at:03d}")
    with client_of(site_of(folder)) as client:
        seen: list[str] = []
        for page in (1, 2, 3):
            seen += keys(client, f"/?q=many&page={page}")
        assert "page 3 of 3" in text_of(client, "/?q=many&page=77")
    assert seen == [f"many/{at:03d}" for at in range(230)]


def test_the_page_of_a_run(client: TestClient, folder: Path) -> None:
    name = "fedveca-mnist5k-seed0"
    key = keys(client)[name]
    page = text_of(client, f"/run/{key}")
    with closing(Store.reading(folder / name)) as store:
        history, did, scores = store.history(), store.client_rounds(), store.client_scores()
    found = history.reported()
    for share in (found.last, found.late, found.best):
        assert f"<dd>{share:.1%}" in page
    assert "round 3 of 3" in page
    rows = re.findall(r'<tr><th scope="row">(\d+)</th><td class="n">(\d+)</td><td class="n">(\d+)</td>', page)
    by_client = {one.client: [o.round for o in did if o.client == one.client] for one in did}
    assert {int(c): (int(n), int(last)) for c, n, last in rows} == {c: (len(r), r[-1]) for c, r in by_client.items()}
    assert f"{scores[-1].accuracy:.1%}" in page
    assert "started" in page
    assert "[training]" in page
    charts = set(re.findall(rf"/run/{key}/([a-z0-9-]+)\.svg", page))
    assert charts == {"accuracy", "loss", "drift", "traffic", "drift-map"} | {
        f"noted-{at}" for at in range(len(history.names))
    }
    for chart in charts:
        for shade in ("light", "dark"):
            answer = client.get(f"/run/{key}/{chart}.svg?shade={shade}")
            assert answer.headers["content-type"] == "image/svg+xml"
            assert answer.text.startswith("<svg")
    assert "#171c22" in client.get(f"/run/{key}/accuracy.svg?shade=dark").text


def rows_of(chart: Any) -> list[dict[str, Any]]:
    spec = chart.to_dict()
    return list(spec["datasets"][spec["data"]["name"]] if "name" in spec["data"] else spec["data"]["values"])


def test_a_curve_goes_through_what_was_measured(client: TestClient, folder: Path) -> None:
    from fedkeel.ui import charts

    with closing(Store.reading(folder / "fedavg-mnist5k-seed0")) as store:
        history = store.history()
    drawn = rows_of(charts.accuracy(history))
    assert [(p["round"], p["value"]) for p in drawn] == [(m.round, m.accuracy) for m in history.measured]
    with closing(Store.reading(folder / "fedavg-mnist5k-seed0")) as store:
        did = store.client_rounds()
    cells = rows_of(charts.drift_map(did))
    assert {(c["client"], c["round"]): c["value"] for c in cells} == {(d.client, d.round): d.drift for d in did}


def test_large_maps_have_means_and_say_so() -> None:
    from fedkeel.runs.store import ClientRound
    from fedkeel.ui import charts

    did = [ClientRound(t, c, 1, 0.0, float(c % 2)) for t in range(1, 131) for c in range(120)]
    chart = charts.drift_map(did)
    encoding = chart.to_dict()["encoding"]
    assert ("mean of 2" in encoding["y"]["title"], "mean of 3" in encoding["x"]["title"]) == (True, True)
    assert {cell["value"] for cell in rows_of(chart)} == {0.5}
    assert charts.drift_map([]) is None


def test_the_dark_changes_colours_and_no_words() -> None:
    import altair as alt

    from fedkeel import theme
    from fedkeel.ui.pictures import draw

    names = ["white", theme.INK, f' fill="{theme.COLOURS[0]}"', "<a fill='white'>", *theme.COLOURS]
    rows = [{"name": name, "colour": theme.COLOURS[at % 10]} for at, name in enumerate(names)]
    bars = alt.Chart(alt.InlineData(values=rows)).mark_text().encode(y="name:N", text="name:N")
    chart = theme.styled(bars.encode(color=alt.Color("colour:N", scale=None)), theme.heading("white"))
    light, dark = (draw(chart, shade) for shade in ("light", "dark"))
    assert light is not None
    assert dark is not None
    texts = [re.findall(r">([^<>]+)<", svg.decode()) for svg in (light, dark)]
    assert texts[0] == texts[1]
    assert {"white", theme.INK, *theme.COLOURS} <= set(texts[0])
    assert not re.search(r'<[^<>]+ fill="(white|#0072b2|#1f2933)"', dark.decode())


def test_who_holds_what_is_shown_only_of_the_same_data(client: TestClient, folder: Path) -> None:
    key = keys(client)["fedavg-mnist5k-seed0"]
    page = text_of(client, f"/run/{key}/classes")
    assert "have the digests that the run kept" in page
    drawn = client.get(f"/run/{key}/classes?picture=1")
    assert drawn.text.startswith("<svg")
    with closing(Store.open(folder / "fedavg-mnist5k-seed0")) as store:
        text = store.meta("data")
        assert text is not None
        store.put_meta("data", re.sub(r'"partition": "[0-9a-f]+"', '"partition": "0"', text))
    page = text_of(client, f"/run/{key}/classes")
    assert "Which samples each client holds of mnist5k are not those of this run" in html.unescape(page)
    assert client.get(f"/run/{key}/classes?picture=1").status_code == 404


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    seen: list[tuple[str, bool, str]] = []
    with client_of(site) as client:

        def look(progress: Progress) -> None:
            key = keys(client)["a"]
            page = text_of(client, f"/run/{key}")
            seen.append((version(tmp_path / "a"), f"round {progress.round} of 3" in page, page))

        api.run(experiment(), tmp_path / "a", watch=look)
        page = text_of(client, f"/run/{keys(client)['a']}")
    assert [whole for _, whole, _ in seen] == [True] * 3
    assert len({one for one, _, _ in seen} | {version(tmp_path / "a")}) == 4
    assert all("Stop after this round" in page for _, _, page in seen)
    assert "Stop after this round" not in page
    assert "Resume…" in page


def test_a_page_opened_before_the_first_round_asks_for_its_charts(folder: Path) -> None:
    (folder / "new").mkdir()
    with closing(Store.create(folder / "new", config.dump(experiment()))):
        pass
    with client_of(site_of(folder)) as client:
        found = keys(client)
        assert re.search(r'<div id="pictures" hx-get', text_of(client, f"/run/{found['new']}"))
        later = text_of(client, f"/run/{found['feddc-mnist5k-seed0']}")
        assert '<div id="pictures">' in later
        assert "5 clients · dirichlet 0.5 · logistic" in later


def test_what_is_kept_of_a_run_is_never_behind(folder: Path) -> None:
    """Changed with the same times and the same size: only the change time of the file tells."""
    views, directory = Views(folder), folder / "fedavg-mnist5k-seed0"
    before = views.view(directory)
    with RunLock(directory):
        assert views.view(directory).overview.state == "running"
    with closing(Store.open(directory)) as store:
        store.event("noted", "something")
    after = views.view(directory)
    assert len(after.events) == len(before.events) + 1
    assert after.version != before.version


def test_damage_is_a_sentence(client: TestClient, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "feddc-mnist5k-seed0" / FILE)) as db:
        db.execute("UPDATE metrics SET accuracy = 0.999")
        db.commit()
    (folder / "fedavg-mnist5k-seed0" / FILE).write_bytes(b"no database" * 1000)
    found = keys(client)
    page = text_of(client, f"/run/{found['feddc-mnist5k-seed0']}")
    assert "do not fit their checksum" in page
    assert "99.9%" not in re.sub(r'<section id="now".*?<dl', "", page, flags=re.S).split("<h2>")[0].split("</dl>")[0]
    assert "is not a readable run" in text_of(client, f"/run/{found['fedavg-mnist5k-seed0']}")
    assert "damaged" in text_of(client, "/")
    for key in found.values():
        assert client.get(f"/compare?run={key}").status_code in (200, 422)
        assert "Traceback" not in client.get(f"/compare?run={key}").text


def test_names_and_texts_cannot_do_anything(folder: Path) -> None:
    """Whoever hands over a run chooses its folder, its configuration and what its diary says."""
    name = NASTY.replace("/", "∕")
    shutil.copytree(folder / "fedavg-mnist5k-seed0", folder / name)
    with closing(Store.open(folder / name)) as store:
        text = store.configuration()
        store.change_configuration(text.replace('"fedavg"', '"<img src=x onerror=alert(1)>"'), [NASTY])
        store.event(NASTY, NASTY)
        store.put_meta("parent", NASTY)
    with client_of(site_of(folder)) as client:
        key = next(key for shown, key in keys(client).items() if "script" in shown)
        for address in ("/", "/?q=" + "%3Cscript%3E", f"/run/{key}", f"/compare?run={key}", f"/new?how=fork&run={key}"):
            answer = client.get(address)
            assert answer.status_code in (200, 422), address
            page = answer.text
            assert "<script>alert" not in page
            assert "<img src=x" not in page
            assert "\x1b" not in page
            assert "{{7*7}}" in page or "49" not in page
        drawn = client.get(f"/compare.svg?run={key}&run={keys(client)['feddc-mnist5k-seed0']}")
        assert "<script>" not in drawn.text


SHOWN = pages.environment().from_string("<p>{{ text }}</p>")
FIELD = pages.environment().from_string("<textarea>\n{{ text|exact }}</textarea>")


@given(st.text(max_size=80))
@settings(max_examples=200)
def test_every_text_is_text(text: str) -> None:
    shown = SHOWN.render(text=text)
    inner = html.unescape(shown.removeprefix("<p>").removesuffix("</p>"))
    assert not re.search(r"[<>\"']", shown.removeprefix("<p>").removesuffix("</p>"))
    assert inner.isprintable() or not inner
    field = FIELD.render(text=text)
    assert html.unescape(field.removeprefix("<textarea>\n").removesuffix("</textarea>")) == html.unescape(
        html.escape(text)
    )


@pytest.mark.parametrize(
    "key",
    ["x", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a" * 5000, "fedavg-mnist5k-seed0", "%ff", "'; DROP TABLE"],
)
def test_no_key_leads_out_of_the_folder(client: TestClient, folder: Path, key: str) -> None:
    (folder.parent / "secret").mkdir()
    shutil.copy(folder / "fedavg-mnist5k-seed0" / FILE, folder.parent / "secret" / FILE)
    for address in (f"/run/{key}", f"/run/{key}/accuracy.svg", f"/events?run={key}", f"/new?how=fork&run={key}"):
        assert client.get(address).status_code == 404, address
    assert client.get(f"/static/{key}").status_code == 404
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e%2fapp.py").status_code == 404


def test_links_out_of_the_folder_are_not_followed(client: TestClient, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder / "fedavg-mnist5k-seed0", outside / "run")
    (folder / "link").symlink_to(outside)
    assert not any("link" in name for name in keys(client))


def test_opening_a_page_imports_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose algorithm is somebody's own: its module would leave a mark if it were imported."""
    mark = tmp_path / "mark"
    (tmp_path / "somebodys.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    directory = folder / "fedavg-mnist5k-seed0"
    with closing(Store.open(directory)) as store:
        text = store.configuration().replace('"fedavg"', '"somebodys:Own"')
        assert "somebodys" in text
        store.change_configuration(text, ["x"])
    with client_of(site_of(folder)) as client:
        key = keys(client)["fedavg-mnist5k-seed0"]
        for address in ("", "/classes", "/accuracy.svg", "/classes?picture=1"):
            client.get(f"/run/{key}{address}")
        for address in (f"/compare?run={key}", f"/new?how=resume&run={key}", f"/new?how=fork&run={key}"):
            assert client.get(address).status_code == 200
        csrf = re.search(r'name="csrf" value="(\w+)"', client.get("/new").text)
        assert csrf is not None
        for action in ("check", "start"):
            form = {"csrf": csrf[1], "experiment": text, "action": action, "how": "resume", "run": key}
            assert "--allow-plugins" in client.post("/new", data=form).text
    assert not mark.exists()


def test_runs_are_compared(client: TestClient) -> None:
    found = keys(client)
    query = "&".join(f"run={key}" for key in found.values())
    page = text_of(client, f"/compare?{query}&target=0.5")
    assert page.count('<th scope="row" class="c-name">') == 3
    assert "rounds to 0.5" in page
    drawn = client.get(f"/compare.svg?{query}").text
    assert all(title in drawn for title in ("FedAvg", "FedDC", "FedVeca"))
    assert client.get("/compare.svg").status_code == 404
    for odd in ("target=x", "target=nan", "target=-3", "run=", "run=x"):
        assert client.get(f"/compare?{odd}").status_code == 200
    assert "Choose runs in" in text_of(client, "/compare")


def test_a_list_is_shown_before_all_runs_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from fedkeel.ui import app

    go, catalogue = threading.Event(), Catalogue(folder)
    read = catalogue._reader.line

    def slow(directory: Path) -> Overview:
        if "feddc" in str(directory):
            assert go.wait(30)
        return read(directory)

    monkeypatch.setattr(catalogue._reader, "line", slow)
    monkeypatch.setattr(app, "PATIENCE", 0.05)
    site = site_of(folder)
    site.catalogue = catalogue
    with client_of(site) as client:
        early = text_of(client, "/")
        assert "of 3 runs read so far" in early
        assert "not read yet" in early
        assert list(keys(client)) == sorted(keys(client), key=lambda name: name)
        go.set()
        catalogue.look(30)
        late = text_of(client, "/")
    assert "not read yet" not in late
    assert "3 runs, as of" in late


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with client_of(site_of(tmp_path / "none")) as client:
        assert "there is no folder" in text_of(client, "/")
    with client_of(site_of(tmp_path)) as client:
        assert "There are no runs in this folder yet" in text_of(client, "/")


def test_a_complaint_shows_its_line() -> None:
    assert excerpt("a\nb\nc", "x must be y (experiment.toml, line 2).") == (2, "b")
    assert excerpt("a\nb", "(at line 9, column 1)") is None
    assert excerpt("a", "nothing") is None


def test_files_of_the_page_are_all_its_own() -> None:
    """Nothing is loaded from elsewhere, and no script or style stands in a page."""
    for path in (pages.HERE / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(src|href|srcset|action)=\"(https?:)?//", text), path.name
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style|hx-on|javascript:|hx-vals", text), (
            path.name
        )
        assert "|safe" not in text
    for path in pages.STATIC.glob("*.css"):
        assert "url(" not in path.read_text()
        assert "@import" not in path.read_text()
    assert all((pages.STATIC / name).exists() for name in ("LICENSE-htmx.txt", "htmx-2.0.11.min.js"))


def test_read_only_has_no_buttons(folder: Path) -> None:
    with client_of(site_of(folder, read_only=True)) as client:
        key = keys(client)["fedavg-mnist5k-seed0"]
        page = text_of(client, f"/run/{key}")
        assert "Resume…" not in page
        assert "/new" not in page
        assert client.get("/new").status_code == 403


def test_the_list_does_not_wait_for_torch() -> None:
    code = "import sys, fedkeel.ui.serve; sys.exit(bool({'torch', 'altair', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=pages.HERE.parents[1], check=False).returncode == 0


def test_runs_without_accuracy_are_compared_by_their_losses(tmp_path: Path) -> None:
    """Under the squared error no answer is right or wrong."""
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "one.npz", x=x, y=x[:, 0])
    table: dict[str, Any] = {
        "data": {"name": str(tmp_path / "sites"), "targets": "real"},
        "model": {"name": "logistic", "loss": "mse"},
        "training": {"rounds": 2, "steps": 1},
        "run": {"executor": "serial"},
    }
    for seed in (0, 1):
        [one] = config.expand(table | {"seed": seed}, [])
        api.run(one, tmp_path / "runs" / str(seed))
    with client_of(site_of(tmp_path / "runs")) as client:
        query = "&".join(f"run={key}" for key in keys(client).values())
        page = text_of(client, f"/compare?{query}")
        assert "has no test accuracy" in page
        assert "nan" not in re.sub(r"<[^>]*>", "", page).lower()
        picture = client.get(f"/compare.svg?{query}")
    assert picture.status_code == 200
    assert "test loss" in picture.text
