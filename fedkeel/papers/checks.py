"""Whether what a paper concludes from a table or figure can be seen in our records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fedkeel.papers.cells import budget as rounds_of
from fedkeel.papers.cells import measured, runs, scales
from fedkeel.papers.format import Claim, Column, Exhibit, Line, Measure, Panel, Paper, Scale
from fedkeel.papers.measures import Summary
from fedkeel.papers.published import MISSING, Published
from fedkeel.papers.records import Records
from fedkeel.papers.rules import Column as Rules
from fedkeel.papers.rules import Entry

ClaimKind = Literal["holds", "undecided", "does not hold", "not run"]
CLAIM_KINDS: tuple[ClaimKind, ...] = ("holds", "undecided", "does not hold", "not run")
ROUNDS_THAT_HOLD = 0.95
"""Share of rounds in which a value must keep to a bound that is claimed for all of them."""


@dataclass(frozen=True)
class Checked:
    """A claim with its fate."""

    claim: Claim
    kind: ClaimKind
    because: str
    scale: Scale | None = None


def checked_claims(paper: Paper, exhibit: Exhibit, records: Records, scale: Scale | None) -> tuple[Checked, ...]:
    """All claims of an exhibit."""
    return tuple(_checked(paper, exhibit, claim, records, scale) for claim in exhibit.claims)


def _checked(paper: Paper, exhibit: Exhibit, claim: Claim, records: Records, scale: Scale | None) -> Checked:
    """At the best scale that has what it takes; over several panels, a claim holds if it holds in all of them."""
    for one in scales(scale):
        found = [(part, _in_part(paper, part, claim, records, one)) for part in _parts(exhibit, claim)]
        ran = [(part, kind, why) for part, (kind, why) in found if kind != "not run"]
        if ran:
            kinds = [kind for _, kind, _ in ran]
            kind: ClaimKind = next((k for k in ("does not hold", "undecided") if k in kinds), "holds")
            if len(found) == 1:
                because = ran[0][2]
            else:
                because = "; ".join(f"{part.title}: {why}" for part, _, why in ran)
                if len(ran) < len(found):
                    because += f"; {len(found) - len(ran)} of {len(found)} not run"
                    if kind == "holds":
                        kind, because = "undecided", f"so far {because}"
            if one != "full":
                because = f"at {'a reduced' if one == 'reduced' else 'smoke'} scale, {because}"
                # A reduced run cannot refute, and a smoke run cannot even confirm.
                kind = "undecided" if one == "smoke" or kind == "does not hold" else kind
            return Checked(claim, kind, because, one)
    return Checked(claim, "not run", "there are no records for it")


def _parts(exhibit: Exhibit, claim: Claim) -> Sequence[Column | Panel]:
    if claim.panel is not None:
        return [exhibit.panels[claim.panel - 1]]
    return [part for part in exhibit.parts if claim.column is None or part.id == claim.column]


def _in_part(paper: Paper, part: Column | Panel, claim: Claim, records: Records, scale: Scale) -> tuple[ClaimKind, str]:
    if claim.value is not None:
        return _recorded(paper, part, claim, records, scale)
    measure = _measure(part, claim)
    if claim.check in ("above", "below"):
        return _against(paper, part, claim, measure, records, scale)
    return _order(paper, part, claim, measure, records, scale)


def _measure(part: Column | Panel, claim: Claim) -> Measure:
    metric = part.metric if isinstance(part, Panel) else part.measures[0].metric
    if claim.check == "fastest" and claim.target is not None:
        return Measure(kind="rounds_to", metric=metric, target=claim.target)
    if claim.measure is not None:
        return claim.measure
    if isinstance(part, Column):
        return part.measures[0]
    return part.measure or Measure(kind="best", metric=metric)


def _order(
    paper: Paper, part: Column | Panel, claim: Claim, measure: Measure, records: Records, scale: Scale
) -> tuple[ClaimKind, str]:
    """``order``: each before the next; ``wins`` and ``fastest``: one before all others."""
    entries = _entries(paper, part, measure, records, scale)
    rules = _rules(paper, part, measure, entries, scale)
    if claim.check == "order":
        named = [[e for line, e in entries if line.method == method] for method in claim.methods]
        pairs = [(a, b) for first, second in pairwise(named) for a in first for b in second]
    else:
        mine = [e for line, e in entries if line.method == claim.method]
        wanted = claim.methods or tuple(line.method for line, _ in entries if paper.methods[line.method].rival)
        others = [e for line, e in entries if line.method in wanted and line.method != claim.method]
        pairs = [(a, b) for a in mine for b in others]
    known = [(a, b) for a, b in pairs if _can_tell(a, b)]
    if not known:
        return "not run", ""
    fates = [(a, b, rules.ahead_here(a, b)) for a, b in known]
    missing = len(pairs) - len(known)
    rest = f" ({missing} of {len(pairs)} comparisons not run)" if missing else ""
    if lost := [(a, b) for a, b, sign in fates if sign == -1]:
        return "does not hold", "; ".join(f"{_named(b)} is ahead of {_named(a)}" for a, b in lost[:3]) + rest
    if level := [(a, b) for a, b, sign in fates if sign == 0]:
        a, b = level[0]
        return "undecided", f"{_named(a)} and {_named(b)} are level within the noise{rest}"
    if open_still := [(a, b) for a, b, sign in fates if sign is None]:
        a, b = open_still[0]
        return "undecided", f"nobody can tell {_named(a)} from {_named(b)}{rest}"
    if missing:
        return "undecided", f"so far {_said(known)}{rest}"
    return "holds", _said(known)


def _can_tell(a: Entry, b: Entry) -> bool:
    """Whether two methods were run, and not both cut short of what they are compared by."""
    return a.ours is not None and b.ours is not None and not (a.ours.short and b.ours.short)


def _said(pairs: Sequence[tuple[Entry, Entry]]) -> str:
    a, b = pairs[0] if len(pairs) == 1 else (pairs[0][0], None)
    if b is not None:
        return f"{_named(a)} before {_named(b)}"
    if all(one is a for one, _ in pairs):
        return f"{_named(a)} before {', '.join(_named(other) for _, other in pairs)}"
    return ", ".join(dict.fromkeys(_named(one) for pair in pairs for one in pair))


def _named(entry: Entry) -> str:
    return f"{entry.title} ({entry.ours})"


def _entries(
    paper: Paper, part: Column | Panel, measure: Measure, records: Records, scale: Scale
) -> list[tuple[Line, Entry]]:
    found = []
    for line in part.lines:
        ours = measured(paper, measure, line.setting, line.method, records, scale)
        title = paper.methods[line.method].title if isinstance(part, Column) else line.label
        printed = _printed(part, line, measure)
        found.append((line, Entry(title, False, printed, ours if isinstance(ours, Summary) else None)))
    return found


def _printed(part: Column | Panel, line: Line, measure: Measure) -> Published:
    """What is printed for a line under a measure, for the spread that comes with it."""
    if isinstance(part, Panel):
        return line.published if measure == part.measure else MISSING
    both = zip(part.measures, part.printed(line.method), strict=True)
    return next((printed for own, printed in both if own == measure), MISSING)


def _rules(
    paper: Paper, part: Column | Panel, measure: Measure, entries: Sequence[tuple[Line, Entry]], scale: Scale
) -> Rules:
    by_place = {str(at): entry for at, (_, entry) in enumerate(entries)}
    return Rules(measure, by_place, rounds_of(paper, part.lines[0].setting, scale), scale)


def _against(
    paper: Paper, part: Column | Panel, claim: Claim, measure: Measure, records: Records, scale: Scale
) -> tuple[ClaimKind, str]:
    """A measure above or below a bound (in our units) or another method's."""
    entries = _entries(paper, part, measure, records, scale)
    mine = [e for line, e in entries if claim.method in (None, line.method) and line.method != claim.than]
    if claim.bound is None:
        others = [e for line, e in entries if line.method == claim.than]
        pairs = [(a, b) for a in mine for b in others if _can_tell(a, b)]
        if not pairs:
            return "not run", ""
        rules = _rules(paper, part, measure, entries, scale)
        better = (claim.check == "above") != measure.lower_is_better
        signs = [rules.ahead_here(a, b) if better else rules.ahead_here(b, a) for a, b in pairs]
        said = "; ".join(f"{_named(a)} against {_named(b)}" for a, b in pairs[:3])
        fate: ClaimKind = "does not hold" if -1 in signs else "holds" if all(s == 1 for s in signs) else "undecided"
        return fate, said
    ran = [e for e in mine if e.ours is not None]
    if not ran:
        return "not run", ""
    bound = claim.bound * measure.printed_scale
    sign = 1 if claim.check == "above" else -1
    kept = [_keeps(e.ours, sign, bound, measure) for e in ran if e.ours is not None]
    kind: ClaimKind = "does not hold" if False in kept else "undecided" if None in kept else "holds"
    said = "; ".join(_named(e) for e in ran[:3])
    return kind, f"{said}, the bound being {bound:g}"


def _keeps(ours: Summary, sign: int, bound: float, measure: Measure) -> bool | None:
    """Whether a value lies above (sign 1) or below (−1) a bound; None: it is only known to be worse than something."""
    beside = sign * (ours.value - bound) > 0
    worse = 1 if measure.lower_is_better else -1
    if not ours.beyond or beside == (sign == worse):
        return beside
    return None


def _recorded(
    paper: Paper, part: Column | Panel, claim: Claim, records: Records, scale: Scale
) -> tuple[ClaimKind, str]:
    """A value that the algorithm records, against a bound, in all rounds."""
    assert claim.value is not None
    if claim.bound is None:
        return "not run", ""
    inside = total = 0
    for line in part.lines:
        if claim.method not in (None, line.method):
            continue
        for record in runs(paper, line.setting, line.method, records, scale):
            for _, value in zip(*record.values.get(claim.value, ((), ())), strict=True):
                for one in value if isinstance(value, tuple) else (value,):
                    if one is not None and math.isfinite(one):
                        inside += one > claim.bound if claim.check == "above" else one < claim.bound
                        total += 1
    if not total:
        return "not run", ""
    holds = inside >= ROUNDS_THAT_HOLD * total
    said = f"{claim.value} is {claim.check} {claim.bound:g} in {inside / total:.0%} of {total} values"
    return ("holds" if holds else "does not hold"), said
