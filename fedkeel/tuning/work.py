"""Gets a contest done: trials one after the other for each algorithm, algorithms beside each other, then fresh seeds.

A trial depends on the earlier ones of its algorithm only, so that the result does not depend on how many run at once.
A run is in its store until its record is written, and the store goes after that: a kill at any moment loses no trial
and repeats none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeel import config
from fedkeel.algorithms.validate import checked
from fedkeel.errors import FedkeelError, InputError
from fedkeel.papers.crew import cores, get_done
from fedkeel.papers.current import THEIRS, check_published
from fedkeel.papers.process import LOGS
from fedkeel.papers.work import RUNS, commit
from fedkeel.papers.worker import Job
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.recorded import RECORDS
from fedkeel.tuning import records as kept
from fedkeel.tuning.contest import Contest, final_experiment, searched, why_not
from fedkeel.tuning.plan import MINE, Planned, check_current, planned
from fedkeel.tuning.proposals import propose
from fedkeel.tuning.records import Collected, Stage, Tried, best
from fedkeel.tuning.spaces import plain

BEST = "best"
"""The folder of experiments with the best values of each algorithm."""


@dataclass(frozen=True)
class News:
    """What happened to a run."""

    run: Planned
    kind: str
    """``kept`` (a record was there), ``began``, ``round``, ``done``, ``failed``, ``stopped``."""
    round: int = 0
    seconds: float = 0.0
    record: Tried | None = None
    why: str = ""


Hear = Callable[[News], None]


@dataclass
class Outcome:
    """What became of a contest."""

    records: Collected
    not_run: dict[str, str]
    """Why an algorithm takes no part."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why an algorithm did not come to its end."""
    stopped: bool = False


def work(
    contest: Contest,
    algorithms: Sequence[str],
    out: Path,
    workers: int | None = None,
    data_dir: Path | None = None,
    hear: Hear = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    published: Path | None = None,
) -> Outcome:
    """Tune algorithms with the same budget, and run the best of each with fresh seeds; goes on with what is there.

    Of an algorithm that the working folder has nothing of, records in the folder ``published`` count as done.
    """
    not_run = {name: why for name in algorithms if (why := why_not(contest, name))}
    taking_part = [name for name in algorithms if name not in not_run]
    desk = _Desk(contest, taking_part, out, data_dir, hear)
    desk.use_what_is_there(out, MINE)
    if published is not None:
        check_published(published)
        desk.use_what_is_there(published, THEIRS)
    wanted = cores() if workers is None else workers
    stopped = get_done(desk, out / LOGS, wanted if wanted == 0 else min(wanted, max(1, len(taking_part))), stop)
    return Outcome(Collected(desk.found), not_run, desk.failures, stopped or desk.stopped)


@dataclass
class _Desk:
    """Who is at which trial."""

    contest: Contest
    algorithms: list[str]
    out: Path
    data_dir: Path | None
    hear: Hear
    found: dict[tuple[str, Stage, int], Tried] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    at_work: set[tuple[str, Stage, int]] = field(default_factory=set)
    stopped: bool = False
    commit: str | None = None

    def use_what_is_there(self, folder: Path, advice: str) -> None:
        """Take over the records of a folder, each of which must be one of this contest as it is now.

        Of an algorithm that has records of another folder already, none are: those of one tuning belong together.
        """
        self.commit = commit()
        there, known = Collected.of(self.contest.name, folder), Collected(self.found).algorithms()
        for algorithm in (name for name in self.algorithms if name not in known):
            trials = there.trials(algorithm)
            finals = [one for one in there.finals(algorithm) if one.number in self.contest.final_seeds]
            runs = check_current(self.contest, trials, finals, folder, advice)
            for run, record in zip(runs, trials + finals, strict=True):
                self.found[algorithm, record.stage, record.number] = record
                self._forget(run)
                self.hear(News(run, "kept", record.rounds, record=record))
            mine = [*there.trials(algorithm), *there.finals(algorithm)]
            if mine and folder != self.out and self._next_of(algorithm) is not None:
                for record in mine:
                    kept.write(self.out / RECORDS, record)  # beside those to come, which are nothing without them

    def next(self) -> tuple[Planned, Job] | None:
        """The next trial of the first algorithm that is not at one, or the next fresh seed of one that is tuned."""
        for algorithm in self.algorithms:
            if algorithm in self.failures:
                continue
            try:
                run = self._next_of(algorithm)
            except FedkeelError as error:
                self.failures[algorithm] = str(error)
                continue
            if run is not None:
                self.at_work.add((algorithm, run.stage, run.number))
                self.hear(News(run, "began"))
                return run, self._job(run)
        return None

    def _next_of(self, algorithm: str) -> Planned | None:
        mine = Collected(self.found).trials(algorithm)
        missing = [n for n in range(self.contest.trials) if (algorithm, "trial", n) not in self.found]
        if missing:
            if any(other == algorithm for other, _, _ in self.at_work):
                return None
            earlier = [one for one in mine if one.number < missing[0]]
            return planned(self.contest, algorithm, "trial", missing[0], propose(self.contest, algorithm, earlier))
        for seed in self.contest.final_seeds:
            of_seed: tuple[str, Stage, int] = (algorithm, "final", seed)
            if of_seed not in self.found and of_seed not in self.at_work:
                return planned(self.contest, algorithm, "final", seed, best(mine).choice)
        return None

    def _folder(self, run: Planned) -> Path:
        return self.out / RUNS / run.contest / run.name

    def _job(self, run: Planned) -> Job:
        space, _ = searched(self.contest, run.algorithm)
        about = {
            "contest": run.contest,
            "algorithm": run.algorithm,
            "stage": run.stage,
            "number": run.number,
            "chosen": run.chosen,
            "space": plain(space),
            "trials": self.contest.trials,
            "seeds": self.contest.seeds,
            "key": run.key,
            "commit": self.commit,
        }
        data_dir = None if self.data_dir is None else str(self.data_dir)
        text = config.dump(run.experiment)
        return Job(str(self._folder(run)), text, about, data_dir=data_dir, traffic=run.stage == "final")

    def told(self, run: Planned, news: dict[str, Any]) -> bool:
        """Take in what is said of a run; whether that was the last word."""
        if "round" in news:
            self.hear(News(run, "round", news["round"], news["seconds"]))
            return False
        self.at_work.discard((run.algorithm, run.stage, run.number))
        if "record" in news:
            self._keep(run, news["record"])
        elif "stopped" in news:
            self.stopped = True
            self.hear(News(run, "stopped", news["stopped"]))
        else:
            self.failed(run, str(news["failed"]))
        return True

    def _keep(self, run: Planned, fields: dict[str, Any]) -> None:
        fields.pop("values")  # what algorithms note of themselves is not asked here
        record = checked("record", Tried, json.loads(json.dumps(fields)))  # as it will be read back
        try:
            record.value  # noqa: B018 - without one there is nothing to choose by
        except InputError as error:
            self.failed(run, str(error))
            return
        kept.write(self.out / RECORDS, record)
        self.found[run.algorithm, run.stage, run.number] = record
        self._forget(run)
        self._write_best(run.algorithm)
        self.hear(News(run, "done", record.rounds, record=record))

    def _forget(self, run: Planned) -> None:
        """The store of a run that has its record; hundreds of them would fill a disk."""
        shutil.rmtree(self._folder(run), ignore_errors=True)

    def _write_best(self, algorithm: str) -> None:
        """The best values so far as an experiment that `fedkeel run` takes."""
        winner = best(Collected(self.found).trials(algorithm))
        experiment = final_experiment(self.contest, algorithm, winner.choice, 1)
        path = self.out / BEST / self.contest.name / f"{algorithm}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        said = f"# Trial {winner.number} of {self.contest.trials}: {winner.value:.2%} on held-out samples.\n"
        write_atomically(path, said + config.dump(experiment))

    def failed(self, run: Planned, why: str) -> None:
        """An algorithm goes no further; the others do."""
        self.at_work.discard((run.algorithm, run.stage, run.number))
        self.failures[run.algorithm] = why
        self.hear(News(run, "failed", why=why))
