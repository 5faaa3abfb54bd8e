"""Run tables and figures of papers from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedkeel import arguments
from fedkeel.errors import unknown
from fedkeel.papers.format import SCALES, Exhibit, exhibits, papers
from fedkeel.papers.plan import Plan, plan
from fedkeel.papers.work import Hear, Outcome, work

OUT = Path("paper-runs")
"""The working folder unless another is named."""


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
) -> Plan:
    """The cells of tables and figures, and the runs that they need."""
    if scale not in SCALES:
        raise unknown("scale", scale, list(SCALES))
    seeds = None if seeds is None else arguments.whole("seeds", seeds, 1)
    chosen_scale = next(one for one in SCALES if one == scale)
    return plan(chosen([names] if isinstance(names, str) else names), chosen_scale, only, algorithms, seeds)


def run(
    names: str | Sequence[str],
    *,
    scale: str = "full",
    only: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    seeds: int | None = None,
    out: str | Path = OUT,
    workers: int | None = None,
    data_dir: str | Path | None = None,
    hear: Hear = lambda news: None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a table or figure (``"feddc.table1"``) or all of a paper (``"feddc"``), or go on with it.

    ``scale`` is ``smoke`` (seconds), ``reduced`` or ``full``; ``only`` keeps these columns or panels, ``algorithms``
    these methods; ``seeds`` is how many. Records lie in ``out``; those that are there already are used again, and a run
    that was interrupted goes on. ``workers`` runs go on at once in processes of their own (0: one after the other in
    this one). ``hear(news)`` is told of every run, ``stop()`` asked now and then whether to end.
    """
    whole = plan_of(names, scale, only, algorithms, seeds)
    folder = None if data_dir is None else arguments.path("data_dir", data_dir)
    count = None if workers is None else arguments.whole("workers", workers, 0)
    return work(whole.runs, arguments.path("out", out), count, folder, hear, stop)
