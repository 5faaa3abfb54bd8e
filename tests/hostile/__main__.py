"""``python -m tests.hostile``: random modules, damages and inputs; ends with one line of JSON, zeros if all is well.

Each generator runs in a process of its own, two at a time. A failing example is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AT_A_TIME = 2


@dataclass(frozen=True)
class Generator:
    """A module with ``run(count, seed)``, and the numbers in its result that must be zero."""

    name: str
    zeros: tuple[str, ...]
    count: int


GENERATORS = (
    Generator("modules", ("wrong",), 2000),
    Generator("damage", ("silent", "tracebacks"), 2000),
    Generator("inputs", ("tracebacks", "hangs"), 20000),
)
COUNTED = {"modules": "modules", "damage": "damages", "inputs": "inputs"}
"""What each generator calls its number of trials."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Try to get a wrong result or a traceback out of fedkeel.")
    for generator in GENERATORS:
        parser.add_argument(f"--{COUNTED[generator.name]}", type=int, default=generator.count)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asked = {generator: getattr(options, COUNTED[generator.name]) for generator in GENERATORS}
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        waiting = {g: threads.submit(result, g, count, options.seed) for g, count in asked.items() if count > 0}
        results = {generator: future.result() for generator, future in waiting.items()}
    for generator, found in results.items():
        for example in found.get("examples", []):
            print(f"{generator.name}, seed {options.seed}: {_told(example)}\n")
    totals = total(results)
    print(json.dumps(totals))
    raise SystemExit(any(totals[zero] for generator in GENERATORS for zero in generator.zeros))


def result(generator: Generator, count: int, seed: int) -> dict[str, Any]:
    """What a generator found, in a process of its own; its death is a finding too."""
    code = (
        f"import json; from tests.hostile.{generator.name} import run; print('\\n' + json.dumps(run({count}, {seed})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    words = f"the generator itself ended with {done.returncode}: {done.stderr[-2000:]}"
    return {generator.zeros[-1]: 1, "examples": [words]}


def total(results: dict[Generator, dict[str, Any]]) -> dict[str, int]:
    """All counts in one table; tracebacks of damages and of inputs are added."""
    names = ("modules", "wrong", "damages", "silent", "inputs", "tracebacks", "hangs")
    return {name: sum(int(found.get(name, 0)) for found in results.values()) for name in names}


def _told(example: Any) -> str:
    """An example as lines."""
    if not isinstance(example, dict):
        return str(example)
    return "\n".join(f"{key}: {value}" for key, value in example.items())


if __name__ == "__main__":
    main()
