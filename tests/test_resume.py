"""Stopping, resuming, extending and forking runs through the command, in real processes."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedkeel import api, build, config
from fedkeel.cli.main import app
from fedkeel.errors import DataError, InputError
from fedkeel.runs.fork import Fork
from fedkeel.runs.lock import LockedError, RunLock
from fedkeel.runs.store import FILE, Store

ROOT = Path(__file__).parents[1]
EXPERIMENT = """\
[partition]
clients = 8
alpha = 0.5

[algorithm]
name = "scaffold"

[model]
name = "logistic"

[training]
rounds = 200
participation = 0.5
batch_size = 50

[run]
executor = "serial"
"""


def started(cwd: Path, *words: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, so that a signal to the group does not reach the tests."""
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def rounds_in(folder: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / FILE) as db:
        return db.execute(
            "SELECT r.round, train_loss, drift, accuracy, loss FROM rounds AS r JOIN metrics USING (round) ORDER BY 1"
        ).fetchall()


def wait_for_round(folder: Path, wanted: int) -> None:
    for _ in range(600):
        if (folder / FILE).exists() and (folder / "environment.json").exists():
            try:
                if rounds_in(folder)[-1:] >= [(wanted,)]:
                    return
            except sqlite3.OperationalError:
                pass  # the file is there, its tables are not yet
        time.sleep(0.05)
    raise AssertionError(f"{folder} never came to round {wanted}")


def kinds(folder: Path) -> list[str]:
    with sqlite3.connect(folder / FILE) as db:
        return [row[0] for row in db.execute("SELECT kind FROM events ORDER BY id")]


def test_ctrl_c_ends_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Stopped in a sweep of two runs, resumed with the very command that was printed: equal to an undisturbed run."""
    (tmp_path / "e.toml").write_text(EXPERIMENT + "[sweep]\nseed = [0, 1]\n")
    process = started(tmp_path, "run", "e.toml", "--set", "training.rounds=60", "--json")
    first, second = (tmp_path / "runs" / f"scaffold-mnist5k-seed{seed}" for seed in (0, 1))
    wait_for_round(first, 2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    done = len(rounds_in(first))
    assert done < 60
    assert f"stopped after round {done} of 60, which is kept in" in errors
    command = "fedkeel run e.toml --set training.rounds=60 --json --resume"
    assert errors.rstrip().endswith(f"go on with: {command}")
    assert not second.exists()

    resumed = started(tmp_path, *command.split()[1:])
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert [result["rounds"] for result in json.loads(output)] == [60, 60]
    assert kinds(first) == ["started", "stopped", "resumed", "finished"]
    assert kinds(second) == ["started", "finished"]
    compare_with_undisturbed(tmp_path, first)


def test_a_sigterm_to_the_whole_group_lets_workers_end_their_round(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("rounds = 200", "rounds = 60").replace("serial", "pool"))
    process = started(tmp_path, "run", "e.toml")
    folder = tmp_path / "runs" / "scaffold-mnist5k-seed0"
    wait_for_round(folder, 2)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert kinds(folder) == ["started", "stopped"]
    (experiment,) = config.read(tmp_path / "e.toml")
    api.run(experiment, folder, resume=True)
    compare_with_undisturbed(tmp_path, folder)


def compare_with_undisturbed(tmp_path: Path, folder: Path) -> None:
    experiment = config.read(tmp_path / "e.toml", ["training.rounds=60"])[0]
    api.run(experiment, tmp_path / "whole")
    assert rounds_in(folder) == rounds_in(tmp_path / "whole")
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    """Rounds here take many seconds; the process does not wait for the end of one."""
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("rounds = 200", "rounds = 200\nsteps = 100000"))
    process = started(tmp_path, "run", "e.toml", "--set", "run.executor=pool", "--set", "run.workers=2")
    for _ in range(600):
        if (tmp_path / "runs/scaffold-mnist5k-seed0" / FILE).exists():
            break
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)  # also waits for the workers, who share the pipe
    assert process.returncode == 130
    assert "stopped at once" in errors


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rounds that kept every second state."""
    folder = tmp_path_factory.mktemp("finished")
    api.run(experiment(rounds=6, keep=2), folder / "run")
    return folder / "run"


def experiment(rounds: int, keep: int = 0, **changes: Any) -> config.Experiment:
    table: dict[str, Any] = {
        "partition": {"clients": 8, "alpha": 0.5},
        "algorithm": {"name": "scaffold"},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "participation": 0.5, "batch_size": 50},
        "run": {"checkpoint_every": keep, "executor": "serial"},
    }
    settings = [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]
    return config.expand(table, settings)[0]


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_a_finished_run_goes_on_longer_to_the_same_bits(finished: Path, tmp_path: Path) -> None:
    longer = api.run(experiment(rounds=9, keep=2, run__executor="pool"), copied(finished, tmp_path / "r"), resume=True)
    whole = api.run(experiment(rounds=9), tmp_path / "whole")
    assert rounds_in(tmp_path / "r") == rounds_in(tmp_path / "whole")
    assert longer.accuracy == whole.accuracy
    texts = [event.text for event in Store.reading(tmp_path / "r").events() if event.kind == "changed"]
    assert texts == ["training.rounds was 6, asked 9", "run.executor was 'serial', asked 'pool'"]
    assert "rounds = 9" in (tmp_path / "r" / "experiment.toml").read_text()


def test_what_auto_chose_is_kept_with_the_run(tmp_path: Path) -> None:
    """A trial may come out otherwise on another day; a resumed run must not depend on that."""
    api.run(experiment(rounds=2, run__executor="auto"), tmp_path / "r")
    store = Store.open(tmp_path / "r")
    assert "executor" in [event.kind for event in store.events()]
    store.put_meta("executor", '{"executor": "pool", "reason": "as told"}')
    store.close()
    resumed = api.run(experiment(rounds=3, run__executor="auto"), tmp_path / "r", resume=True)
    assert resumed.simulation.executor.describe().endswith("(as told)")


def test_what_would_change_results_is_refused_field_by_field(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "r")
    other = experiment(rounds=9, training__lr=0.5, partition__alpha=2.0, run__threads=2)
    with pytest.raises(InputError) as refused:
        api.run(other, folder, resume=True)
    message = str(refused.value)
    assert "partition.alpha was 0.5, asked 2.0; training.lr was 0.1, asked 0.5; run.threads was 1, asked 2;" in message
    assert "training.rounds" not in message
    with pytest.raises(InputError, match=r"model.name was 'logistic', asked '2nn'"):
        api.run(experiment(rounds=6, keep=2, model__name="2nn"), folder, resume=True)
    with pytest.raises(InputError, match=r"training.rounds was 6, asked 5"):
        api.run(experiment(rounds=5, keep=2), folder, resume=True)
    assert kinds(folder) == ["started", "finished"]


@pytest.mark.parametrize("at", [None, 2, 4])
def test_a_new_run_starts_from_a_kept_round(finished: Path, tmp_path: Path, at: int | None) -> None:
    """Forked without a change, it ends where the old run would have ended; its store says where it came from."""
    api.run(experiment(rounds=8), tmp_path / "new", fork=Fork(finished, at))
    whole = api.run(experiment(rounds=8), tmp_path / "whole")
    assert rounds_in(tmp_path / "new") == rounds_in(tmp_path / "whole")
    store = Store.reading(tmp_path / "new")
    assert store.meta("parent") == str(finished)
    assert store.meta("parent_round") == str(at or 6)
    assert [event.kind for event in store.events()] == ["started", "forked", "finished"]
    state = store.read_state()
    assert state is not None
    assert state.server.w.equal(whole.state.server.w)


def test_a_fork_may_change_the_training_and_leaves_the_old_run_alone(finished: Path, tmp_path: Path) -> None:
    before = (finished / FILE).read_bytes()
    api.run(experiment(rounds=7, training__lr=0.01), tmp_path / "new", fork=Fork.parse(f"{finished}@4"))
    assert rounds_in(tmp_path / "new")[:4] == rounds_in(finished)[:4]
    assert rounds_in(tmp_path / "new")[4] != rounds_in(finished)[4]
    assert (finished / FILE).read_bytes() == before


def test_a_kept_round_outlives_damage_to_the_last_state(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "r")
    with sqlite3.connect(folder / FILE) as db:
        db.execute("UPDATE tensors SET data = zeroblob(length(data)) WHERE owner = 'server' AND name = 'w'")
    with pytest.raises(DataError, match=r"server\.w is damaged"):
        api.run(experiment(rounds=8), folder, resume=True)
    api.run(experiment(rounds=8), tmp_path / "new", fork=Fork(folder, 4))
    api.run(experiment(rounds=8), tmp_path / "whole")
    assert rounds_in(tmp_path / "new") == rounds_in(tmp_path / "whole")


def test_forks_that_cannot_be(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"state after round 3; it holds those after 2, 4, 6 \(run.checkpoint_every"):
        api.run(experiment(rounds=8), tmp_path / "a", fork=Fork(finished, 3))
    with pytest.raises(InputError, match=r"training.rounds must be above 6, the round that the new run starts from"):
        api.run(experiment(rounds=6), tmp_path / "b", fork=Fork(finished))
    with pytest.raises(DataError, match=r"does not fit this model, algorithm and data: the names of server values"):
        api.run(experiment(rounds=8, algorithm__name="fedavg"), tmp_path / "c", fork=Fork(finished))
    with pytest.raises(DataError, match=r"kind of server.w must be float32 \[199210\], got float32 \[7850\]"):
        api.run(experiment(rounds=8, model__name="2nn"), tmp_path / "d", fork=Fork(finished))
    for name in "abcd":
        assert not (tmp_path / name / FILE).exists()


def test_a_directory_in_use_is_refused(finished: Path) -> None:
    with RunLock(finished), pytest.raises(LockedError, match="already going on in this process"):
        api.run(experiment(rounds=9), finished, resume=True)


@pytest.mark.parametrize("setting", ["seed=5", "algorithm=fedavg", "name=other"])
def test_resuming_what_is_not_there_beside_other_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(EXPERIMENT.replace("rounds = 200", "rounds = 1"))
    command = ["run", "e.toml", "--resume", "--quiet"]
    assert CliRunner().invoke(app, command).exit_code == 0  # nothing there at all: it starts
    refused = CliRunner().invoke(app, [*command, "--set", setting])
    assert isinstance(refused.exception, InputError)
    assert "but scaffold-mnist5k-seed0; give the settings or the name of that run" in str(refused.exception)
    assert [folder.name for folder in Path("runs").iterdir()] == ["scaffold-mnist5k-seed0"]
    assert CliRunner().invoke(app, [*command, "--set", "training.rounds=2"]).exit_code == 0


@contextmanager
def plugin(folder: Path) -> Iterator[Path]:
    """A module that leaves a file behind when it is imported."""
    (folder / "harmful.py").write_text(
        "from pathlib import Path\nfrom fedkeel.algorithms.fedavg import FedAvg\n"
        "Path('imported').touch()\nclass Mine(FedAvg):\n    name = 'mine'\n"
    )
    yield folder / "imported"


def test_code_of_others_runs_only_when_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file, from --set and from a sweep; resuming needs the permission again."""
    with plugin(tmp_path) as trace:
        text = EXPERIMENT.replace('"scaffold"', '"harmful:Mine"').replace("rounds = 200", "rounds = 2")
        (tmp_path / "e.toml").write_text(text)
        (tmp_path / "good.toml").write_text(EXPERIMENT.replace("rounds = 200", "rounds = 2"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        for file, settings in (
            ("e.toml", []),
            ("good.toml", ["algorithm.name=harmful:Mine"]),
            ("good.toml", ['sweep={algorithm=["harmful:Mine"]}']),
        ):
            with pytest.raises(InputError, match="imported only when asked for: if you trust it, use --allow-plugins"):
                config.read(Path(file), settings)
        assert not trace.exists()
        allowed = started(tmp_path, "run", "e.toml", "--allow-plugins")
        assert allowed.communicate(timeout=60)[1] == ""
        assert allowed.returncode == 0
        assert trace.exists()
        trace.unlink()
        again = CliRunner().invoke(app, ["run", "e.toml", "--resume"])
        assert "use --allow-plugins" in str(again.exception)
        assert not trace.exists()


def test_a_simulation_of_others_code_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with plugin(tmp_path) as trace:
        monkeypatch.syspath_prepend(str(tmp_path))
        forged = experiment(rounds=2).model_copy(update={"algorithm": config.AlgorithmConfig(name="harmful:Mine")})
        with pytest.raises(InputError, match="--allow-plugins"):
            build.make_simulation(forged)
        assert not trace.exists()
