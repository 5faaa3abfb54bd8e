"""One run of a contest as an experiment, and whether a record is of that run: else it would pass for what it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedkeel import config
from fedkeel.errors import InputError
from fedkeel.papers import plan
from fedkeel.papers.current import computed_otherwise
from fedkeel.tuning.contest import Contest, final_experiment, searched, trial_experiment
from fedkeel.tuning.records import Collected, Stage, Tried, best, name_of
from fedkeel.tuning.spaces import Value, plain


@dataclass(frozen=True)
class Planned:
    """One run of a contest."""

    contest: str
    algorithm: str
    stage: Stage
    number: int
    experiment: config.Experiment
    chosen: dict[str, Value]

    @property
    def name(self) -> str:
        """Of its record and folder."""
        return name_of(self.algorithm, self.stage, self.number)

    @cached_property
    def key(self) -> str:
        """Decided by everything that decides the numbers."""
        return plan.key(self.experiment)


def planned(contest: Contest, algorithm: str, stage: Stage, number: int, values: dict[str, Value]) -> Planned:
    """A trial with these values, or a run with these values and the seed ``number``."""
    make = trial_experiment if stage == "trial" else final_experiment
    return Planned(contest.name, algorithm, stage, number, make(contest, algorithm, values, number), values)


MINE = "move the records of {} away, or choose another folder with --out"


def check_current(
    contest: Contest, trials: Sequence[Tried], finals: Sequence[Tried], where: Path, advice: str = MINE
) -> list[Planned]:
    """The runs that an algorithm's records are of, in this contest as it is now; refuses those that are of another.

    ``trials`` are all that it has: a run after tuning must have the values of the best. ``advice`` is what to do about
    a record that is refused.
    """

    def stale(record: Tried, why: str) -> InputError:
        what = advice.format(record.algorithm)
        return InputError(f"the record {record.name} of {record.contest} in {where} {why}; {what}.")

    def run_of(record: Tried) -> Planned:
        if record.space != plain(space):
            raise stale(record, "was tuned over another space")
        values = record.chosen
        if (record.stage, record.number) == ("trial", 0) and values != start:
            raise stale(record, "does not have the values that tuning begins with")
        if record.stage == "final":
            if len(trials) < contest.trials:
                raise stale(record, "has not all trials beside it that its values were chosen from")
            values = best(list(trials)).choice
        run = planned(contest, record.algorithm, record.stage, record.number, values)
        if record.trials != contest.trials or (record.stage == "trial" and record.number >= contest.trials):
            raise stale(record, f"is one of {record.trials} trials where {contest.trials} are asked for")
        if record.chosen != values:
            raise stale(record, "does not have the values of the best trial")
        why = computed_otherwise(run.experiment, run.key, record.key, record.experiment)
        if why:
            raise stale(record, f"is not one of the setting as it is now: {why}")
        return run

    records = [*trials, *finals]
    if not records:
        return []
    space, start = searched(contest, records[0].algorithm)
    return [run_of(record) for record in records]


def budgeted(contest: Contest, found: Collected, where: Path) -> Contest:
    """The contest with the budget that its records were made with, which must be everybody's; all are compared.

    So that results of fewer trials or rounds are shown as what they are.
    """
    lengths = {
        stage: {one.experiment["training"]["rounds"] for one in found.found.values() if one.stage == stage}
        for stage in ("trial", "final")
    }
    trials = {one.trials for one in found.found.values()}
    for what, numbers in {"trials": trials, "rounds of a trial": lengths["trial"], "rounds": lengths["final"]}.items():
        if len(numbers) > 1:
            listed = " and ".join(map(str, sorted(numbers)))
            raise InputError(
                f"the records of {contest.name} in {where} have {listed} {what}: budgets must be equal to be compared; "
                "move those of one budget to a folder of their own."
            )
    made = replace(
        contest,
        trials=next(iter(trials), contest.trials),
        trial_rounds=next(iter(lengths["trial"]), contest.trial_rounds),
        rounds=next(iter(lengths["final"]), contest.rounds),
        seeds=max((one.seeds for one in found.found.values()), default=contest.seeds),
    )
    for algorithm in found.algorithms():
        check_current(made, found.trials(algorithm), found.finals(algorithm), where)
    return made
