"""What is contested: the experiment that everybody gets, the budget, and who can take part."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fedkeel import config
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.validate import Settings, checked
from fedkeel.data.sources import brings_clients
from fedkeel.errors import FedkeelError, InputError, unknown
from fedkeel.papers.format import papers
from fedkeel.papers.plan import IN_ONE_PROCESS
from fedkeel.tuning.spaces import Space, Value, placed, space_of

FILE = Path(__file__).with_name("leaderboard.toml")
TUNING_SEED = 0
"""Of every trial; the runs after tuning have the seeds 1, 2, …"""
SECTIONS = ("data", "partition", "model", "training", "faults", "robust", "clock", "evaluation")
"""All of an experiment that a result depends on, but for its algorithm."""


class Entrants(Settings):
    """The best of another setting, and the methods of the papers."""

    best: int = Field(ge=1)
    of: str
    papers: bool = False


class Setting(Settings):
    """One entry of ``leaderboard.toml``."""

    title: str
    data: dict[str, Any] = {}
    partition: dict[str, Any] = {}
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    validation: float = Field(gt=0, lt=1)
    trials: int = Field(ge=1)
    trial_rounds: int = Field(ge=1)
    trial_every: int = Field(ge=1)
    rounds: int = Field(ge=1)
    seeds: int = Field(ge=1)
    target: float = Field(gt=0, le=1)
    entrants: Literal["all"] | Entrants

    @model_validator(mode="after")
    def _decides_what_it_says(self) -> Setting:
        for section, field in (("training", "rounds"), ("data", "validation"), ("data", "evaluate_on")):
            if field in getattr(self, section):
                raise ValueError(f"given without {section}.{field}, which the budget decides")
        return self


class _File(Settings):
    settings: dict[str, Setting]
    begins: dict[str, dict[str, Value]] = {}


@cache
def _shipped() -> _File:
    return checked("leaderboard.toml", _File, tomllib.loads(FILE.read_text(encoding="utf-8")))


def begins() -> dict[str, dict[str, Value]]:
    """The parameters of trial 0 where they are not the defaults, by algorithm."""
    return _shipped().begins


@cache
def settings() -> dict[str, Setting]:
    """What is shipped, by name."""
    found = _shipped().settings
    for name, one in found.items():
        if isinstance(one.entrants, Entrants) and (one.entrants.of == name or one.entrants.of not in found):
            raise unknown(f"setting for the entrants of {name}", one.entrants.of, list(found))
    return found


@dataclass(frozen=True)
class Contest:
    """What is the same for everybody."""

    name: str
    sections: dict[str, Any]
    """Of the experiment; nothing of an algorithm, a seed or a length."""
    own: dict[str, dict[str, Any]]
    """Parameters that a file gives algorithms, by name."""
    validation: float
    trials: int
    trial_rounds: int
    rounds: int = 0
    seeds: int = 0
    """How many runs are judged after tuning; 0: tuning only."""
    target: float = 0.5
    title: str = ""
    trial_every: int | None = None
    """Rounds from one evaluation of a trial to the next; None: as the experiment has it."""

    @property
    def final_seeds(self) -> tuple[int, ...]:
        """Those of the runs after tuning, which tuning has not seen; the same for everybody."""
        return tuple(range(TUNING_SEED + 1, TUNING_SEED + 1 + self.seeds))

    def with_budget(self, trials: int | None = None, rounds: int | None = None, seeds: int | None = None) -> Contest:
        """The same with another number of trials, of rounds (trials get their share of them), or of seeds."""
        share = self.trial_rounds if rounds is None else max(1, round(rounds * self.trial_rounds / self.rounds))
        return replace(
            self,
            trials=self.trials if trials is None else trials,
            rounds=self.rounds if rounds is None else rounds,
            trial_rounds=share,
            seeds=self.seeds if seeds is None else seeds,
        )


def contest(name: str) -> Contest:
    """One of the leaderboard."""
    if name not in settings():
        raise unknown("setting of the leaderboard", name, list(settings()))
    one = settings()[name]
    sections = {section: dict(getattr(one, section)) for section in SECTIONS if getattr(one, section, None)}
    return Contest(
        name,
        sections,
        own={algorithm: dict(values) for algorithm, values in begins().items()},
        validation=one.validation,
        trials=one.trials,
        trial_rounds=one.trial_rounds,
        rounds=one.rounds,
        seeds=one.seeds,
        target=one.target,
        title=one.title,
        trial_every=one.trial_every,
    )


def contest_of(
    experiments: Sequence[config.Experiment], name: str, trials: int, rounds: int | None, share: float
) -> Contest:
    """One about somebody's own experiments, which may differ in the algorithm and its parameters only.

    What they hold out for validation is what trials are judged by; where that is nothing, ``share`` is held out.
    """
    sections = [_sections(one) for one in experiments]
    own = {one.algorithm.name: one.algorithm_params() for one in experiments}
    if any(other != sections[0] for other in sections) or len(own) < len(experiments):
        raise InputError(
            "the runs of an experiment that is tuned may differ in their algorithms only; take [sweep] out."
        )
    first, data = experiments[0], sections[0].setdefault("data", {})
    if first.training.until is not None:
        raise InputError("training.until must be absent for tuning: budgets are equal only if all rounds are run.")
    held = data.get("validation") or share
    return Contest(name, sections[0], own, held, trials, first.training.rounds if rounds is None else rounds)


def _sections(experiment: config.Experiment) -> dict[str, Any]:
    """What an experiment gives, but for its algorithm and its length."""
    table = experiment.model_dump(exclude_unset=True)
    found = {section: dict(table[section]) for section in SECTIONS if section in table}
    found.get("training", {}).pop("rounds", None)
    return found


def why_not(contest: Contest, algorithm: str) -> str:
    """Why an algorithm cannot take part; empty: it can."""
    cls = ALGORITHMS[algorithm]
    training = contest.sections.get("training", {})
    if "full" in cls.needs and training.get("participation", 1.0) < 1:
        return "it needs every client in every round"
    if "equal_steps" in cls.needs and training.get("steps") is None:
        return "it needs the same number of local steps at every client (training.steps)"
    if is_yardstick(cls) and brings_clients(contest.sections.get("data", {}).get("name", "")):
        return "it needs all samples in one place, and these come dealt to clients"
    try:
        trial_experiment(contest, algorithm, {})
    except FedkeelError as error:
        return str(error)
    return ""


def is_yardstick(cls: type[Algorithm]) -> bool:
    """Whether it pools all samples, which is what federated learning cannot do: shown beside the others, not ranked."""
    return "one_client" in cls.needs


def _table(contest: Contest, algorithm: str) -> dict[str, Any]:
    sections = {name: dict(part) for name, part in contest.sections.items()}
    sections["algorithm"] = {"name": algorithm} | contest.own.get(algorithm, {})
    if is_yardstick(ALGORITHMS[algorithm]):
        # As many samples a round as a cohort's clients see together.
        training, clients = sections.setdefault("training", {}), sections.get("partition", {}).get("clients", 100)
        share = training.pop("participation", 1.0)
        if training.get("steps") is not None:
            training["steps"] = max(1, round(training["steps"] * share * clients))
        else:
            training["epochs"] = (training.get("epochs") or 1) * share
        sections["partition"] = {"rule": "iid", "clients": 1}
    return sections


def _experiment(sections: dict[str, Any], seed: int, name: str) -> config.Experiment:
    (made,) = config.expand(sections | {"seed": seed, "name": name, "run": IN_ONE_PROCESS}, [])
    return made


def trial_experiment(contest: Contest, algorithm: str, values: dict[str, Value], number: int = 0) -> config.Experiment:
    """A trial: the held-out samples stand in for the test set, of which the run has nothing.

    It has an average over rounds, so that both models are measured (``Tried.choice``).
    """
    table = placed(_table(contest, algorithm), values)
    table["data"] = table.get("data", {}) | {"validation": contest.validation, "evaluate_on": "validation"}
    table["training"] = table.get("training", {}) | {"rounds": contest.trial_rounds}
    table["evaluation"] = {"average": "ema"} | table.get("evaluation", {})
    if contest.trial_every is not None:
        table["evaluation"] |= {"every": contest.trial_every}
    return _experiment(table, TUNING_SEED, f"{algorithm}--trial{number:02}")


def final_experiment(contest: Contest, algorithm: str, values: dict[str, Value], seed: int) -> config.Experiment:
    """A run after tuning: on all training samples, judged on the test set."""
    table = placed(_table(contest, algorithm), values)
    table["training"] = table.get("training", {}) | {"rounds": contest.rounds or contest.trial_rounds}
    return _experiment(table, seed, f"{algorithm}--seed{seed}")


def searched(contest: Contest, algorithm: str) -> tuple[Space, dict[str, Value]]:
    """The space of an algorithm and its first point: its defaults, at what the contest gives everybody.

    Where these lie outside, the space is widened to hold them.
    """
    first = trial_experiment(contest, algorithm, {})
    given = first.algorithm_params()
    defaults = ALGORITHMS[algorithm].Params(**given).model_dump()
    space, start = space_of(algorithm), {}
    for name, dimension in space.items():
        section, _, field = name.partition(".")
        value = defaults[field] if section == "algorithm" else getattr(getattr(first, section), field)
        start[name] = False if value is None else value
        space[name] = dimension.holding(start[name])
    return space, start


def entrants(name: str, ranking: Sequence[str] | None) -> list[str]:
    """Who takes part in a setting; ``ranking`` are the algorithms of the setting that it chooses from, best first."""
    wanted = settings()[name].entrants
    if wanted == "all":
        return list(ALGORITHMS)
    if not ranking:
        raise InputError(
            f"{name} takes the best of {wanted.of}, which has no finished results yet; run that first (`fedkeel "
            f"leaderboard run {wanted.of}`), or name some with --algorithms."
        )
    own = [paper.own[0] for paper in papers().values()] if wanted.papers else []
    chosen = {*ranking[: wanted.best], *own}
    return [name for name in ALGORITHMS if name in chosen]
