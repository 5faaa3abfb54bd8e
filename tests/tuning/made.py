"""A contest small enough for tests, and records of it without running anything."""

from __future__ import annotations

from fedkeel.papers.current import resolved
from fedkeel.tuning.contest import Contest, searched
from fedkeel.tuning.plan import planned
from fedkeel.tuning.records import Stage, Tried
from fedkeel.tuning.spaces import AVERAGE, Value, plain

TINY = Contest(
    name="tiny",
    sections={
        "data": {"name": "mnist5k", "samples": 300},
        "partition": {"rule": "dirichlet", "clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"participation": 0.6, "batch_size": 20},
    },
    own={},
    validation=0.2,
    trials=2,
    trial_rounds=3,
    rounds=4,
    seeds=2,
    target=0.5,
    title="a tiny one",
)


def record(
    contest: Contest,
    algorithm: str,
    stage: Stage,
    number: int,
    accuracy: float,
    values: dict[str, Value] | None = None,
    diverged: bool = False,
    own: float | None = None,
) -> Tried:
    """Of a run with the same accuracy after every round, and 1 MB a round; ``own``: of a trial's model itself."""
    space, start = searched(contest, algorithm)
    after = {AVERAGE: False} if stage == "final" else {}  # of trials whose models are equally good
    run = planned(contest, algorithm, stage, number, start | after if values is None else values)
    rounds = tuple(range(1, run.experiment.training.rounds + 1))
    series: dict[str, tuple[tuple[int, ...], tuple[float | None, ...]]] = {
        "accuracy": (rounds, (accuracy,) * len(rounds)),
        "loss": (rounds, (1.0,) * len(rounds)),
    }
    if stage == "trial":
        series["accuracy:global"] = (rounds, (accuracy if own is None else own,) * len(rounds))
    else:
        series["bytes"] = (rounds, tuple(1e6 * t for t in rounds))
    return Tried(
        contest=contest.name,
        algorithm=algorithm,
        stage=stage,
        number=number,
        chosen=run.chosen,
        space=plain(space),
        trials=contest.trials,
        seeds=contest.seeds,
        key=run.key,
        experiment=resolved(run.experiment),
        fedkeel="0.1.0",
        commit="0123456789abcdef",
        rounds=len(rounds),
        ended="diverged" if diverged else "finished",
        series=series,
        steps=10 * len(rounds),
        bytes_up=1,
        bytes_down=1,
        seconds=1.0,
    )


def through(contest: Contest, algorithm: str, accuracies: list[float], diverged: tuple[int, ...] = ()) -> list[Tried]:
    """All records of an algorithm: equal trials, then one accuracy for each seed."""
    made = [record(contest, algorithm, "trial", number, 0.5) for number in range(contest.trials)]
    return made + [
        record(contest, algorithm, "final", seed, accuracy, diverged=seed in diverged)
        for seed, accuracy in zip(contest.final_seeds, accuracies, strict=True)
    ]
