"""Prints the comparison of each trace; exits with 1 if one is out of tolerance."""

import sys
from pathlib import Path

from tests.replay.run import compare


def main(paths: list[str]) -> int:
    failed = 0
    for path in map(Path, paths):
        differences, left = compare(path)
        bad = [difference for difference in differences if not difference.within]
        failed += bool(bad)
        print(f"{'FAIL' if bad else 'ok  '} {path.name}")
        for d in differences:
            print(f"       {d.array:<24} {d.largest:8.1e}  (tolerance {d.tolerance:.0e}){'' if d.within else '  <<<'}")
        if left:
            print(f"       not compared: {', '.join(left)}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
