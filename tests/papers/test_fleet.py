"""Whole runs on a Ray cluster: the records of runs in processes, and runs that survive whoever computes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel import config
from fedkeel.cli.experiments import Options
from fedkeel.cli.spread import Desk, _one_core
from fedkeel.engine import ray_cluster
from fedkeel.engine.ray_cluster import ClusterError, software
from fedkeel.errors import InputError
from fedkeel.papers import fleet
from fedkeel.papers.fleet import Ship, sail
from fedkeel.papers.plan import planned
from fedkeel.papers.work import News, work
from fedkeel.runs.store import rounds_done
from tests.papers.test_work import SMALL, outcome_of, read, same

SWEEP = """
[data]
name = "mnist5k"
samples = 200
[partition]
clients = 3
[model]
name = "logistic"
[training]
rounds = 3
epochs = 1
[run]
executor = "serial"
[sweep]
seed = [0, 1]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """One of our own with two processors; its address."""
    ray = ray_cluster.join(None, 2)
    yield ray.get_runtime_context().gcs_address
    ray_cluster.leave()


def desk_of(out: Path, text: str = SWEEP, resume: bool = False) -> Desk:
    (out / "sweep.toml").write_text(text)
    runs = [_one_core(run) for run in config.plan(out / "sweep.toml", [], False)]
    return Desk(runs, Options(out, resume, None, False, None, True, False))


def rounds_of(directory: Path) -> list[tuple[int, float]]:
    from contextlib import closing

    from fedkeel.runs.store import Store

    with closing(Store.reading(directory)) as store:
        return [(one.round, one.loss) for one in store.history().series()]


def test_papers_on_a_cluster_have_the_records_of_processes(cluster: str, tmp_path: Path) -> None:
    """One run waits for the work of another; one fails, and the rest goes on."""
    paper = read("small", SMALL)
    run = planned(paper, "small", "sharing")
    runs = [run.like, run, planned(paper, "wild", "fedavg")]
    heard: list[News] = []
    outcome = work(runs, tmp_path / "there", None, None, heard.append, address=cluster)
    assert outcome.failures == {}
    work(runs, tmp_path / "here", 0)
    for one in runs:
        assert same(outcome_of(one, tmp_path / "there")) == same(outcome_of(one, tmp_path / "here"))
    assert [news.kind for news in heard if news.kind == "done"] == ["done"] * 3
    assert not list((tmp_path / "there").glob(".fedkeel-*"))


def test_a_run_whose_actor_is_killed_goes_on_elsewhere(cluster: str, tmp_path: Path) -> None:
    """The worker of the first run that has a round is killed, with its actor; both runs end as if nothing had been."""
    text = SWEEP.replace("rounds = 3", "rounds = 40")
    desk, killed = desk_of(tmp_path, text), []

    class Killing(fleet._Fleet[int]):
        def hear(self, crew: Any) -> bool:
            there = super().hear(crew)
            if not killed and crew.run is not None and desk.states[crew.run].round:
                killed.append((crew.run, desk.states[crew.run].round))
                self.ray.kill(crew.handle)
            return there

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_Fleet", Killing)
        assert sail(desk, 2, tmp_path, cluster, None, lambda: False) is False
    assert killed
    assert killed[0][1] < 40
    assert [state.ended for state in desk.states] == ["finished", "finished"]
    for run in desk.runs:
        fk.run(run.experiment, tmp_path / "alone" / run.experiment.label)
        assert rounds_of(tmp_path / run.experiment.label) == rounds_of(tmp_path / "alone" / run.experiment.label)


def test_a_machine_without_the_folder_is_refused(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Ship().board(str(tmp_path / "nowhere"), "name", "token", software())
    assert answer.startswith("the machine ")
    assert f"does not see the folder {tmp_path / 'nowhere'} of this one" in answer
    (tmp_path / "name").write_text("of somebody else")
    assert "does not see the folder" in Ship().board(str(tmp_path), "name", "token", software())
    assert "has torch" in Ship().board(str(tmp_path), "name", "token", software() | {"torch": "1.0"})
    monkeypatch.setattr(fleet.secrets, "token_hex", lambda size: f"never{size}")
    desk, token = desk_of(tmp_path), tmp_path / ".fedkeel-never8"

    def forge() -> None:
        while not token.exists() or token.read_text() != "never16":
            time.sleep(0.001)
        token.write_text("another folder of that name")

    thread = threading.Thread(target=forge)
    thread.start()
    with pytest.raises(ClusterError, match="does not see the folder"):
        sail(desk, 2, tmp_path, cluster, None, lambda: False)
    thread.join()
    assert not token.exists()


def test_a_sweep_from_the_command_line_is_stopped_and_goes_on(cluster: str, tmp_path: Path) -> None:
    long = SWEEP.replace("rounds = 3", "rounds = 1500") + "[evaluation]\nevery = 500\n"
    (tmp_path / "sweep.toml").write_text(long)
    words = [sys.executable, "-m", "fedkeel", "run", "sweep.toml", "--spread", "--address", cluster, "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(fk.__file__).parents[1])}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/*/run.sqlite")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + signal.SIGINT, said
    assert "of 2 runs, all rounds kept; go on with: fedkeel run sweep.toml --spread" in said
    target = max(rounds_done(folder) for folder in (tmp_path / "runs").iterdir()) + 5
    assert target < 1500
    again = [*words, "--resume", "--set", f"training.rounds={target}"]
    done = subprocess.run(again, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [one["rounds"] for one in json.loads(done.stdout)] == [target, target]


def test_what_does_not_go_with_spread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.executor must be serial or absent with --spread, got 'pool'"):
        desk_of(tmp_path, SWEEP.replace('"serial"', '"pool"'))
