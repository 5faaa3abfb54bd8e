"""Trackers: what other tools read back is what the run holds, and nothing they do touches the run."""

import math
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel import api, config, trackers
from fedkeel.cli.main import app
from fedkeel.errors import InputError
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.history import History
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import Store
from fedkeel.runs.watching import About
from fedkeel.trackers import tracker as tracking
from fedkeel.trackers.tracker import Rows, Tracker, rows_of

NAN_SAFE = {"nan_ok": True, "rel": 1e-6}
"""TensorBoard keeps 32 bits."""


def experiment(rounds: int = 4, **changes: Any) -> config.Experiment:
    table: dict[str, Any] = {
        "algorithm": {"name": "fedveca"},
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "participation": 1.0},
        "evaluation": {"every": 2, "train": True, "metrics": ["f1"]},
        "run": {"executor": "serial"},
    }
    return config.expand(table | changes, [])[0]


def expected(history: History) -> dict[str, dict[int, float]]:
    """Every number of a run by name and round."""
    found: dict[str, dict[int, float]] = {}
    for round, numbers in rows_of(history):
        for name, value in numbers.items():
            found.setdefault(name, {})[round] = value
    return found


def events(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard's own reader finds in a folder."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0})
    found.Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def metrics(database: Path) -> dict[str, dict[int, float]]:
    """What MLflow's own client finds in a database of one run; each step is there once."""
    library = pytest.importorskip("mlflow")
    client = library.MlflowClient(tracking_uri=f"sqlite:///{database}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedkeel").experiment_id])
    found = {}
    for name in run.data.metrics:
        points = client.get_metric_history(run.info.run_id, name)
        found[name] = {point.step: point.value for point in points}
        assert len(found[name]) == len(points)
    return found


def same(found: dict[str, dict[int, float]], history: History) -> None:
    wanted = expected(history)
    assert found.keys() == wanted.keys()
    for name, by_round in wanted.items():
        assert found[name] == pytest.approx(by_round, **NAN_SAFE), name


def tensorboard_in(folder: Path) -> Tracker:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    return trackers.tensorboard(folder / "events")


def mlflow_in(folder: Path) -> Tracker:
    for needed in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    return trackers.mlflow(folder / "mlflow.db")


LIBRARIES = pytest.mark.parametrize(
    ("made", "read"),
    [(tensorboard_in, lambda f: events(f / "events")), (mlflow_in, lambda f: metrics(f / "mlflow.db"))],
    ids=["tensorboard", "mlflow"],
)
Made = Callable[[Path], Tracker]
Read = Callable[[Path], dict[str, dict[int, float]]]


@LIBRARIES
def test_the_library_reads_back_what_the_run_holds(made: Made, read: Read, tmp_path: Path) -> None:
    run = api.run(experiment(), tmp_path / "r", watch=made(tmp_path))
    same(read(tmp_path), run.history)
    names = expected(run.history)
    assert {"test/accuracy", "test/f1", "train/loss", "round/bytes_up", "mean value/tau"} <= names.keys()


@LIBRARIES
def test_a_run_that_goes_on_is_written_on_with_what_was_missed(made: Made, read: Read, tmp_path: Path) -> None:
    """Rounds 1 and 2 are tracked, round 3 is not, from 4 on they are again."""
    api.run(experiment(2), tmp_path / "r", watch=made(tmp_path))
    api.run(experiment(3), tmp_path / "r", resume=True)
    run = api.run(experiment(5), tmp_path / "r", resume=True, watch=made(tmp_path))
    assert len(run.history.rounds) == 5
    same(read(tmp_path), run.history)


def test_mlflow_keeps_settings_and_how_a_run_ended(tmp_path: Path) -> None:
    tracker = mlflow_in(tmp_path)
    library = pytest.importorskip("mlflow")
    client = library.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")

    def run() -> Any:
        (found,) = client.search_runs([client.get_experiment_by_name("fedkeel").experiment_id])
        return found

    api.run(experiment(), tmp_path / "r", watch=tracker, stop=lambda: True)
    assert (run().info.status, run().data.tags["ended"]) == ("KILLED", "stopped")
    api.run(experiment(), tmp_path / "r", watch=tracker, resume=True)
    assert (run().info.status, run().data.params["algorithm.name"]) == ("FINISHED", "fedveca")


def test_a_database_of_mlflow_is_there_wholly_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow cannot open one again whose making was interrupted, so a kill must not leave such a file."""
    tracker = mlflow_in(tmp_path)
    library = pytest.importorskip("mlflow")
    made, seen = library.MlflowClient, []

    def client(tracking_uri: str) -> Any:
        seen.append((tmp_path / "mlflow.db").exists())
        return made(tracking_uri=tracking_uri)

    def broken(tracking_uri: str) -> Any:
        client(tracking_uri)
        raise OSError("killed while the tables are made")

    monkeypatch.setattr(library, "MlflowClient", broken)
    _, told = notices_of(experiment(1), tmp_path / "r", watch=tracker)
    assert (seen, sum("killed while" in text for text in told)) == ([False], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    monkeypatch.setattr(library, "MlflowClient", client)
    run = api.run(experiment(2), tmp_path / "r", watch=tracker, resume=True)
    monkeypatch.undo()
    assert seen == [False, False, True]
    same(metrics(tmp_path / "mlflow.db"), run.history)


def test_mlflow_refuses_a_path_that_its_addresses_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without"):
        trackers.mlflow(tmp_path / "what?.db")


def test_wandb_writes_offline_and_goes_on_under_the_same_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    api.run(experiment(2), tmp_path / "r", watch=trackers.wandb(tmp_path))
    first = (tmp_path / "r" / "wandb-id.txt").read_text().strip()
    api.run(experiment(3), tmp_path / "r", watch=trackers.wandb(tmp_path), resume=True)
    assert (tmp_path / "r" / "wandb-id.txt").read_text().strip() == first
    written = sorted((tmp_path / "wandb").glob(f"offline-run-*-{first}/run-{first}.wandb"))
    assert written
    assert all(path.stat().st_size > 0 for path in written)


def test_the_command_tracks_by_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "e.toml").write_text(
        'name = "r"\n[partition]\nclients = 5\n[model]\nname = "logistic"\n[training]\nrounds = 2\nsteps = 1\n'
        '[run]\nexecutor = "serial"\n'
    )
    words = ["run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "out"), "-q", "--track", "tensorboard"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    with closing(Store.reading(tmp_path / "out" / "r")) as store:
        same(events(tmp_path / "out" / "r" / "tensorboard"), store.history())


@pytest.mark.parametrize("name", ["tensorbord", "os", "my.module:tracker", "__import__('os')", ""])
def test_names_choose_from_a_list_and_nothing_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("[training]\nrounds = 1\n")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "o"), "--track", name])
    assert isinstance(result.exception, InputError)
    assert "there is no tracker named" in str(result.exception)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", trackers.NAMES)
def test_a_library_that_is_not_there_is_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=rf"pip install 'fedkeel\[{name}\]'"):
        trackers.tracker_of(name, tmp_path / "r")


def test_libraries_are_imported_only_when_used() -> None:
    code = "import sys, fedkeel.trackers, fedkeel.cli.experiments\n"
    code += (
        "sys.exit(any(name in sys.modules for name in ('tensorboard', 'mlflow', 'wandb', 'torch.utils.tensorboard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Failing:
    """A writer whose disk is full from some round on."""

    def __init__(self, about: About, good: int) -> None:
        self.good, self.rows, self.how = good, [], ""

    def write(self, rows: Rows) -> None:
        if any(round > self.good for round, _ in rows):
            raise OSError(28, "No space left on device")

    def close(self, how: str) -> None:
        self.how = how


def notices_of(*args: Any, **kwargs: Any) -> tuple[api.Run, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = api.run(*args, **kwargs)
    return run, [str(w.message) for w in caught if issubclass(w.category, FedkeelWarning)]


def _exit(about: About) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("opening", "said"),
    [
        (lambda about: Failing(about, 0), "No space left on device"),
        (lambda about: Failing(about, 2), "No space left on device"),
        (lambda about: 1 / 0, "ZeroDivisionError"),
        (_exit, "SystemExit: 3"),
    ],
)
def test_a_tracker_that_fails_is_switched_off_with_one_notice(opening: Any, said: str, tmp_path: Path) -> None:
    broken = Tracker("broken", [], opening)
    run, told = notices_of(experiment(6), tmp_path / "r", watch=broken)
    (sentence,) = [text for text in told if "tracker" in text]
    assert said in sentence
    assert "was switched off" in sentence
    plain = api.run(experiment(6), tmp_path / "plain")
    assert run.state.server.w.equal(plain.state.server.w)
    assert run.history.measured == plain.history.measured
    with closing(Store.reading(tmp_path / "r")) as store:
        assert [event.kind for event in store.events()].count("tracker") == 1


def test_a_library_that_cannot_be_imported_is_switched_off(tmp_path: Path) -> None:
    broken = Tracker("broken", [], lambda about: Failing(about, 99))
    broken._modules = ["no_such_module_anywhere"]
    run, told = notices_of(experiment(2), tmp_path / "r", watch=broken)
    assert run.ended == "finished"
    assert sum("ModuleNotFoundError" in text for text in told) == 1


def test_nobody_waits_for_a_tracker_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds go on while it hangs; too many of them, or the end, switch it off."""
    monkeypatch.setattr(tracking, "PATIENCE", 0.1)
    free = threading.Event()

    def hang(about: About) -> Any:
        free.wait(60)
        raise OSError("the server is gone")

    run, told = notices_of(experiment(4), tmp_path / "r", watch=Tracker("slow", [], hang))
    assert (run.ended, sum("after the last round" in text for text in told)) == ("finished", 1)
    monkeypatch.setattr(tracking, "WAITING", 2)
    run, told = notices_of(experiment(5), tmp_path / "s", watch=Tracker("slow", [], hang))
    assert (run.ended, sum("rounds behind" in text for text in told)) == ("finished", 1)
    free.set()


def test_a_tracker_is_told_how_a_run_ended(tmp_path: Path) -> None:
    made: list[Failing] = []

    def opening(about: About) -> Failing:
        made.append(Failing(about, 99))
        return made[-1]

    def fail(progress: Progress) -> None:
        raise RuntimeError("out of paper")

    followed = Tracker("t", [], opening)
    api.run(experiment(2), tmp_path / "a", watch=followed)
    api.run(experiment(2), tmp_path / "b", watch=followed, stop=lambda: True)
    api.run(experiment(2), tmp_path / "c", watch=followed, until=lambda progress: True)
    with pytest.raises(RuntimeError, match="out of paper"):
        api.run(experiment(2), tmp_path / "d", watch=[followed, fail])
    assert [writer.how for writer in made] == ["finished", "stopped", "until", "failed"]


def test_a_second_run_does_not_mix_with_the_first_in_one_folder(tmp_path: Path) -> None:
    run = api.run(experiment(2), tmp_path / "a", watch=tensorboard_in(tmp_path))
    _, told = notices_of(experiment(3), tmp_path / "b", watch=tensorboard_in(tmp_path))
    assert sum("holds the events of another run" in text for text in told) == 1
    same(events(tmp_path / "events"), run.history)


def test_a_run_in_memory_can_be_tracked(tmp_path: Path) -> None:
    fed = fk.data.load("mnist5k").partition("dirichlet", clients=5, alpha=0.5, seed=0)
    tracker = tensorboard_in(tmp_path)
    run = fk.train("fedavg", model="logistic", data=fed, rounds=2, steps=1, executor="serial", watch=[tracker])
    same(events(tmp_path / "events"), run.history)


def test_names_of_metrics_and_values_stay_apart() -> None:
    names = ["a/b", "a_2f_b", "..", ".", "a b", "τ̄", "a:b", "_2f_", "/", "__", "a//b", " x", "x "]
    made = [tracking._safe(name) for name in names]
    assert len(set(made)) == len(names)
    assert all("/" not in name and not name.startswith((".", " ")) for name in made)


def test_a_metric_that_is_not_finite_goes_through(tmp_path: Path) -> None:
    tracker = tensorboard_in(tmp_path)
    tracker.begin(About("x", None, {}, History()))
    summary = api.run(experiment(1), tmp_path / "r").history.rounds[0]
    tracker(Progress(1, 1, summary, [], noted={"n": math.nan, "i": math.inf}))
    tracker.end("finished")
    found = events(tmp_path / "events")
    assert math.isnan(found["value/n"][1])
    assert found["value/i"][1] == math.inf


@LIBRARIES
def test_a_place_that_cannot_be_written_ends_no_run(made: Made, read: Read, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    run, told = notices_of(experiment(2), tmp_path / "r", watch=made(tmp_path / "file"))
    assert (run.ended, sum("was switched off" in text for text in told)) == ("finished", 1)


def test_a_server_that_is_gone_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setattr(tracking, "PATIENCE", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    gone = trackers.mlflow("http://127.0.0.1:9")
    run, told = notices_of(experiment(2), tmp_path / "r", watch=gone)
    assert (run.ended, sum("was switched off" in text for text in told)) == ("finished", 1)


FULL = """
import resource, sys, warnings
import fedkeel as fk
fed = fk.data.load("mnist5k").partition("dirichlet", clients=5, alpha=0.5, seed=0)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))  # as a disk that is full after 4 kB
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = fk.train("fedavg", model="logistic", data=fed, rounds=30, steps=1, executor="serial",
                   watch=fk.trackers.tensorboard(sys.argv[1]))
print(run.ended, sum("the tracker tensorboard was switched off, OSError" in str(w.message) for w in caught))
"""


def test_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    words = [sys.executable, "-c", FULL, str(tmp_path / "events")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout.split() == ["finished", "1"], done.stderr
