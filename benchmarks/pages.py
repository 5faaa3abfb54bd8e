"""Writes measured tables into docs/benchmarks.md, between the markers ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    python benchmarks/pages.py W1.json W2.json    # of `fedkeel bench --json`; kept in docs/results/bench.json

Everything comes from docs/results, so that no figure of a table is typed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "docs" / "results"


def fill(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the markers of a name."""
    before = page.read_text(encoding="utf-8")
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not between.search(before):
        raise SystemExit(f"{page} has no markers <!-- {name} --> … <!-- /{name} -->; add them where the table goes.")
    page.write_text(between.sub(lambda found: f"{found[1]}{text}\n{found[2]}", before), encoding="utf-8")


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers or short words."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def own_table(results: list[dict[str, Any]]) -> str:
    """A line for each work: the first of its results of ``fedkeel bench --json``."""
    columns = ["work", "algorithm", "executor", "s/round", "samples/s", "of the plain loop", "of it, channels last"]
    columns += ["start-up", "memory", "arithmetic", "durable"]
    rows = []
    for r in {r["work"]: r for r in reversed(results)}.values():
        last, durable = r["ratio_to_plain_loop_channels_last"], r["durable_overhead"]
        rows.append(
            [
                r["work"],
                r["algorithm"],
                r["executor_choice"],
                f"{r['seconds_per_round']:.3f}",
                f"{r['samples_per_s']:,.0f}",
                f"{r['ratio_to_plain_loop']:.2f}×",
                "–" if last is None else f"{last:.2f}×",
                f"{r['startup_seconds']:.1f} s",
                f"{r['peak_rss_mb']:.0f} MB",
                f"{r['arithmetic_share']:.0%}",
                "–" if durable is None else f"{durable:+.1%}",
            ]
        )
    return markdown(columns, sorted(rows))


def compared_table(results: list[dict[str, Any]]) -> str:
    """How many times as long as FedAvg's the rounds of others take, for each result of ``--compare``."""
    compared = [r for r in results if r["compared"]]
    names = list(dict.fromkeys(name for r in compared for name in r["compared"]))
    rows = []
    for r in compared:
        ratios = {name: f"{row['relative_to_fedavg']:.2f}×" for name, row in r["compared"].items()}
        rows.append([r["work"], *(ratios.get(name, "–") for name in names)])
    return markdown(["work", *names], rows)


def peer_table(runs: list[dict[str, Any]]) -> str:
    """Seconds per round of everybody's best setting, with the ratio of the plain loop's time to it, work by work."""
    whole = [r for r in runs if "error" not in r]
    works = sorted({r["work"] for r in runs})
    times: dict[tuple[str, str], tuple[float, str]] = {}
    for who, work in {(r["who"], r["work"]) for r in whole}:
        own = [r for r in whole if r["who"] == who and r["work"] == work]
        by_setting = {
            s: statistics.median(r["seconds_per_round"] for r in own if r["setting"] == s)
            for s in {r["setting"] for r in own}
        }
        best = min(by_setting, key=by_setting.__getitem__)
        times[who, work] = (by_setting[best], best)
    names = list(dict.fromkeys(r["who"] for r in runs))
    names.sort(key=lambda who: (who not in ("fedkeel", "plain loop", "plain loop, channels last"), who.lower()))
    rows = []
    for who in names:
        cells = []
        for work in works:
            if (who, work) not in times:
                cells.append("–")
                continue
            seconds = times[who, work][0]
            reference = times.get(("plain loop", work))
            cells.append(f"{seconds:.3g} s" + (f" ({reference[0] / seconds:.2f}×)" if reference else ""))
        own = [r for r in whole if r["who"] == who]
        startup = f"{statistics.median(r['startup_seconds'] for r in own):.1f} s" if own else "–"
        memories = [r["peak_mb"] for r in own if r["peak_mb"]]
        held = f"{max(memories):,} MB" if memories else "–"
        best = ", ".join(dict.fromkeys(times[who, work][1] for work in works if (who, work) in times))
        rows.append([who, *cells, startup, held, _version(own), best])
    return markdown(["", *works, "start-up", "memory", "version", "best setting"], rows)


def scale_table(rows: list[dict[str, Any]]) -> str:
    """A line for each number of registered clients, and the picture."""
    cells = [
        [
            f"{row['clients']:,}",
            f"{row['seconds_per_round'] * 1000:.1f} ms",
            f"{row['setup_seconds']:.2f} s",
            f"{row['peak_mb']:.0f} MB",
        ]
        for row in rows
    ]
    picture = "![Time and memory against registered clients](pictures/scale.png)"
    return markdown(["clients", "a round", "set-up", "memory"], cells) + f"\n\n{picture}"


_PACKAGES = {
    "Flower": "flwr",
    "pfl-research": "pfl",
    "FedJAX": "fedjax",
    "BlazeFL": "blazefl",
    "fluke": "fluke-fl",
    "FedLab": "fedlab",
    "FLGo": "flgo",
}


def _version(own: list[dict[str, Any]]) -> str:
    versions = own[-1]["versions"] if own else {}
    package = _PACKAGES.get(own[-1]["who"]) if own else None
    if package:
        return str(versions.get(package, "–"))
    return f"torch {versions['torch']}" if "torch" in versions else "–"


def tables() -> dict[str, str]:
    """All tables of the page by the name of their markers, from docs/results."""
    bench = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))
    peers = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))["runs"]
    scale = [json.loads(line) for line in (RESULTS / "scale.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "own": own_table(bench),
        "compared": compared_table(bench),
        "peers": peer_table(peers),
        "scale": scale_table(scale),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="files of `fedkeel bench --json`, to be kept")
    options = parser.parse_args()
    if options.results:
        kept = ",\n".join(json.dumps(json.loads(path.read_text(encoding="utf-8"))) for path in options.results)
        (RESULTS / "bench.json").write_text(f"[\n{kept}\n]\n", encoding="utf-8")
    for name, table in tables().items():
        fill(name, table)


if __name__ == "__main__":
    main()
