"""When a printed number counts as reproduced: the rules, as functions of numbers alone.

docs/papers/README.md gives them in words. Each verdict comes with the sentence that explains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedkeel.papers.format import Measure, Scale
from fedkeel.papers.measures import Summary, shown
from fedkeel.papers.published import Published

Kind = Literal["reproduced", "direction holds", "not reproduced", "not comparable", "not run"]
KINDS: tuple[Kind, ...] = ("reproduced", "direction holds", "not reproduced", "not comparable", "not run")
SIGMAS = 2.0
FEW = 3
"""Seeds that a spread of their own takes; with fewer, that of the whole column counts if it is larger."""


FAR = 10
"""What is further from print than so many caps is another problem, in which an order shows nothing about this one."""


@dataclass(frozen=True)
class Margins:
    """How far apart two numbers may be for reasons that have nothing to do with the method."""

    least: float
    """Two methods of one program that are closer than this are level."""
    most: float
    """Two programs may differ by so much, however small the seeds' spread."""
    cap: float
    """What is further apart is not called reproduced, however large the seeds' spread."""
    relative: bool
    """Whether these are shares of the printed number."""
    unit: str

    def of(self, margin: float, value: float) -> float:
        """A margin in the units of print."""
        return margin * abs(value) if self.relative else margin


def margins(measure: Measure) -> Margins:
    """Those of a measure, in the units in which it is printed."""
    if measure.kind == "rounds_to":
        return Margins(0.05, 0.15, 0.40, True, "rounds")
    if measure.metric.endswith("accuracy"):
        point = measure.printed_scale / 100
        return Margins(0.1 * point, 0.3 * point, 3 * point, False, "points" if point == 1 else "")
    return Margins(0.01, 0.03, 0.15, True, "")


@dataclass(frozen=True)
class Entry:
    """One method in a column, in print and here."""

    title: str
    own: bool
    """Whether the paper proposes it."""
    printed: Published
    ours: Summary | None = None
    why: str = "there is no record"
    """Why there is nothing of ours."""
    rival: bool = True
    """False for training in one place: a yardstick that nobody competes with."""
    contradiction: str = ""
    """What else the paper prints that this cannot be true beside."""


@dataclass(frozen=True)
class Verdict:
    """A judgement with its reason."""

    kind: Kind
    says: str


@dataclass(frozen=True)
class Point:
    """A number that may be known only to be worse than its value, with the variance of what it is an estimate of."""

    value: float
    beyond: bool = False
    variance: float = 0.0


def ahead(a: Point, b: Point, lower: bool, slack: float) -> int | None:
    """1 if a is better than b by more than ``slack``, −1 if it is worse, 0 if they are level; None: nobody can tell."""
    if a.beyond and b.beyond:
        return None
    gap = b.value - a.value if lower else a.value - b.value
    if a.beyond or b.beyond:
        # Whoever is beyond is worse than its value: that tells something only if the other one is better than that.
        sign = -1 if a.beyond else 1
        return sign if sign * gap > slack or (sign * gap >= 0 and slack == 0) else None
    return 0 if abs(gap) <= slack else (1 if gap > 0 else -1)


def printed_point(printed: Published, budget: int, doubtful: bool = False) -> Point | None:
    """What a paper prints, as far as it can be compared with its other numbers; ``doubtful`` digits only on request."""
    if printed.kind == "missing" or (printed.uncertain and not doubtful):
        return None
    if printed.kind == "never":
        return Point(float(budget), beyond=True)
    return Point(printed.value, printed.kind == "beyond", (printed.sd or 0.0) ** 2)


@dataclass(frozen=True)
class Relations:
    """What became of the differences that a paper prints between a method and others."""

    held: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    reversed: tuple[str, ...] = ()

    @property
    def hold(self) -> bool:
        """None is reversed, and more than half of them show."""
        return not self.reversed and len(self.held) > len(self.level)


class Column:
    """The entries of one column under one measure; what they say about each other decides margins and directions."""

    def __init__(self, measure: Measure, entries: Mapping[str, Entry], budget: int, scale: Scale = "full") -> None:
        self._measure, self._entries, self._budget, self._scale = measure, dict(entries), budget, scale
        self._margins = margins(measure)
        self._pooled = self._pool(entry.ours for entry in entries.values() if entry.ours is not None)

    def _pool(self, summaries: Iterable[Summary]) -> float:
        """The seeds' spread over all methods; as a share of the value where methods differ by factors."""
        squares, freedom = 0.0, 0
        for one in summaries:
            known = one.n - one.failed
            if one.sd is not None and known > 1 and (one.value or not self._margins.relative):
                sd = one.sd / abs(one.value) if self._margins.relative else one.sd
                squares, freedom = squares + (known - 1) * sd**2, freedom + known - 1
        return math.sqrt(squares / freedom) if freedom else 0.0

    def spread(self, entry: Entry) -> float:
        """The seeds' spread of a cell: its own from three seeds on.

        With fewer, the largest of its own, the column's, the one that is printed for it, and the swing of its curve
        where a single round is read.
        """
        ours = entry.ours
        assert ours is not None
        own = ours.sd or 0.0
        if ours.n - ours.failed >= FEW or math.isinf(ours.value):
            return own
        column = self._margins.of(self._pooled, ours.value) if self._margins.relative else self._pooled
        return max(own, column, entry.printed.sd or 0.0, ours.swing)

    def floor(self, value: float) -> float:
        """The tolerance that any two programs get: at most half of what the printed column shows, within limits."""
        points = [printed_point(entry.printed, self._budget) for entry in self._entries.values()]
        values = [point.value for point in points if point is not None]
        half = (max(values) - min(values)) / 2 if len(values) > 1 else math.inf
        low, high = (self._margins.of(m, value) for m in (self._margins.least, self._margins.most))
        return max(low, min(high, half), 1.0 if self._measure.kind == "rounds_to" else 0.0)

    def tolerance(self, entry: Entry) -> float:
        """How far ours may lie from what is printed: two standard errors of the difference, or the floor."""
        assert entry.ours is not None
        variance = self.spread(entry) ** 2
        # A value without a spread is taken as one draw from what ours are draws from.
        of_print = variance if entry.printed.sd is None else entry.printed.sd**2
        error = math.sqrt(variance / max(1, entry.ours.n - entry.ours.failed) + of_print)
        return max(SIGMAS * error, self.floor(self._goal(entry.printed)))

    def _goal(self, printed: Published) -> float:
        return float(self._budget) if printed.kind == "never" else printed.value

    def verdict(self, method: str) -> Verdict:
        """The judgement on one cell."""
        entry = self._entries[method]
        if entry.ours is None:
            return Verdict("not run", f"{entry.why[:1].upper()}{entry.why[1:]}.")
        if entry.printed.kind == "missing":
            return Verdict("not comparable", "The paper prints no legible value.")
        if entry.contradiction:
            return Verdict("not comparable", f"The paper contradicts itself: {entry.contradiction}.")
        if self._scale == "smoke":
            return Verdict("not comparable", "A smoke run is another, tiny experiment: it shows that this runs.")
        relations = self.relations(method)
        if self._scale == "reduced":
            if relations.hold:
                return Verdict("direction holds", f"At a reduced scale {_kept(relations)}.")
            return Verdict("not comparable", f"At a reduced scale {_lost(relations)}; that does not refute the paper.")
        near, how = self._nearness(entry)
        if near == "inside":
            though = f", though {_lost(relations)}" if relations.reversed else ""
            return Verdict("reproduced", f"{how}{though}.")
        if relations.hold and self._is_far(entry):
            return Verdict("not reproduced", f"{how}: another problem than the paper's, though {_kept(relations)}.")
        if relations.hold:
            return Verdict("direction holds", f"{how}, but {_kept(relations)}.")
        kind: Kind = "not comparable" if near == "unclear" else "not reproduced"
        return Verdict(kind, f"{how}, and {_lost(relations)}.")

    def _nearness(self, entry: Entry) -> tuple[Literal["inside", "outside", "unclear"], str]:
        """Whether ours lies near what is printed, and how to say it."""
        assert entry.ours is not None
        ours, printed = entry.ours, entry.printed
        goal, allowed = self._goal(printed), self.tolerance(entry)
        cap = max(self._margins.of(self._margins.cap, goal), self.floor(goal))
        strict = min(allowed, cap)
        if math.isinf(ours.value):
            return ("unclear" if printed.uncertain else "outside"), f"Ours diverged; {printed} is printed"
        if printed.kind in ("beyond", "never"):
            gap, in_print = (
                goal - ours.value,
                "never" if printed.kind == "never" else f"not within {shown(goal)} rounds",
            )
            apart = f"Ours {ours}, printed: {in_print}"
            if ours.beyond and gap <= strict:
                return "inside", apart
        else:
            gap, apart = abs(ours.value - goal), f"Ours {ours}, printed {printed}"
            if ours.beyond:
                # Known only to be worse than its value: that is far away, or it may be near.
                worse = ours.value - goal if self._measure.lower_is_better else goal - ours.value
                apart = f"Ours {ours} ({ours.failed} of {ours.n} seeds did not get there), printed {printed}"
                if worse > allowed and not printed.uncertain:
                    return "outside", apart
                return "unclear", f"{apart}: where ours would have ended is not known"
        if ours.beyond:
            return "unclear", f"{apart}: ours was not run for long enough to tell"
        how = f"{apart}: {self._amount(max(gap, 0.0))} apart, {self._amount(strict)} allowed"
        if gap <= strict:
            return "inside", f"{how}{' (a printed digit is uncertain)' if printed.uncertain else ''}"
        if printed.uncertain:
            return "unclear", f"{how}, a printed digit is uncertain"
        return ("unclear", f"{how}, which the spread of seeds leaves open") if gap <= allowed else ("outside", how)

    def _is_far(self, entry: Entry) -> bool:
        """Whether ours and print are too far apart for one problem; bounds and divergence do not tell."""
        assert entry.ours is not None
        goal = self._goal(entry.printed)
        known = entry.printed.kind == "value" and not entry.ours.beyond and math.isfinite(entry.ours.value)
        return known and abs(entry.ours.value - goal) > FAR * self._margins.of(self._margins.cap, goal)

    def _amount(self, amount: float) -> str:
        return f"{amount:.2g}" if amount < 10 else shown(amount)

    def relations(self, method: str) -> Relations:
        """What became of the printed differences that concern a method.

        Of a baseline those to the paper's own methods, of one of these those to all baselines (where all methods are
        the paper's own, to all others).
        """
        mine = self._entries[method]
        rivals = {name: entry for name, entry in self._entries.items() if name != method and entry.rival}
        others = {name: entry for name, entry in rivals.items() if entry.own != mine.own} or rivals
        found: dict[str, list[str]] = {"held": [], "level": [], "reversed": []}
        for entry in others.values():
            became = self._relation(mine, entry)
            if became is not None:
                found[became].append(entry.title)
        return Relations(*(tuple(found[key]) for key in ("held", "level", "reversed")))

    def _relation(self, a: Entry, b: Entry) -> Literal["held", "level", "reversed"] | None:
        """None where print shows no difference, where one of the two is missing, or where nobody can tell."""
        if a.ours is None or b.ours is None or a.contradiction or b.contradiction:
            return None
        in_print, here = self.ahead_in_print(a, b), self.ahead_here(a, b)
        if not in_print or here is None:
            return None
        return "level" if here == 0 else "held" if here == in_print else "reversed"

    def ahead_in_print(self, a: Entry, b: Entry) -> int | None:
        """Whether a paper prints a as better than b, beyond the spread that it prints."""
        one, other = (printed_point(entry.printed, self._budget) for entry in (a, b))
        if one is None or other is None:
            return None
        spread = math.sqrt(one.variance + other.variance)
        return ahead(one, other, self._measure.lower_is_better, max(spread, self._least(one.value, other.value)))

    def ahead_here(self, a: Entry, b: Entry) -> int | None:
        """Whether a is better than b here, beyond the noise of their seeds."""
        if a.ours is None or b.ours is None:
            return None
        one, other = self._here(a), self._here(b)
        slack = max(SIGMAS * math.sqrt(one.variance + other.variance), self._least(one.value, other.value))
        return ahead(one, other, self._measure.lower_is_better, slack)

    def _here(self, entry: Entry) -> Point:
        ours = entry.ours
        assert ours is not None
        return Point(ours.value, ours.beyond, self.spread(entry) ** 2 / max(1, ours.n - ours.failed))

    def _least(self, *values: float) -> float:
        known = [abs(value) for value in values if math.isfinite(value)]
        least = self._margins.of(self._margins.least, max(known, default=0.0))
        return max(least, 1.0) if self._measure.kind == "rounds_to" else least

    def winners(self) -> tuple[list[str], list[str]]:
        """The best in print, as printed, and the best of those that were run here, with whoever is level with it."""
        rivals = {name: entry for name, entry in self._entries.items() if entry.rival}
        printed = {name: printed_point(one.printed, self._budget, True) for name, one in rivals.items()}
        in_print = self._first({name: point for name, point in printed.items() if point is not None})
        here = self._first({n: Point(e.ours.value, e.ours.beyond) for n, e in rivals.items() if e.ours is not None})
        best = here[:1]
        return in_print, best + [n for n in rivals if best and n not in best and self._level(best[0], n)]

    def _level(self, one: str, other: str) -> bool:
        return self.ahead_here(self._entries[one], self._entries[other]) == 0

    def _first(self, points: Mapping[str, Point]) -> list[str]:
        known = {name: point.value for name, point in points.items() if not point.beyond}
        best = (min if self._measure.lower_is_better else max)(known.values(), default=math.nan)
        return [name for name, value in known.items() if value == best]

    def agreement(self) -> tuple[float | None, int]:
        """Kendall's τ-b between the order in print and here, and of how many methods; None without two that differ."""
        both = [
            (printed, Point(entry.ours.value, entry.ours.beyond))
            for entry in self._entries.values()
            if entry.ours is not None
            and entry.rival
            and not entry.contradiction
            and (printed := printed_point(entry.printed, self._budget)) is not None
        ]
        return kendall(both, self._measure.lower_is_better), len(both)


def kendall(points: list[tuple[Point, Point]], lower: bool) -> float | None:
    """Kendall's τ-b: pairs in the same order less pairs in the other, by the geometric mean of pairs without ties.

    Two numbers of which nobody can tell which is better are a tie.
    """
    same = other = left = right = 0
    for at, (a_print, a_here) in enumerate(points):
        for b_print, b_here in points[:at]:
            signs = ahead(a_print, b_print, lower, 0.0) or 0, ahead(a_here, b_here, lower, 0.0) or 0
            same += signs[0] * signs[1] > 0
            other += signs[0] * signs[1] < 0
            left += signs[0] != 0
            right += signs[1] != 0
    return (same - other) / math.sqrt(left * right) if left and right else None


def _kept(relations: Relations) -> str:
    count = len(relations.held) + len(relations.level)
    if count == 1:
        return f"the printed order against {relations.held[0]} shows here"
    return f"{len(relations.held)} of {count} printed differences show here and none is reversed"


def _lost(relations: Relations) -> str:
    if relations.reversed:
        return f"the printed order against {', '.join(relations.reversed)} is reversed here"
    if relations.level:
        return f"no difference to {', '.join(relations.level)} shows here beyond the noise"
    return "no printed difference to other methods can be compared"
