"""The tables of a report: what each group of runs came to, clients, settings, and the differences between groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from fedkeel import sweeps
from fedkeel.comparison.groups import CONFIDENCE, FEWEST, Difference, Read, paired
from fedkeel.pages.markup import Content, Markup, hidden, table
from fedkeel.plots.fairness import by_group
from fedkeel.plots.sources import Chosen

MOST_CLIENTS = 200
"""Clients that a table lists; of more, those who are served worst."""


def over_seeds(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """A number, or mean ± standard deviation over seeds; a dash where one is not known."""
    if not values or any(math.isnan(value) for value in values):
        return "–"
    mean = shown(fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {shown(stdev(values))}"


def percent(value: float) -> str:
    """The number alone: a heading or a sentence has the sign."""
    return f"{100 * value:.2f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f}"


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 120 else f"{value / 60:,.1f} min"


def summary(chosen: Chosen, target: float) -> Markup:
    """The answer in one table."""
    has_accuracy = any(not math.isnan(s.run.history.reported().last) for s in chosen.sources)
    heads = ["method", "seeds", "rounds"]
    heads += ["last round, %", "last 10 %, %", "best, %"] if has_accuracy else ["last loss", "lowest loss"]
    heads += [f"rounds to {100 * target:.4g} %"] if has_accuracy else []
    heads += ["MB", "time"]
    rows: list[list[Content]] = []
    for name, group in chosen.groups.items():
        runs = [source.run for source in group]
        row: list[Content] = [name, str(len(runs)), _rounds(runs)]
        row += _accuracies(runs, target) if has_accuracy else _losses(runs)
        row.append(over_seeds([run.history.bytes_to(len(run.history.rounds)) for run in runs], megabytes))
        row.append(over_seeds([run.history.seconds for run in runs], seconds))
        rows.append(row)
    several = any(len(group) > 1 for group in chosen.groups.values())
    what = "Test accuracy of the model that each run reports" if has_accuracy else "Test loss"
    spread = "; mean ± standard deviation over seeds" if several else ""
    told = f"{what}{spread}. Last 10 %: mean over these rounds. MB: sent in both directions. Time: in rounds."
    return table(told, heads, rows, numbers=len(heads) - 1)


def _rounds(runs: Sequence[Read]) -> str:
    done = [len(run.history.rounds) for run in runs]
    asked = {run.rounds for run in runs}
    counted = str(done[0]) if len(set(done)) == 1 else f"{min(done)} to {max(done)}"
    (of,) = asked if len(asked) == 1 else (None,)
    return counted if of is None or set(done) == {of} else f"{counted} of {of}"


def _accuracies(runs: Sequence[Read], target: float) -> list[Content]:
    found = [run.history.reported() for run in runs]
    cells: list[Content] = [
        over_seeds([getattr(one, which) for one in found], percent) for which in ("last", "late", "best")
    ]
    needed = [run.history.rounds_to(target) for run in runs]
    reached = [one for one in needed if one is not None]
    if len(reached) == len(needed):
        cells.append(over_seeds([float(one) for one in reached], lambda value: f"{value:.1f}".removesuffix(".0")))
    else:
        cells.append("never" if not reached else f"{len(reached)} of {len(needed)} seeds")
    return cells


def _losses(runs: Sequence[Read]) -> list[Content]:
    series = [[m.loss for m in run.history.series()] or [math.nan] for run in runs]
    return [over_seeds([one[-1] for one in series], _plain), over_seeds([min(one) for one in series], _plain)]


def _plain(value: float) -> str:
    return f"{value:.4g}"


def answer(chosen: Chosen) -> str:
    """The table in a sentence, and how far it may be trusted."""
    late = {
        name: [source.run.history.reported().late for source in group]
        for name, group in chosen.groups.items()
        if not any(math.isnan(source.run.history.reported().late) for source in group)
    }
    if len(late) < 2:
        return ""
    ranked = sorted(late, key=lambda name: -fmean(late[name]))
    first, second = ranked[0], ranked[1]
    said = (
        f"{first} has the highest accuracy over the last 10 % of the rounds: {over_seeds(late[first], percent)} %"
        f"; {second} follows with {over_seeds(late[second], percent)} %."
    )
    ahead = fmean(late[first]) - fmean(late[second])
    if min(len(late[first]), len(late[second])) < 2:
        return f"{said} With one seed, a small difference may be chance."
    if ahead <= max(stdev(late[first]), stdev(late[second])):
        return f"{said} The difference is within the spread over seeds."
    return said


def differences(chosen: Chosen) -> Markup | None:
    """Paired over seeds, to the first group; None where no other group has two seeds in common with it."""
    by_seed = {
        name: {source.run.seed: source.run.history.reported() for source in group}
        for name, group in chosen.groups.items()
    }
    base, *others = by_seed
    rows: list[list[Content]] = []
    for name in others:
        common = [seed for seed in by_seed[name] if seed in by_seed[base]]
        if len(common) < 2:
            continue
        found = [
            paired([getattr(by_seed[name][seed], which) - getattr(by_seed[base][seed], which) for seed in common])
            for which in ("last", "late", "best")
        ]
        rows.append([name, str(len(common)), *map(_difference, found)])
    if not rows:
        return None
    caption = (
        f"Difference to {base} in percentage points, paired over seeds; in brackets the {CONFIDENCE:.0%} t interval, "
        f"from {FEWEST} seeds on."
    )
    return table(caption, ["method", "seeds", "last round", "last 10 %", "best"], rows, numbers=4)


def _difference(found: Difference) -> str:
    if math.isnan(found.mean):
        return "–"
    mean = _signed(found.mean)
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{_signed(found.low)}, {_signed(found.high)}]"


def _signed(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−")


def clients(chosen: Chosen) -> list[Markup]:
    """How evenly clients are served, and each of them; nothing where it was not measured."""
    found = by_group(chosen)
    if not found:
        return []
    own = "test samples" if next(iter(found.values())).split == "test" else "training samples"
    rows: list[list[Content]] = [
        [
            name,
            str(len(one.accuracies)),
            *map(percent, (one.evenness.mean, one.evenness.sd, one.evenness.worst)),
            *map(percent, (min(one.accuracies), max(one.accuracies))),
        ]
        for name, one in found.items()
    ]
    heads = ["method", "clients", "mean", "spread", "worst tenth", "lowest", "highest"]
    caption = f"Accuracy of single clients in %, on their own {own} after the last evaluated round; all seeds together."
    return [table(caption, heads, rows, numbers=6), hidden("Every client", _each(chosen, own))]


def _each(chosen: Chosen, own: str) -> Markup:
    names = list(chosen.groups)
    by_client: dict[int, dict[str, list[float]]] = {}
    for name, group in chosen.groups.items():
        for source in group:
            scores = source.scores()
            last = max((score.round for score in scores), default=0)
            for score in scores:
                if score.round == last and not math.isnan(score.accuracy):
                    by_client.setdefault(score.client, {}).setdefault(name, []).append(score.accuracy)
    shown, more = sorted(by_client), ""
    if len(shown) > MOST_CLIENTS:
        worst = sorted(shown, key=lambda client: min(map(min, by_client[client].values())))
        shown, more = sorted(worst[:MOST_CLIENTS]), f"; of {len(by_client):,} clients those who are served worst"
    rows: list[list[Content]] = [
        [str(client), *(over_seeds(by_client[client].get(name, []), percent) for name in names)] for client in shown
    ]
    return table(f"Accuracy by client in %, on its own {own}{more}.", ["client", *names], rows, numbers=len(names))


def settings(chosen: Chosen) -> list[Markup]:
    """In what the groups differ, then what they have in common."""
    firsts = {name: group[0].run.settings for name, group in chosen.groups.items()}
    fields = list(dict.fromkeys(field for one in firsts.values() for field in one))
    differ = [f for f in fields if len({sweeps.said(one[f]) if f in one else None for one in firsts.values()}) > 1]
    made = []
    if differ:
        rows: list[list[Content]] = [
            [field, *(sweeps.said(one[field]) if field in one else "–" for one in firsts.values())] for field in differ
        ]
        made.append(table("Settings that differ.", ["field", *firsts], rows))
    first = next(iter(firsts.values()))
    shared: list[list[Content]] = [[field, sweeps.said(first[field])] for field in fields if field not in differ]
    if shared:
        caption = "Settings that all runs have in common." if len(firsts) > 1 else "Settings of the run."
        made.append(hidden(f"{len(shared)} settings in common", table(caption, ["field", "value"], shared)))
    return made
