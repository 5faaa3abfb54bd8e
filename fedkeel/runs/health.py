"""Whether a run is going wrong although every number is finite: its accuracy collapsed, or its drift exploded.

Single rounds swing widely where few and very different clients take part. The thresholds are meant to stay silent on
that noise, and to speak where it lasts; a single round counts only where drift and training loss leap together.

They were set on 34 runs on MNIST-5k of up to 100 rounds. Of 9 that diverge (SCAFFOLD, FedDC, VRL-SGD and FedAvg without
clipping) 8 are told of 1 to 20 rounds before; the other one lasted a single round. Nothing is told of the 24 sound ones
(14 algorithms, 1 to 10 clients a round, Dirichlet 0.01 to 0.3, shards), nor of one that swings but holds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Literal

from fedkeel.engine.settings import Training
from fedkeel.runs.history import History, Measured, RoundSummary

Kind = Literal["collapse", "explosion"]

EVALUATIONS = 8
"""A level is the median of so many evaluations, which a few bad rounds among them do not move. A collapse lasts as
long: where a fifth of the rounds are bad by chance, eight in a row are not."""
LOST = 0.7
"""It is a collapse where no recent evaluation reaches this share of the best level. In five healthy runs on MNIST-5k,
one seed each, among them FedAvg with 3 to 5 very unlike clients a round (Dirichlet 0.01, two shards each), medians of
five evaluations kept 90 % of it."""
QUICK, HALF = 5, 0.5
"""It is one sooner where so many evaluations do not reach this share of it."""
LEAST_LOSS = 0.1
"""Of accuracy: between 4 % and 2 % there is nothing to tell."""
ROUNDS = 3
"""The drift now is the median of so many rounds …"""
EARLIER = 50
"""… compared with that of at most so many rounds before them, …"""
FEWEST = 5
"""… of which there must be a few: the first rounds move furthest, or, from zero weights, hardly at all."""
FACTOR = 5.0
"""Drift that grew this much has exploded: in the same five runs it at most doubled."""
BEFORE = 20
"""A leap is measured against the median of at most so many rounds before it, and of at least ``FEWEST``."""
LEAP, LOSS_LEAP = 4.0, 3.0
"""Of drift and of training loss in the same round: in sound runs drift leapt to 3.7 times its median (FedDyn), in runs
with 1 to 3 very unlike clients a round to 3.3 times, and the loss of such clients by itself to far more."""
TINY = 1e-30
"""Instead of no drift at all."""


@dataclass(frozen=True)
class Concern:
    """Something that a person should look into: what it was, what it is, and since which round."""

    kind: Kind
    round: int
    was: float
    now: float
    best_round: int = 0
    """The round of the best level, of a collapse."""


@dataclass(frozen=True)
class Seen:
    """All that must be remembered of a run's rounds to judge the next one."""

    accuracies: tuple[float, ...] = ()
    """The last evaluations of the model that the run reports."""
    model: str = ""
    best: float = 0.0
    """The highest level so far."""
    best_round: int = 0
    drifts: tuple[tuple[float, float, float], ...] = ()
    """Of the last rounds: drift a local step, the same divided by the learning rate, and the training loss."""
    told: frozenset[Kind] = frozenset()
    """What was told; once is enough."""

    def after(self, summary: RoundSummary, measured: Sequence[Measured]) -> tuple[Seen, list[Concern]]:
        """What is remembered after one more round, and what it shows that no round before it showed."""
        seen = self._with_drift(summary)._with_evaluation(measured)
        found = [concern for concern in (seen._collapse(summary.round), seen._explosion(summary.round)) if concern]
        new = [concern for concern in found if concern.kind not in self.told]
        return replace(seen, told=self.told | {concern.kind for concern in new}), new

    def _with_drift(self, summary: RoundSummary) -> Seen:
        """Drift a step, so that longer local work (stragglers, adaptive steps) does not pass for drift."""
        steps = summary.steps / summary.clients if summary.clients else 0.0
        if not (isfinite(summary.drift) and steps > 0 and summary.lr > 0):
            return self
        drift = summary.drift / steps
        return replace(
            self, drifts=(*self.drifts, (drift, drift / summary.lr, summary.train_loss))[-EARLIER - ROUNDS :]
        )

    def _with_evaluation(self, measured: Sequence[Measured]) -> Seen:
        point = next((m for m in measured if m.split == "test" and m.model == (self.model or m.model)), None)
        if point is None or not isfinite(point.accuracy):  # under some losses no answer is right or wrong
            return self
        accuracies = (*self.accuracies, point.accuracy)[-EVALUATIONS:]
        seen = replace(self, accuracies=accuracies, model=point.model)
        level = seen._level()
        return seen if level is None or level <= self.best else replace(seen, best=level, best_round=point.round)

    def _level(self) -> float | None:
        return median(self.accuracies) if len(self.accuracies) == EVALUATIONS else None

    def _collapse(self, round: int) -> Concern | None:
        if self._level() is None:
            return None
        for count, share in ((QUICK, HALF), (EVALUATIONS, LOST)):
            recent = self.accuracies[-count:]
            if max(recent) < share * self.best and self.best - median(recent) >= LEAST_LOSS:
                return Concern("collapse", round, self.best, median(recent), self.best_round)
        return None

    def _explosion(self, round: int) -> Concern | None:
        """Drift that lasts, or leaps together with the loss; both drifts must have grown.

        Alone, the first does in a warm-up, and the second where lr goes to zero.
        """
        lasting = _growth(self.drifts[-ROUNDS:], self.drifts[:-ROUNDS])
        leap = _growth(self.drifts[-1:], self.drifts[-1 - BEFORE : -1])
        for drift, grown in ((min(lasting[:2]), FACTOR), (min(leap[:2]) if leap[2] >= LOSS_LEAP else 0.0, LEAP)):
            if drift >= grown:
                return Concern("explosion", round, 1.0, drift)
        return None


def _growth(now: Sequence[tuple[float, ...]], before: Sequence[tuple[float, ...]]) -> list[float]:
    """How many times the median before is that of now, of each of the three numbers; 0 where too little is known."""
    if len(before) < FEWEST:
        return [0.0] * 3
    return [median(x[kind] for x in now) / max(median(x[kind] for x in before), TINY) for kind in range(3)]


def seen(history: History) -> Seen:
    """What is remembered of all rounds of a run, as a resumed one needs it."""
    measured: dict[int, list[Measured]] = {}
    for one in history.measured:
        measured.setdefault(one.round, []).append(one)
    remembered = Seen()
    for summary in history.rounds:
        remembered, _ = remembered.after(summary, measured.get(summary.round, []))
    return remembered


def advice(concern: Concern, training: Training) -> str:
    """The sentence for a person: what happened, and what to try."""
    if concern.kind == "collapse":
        what = (
            f"round {concern.round}: accuracy fell to {concern.now:.1%} and stays there; around round "
            f"{concern.best_round} it was {concern.was:.1%}"
        )
    else:
        what = f"round {concern.round}: clients drift {concern.now:.0f} times as far a step as in the rounds before"
    tries = ["training.clip = 10"] if training.clip is None else [f"training.clip below {training.clip:g}"]
    tries.append(f"training.lr below {training.lr:g}")
    if training.steps is None and (training.epochs or 1) > 1:
        tries.append("fewer training.epochs")
    elif (training.steps or 1) > 1:
        tries.append("fewer training.steps")
    return f"{what}. Try {', '.join(tries[:-1])} or {tries[-1]}."
