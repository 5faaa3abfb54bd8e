"""What a round over sites costs: ``fedkeel network local`` on this machine, and where its seconds and bytes go.

    python benchmarks/network.py --sites 5 --rounds 20

Prints one JSON object. ``seconds`` is the median over rounds but the first, in which sites make model and algorithm;
``at_sites`` is the longest that any site computed, fetched or sent in the median round; ``wire`` are bytes that passed
the gate, above TLS; ``messages`` those that the run's own accounting has, which counts the algorithm's tensors alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fedkeel import config
from fedkeel.runs.store import Store

_ANSWERED = re.compile(r"answered in ([\d.]+) s \(([\d.]+) s to fetch, ([\d.]+) s to send\)")


def measured(sites: int, rounds: int, algorithm: str, model: str) -> dict[str, object]:
    """One run over sites of this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = {
            "name": "measured",
            "data": {"name": "mnist5k"},
            "partition": {"rule": "dirichlet", "clients": sites, "alpha": 0.3},
            "model": {"name": model},
            "algorithm": {"name": algorithm},
            "training": {"rounds": rounds, "epochs": 1, "batch_size": 20, "lr": 0.1},
        }
        file = folder / "experiment.toml"
        file.write_text(config.as_toml(table), encoding="utf-8")
        network = folder / "network"
        command = [sys.executable, "-m", "fedkeel", "network", "local", str(file), "--sites", str(sites), "--quiet"]
        command += ["--network", str(network), "--out", str(folder / "runs"), "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with closing(Store.reading(folder / "runs" / "measured")) as store:
            history = store.history()
        logs = [(network / "logs" / f"client-{client}.log").read_text() for client in range(sites)]
        traffic = json.loads((network / "server" / "flower" / "traffic.json").read_text())
    answers = [[tuple(map(float, found)) for found in _ANSWERED.findall(log)][2:] for log in logs]
    slowest = [
        statistics.median(max(answers[site][t][part] for site in range(sites)) for t in range(min(map(len, answers))))
        for part in range(3)
    ]
    seconds = [one.seconds for one in history.rounds][1:]
    messages = sum(one.bytes_down + one.bytes_up for one in history.rounds)
    wire = traffic["up"] + traffic["down"]
    return {
        "sites": sites,
        "algorithm": algorithm,
        "model": model,
        "rounds": rounds,
        "seconds": round(statistics.median(seconds), 3),
        "slowest_round": round(max(seconds), 3),
        "at_sites": dict(zip(("computing", "fetching", "sending"), (round(one, 3) for one in slowest), strict=True)),
        "messages_bytes": messages,
        "wire_bytes": wire,
        "wire_over_messages": round(wire / messages, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--model", default="2nn")
    options = parser.parse_args()
    print(json.dumps(measured(options.sites, options.rounds, options.algorithm, options.model), indent=2))


if __name__ == "__main__":
    main()
