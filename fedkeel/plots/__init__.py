"""Pictures of runs: ``chart(runs, kind)`` for each of ``kinds()``.

Reading and drawing are apart: a kind's ``read`` makes plain numbers of stored runs, its ``draw`` a chart of numbers.
"""

from fedkeel.plots.kinds import chart, kinds, plot

__all__ = ["chart", "kinds", "plot"]
