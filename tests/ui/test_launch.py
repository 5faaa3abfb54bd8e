"""Runs that are started, stopped, resumed and forked from the page; no process is left behind."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the page needs the extra ui")

from starlette.testclient import TestClient

from fedkeel import config
from fedkeel.errors import InputError
from fedkeel.runs import lock
from fedkeel.runs.overview import overview
from fedkeel.runs.store import Store
from fedkeel.template import template
from fedkeel.ui.app import Site
from fedkeel.ui.launch import is_command, planned
from tests.ui.looking import csrf_of, experiment, keys, text_of

LIMIT = 120
"""Seconds that a process may take; a loaded machine is slow."""


@pytest.fixture(autouse=True)
def no_process_is_left(site: Site) -> Iterator[None]:
    yield
    for job in site.jobs:
        if job.code is None:
            job.process.kill()
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(LIMIT)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def sent(client: TestClient, text: str, action: str = "start", **more: str) -> tuple[int, str]:
    form = {"csrf": csrf_of(client), "experiment": text, "action": action, **more}
    answer = client.post("/new", data=form)
    return answer.status_code, answer.headers.get("location") or answer.text


def toml(**changed: object) -> str:
    return config.dump(experiment(**changed))


def test_the_form_begins_with_the_template(client: TestClient) -> None:
    import html

    page = text_of(client, "/new")
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.S)
    assert found is not None
    assert html.unescape(found[1]) == template()
    assert "This is in order: 1 run" in sent(client, template(), "check")[1]
    assert "This is in order: 1 run" in sent(client, template().replace("\n", "\r\n"), "check")[1]


@pytest.mark.parametrize(
    "text",
    [
        "seed = -1",
        "[training]\nlr = 'x'\n",
        "seed = = 3",
        "[training]\nrouns = 3",
        "[algorithm]\nname = 'somebody:Own'",
    ],
)
def test_complaints_are_those_of_the_command(client: TestClient, site: Site, text: str, tmp_path: Path) -> None:
    import html

    file = tmp_path / "experiment.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        config.plan(file)
    for action in ("check", "start"):
        status, page = sent(client, text, action)
        assert status == 200
        assert str(error.value) in html.unescape(page)
    if found := re.search(r"line (\d+)", str(error.value)):
        assert f"{found[1]} | {text.splitlines()[int(found[1]) - 1]}" in html.unescape(page)
    assert not site.jobs


def test_a_run_is_started_stopped_resumed_and_forked(client: TestClient, site: Site, folder: Path) -> None:
    status, place = sent(client, toml(name="mine", training={"rounds": 100_000, "participation": 0.6, "steps": 1}))
    assert (status, place) == (303, "/job/1")
    directory = folder / "mine"
    until(lambda: overview(directory).done >= 2 if directory.exists() else site.jobs[0].code is not None)
    assert site.jobs[0].code is None, site.jobs[0].output
    assert "mine" in text_of(client, "/job/1")
    process = lock.holder(directory)
    assert process == site.jobs[0].process.pid
    assert is_command(process)
    key = keys(client)["mine"]
    assert "mine is there already" in sent(client, toml(name="mine"))[1]
    assert "is going on already" in sent(client, toml(name="mine"), how="resume", run=key)[1]

    assert client.post(f"/run/{key}/stop", data={"csrf": csrf_of(client)}).status_code == 303
    until(lambda: site.jobs[0].code is not None)
    assert site.jobs[0].code == 128 + signal.SIGINT
    stopped = overview(directory)
    assert stopped.state == "stopped"
    assert client.post(f"/run/{key}/stop", data={"csrf": csrf_of(client)}).status_code == 422

    text = config.dump(planned(_configuration(directory))[0].experiment)
    more = text.replace("rounds = 100000", f"rounds = {stopped.done + 2}")
    refused = sent(client, more.replace("lr = 0.1", "lr = 0.2"), how="resume", run=key)[1]
    assert "cannot go on with another configuration: training.lr was 0.1, asked 0.2" in refused
    assert len(site.jobs) == 1
    directory.rename(folder / "renamed")
    key = keys(client)["renamed"]
    assert sent(client, more, how="resume", run=key) == (303, "/job/2")
    until(lambda: site.jobs[0].code is not None)
    assert site.jobs[0].code == 0, site.jobs[0].output
    resumed = overview(folder / "renamed")
    assert (resumed.state, resumed.done) == ("finished", stopped.done + 2)
    assert not directory.exists()

    page = text_of(client, f"/new?how=fork&run={key}")
    assert f'<option value="{stopped.done}"' in page
    forked = more.replace('"renamed"', '"mine"').replace('name = "mine"', 'name = "forked"')
    assert sent(client, forked, how="fork", run=key, round=str(stopped.done)) == (303, "/job/3")
    until(lambda: site.jobs[0].code is not None)
    assert site.jobs[0].code == 0, site.jobs[0].output
    with closing(Store.reading(folder / "forked")) as store:
        assert store.meta("parent_round") == str(stopped.done)
    with closing(Store.reading(folder / "forked")) as one, closing(Store.reading(folder / "renamed")) as other:
        accuracies = [[m.accuracy for m in store.history().measured] for store in (one, other)]
    assert accuracies[0] == accuracies[1]


def _configuration(directory: Path) -> str:
    with closing(Store.reading(directory)) as store:
        return store.configuration()


def test_only_a_fedkeel_run_is_stopped(client: TestClient, folder: Path) -> None:
    """A lock that another program holds: the page does not send signals to whatever it may be."""
    directory = folder / "fedavg-mnist5k-seed0"
    code = "import sys; from pathlib import Path; from fedkeel.runs.lock import RunLock\n"
    code += f"with RunLock(Path({str(directory)!r})): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        key = keys(client)["fedavg-mnist5k-seed0"]
        answer = client.post(f"/run/{key}/stop", data={"csrf": csrf_of(client)})
        assert answer.status_code == 422
        assert "no `fedkeel run`" in answer.text
        assert holder.poll() is None
        holder.stdin.close()
        assert holder.wait(LIMIT) == 0


def test_what_a_process_complains_of_is_shown(client: TestClient, site: Site, tmp_path: Path) -> None:
    """Nothing is wrong with the text, but the folder is not there."""
    text = '[data]\nname = "./nowhere"\n[run]\nexecutor = "serial"\n'
    status, place = sent(client, text)
    assert status == 303
    until(lambda: site.jobs[0].code is not None)
    page = text_of(client, place)
    assert "ended with code 2" in page
    assert "nowhere" in page
    assert client.get("/job/77").status_code == 404


def test_all_threads_share_one_list_of_processes(site: Site) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: (site.launcher, site.views), range(64)))
    assert len({id(launcher) for launcher, _ in found}) == len({id(views) for _, views in found}) == 1
