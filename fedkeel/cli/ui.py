"""``fedkeel ui``: the live page."""

from __future__ import annotations

from pathlib import Path

from fedkeel.errors import DataError, InputError, printable


def run_ui(
    folder: Path | None, host: str, port: int, token: str | None, data_dir: Path | None, read_only: bool
) -> None:
    """Serve the page until Ctrl-C."""
    try:
        from fedkeel.ui.serve import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "jinja2", "markupsafe"):
            raise
        raise InputError(
            f"`fedkeel ui` needs {error.name}, which is not installed: pip install 'fedkeel[ui]'."
        ) from None
    if folder is not None and not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name one that holds runs, or leave it out for ./runs.")
    serve(folder or Path("runs"), host, port, token, data_dir, read_only, _tell)


def _tell(text: str) -> None:
    # Not rich, which would come with torch: the page should be there at once.
    print(printable(text), flush=True)
