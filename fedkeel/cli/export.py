"""``fedkeel export``: what a run measured, as a table for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from fedkeel.cli.tables import Row, as_csv_text, as_markdown
from fedkeel.errors import InputError, shown
from fedkeel.runs.atomic import replacing, write_atomically
from fedkeel.runs.history import History, mean
from fedkeel.runs.store import Store

FORMATS = ("csv", "parquet", "md")


def export_run(directory: Path, chosen: Sequence[str], clients: bool, out: Path | None) -> None:
    """Write the table of a run, which may be going on, to a file or to standard output."""
    kind = _format(chosen, out)
    parquet = _parquet() if kind == "parquet" else None
    with closing(Store.reading(directory)) as store:
        rows = of_clients(store) if clients else of_rounds(store.history())
    columns = list(dict.fromkeys(["round", *(["client"] if clients else []), *(name for row in rows for name in row)]))
    if parquet is not None and out is not None:
        _write_parquet(parquet, columns, rows, out)
        return
    text = as_csv_text(columns, rows) if kind == "csv" else as_markdown(columns, rows)
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text)


def of_rounds(history: History) -> list[Row]:
    """A row for each round: what it took, and what was measured after it.

    ``accuracy``, ``loss`` and ``metric NAME`` are of the reported model on the test set; those of other models and of
    the training samples have both before their names. ``value NAME`` is what was noted under that name; where that is
    a number for each client, ``mean value NAME`` over the cohort. ``time.NAME`` are seconds, and ``fairness NAME`` says
    how evenly clients are served, where they were evaluated.
    """
    rows: dict[int, dict[str, Any]] = {int(row["round"]): dict(row) for row in history.table()}
    reported = history.default_model()
    for m in history.measured:
        if (m.model, m.split) != (reported, "test"):
            found = {"accuracy": m.accuracy, "loss": m.loss} | {f"metric {name}": v for name, v in m.metrics.items()}
            rows.setdefault(m.round, {"round": m.round}).update(
                {f"{m.model} {m.split} {name}": value for name, value in found.items()}
            )
    for round, noted in history.noted.items():
        row = rows.setdefault(round, {"round": round})
        for name, value in noted.items():
            one = mean(value.values()) if isinstance(value, dict) else value
            row[f"mean value {name}" if isinstance(value, dict) else f"value {name}"] = one
    for round, times in history.times.items():
        rows.setdefault(round, {"round": round}).update(times)
    for round, even in history.fairness.items():
        rows.setdefault(round, {"round": round}).update({f"fairness {k}": v for k, v in asdict(even).items()})
    return [rows[round] for round in sorted(rows)]


def of_clients(store: Store) -> list[Row]:
    """A row for each client of each round; see ``Store.of_clients``."""
    return [{"round": round, "client": client} | row for (round, client), row in store.of_clients().items()]


def _format(chosen: Sequence[str], out: Path | None) -> str:
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(f'--{name}' for name in chosen)} exclude each other; choose one.")
    ending = "" if out is None else out.suffix.lower().removeprefix(".")
    kind = chosen[0] if chosen else ending if ending in FORMATS else "csv"
    if not chosen and out is not None and kind != ending:
        raise InputError(f"the format of {shown(str(out))} is not known; say --csv, --parquet or --md.")
    if kind == "parquet" and out is None:
        raise InputError("--parquet needs a file to write: add -o FILE.")
    return kind


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            "--parquet needs pyarrow, which is not installed: pip install pyarrow, or choose --csv."
        ) from None


def _write_parquet(parquet: Any, columns: Sequence[str], rows: Sequence[Row], out: Path) -> None:
    arrow = import_module("pyarrow")
    made = {}
    for column in columns:
        values = [row.get(column) for row in rows]
        whole = all(value is None or isinstance(value, int) for value in values)
        made[column] = arrow.array(values, arrow.int64() if whole else arrow.float64(), from_pandas=False)
    with replacing(out) as temporary:
        parquet.write_table(arrow.table(made), temporary)
