"""A report of runs: one file that opens without a network, with the answer first."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedkeel import __version__, arguments
from fedkeel.comparison.groups import Read
from fedkeel.data.digest import WHAT
from fedkeel.errors import DataError, FedkeelError, InputError, invalid
from fedkeel.pages import numbers
from fedkeel.pages.facts import Facts, facts_of, short_names
from fedkeel.pages.markup import Content, Markup, hidden, table, tag
from fedkeel.pages.pictures import figure
from fedkeel.pages.style import style
from fedkeel.plots.figure import Options
from fedkeel.plots.kinds import KINDS, draw, read
from fedkeel.plots.sources import Chosen, Given, Source, choose, in_groups, listed, setting_line, source_of
from fedkeel.plots.values import MEASURED, known_names
from fedkeel.runs.machine import NAMES

SHOWN = (
    *("accuracy", "loss", "rounds", "bytes", "clock", "time"),
    *("fairness", "drift", "drift-layers", "values", "partition"),
)
"""Kinds of pictures in their order; of these, the ones that runs have the numbers for."""
MOST_VALUES = 6
"""Named values that are drawn."""
MOST_LINES = 100
"""Of a diary."""


@dataclass(frozen=True)
class Part:
    """Runs that stand together in a report: on the same data, with one table and one set of pictures."""

    title: str
    chosen: Chosen
    says: str = ""
    kinds: tuple[str, ...] = SHOWN


def report(
    runs: Given,
    path: str | os.PathLike[str],
    *,
    target: float = 0.9,
    title: str = "Report of runs",
    data_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report of runs as one HTML file; returns its path.

    ``runs`` are as for ``fedkeel.plot``: a run, its directory, a folder of runs, a list or a dict of these; they may be
    going on. Runs on other data, partitions or models stand apart. ``target`` is the test accuracy of the column
    "rounds to".
    """
    file = checked_file(path)
    folder = None if data_dir is None else arguments.path("data_dir", data_dir)
    parts, failed = parts_of(runs, folder)
    return write(file, page(parts, checked_target(target), arguments.text("title", title), failed))


def checked_file(path: str | os.PathLike[str]) -> Path:
    """Where a report goes."""
    file = arguments.path("path", path)
    if file.suffix.lower() not in (".html", ".htm"):
        raise invalid("report path", "a file name ending in .html", str(file))
    return file


def checked_target(target: object) -> float:
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 <= target <= 1:
        raise invalid("target", "a test accuracy in [0, 1]", target)
    return float(target)


def write(file: Path, text: str) -> Path:
    """The page in its file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}; choose another place.") from None
    return file


Failed = list[tuple[Path, FedkeelError]]
"""Directories that cannot be read, and why."""


def parts_of(runs: Given, data_dir: Path | None = None) -> tuple[list[Part], Failed]:
    """Runs by what they have in common, and those that cannot be read."""
    if isinstance(runs, Mapping):
        chosen = choose(runs, data_dir)
        return [Part(chosen.setting, chosen)], []
    sources: list[Source] = []
    failed: Failed = []
    for one in listed(runs):
        try:
            sources.append(source_of(one, data_dir))
        except FedkeelError as error:
            if not isinstance(one, Path):
                raise
            failed.append((one, error))
    if not sources:
        raise failed[0][1] if failed else invalid("runs", "at least one run", [])
    by_kind: dict[str, list[Source]] = {}
    for source in sources:
        by_kind.setdefault(_kind(source.run), []).append(source)
    return [Part(setting_line([s.run for s in group]), in_groups(group)) for group in by_kind.values()], failed


def _renamed(part: Part, names: Mapping[Path, str]) -> Part:
    """The same with every run named as a page may name it."""

    def named(source: Source) -> Source:
        known = source.run.name if source.place is None else names[source.place]
        return replace(source, run=replace(source.run, name=known))

    groups = {name: tuple(map(named, group)) for name, group in part.chosen.groups.items()}
    duplicates = tuple((named(left), named(shown)) for left, shown in part.chosen.duplicates)
    return replace(part, chosen=Chosen(groups, duplicates))


def _kind(run: Read) -> str:
    """What runs must share to stand in one table: data, partition and model, whatever a seed decides aside."""
    fields = {f: v for f, v in run.settings.items() if f.startswith(("data.", "partition.", "model."))}
    seedless = [key for key in WHAT if key not in ("partition", "client tests", "validation")]
    return repr((sorted(fields.items()), [(run.data or {}).get(key) for key in seedless], run.layers))


def page(parts: Sequence[Part], target: float, title: str, failed: Sequence[tuple[Path, FedkeelError]] = ()) -> Markup:
    """The whole document."""
    chosen = [part.chosen for part in parts]
    sources = [s for one in chosen for s in (*one.sources, *(left for left, _ in one.duplicates))]
    places = [source.place for source in sources if source.place is not None]
    names = short_names([*places, *(place for place, _ in failed)])
    parts = [_renamed(part, names) for part in parts]
    refused = [f"{names[place]}: {str(error).replace(str(place), names[place])}" for place, error in failed]
    count = sum(len(part.chosen.sources) for part in parts)
    counter = iter(range(1, 1_000_000))
    body: list[Content] = [tag("p", "fedkeel report", class_="faint"), tag("h1", title)]
    made = (
        f"{count} run{'' if count == 1 else 's'}; made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by fedkeel {__version__}."
    )
    body.append(tag("p", made, class_="faint"))
    body.append(_list("These runs cannot be read and are not in the report", refused))
    if len(parts) > 1:
        links = [tag("li", tag("a", part.title, href=f"#part{at}")) for at, part in enumerate(parts, start=1)]
        body.append(tag("nav", tag("ul", links), aria_label="Parts"))
    facts = [[facts_of(source) for source in part.chosen.sources] for part in parts]
    for at, (part, known) in enumerate(zip(parts, facts, strict=True), start=1):
        body.append(_section(part, known, target, at, lambda: next(counter)))
    everything = [one for known in facts for one in known]
    body += [_environment(everything), _repeat(everything)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style())),
    )
    footer = tag("footer", "Everything on this page is in this file; it loads nothing.")
    return Markup(f"<!DOCTYPE html>\n{tag('html', head, tag('body', tag('main', body, footer)), lang='en')}\n")


def _section(part: Part, known: Sequence[Facts], target: float, at: int, number: Callable[[], int]) -> Markup:
    chosen = part.chosen
    body: list[Content] = [tag("h2", part.title, id=f"part{at}")]
    if part.title != chosen.setting:
        body.append(tag("p", chosen.setting, class_="faint"))
    if part.says:
        body.append(tag("p", part.says))
    answer = numbers.answer(chosen)
    body.append(tag("p", answer, class_="answer") if answer else "")
    body.append(numbers.summary(chosen, target))
    body.append(numbers.differences(chosen) or "")
    body.append(_list("Before you read on", [*_states(known), *chosen.check(), *_told(known)]))
    drawn, missing = _pictures(part, target, number)
    body += drawn
    tables = numbers.clients(chosen)
    if tables:
        body += [tag("h3", "Clients"), *tables]
    body += [tag("h3", "Settings"), *numbers.settings(chosen)]
    if missing:
        body.append(hidden("What these runs do not have", tag("ul", [tag("li", one) for one in missing])))
    return tag("section", body, aria_labelledby=f"part{at}")


def _list(heading: str, lines: Sequence[str]) -> Content:
    if not lines:
        return ""
    shown = [tag("li", one) for one in lines[:MOST_LINES]]
    more = [] if len(lines) <= MOST_LINES else [tag("li", f"and {len(lines) - MOST_LINES} more")]
    return tag("div", tag("strong", heading), tag("ul", shown, more), class_="warn")


def _states(known: Sequence[Facts]) -> list[str]:
    """Runs that have not ended as they should."""
    lines = []
    for one in known:
        if one.state not in ("finished", "in memory"):
            of = "" if one.rounds is None else f" of {one.rounds}"
            lines.append(f"{one.name} is {one.state} after round {one.done}{of}{f': {one.note}' if one.note else ''}.")
    return lines


def _told(known: Sequence[Facts]) -> list[str]:
    """What the diaries say; a sentence that several runs have is there once."""
    by_line: dict[str, list[str]] = {}
    for one in known:
        for line in one.told:
            by_line.setdefault(line, []).append(one.name)
    return [
        f"{', '.join(names) if len(names) <= 3 else f'{len(names)} runs'}: {line}" for line, names in by_line.items()
    ]


def _pictures(part: Part, target: float, number: Callable[[], int]) -> tuple[list[Markup], list[str]]:
    """All that can be drawn, and why the others cannot."""
    drawn, missing = [], []
    own = [name for name in known_names(part.chosen) if not name.startswith(MEASURED)]
    reached = any(source.run.history.rounds_to(target) is not None for source in part.chosen.sources)
    for kind in part.kinds:
        if (kind == "values" and not own) or (kind == "rounds" and not (reached and len(part.chosen.groups) > 1)):
            continue
        hears = KINDS[kind].hears
        options = Options(
            target=target if "target" in hears and reached else None,
            names=tuple(own[:MOST_VALUES]) if "names" in hears else (),
        )
        try:
            found, _ = read(part.chosen, kind, options)
            picture = draw(kind, found)
        except DataError:  # whose sentence may name a folder of this machine
            missing.append(f"{KINDS[kind].says}: the data of the runs cannot be read here.")
            continue
        except FedkeelError as error:
            missing.append(f"{KINDS[kind].says}: {error}")
            continue
        drawn.append(figure(picture, number(), part.chosen.setting))
    return drawn, missing


def _environment(known: Sequence[Facts]) -> Content:
    """Machines and versions, as the runs recorded them."""
    by_machine: dict[str, list[Facts]] = {}
    for one in known:
        if one.machine:
            by_machine.setdefault(repr((one.machine, one.versions)), []).append(one)
    tables = []
    for same in by_machine.values():
        whose = "all runs" if len(same) == len(known) else ", ".join(one.name for one in same)
        rows: list[list[Content]] = [["fedkeel", ", ".join(v.removeprefix("fedkeel ") for v in same[0].versions)]]
        rows += [
            [{"lanes": "workers that clients are grouped for", **NAMES}.get(name, name), value]
            for name, value in same[0].machine.items()
        ]
        tables.append(table(f"Recorded with {whose}.", ["what", "value"], rows))
    return [tag("h2", "Environment"), *tables] if tables else ""


def _repeat(known: Sequence[Facts]) -> Content:
    """How to run all of it again, and every configuration in full."""
    stored = [one for one in known if one.configuration]
    if not stored:
        return ""
    by_file = [one for one in stored if not one.by_train]
    lines = [f"fedkeel run {shlex.quote(one.name + '/experiment.toml')} --out again" for one in by_file]
    lines += [f"fedkeel verify {' '.join(shlex.quote(one.name) for one in stored)}"]
    body: list[Content] = [
        tag("h2", "Repeat it"),
        tag("p", "From the folder that holds the runs; a run with the same configuration gives the same numbers."),
        tag("pre", "\n".join(lines), tabindex="0", aria_label="Commands"),
    ]
    by_call = [one.name for one in stored if one.by_train]
    if by_call:
        body.append(tag("p", f"Made by a Python program with fedkeel.train: {', '.join(by_call)}."))
    alike: dict[str, list[Facts]] = {}
    for one in stored:
        alike.setdefault(re.sub(r"^(?:seed|name) = .*\n", "", one.configuration, flags=re.MULTILINE), []).append(one)
    for same in alike.values():
        names = ", ".join(one.name for one in same)
        but = f" (shown: seed {same[0].seed})" if len(same) > 1 else ""
        body.append(hidden(f"Configuration of {names}{but}", tag("pre", same[0].configuration, tabindex="0")))
    lines_of = [(one.name, event) for one in stored for event in one.events]
    rows: list[list[Content]] = [[name, e.time, str(e.round), e.kind, e.text] for name, e in lines_of[:MOST_LINES]]
    left = len(lines_of) - MOST_LINES
    caption = f"What happened to the runs{f'; {left:,} further lines are in their stores' if left > 0 else ''}."
    body.append(hidden("Diary", table(caption, ["run", "time", "round", "kind", "text"], rows)))
    return body
