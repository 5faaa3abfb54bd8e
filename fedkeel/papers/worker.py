"""One run after another in a process of its own: ``python -m fedkeel.papers.worker``, started by ``work``.

A line of JSON on standard input is a job, an empty one asks to stop after the round; lines of JSON on standard output
say how it goes. When the input ends, whoever asked is gone, and so is this process: what it had done is in the run's
store.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import sys
import threading
import time
import tomllib
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVERY = 0.25
"""Seconds between two words about rounds."""
PATIENCE = 5.0
"""Seconds for which a run that somebody else holds is waited for."""
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """A run and what its record says of it."""

    folder: str
    experiment: str
    """As TOML."""
    about: dict[str, Any]
    """Paper, setting, scale, method, seed, key, commit."""
    work: tuple[int, int] | None = None
    """Local steps and rounds of the run whose work this one shares among its clients."""
    data_dir: str | None = None
    sets: dict[str, Any] | None = None
    """Options of the prediction sets to measure at the end, if any."""
    drawn: tuple[str, ...] = ()
    """Names of values that figures show: of these, the record has the numbers of single clients too."""
    traffic: bool = False
    """Whether the record has the bytes sent up to every evaluation, as the series ``bytes``."""


@dataclass(frozen=True)
class SweepJob:
    """A run of a sweep. What it measured is in its folder; told is only how it ended."""

    folder: str
    experiment: str
    """As TOML."""
    home: str
    """The folder that relative paths and own modules start from."""
    resume: bool
    fork: str | None = None
    allow_plugins: bool = False
    data_dir: str | None = None


def perform(job: Job | SweepJob, tell: Tell, stop: Callable[[], bool]) -> None:
    """Do a job, from where it stands to its end; tell of rounds, and at last of the record or of what went wrong."""
    from fedkeel.errors import FedkeelError
    from fedkeel.runs.lock import LockedError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the run has to say of itself stands in its diary
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    tell(_performed(job, tell, stop) if isinstance(job, Job) else _swept(job, tell, stop))
                    return
                except LockedError:  # by a worker of a command that was killed, which is about to notice
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(EVERY)
    except FedkeelError as error:
        tell({"failed": str(error)})
    except MemoryError:
        tell({"failed": "there is not enough memory for it; run fewer at once (--workers 1)."})
    except Exception as error:
        tell({"failed": f"it ended with {type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _performed(job: Job, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any]:
    from fedkeel import api, build, config
    from fedkeel.errors import DivergedError
    from fedkeel.papers.sharing import Work

    experiment = config.Experiment(**tomllib.loads(job.experiment))
    data_dir = None if job.data_dir is None else Path(job.data_dir)
    federation = build.make_federation(experiment, data_dir)
    about = dict(job.about)
    if job.work is not None:
        steps, rounds = job.work
        work = Work(steps=steps, rounds=rounds, clients=federation.N, samples=federation.n)
        experiment, about["work"] = with_work(experiment, work), work.model_dump()
    watch = _now_and_then(tell)
    folder, ended, diverged = Path(job.folder), "diverged", None
    try:
        run = api.run(experiment, folder, data_dir=data_dir, federation=federation, resume=True, watch=watch, stop=stop)
        history, ended = run.history, run.ended
        if ended == "stopped":
            return {"stopped": len(history.rounds)}
        if job.sets:
            about["sets"] = sets_of(run.conformal(**job.sets))
    except DivergedError as error:
        history, diverged = stored_history(folder), str(error)
    made = record_of(experiment, history, ended, diverged, about, federation.dataset.note, job.drawn)
    if job.traffic:
        made["series"]["bytes"] = traffic_of(history)
    return {"record": made}


def _now_and_then(tell: Tell) -> Callable[[Any], None]:
    """Tells of rounds, not too often."""
    told = 0.0

    def watch(progress: Any) -> None:
        nonlocal told
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            tell({"round": progress.round, "seconds": progress.summary.seconds})

    return watch


def _swept(job: SweepJob, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any]:
    from fedkeel import api, config
    from fedkeel.errors import DivergedError
    from fedkeel.runs.fork import Fork

    os.chdir(job.home)
    if job.allow_plugins and job.home not in sys.path:
        sys.path.insert(0, job.home)
    try:
        run = api.run(
            config.Experiment(**tomllib.loads(job.experiment)),
            Path(job.folder),
            data_dir=None if job.data_dir is None else Path(job.data_dir),
            resume=job.resume,
            fork=None if job.fork is None else Fork.parse(job.fork),
            allow_plugins=job.allow_plugins,
            watch=_now_and_then(tell),
            stop=stop,
        )
    except DivergedError as error:
        return {"diverged": str(error)}
    done = len(run.history.rounds)
    return {"stopped": done} if run.ended == "stopped" else {"ended": run.ended, "rounds": done}


def with_work(experiment: Any, work: Any) -> Any:
    """The experiment with its share of the work as epochs or steps."""
    from fedkeel.papers.sharing import share

    own = share(work, experiment.training.batch_size)
    training = experiment.training.model_validate(experiment.training.model_dump() | own)
    return experiment.model_copy(update={"training": training})


def sets_of(found: Any) -> list[tuple[Any, ...]]:
    """Prediction sets as records hold them."""
    from fedkeel.papers.records import rounded

    return [tuple(map(rounded, (1 - level.alpha, level.coverage, level.size))) for level in found.curve]


def stored_history(folder: Path) -> Any:
    """All whole rounds of a run that did not end well."""
    from contextlib import closing

    from fedkeel.runs.history import History
    from fedkeel.runs.store import Store, holds_run

    if not holds_run(folder):
        return History()
    with closing(Store.reading(folder)) as store:
        return store.history()


def record_of(
    experiment: Any,
    history: Any,
    ended: str,
    diverged: str | None,
    about: dict[str, Any],
    note: str = "",
    drawn: Collection[str] = (),
) -> dict[str, Any]:
    """What is kept of a run for good, as the fields of a ``Record``."""
    import torch

    from fedkeel import __version__
    from fedkeel.papers.current import resolved
    from fedkeel.papers.records import series, values

    measured = {}
    for split, prefix in (("test", ""), ("train", "train_")):
        reported = history.default_model(split)
        for model in history.models(split):
            points, suffix = history.series(model, split), "" if model == reported else f":{model}"
            measured[f"{prefix}accuracy{suffix}"] = series((m.round, m.accuracy) for m in points)
            measured[f"{prefix}loss{suffix}"] = series((m.round, m.loss) for m in points)
    return about | {
        "experiment": resolved(experiment),
        "fedkeel": __version__,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            **({"data": note} if note else {}),
        },
        "rounds": len(history.rounds),
        "ended": ended,
        "diverged": diverged,
        "series": measured,
        "values": {name: values(found) for name, found in kept_values(history, drawn).items()},
        "steps": sum(r.steps for r in history.rounds),
        "bytes_up": sum(r.bytes_up for r in history.rounds),
        "bytes_down": sum(r.bytes_down for r in history.rounds),
        "seconds": round(history.seconds, 2),
    }


def traffic_of(history: Any) -> Any:
    """Bytes sent in both directions up to every evaluation of the reported model, exact."""
    rounds = [point.round for point in history.series()]
    return tuple(rounds), tuple(history.bytes_to(round) for round in rounds)


def kept_values(history: Any, drawn: Collection[str]) -> dict[str, dict[int, Any]]:
    """What was noted and a record holds; numbers of single clients, which are many, only where a figure shows them."""
    noted = {name: history.values(name) for name in history.names}
    return {
        name: found
        for name, found in noted.items()
        if name in drawn or not any(isinstance(value, dict) for value in found.values())
    }


def main() -> None:
    """Serve until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group; whoever asked decides what follows
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stray print must not be taken for news
    jobs: queue.SimpleQueue[Job | SweepJob] = queue.SimpleQueue()
    asked_to_stop = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip():
                fields = json.loads(line)
                jobs.put(Job(**fields) if "about" in fields else SweepJob(**fields))
            else:
                asked_to_stop.set()
        os._exit(0)

    def tell(news: dict[str, Any]) -> None:
        try:
            protocol.write(json.dumps(news) + "\n")
            protocol.flush()
        except OSError:
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        perform(jobs.get(), tell, asked_to_stop.is_set)


if __name__ == "__main__":
    main()
