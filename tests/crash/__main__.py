"""``python -m tests.crash --kills 200``: ends with one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads should not fork

import torch

from tests.crash.harness import soak, to_stderr


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill runs, resume them, count what was lost.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30, help="of every run")
    parser.add_argument("--seed", type=int, default=0, help="of the instants; the machine's timing adds its own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tally = soak(options.kills, options.rounds, options.seed, Path(folder), to_stderr)
    print(json.dumps(asdict(tally)))
    raise SystemExit(bool(tally.rounds_lost or tally.bit_differences))


if __name__ == "__main__":
    main()
