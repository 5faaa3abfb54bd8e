"""Guards against getting slower: ratios to the plain loop must not fall below the floors of ``floors.json``.

    python benchmarks/guard.py            # or: make bench
    python benchmarks/guard.py --write    # new floors from what is measured now

Ratios, never seconds: the plain loop takes turns with fedkeel in the same run, so that a slower or busier machine
slows both. Floors are by the vector instructions that torch uses: wider ones speed the plain loop up more than what is
not arithmetic. Exit code 1 if a ratio fell below its floor even when measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FLOORS = Path(__file__).with_name("floors.json")
MARGIN = 0.85
"""A floor is this share of what was measured: room for noise, and no more."""
ROUNDS = {"W1": 40, "W2": 20, "W3": 5, "W4": 3}


@dataclass(frozen=True)
class Verdict:
    """One measured ratio beside its floor."""

    work: str
    name: str
    measured: float
    floor: float

    @property
    def holds(self) -> bool:
        return self.measured >= self.floor


RATIOS = ("ratio_to_plain_loop", "ratio_to_plain_loop_channels_last")


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """What is guarded of one result of ``fedkeel bench --json``."""
    return {name: result[name] for name in RATIOS if result[name] is not None}


def floors_for(capability: str, known: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The floors of a kind of machine; of one that nobody has measured yet, there are none."""
    return known.get(capability, {})


def judge(measured: dict[str, dict[str, float]], floors: dict[str, dict[str, float]]) -> list[Verdict]:
    """Every floor of the measured works with what was measured."""
    return [
        Verdict(work, name, found[name], floor)
        for work, found in measured.items()
        for name, floor in floors.get(work, {}).items()
    ]


def new_floors(measured: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Floors that what was measured would just pass, with the margin."""
    return {work: {name: round(MARGIN * value, 2) for name, value in found.items()} for work, found in measured.items()}


def table(verdicts: list[Verdict]) -> str:
    """The verdicts for a person."""
    lines = [f"{'work':6}{'ratio':36}{'measured':>9}{'floor':>8}"]
    for v in verdicts:
        mark = "" if v.holds else "  slower than before"
        lines.append(f"{v.work:6}{v.name:36}{v.measured:>8.2f}×{v.floor:>7.2f}×{mark}")
    return "\n".join(lines)


def measure(work: str) -> dict[str, float]:
    """A short benchmark in a process of its own."""
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", "bench", "--json", "--work", work]
    done = subprocess.run([*command, "--rounds", str(ROUNDS[work])], stdout=subprocess.PIPE, text=True, check=True)
    return ratios(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--write", action="store_true", help="write new floors for the measured works")
    options = parser.parse_args()
    capability = torch.backends.cpu.get_cpu_capability()
    known = json.loads(FLOORS.read_text(encoding="utf-8"))
    floors = floors_for(capability, known)
    measured = {work: measure(work) for work in options.works}
    if options.write:
        known[capability] = floors | new_floors(measured)
        FLOORS.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        print(FLOORS.read_text(encoding="utf-8"))
        return
    suspects = {verdict.work for verdict in judge(measured, floors) if not verdict.holds}
    for work in suspects:
        again = measure(work)  # one bad minute of the machine is no regression
        measured[work] = {name: max(value, again[name]) for name, value in measured[work].items()}
    verdicts = judge(measured, floors)
    print(f"floors for {capability}\n{table(verdicts)}")
    for work in measured.keys() - floors.keys():
        print(f"{work:6}has no floor yet: python benchmarks/guard.py --write --works {work}")
    sys.exit(not all(verdict.holds for verdict in verdicts))


if __name__ == "__main__":
    main()
