"""Gets runs done: several at once in processes of their own, whatever ends whom, each record written when it is there.

What was done before is used again: a record that has all that is wanted, or the store of a run that was interrupted or
had stopped at a target. What fails in one run becomes a sentence, and the others go on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fedkeel
from fedkeel import config
from fedkeel.algorithms.validate import checked
from fedkeel.papers import records as kept
from fedkeel.papers.crew import cores, get_done
from fedkeel.papers.current import THEIRS, check_published, check_records
from fedkeel.papers.fleet import sail
from fedkeel.papers.plan import Planned
from fedkeel.papers.process import LOGS
from fedkeel.papers.records import Record, Records
from fedkeel.papers.worker import Job
from fedkeel.runs.recorded import RECORDS

RUNS = "runs"
"""The folder of stores inside a working folder."""


@dataclass(frozen=True)
class News:
    """What happened to a run."""

    run: Planned
    kind: str
    """``kept`` (a record was there), ``began``, ``round``, ``done``, ``failed``, ``stopped``."""
    round: int = 0
    seconds: float = 0.0
    """Of the last round."""
    record: Record | None = None
    why: str = ""


Hear = Callable[[News], None]


@dataclass
class Outcome:
    """What became of all runs."""

    records: dict[str, Record] = field(default_factory=dict)
    """By ``paper/name``."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a run has no record, or none that suffices."""
    stopped: bool = False

    def of(self, run: Planned) -> Record | None:
        """The record of a run."""
        return self.records.get(_id(run))


def _id(run: Planned) -> str:
    return f"{run.paper}/{run.name}"


def work(
    runs: Iterable[Planned],
    out: Path,
    workers: int | None = None,
    data_dir: Path | None = None,
    hear: Hear = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    address: str | None = None,
    published: Path | None = None,
) -> Outcome:
    """Get runs done in a working folder; ``workers`` processes (default: one per core, 0: in this one).

    Records of the folder ``published`` count as done, too; they stay where they are.

    With the ``address`` of a Ray cluster they are processes on its machines, by default one for each processor.
    """
    listed = list(runs)
    if address is not None:  # other machines know nothing of this process's folder
        out, data_dir = out.resolve(), None if data_dir is None else data_dir.resolve()
    found = Records.of(out)
    check_records(listed, found)
    if published is not None:
        check_published(published)
        missing = [run for run in listed if _record_of(run, found) is None]
        found = replace(Records.of(out, published), folder=published)
        check_records(missing, found, THEIRS)
    before = {_id(run): record for run in listed if (record := _record_of(run, found)) is not None}
    office = _Office(listed, before, out, data_dir, hear)
    office.use_what_is_there()
    most = max(1, len(office.waiting))
    if address is not None:
        stopped = sail(office, len(office.waiting), out, address, workers, stop)
    else:
        stopped = get_done(office, out / LOGS, workers if workers == 0 else min(workers or cores(), most), stop)
    office.outcome.stopped |= stopped
    return office.outcome


def _record_of(run: Planned, found: Records) -> Record | None:
    return found.get(run.paper, run.setting, run.method, run.seed, run.scale)


@dataclass
class _Office:
    """Who waits, who is at work, what is done; runs of one key and length are one run under several names."""

    runs: list[Planned]
    before: dict[str, Record]
    out: Path
    data_dir: Path | None
    hear: Hear
    outcome: Outcome = field(default_factory=Outcome)
    waiting: list[Planned] = field(default_factory=list)
    commit: str | None = None

    def use_what_is_there(self) -> None:
        """Take over records that suffice; the others wait, each computation under the first of its names."""
        self.commit = commit()
        for run in self.runs:
            record = self.before.get(_id(run))
            if record is not None and run.served_by(record):
                self.outcome.records[_id(run)] = record
                self.hear(News(run, "kept", record.rounds, record=record))
        missing = [run for run in self.runs if _id(run) not in self.outcome.records]
        by_work = {_work(run): self.outcome.records[_id(run)] for run in self.runs if _id(run) in self.outcome.records}
        for run in missing:
            if _work(run) in by_work:
                self._keep(run, by_work[_work(run)])
        waiting: dict[tuple[str, int], Planned] = {}
        for run in missing:
            if _id(run) not in self.outcome.records:
                waiting.setdefault(_work(run), run)
        self.waiting = list(waiting.values())

    def next(self) -> tuple[Planned, Job] | None:
        """A run that can begin; None if there is none, or none yet."""
        for run in list(self.waiting):
            leader = None if run.like is None else self._leader(run.like)
            if run.like is None or isinstance(leader, Record):
                self.waiting.remove(run)
                self.hear(News(run, "began"))
                return run, self._job(run, leader if isinstance(leader, Record) else None)
            if isinstance(leader, str):
                self.waiting.remove(run)
                self.failed(run, f"it shares the work of {run.like.method}: {leader}")
        return None

    def _leader(self, run: Planned) -> Record | str | None:
        """The record whose work is shared, why there is none, or None while it is not there yet."""
        for other in self.runs:
            if _work(other) == _work(run) and (record := self.outcome.of(other)) is not None:
                if record.ended == "diverged":
                    return f"it diverged after round {record.rounds}"
                return record
        failures = (self.outcome.failures.get(_id(other)) for other in self.runs if _work(other) == _work(run))
        return next((why for why in failures if why is not None), None)

    def _job(self, run: Planned, leader: Record | None) -> Job:
        training = run.experiment.training.model_copy(update={"until": run.until})
        about = {
            "paper": run.paper,
            "setting": run.setting,
            "scale": run.scale,
            "method": run.method,
            "seed": run.seed,
            "key": run.key,
            "commit": self.commit,
        }
        return Job(
            str(self.out / RUNS / run.paper / run.name),
            config.dump(run.experiment.model_copy(update={"training": training})),
            about,
            None if leader is None else (leader.steps, leader.rounds),
            None if self.data_dir is None else str(self.data_dir),
            dict(run.sets),
            run.drawn,
        )

    def told(self, run: Planned, news: dict[str, Any]) -> bool:
        """Take in what is said of a run; whether that was the last word."""
        if "round" in news:
            self.hear(News(run, "round", news["round"], news["seconds"]))
            return False
        if "record" in news:
            record = checked("record", Record, news["record"])
            for other in self.runs:
                if _work(other) == _work(run) and _id(other) not in self.outcome.records:
                    self._keep(other, record)
        elif "stopped" in news:
            self.outcome.stopped = True
            self.hear(News(run, "stopped", news["stopped"]))
        else:
            self.failed(run, str(news["failed"]))
        return True

    def _keep(self, run: Planned, record: Record) -> None:
        names = {"paper": run.paper, "setting": run.setting, "scale": run.scale, "method": run.method, "seed": run.seed}
        own = record.model_copy(update=names)
        kept.write(self.out / RECORDS, own)
        self.outcome.records[_id(run)] = own
        self.hear(News(run, "done", own.rounds, record=own))

    def failed(self, run: Planned, why: str) -> None:
        """One run has no result; so have its other names."""
        for other in self.runs:
            if _work(other) == _work(run):
                self.outcome.failures[_id(other)] = why
                self.hear(News(other, "failed", why=why))


def _work(run: Planned) -> tuple[str, int]:
    return run.key, run.rounds


def commit() -> str | None:
    """The commit of the source that is running, with a + where files differ; None where that is unknown."""
    folder = Path(fedkeel.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    try:
        words = ["git", "-C", str(folder)]
        head = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        asked = [*words, "status", "--porcelain", "--untracked-files=no", "--", "fedkeel"]
        changed = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
