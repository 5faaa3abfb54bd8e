"""A picture of a federation: who holds how much of which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkeel import theme
from fedkeel.data.dataset import Federation
from fedkeel.data.partitions import RULES

MOST_BUBBLE_CLASSES = 30  # beyond, bubbles are too small to compare and a heat map reads better


def preview_chart(federation: Federation, notes: Sequence[str] = ()) -> Any:
    """An Altair chart: bars for the client sizes above, samples per client and class below.

    Bubbles (area = samples) for few classes, a heat map for many; the width follows the number of clients.
    ``notes`` are further lines below the title.
    """
    import altair as alt

    counts, sizes = federation.counts(), federation.sizes
    names = [str(name) for name in federation.dataset.class_names]
    client, label = np.nonzero(counts)
    cells = [
        {"client": int(i), "class": names[c], "samples": int(counts[i, c]), "share": round(counts[i, c] / sizes[i], 4)}
        for i, c in zip(client, label, strict=True)
    ]
    bars = [{"client": i, "samples": int(size)} for i, size in enumerate(sizes)]
    many_classes = len(names) > MOST_BUBBLE_CLASSES
    step = float(np.clip(880 / federation.N, 4, 26))
    row = 4.0 if many_classes else max(17.0, min(step, 24.0))
    width, height = step * federation.N, row * len(names)

    every = next(e for e in (1, 2, 5, 10, 20, 50, 100, federation.N) if 20 * e >= federation.N or e == federation.N)
    client_axis = alt.Axis(
        values=list(range(0, federation.N, every)), labelAngle=0, ticks=False, domain=False, labelPadding=6
    )
    x = alt.X("client:O", title="client", axis=client_axis, sort=list(range(federation.N)))
    class_axis = alt.Axis(ticks=False, domain=False, labels=not many_classes, labelPadding=6)
    y = alt.Y("class:N", title=f"{len(names)} classes" if many_classes else "class", sort=names, axis=class_axis)
    tip = ["client:O", "class:N", "samples:Q", alt.Tooltip("share:Q", format=".1%", title="of the client")]

    grid = alt.Chart(alt.InlineData(values=cells))
    if many_classes:
        shade = alt.Color("samples:Q", scale=alt.Scale(scheme="tealblues"), legend=alt.Legend(title="samples"))
        lower = grid.mark_rect().encode(x=x, y=y.scale(domain=names), color=shade, tooltip=tip)
    else:
        diameter = min(row, 1.7 * step)  # rows never touch; in narrow columns the rare full bubbles may overlap
        area = alt.Size(
            "samples:Q",
            scale=alt.Scale(range=[0, np.pi / 4 * diameter**2], domain=[0, int(counts.max())]),
            legend=alt.Legend(title="samples", symbolFillColor=theme.FAINT, symbolStrokeWidth=0, tickCount=4),
        )
        palette: Any = "tableau10" if len(names) <= 10 else "tableau20"
        colour = alt.Color("class:N", sort=names, legend=None, scale=alt.Scale(scheme=palette, domain=names))
        lower = grid.mark_circle(opacity=0.88).encode(
            x=x, y=y.scale(domain=names), size=area, color=colour, tooltip=tip
        )
    top_x = alt.X("client:O", axis=None, sort=list(range(federation.N)))
    size_axis = alt.Axis(tickCount=3, domain=False, ticks=False, grid=True)
    upper = (
        alt.Chart(alt.InlineData(values=bars))
        .mark_bar(color=theme.BAR, cornerRadiusTopLeft=1.5, cornerRadiusTopRight=1.5)
        .encode(x=top_x, y=alt.Y("samples:Q", title="samples", axis=size_axis), tooltip=["client:O", "samples:Q"])
        .properties(width=width, height=64)
    )
    chart = alt.vconcat(upper, lower.properties(width=width, height=height), spacing=10)
    return _styled(chart, federation, notes)


def _styled(chart: Any, federation: Federation, notes: Sequence[str]) -> Any:
    facts = federation.describe()
    low, high = facts["size_min"], facts["size_max"]
    sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    subtitle = (
        f"{facts['samples']:,} samples, {sizes} a client · "
        f"{facts['classes_per_client']:.1f} classes a client · distance to the whole {facts['label_distance']:.2f}"
    )
    name = str(federation.rule.get("name", "own"))
    usual = {param.name: param.default for param in RULES[name].params} if name in RULES else {}
    shown = {
        key: value
        for key, value in federation.rule.items()
        if key == "alpha" or (key not in ("name", "clients", "seed") and value != usual.get(key))
    }
    settings = ", ".join(f"{key} {value}" for key, value in shown.items())
    rule = f"{name} ({settings})" if settings else name
    title = f"{federation.dataset.name} · {federation.N} clients · {rule}"
    return theme.styled(chart, theme.heading(title, [subtitle, *notes]))
