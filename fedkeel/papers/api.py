"""Run, judge and draw tables and figures of papers from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkeel import arguments
from fedkeel.errors import InputError, unknown
from fedkeel.papers import figures, verdicts
from fedkeel.papers.format import SCALES, Exhibit, Scale, exhibits, papers
from fedkeel.papers.plan import Plan, plan
from fedkeel.papers.records import Records
from fedkeel.papers.verdicts import ExhibitVerdict
from fedkeel.papers.work import Hear, Outcome, work

OUT, RESULTS = Path("paper-runs"), Path("results")
"""The working folder unless another is named, and where published records lie."""
MOST_SEEDS = 100
"""More are a slip, and would take minutes before the first run starts."""


def chosen(names: Iterable[str]) -> list[Exhibit]:
    """Tables and figures by their ids (``feddc.table1``), or all of a paper by its name."""
    known = exhibits()
    found: dict[str, Exhibit] = {}
    for name in names:
        if name in papers():
            found |= {one.id: one for one in papers()[name].exhibits.values()}
        elif name in known:
            found[name] = known[name]
        else:
            raise unknown("table or figure", name, [*known, *papers()])
    return list(found.values())


def plan_of(
    names: str | Sequence[str],
    scale: str = "full",
    only: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    seeds: int | None = None,
    rounds: int | None = None,
) -> Plan:
    """The cells of tables and figures, and the runs that they need."""
    seeds = None if seeds is None else arguments.whole("seeds", seeds, 1, MOST_SEEDS)
    rounds = None if rounds is None else arguments.whole("rounds", rounds, 1)
    exhibits_named = chosen([names] if isinstance(names, str) else names)
    return plan(exhibits_named, scale_named(scale), only, algorithms, seeds, rounds)


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, list(SCALES))


def run(
    names: str | Sequence[str],
    *,
    scale: str = "full",
    only: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    seeds: int | None = None,
    rounds: int | None = None,
    out: str | Path = OUT,
    workers: int | None = None,
    data_dir: str | Path | None = None,
    hear: Hear = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
    address: str | None = None,
    published: str | Path | None = None,
) -> Outcome:
    """Run a table or figure (``"feddc.table1"``) or all of a paper (``"feddc"``), or go on with it.

    ``scale`` is ``smoke`` (seconds), ``reduced`` or ``full``; ``only`` keeps these columns or panels, ``algorithms``
    these methods; ``seeds`` is how many, ``rounds`` how many at most for now: what comes later in a run stays open, and
    the same call without it goes on. Records lie in ``out``; those that are there already are used again, and a run
    that was interrupted goes on. ``workers`` runs go on at once in processes of their own (0: one after the other in
    this one). ``hear(news)`` is told of every run, ``stop()`` asked now and then whether to end. With the ``address``
    of a Ray cluster (``host:port``, or ``auto``) runs go on on its machines, all of which must see ``out``. Records in
    the folder ``published`` count as done, too.
    """
    whole = plan_of(names, scale, only, algorithms, seeds, rounds)
    folder = None if data_dir is None else arguments.path("data_dir", data_dir)
    count = None if workers is None else arguments.whole("workers", workers, 0)
    address = None if address is None else arguments.text("address", address)
    finished = None if published is None else arguments.path("published", published)
    return work(whole.runs, arguments.path("out", out), count, folder, hear, stop, address, finished)


def records_in(folder: str | Path | None = None) -> Records:
    """The records of a folder; absent: those of ``paper-runs`` and, where that has none, of ``results``."""
    if folder is None:
        return Records.of(OUT, RESULTS)
    path = arguments.path("records", folder)
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; name one that holds records, such as {OUT}.")
    return Records.of(path)


def verdict(name: str, *, records: Records | str | Path | None = None, scale: str | None = None) -> ExhibitVerdict:
    """A table or figure (``"feddc.table1"``) beside what was published: ``.cells``, ``.counts``, ``.claims``.

    ``records`` is a folder or what was read from one; each cell is judged at ``scale``, or at the best one that it has.
    """
    known = records if isinstance(records, Records) else records_in(records)
    return verdicts.verdict(name, known, None if scale is None else scale_named(scale))


def figure(name: str, *, records: Records | str | Path | None = None, scale: str | None = None) -> Any:
    """A figure (``"feddc.figure3"``) from records, as an Altair chart; ``fedkeel.data.save_chart`` writes it."""
    known = records if isinstance(records, Records) else records_in(records)
    return figures.figure(name, known, None if scale is None else scale_named(scale))
