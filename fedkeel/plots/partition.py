"""Which classes each client holds, of the run's own data."""

from __future__ import annotations

from typing import Any

from fedkeel.data.preview import preview_chart
from fedkeel.errors import InputError
from fedkeel.plots.figure import Figure, Options
from fedkeel.plots.sources import Chosen, Source


def partition(chosen: Chosen, options: Options) -> Figure:
    """The partition of the first run; the others must have the same, or another seed's by the same rule."""
    first = chosen.sources[0]
    for other in chosen.sources[1:]:
        differ = [
            field
            for field in {*first.run.settings, *other.run.settings}
            if field.startswith(("data.", "partition."))
            and first.run.settings.get(field) != other.run.settings.get(field)
        ]
        same_seed = other.run.seed == first.run.seed
        dealt = [(one.run.data or {}).get("partition") for one in (first, other)]
        if differ or (same_seed and dealt[0] != dealt[1]):
            raise InputError(
                f"{first.directory} and {other.directory} have other data or another partition; name one of them."
            )
    others = {source.run.seed for source in chosen.sources} - {first.run.seed}
    told = (f"seed {first.run.seed}; other seeds deal by the same rule",) if others else ()
    return Figure("Partition", told, first.federation())


def _dealing(source: Source) -> dict[str, Any]:
    return {field: v for field, v in source.run.settings.items() if field.startswith(("data.", "partition."))}


def draw_partition(figure: Figure) -> Any:
    return preview_chart(figure.rows, figure.notes)
