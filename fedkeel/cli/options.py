"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel import arguments


def usable(param: typer.CallbackParam, value: Any) -> Any:
    """Refuse paths that no file system could have before anything else is done."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if one is not None:
            arguments.path(param.opts[0], one)
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV for a spreadsheet.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="FEDKEEL_DATA", help="Folder with data files, looked in first.", callback=usable),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where results go.", callback=usable)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results only.")]
