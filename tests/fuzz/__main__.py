"""``python -m tests.fuzz --inputs 12000``: random inputs for every reader; ends with one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback

from tests.fuzz.targets import TARGETS, attack


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed every reader of files and settings with damaged inputs.")
    parser.add_argument("--inputs", type=int, default=12000, help="of all readers together")
    options = parser.parse_args()
    counts, failed = {}, []
    for target in TARGETS:
        began = time.monotonic()
        try:
            counts[target.name] = attack(target, options.inputs // len(TARGETS), repeatable=False)
        except Exception:  # with the smallest input that causes it, found by hypothesis
            traceback.print_exc()
            failed.append(target.name)
            continue
        print(f"{target.name}: {counts[target.name]} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"inputs": sum(counts.values()), "readers_with_unexpected_errors": len(failed)} | counts))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
