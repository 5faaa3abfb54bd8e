"""``fedkeel verify``: whether runs are still what was written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedkeel.cli.main import print_json
from fedkeel.errors import FedkeelError, printable
from fedkeel.runs.verify import Verified, verify


def show_verified(directories: list[Path], as_json: bool) -> bool:
    """A line for each run; whether all of them are sound."""
    results: list[dict[str, Any]] = []
    for directory in directories:
        result: dict[str, Any] = {"run": str(directory), "sound": True}
        try:
            found = verify(directory)
            result |= asdict(found)
            line = f"{directory}: sound: {_counts(found)}"
        except FedkeelError as error:
            result |= {"sound": False, "error": str(error)}
            line = f"{directory}: not sound: {error}"
        results.append(result)
        if not as_json:
            print(printable(line))
    if as_json:
        print_json(results)
    return all(result["sound"] for result in results)


def _counts(found: Verified) -> str:
    parts = [f"{found.rounds} rounds", "the last state" if found.state else "no state yet"]
    parts += [f"{found.kept} kept states"] if found.kept else []
    parts += [f"{found.events} events", "the model" if found.model else "no model yet"]
    return f"{', '.join(parts)}; {found.bytes / 1e6:,.1f} MB"
