"""The page in a browser: it follows a run by itself, needs no mouse, and has nothing that axe complains of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs the extra ui")
pytest.importorskip("playwright", reason="the browser is driven by playwright, which is not installed")

import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fedkeel import api, config
from fedkeel.runs.runner import Progress
from fedkeel.ui.app import Site, build
from fedkeel.ui.guard import Guard
from fedkeel.ui.serve import listening
from fedkeel.ui.view import version
from tests.ui.looking import experiment

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = os.environ.get("FEDKEEL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(FOUND is None, reason="no Chromium here; `make test-ui` installs one")
AXE = (Path(__file__).parent / "axe-4.14.0.min.js").read_text(encoding="utf-8")
LIMIT = 90_000
"""Milliseconds that anything may take; a loaded machine is slow, and only a failure waits for it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=FOUND, args=options, timeout=LIMIT)
        yield browser
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[tuple[Site, str]]:
    """The page at a free port, in a thread that ends with the block; so do the processes that were started from it."""
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        site = Site(folder, Guard.of("127.0.0.1", port, None))
        server = uvicorn.Server(uvicorn.Config(build(site), lifespan="off", log_level="critical"))
        site.stopping = lambda: server.should_exit
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield site, f"http://127.0.0.1:{port}"
        finally:
            for job in site.jobs:
                if job.code is None:
                    job.process.kill()
                    with suppress(subprocess.TimeoutExpired):
                        job.process.wait(60)
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of a browser of its own; whatever it complains of in its console fails the test."""
    context = browser.new_context(**options)
    context.set_default_timeout(LIMIT)
    complaints: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: complaints.append(asked.url) if "//127.0.0.1:" not in asked.url else None)
        yield page
        assert not complaints
    finally:
        context.close()


def test_a_page_follows_its_run(browser: Browser, folder: Path) -> None:
    """Rounds go on only when the page has shown the one before, so that nothing depends on how fast either is."""
    expect.set_options(timeout=LIMIT)
    shown = threading.Semaphore(0)

    def wait(progress: Progress) -> None:
        assert shown.acquire(timeout=LIMIT / 1000)

    one = experiment(name="now")
    training = threading.Thread(target=api.run, args=(one, folder / "now"), kwargs={"watch": wait})
    with served(folder) as (_, base), opened(browser) as page, opened(browser) as other:
        training.start()
        try:
            page.goto(base)
            page.get_by_role("link", name="now", exact=True).click()
            other.goto(base)
            chart = page.locator("figure img").first
            for round in (1, 2, 3):
                expect(page.locator("#now")).to_contain_text(f"round {round} of 3")
                expect(other.get_by_role("row", name=re.compile("Choose now"))).to_contain_text(f"{round}/3")
                expect(page.locator("#now .state")).to_have_text("running")
                page.wait_for_function("() => [...document.images].every((i) => i.complete && i.naturalWidth > 0)")
                shown.release()
            expect(page.locator("#now .state")).to_have_text("finished")
            expect(other.get_by_role("row", name=re.compile("Choose now"))).to_contain_text("finished")
            expect(page.locator("#live")).to_have_text("live")
            training.join(60)
            # Pictures may leave rounds out, but not the last.
            expect(chart).to_have_attribute("src", re.compile(f"v={version(folder / 'now')}$"))
        finally:
            for _ in range(9):
                shown.release()
            training.join(60)
    assert not training.is_alive()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_overflows(browser: Browser, folder: Path, scheme: Any) -> None:
    expect.set_options(timeout=LIMIT)
    with (
        served(folder) as (_, base),
        opened(browser, color_scheme=scheme, bypass_csp=True, viewport={"width": 390, "height": 844}) as page,
    ):
        page.goto(base)
        keys = [box.get_attribute("value") for box in page.get_by_role("checkbox").all()]
        compared = "&".join(f"run={key}" for key in keys)
        for address in (
            "/",
            f"/run/{keys[0]}",
            f"/compare?{compared}",
            "/new",
            f"/new?how=fork&run={keys[0]}",
            "/login",
        ):
            page.goto(base + address)
            if address == "/new":
                page.get_by_label("Experiment (TOML)").fill("[training]\nlr = -1\n")
                page.get_by_role("button", name="Check").click()
                expect(page.get_by_role("alert")).to_contain_text("2 | lr = -1")
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            page.evaluate(AXE)
            found = page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
            told = [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found]
            assert not told, (address, told)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, address


def test_the_keyboard_is_enough(browser: Browser, folder: Path) -> None:
    expect.set_options(timeout=LIMIT)
    with served(folder) as (_, base), opened(browser) as page:
        page.goto(base)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
        page.get_by_label("Filter").focus()
        page.keyboard.type("feddc")
        expect(page.get_by_role("row")).to_have_count(2)
        expect(page).to_have_url(re.compile("q=feddc"))
        page.get_by_label("Filter").fill("")
        expect(page.get_by_role("row")).to_have_count(4)
        for name in ("fedavg", "feddc"):
            page.get_by_label(f"Choose {name}-mnist5k-seed0").focus()
            page.keyboard.press("Space")
        page.get_by_role("link", name="last").focus()  # which replaces the rows, but not what was chosen
        page.keyboard.press("Enter")
        expect(page.locator("th.c-last")).to_have_attribute("aria-sort", "descending")
        expect(page.get_by_role("link", name="last")).to_be_focused()
        page.get_by_role("button", name="Compare chosen runs").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Compare")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_a_run_is_started_and_stopped_in_the_browser(browser: Browser, folder: Path) -> None:
    expect.set_options(timeout=LIMIT)
    text = config.dump(experiment(name="mine", training={"rounds": 100_000, "participation": 0.6, "steps": 1}))
    with served(folder) as (site, base), opened(browser) as page:
        page.goto(base)
        page.get_by_role("link", name="New run").click()
        page.get_by_label("Experiment (TOML)").fill(text)
        page.get_by_role("button", name="Check").click()
        expect(page.locator("#answer")).to_contain_text("This is in order: 1 run")
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_role("link", name="mine", exact=True).click()  # appears by itself when the run begins
        page.get_by_role("button", name="Stop after this round").click()
        expect(page.locator("#now .state")).to_have_text("stopped")
        assert site.jobs[0].process.wait(60) == 130


def test_without_scripts_and_with_hostile_names(browser: Browser, folder: Path) -> None:
    name = "<img src=x onerror=alert(1)><script>alert(2)<∕script>"
    shutil.copytree(folder / "fedavg-mnist5k-seed0", folder / name)
    with served(folder) as (_, base):
        with opened(browser) as page:
            page.goto(base)
            page.get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1)).to_contain_text(name)
            page.get_by_role("link", name="Show clients and classes").click()
            expect(page.locator("#classes img")).to_have_js_property("complete", True)
        with opened(browser, java_script_enabled=False) as page:
            page.goto(base)
            page.get_by_role("link", name="feddc-mnist5k-seed0").click()
            expect(page.locator("#now")).to_contain_text("round 3 of 3")
            expect(page.locator(".charts img")).to_have_count(4)
