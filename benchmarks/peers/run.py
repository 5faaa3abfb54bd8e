"""Other libraries, the plain loop and fedkeel on the same work, one after the other, several times around.

    python benchmarks/peers/run.py --works W1 W2 W3 W4 --passes 3

Every setting of a peer is tried in the first pass; later passes repeat only the best of each, and with ``--best FILE``
the first does too, by the results of an earlier run. Within a pass, the plain
loop runs before every few peers, and the order turns from pass to pass. A run's figure is the median of its rounds
without the first ones; a peer's figure is the median of its runs. Writes docs/results/peers.json after every run, and
the table into docs/benchmarks.md at the end.

Environments are made by install.sh; a peer without one is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import pages
from common import CORES, ENVIRONMENTS, MARK, images

from fedkeel.bench.process import memory
from fedkeel.bench.works import WORKS
from fedkeel.runs.atomic import write_atomically
from fedkeel.runs.directory import environment

RESULTS = ROOT / "docs" / "results" / "peers.json"
ROUNDS = {"W1": 24, "W2": 14, "W3": 6, "W4": 3}
SLOWEST = 1200
"""Seconds after which a run is given up."""
PLAIN, FEDKEEL = "plain loop", "fedkeel"
PLAIN_EVERY = 3


@dataclass(frozen=True)
class Setting:
    """One way to run one contender."""

    label: str
    who: str
    script: str
    arguments: tuple[str, ...] = ()
    env: str = ""
    """Folder of its environment; empty: this one."""
    launcher: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str:
        return str(ENVIRONMENTS / self.env / "bin" / "python") if self.env else sys.executable


def _settings() -> list[Setting]:
    all_cores = ("--threads", str(CORES))
    index = ("--loader", "index")
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node", str(CORES))
    single = {"OMP_NUM_THREADS": "1"}
    last = ("--layout", "channels_last")
    return [
        Setting("plain loop", PLAIN, "plain_loop.py"),
        Setting("plain loop, channels last", "plain loop, channels last", "plain_loop.py", last),
        Setting("fedkeel", FEDKEEL, "fedkeel_simulation.py"),
        Setting("one CPU per client", "Flower", "peer_flower.py", env="flower"),
        Setting("one CPU per client, index batches", "Flower", "peer_flower.py", index, "flower"),
        Setting("torchrun", "pfl-research", "peer_pfl.py", (), "pfl", torchrun, single),
        Setting("torchrun, index batches", "pfl-research", "peer_pfl.py", index, "pfl", torchrun, single),
        Setting("jit", "FedJAX", "peer_fedjax.py", env="fedjax"),
        Setting("pmap", "FedJAX", "peer_fedjax.py", ("--backend", "pmap"), "fedjax_old"),
        Setting("process pool", "BlazeFL", "peer_blazefl.py", env="blazefl"),
        Setting("process pool, index batches", "BlazeFL", "peer_blazefl.py", index, "blazefl"),
        Setting("one thread", "fluke", "peer_fluke.py", env="fluke"),
        Setting("all threads", "fluke", "peer_fluke.py", all_cores, "fluke"),
        Setting("one thread, index batches", "FedLab", "peer_fedlab.py", index, "fedlab"),
        Setting("all threads, index batches", "FedLab", "peer_fedlab.py", index + all_cores, "fedlab"),
        Setting("serial", "FLGo", "peer_flgo.py", env="flgo"),
        Setting("client threads", "FLGo", "peer_flgo.py", ("--clients", "threads"), "flgo"),
    ]


class Watch(threading.Thread):
    """The most memory that the processes of one run held together; they are known by a mark in their environment."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.mark = mark.encode()
        self.peak = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.peak = max(self.peak, memory([pid for pid in self._pids() if pid != os.getpid()]))

    def _pids(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue  # it ended, or is somebody else's
        return found


def run(setting: Setting, work: str, rounds: int, algorithm: str | None, watched: bool) -> dict[str, Any]:
    """One process from start to end, as plain numbers."""
    more = ("--algorithm", algorithm) if setting.who == FEDKEEL and algorithm else ()
    command = [setting.python, *setting.launcher, str(HERE / setting.script), "--work", work, "--rounds", str(rounds)]
    mark = uuid.uuid4().hex
    watch = Watch(mark)
    variables = (
        os.environ
        | setting.variables
        | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
            "PYTHONWARNINGS": "ignore",
            "FEDKEEL_PEERS": str(ENVIRONMENTS),
            "FEDKEEL_PEER_RUN": mark,
            "FEDKEEL_PEER_STARTED": repr(time.time()),
        }
    )
    load = os.getloadavg()[0]
    if watched:
        watch.start()
    try:
        done = subprocess.run(
            [*command, *setting.arguments, *more],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SLOWEST,
            check=False,
        )
        output = done.stdout
    except subprocess.TimeoutExpired:
        output = f"given up after {SLOWEST} s"
    if watched:
        watch.over.set()
        watch.join()
    named = {"who": setting.who, "setting": setting.label, "work": work, "load": round(load, 2)}
    reported = [line for line in output.splitlines() if line.startswith(MARK)]
    if not reported:
        return named | {"error": output[-2000:]}
    found = json.loads(reported[-1].removeprefix(MARK))
    seconds = [after - before for before, after in itertools.pairwise(found["ends"])]
    steady = seconds[1:] if len(seconds) > 2 else seconds
    return named | {
        "seconds_per_round": statistics.median(steady),
        "startup_seconds": found["ends"][0] - found["started"],
        "peak_mb": round(watch.peak / 1e6) if watched else None,
        "accuracy": found["accuracies"][-1] if setting.who not in (PLAIN, "plain loop, channels last") else None,
        "rounds": len(found["ends"]),
        "versions": found["versions"],
    }


def order(settings: list[Setting], number: int) -> list[Setting]:
    """The contenders of a pass: peers turned by one place a pass, the plain loop again and again between them."""
    plain = next(s for s in settings if s.who == PLAIN)
    others = [s for s in settings if s is not plain]
    turned = others[number % len(others) :] + others[: number % len(others)] if others else []
    return [s for i, other in enumerate(turned) for s in ([plain] if i % PLAIN_EVERY == 0 else []) + [other]] + [plain]


def best_of_each(settings: list[Setting], runs: list[dict[str, Any]], work: str) -> list[Setting]:
    """Each contender's fastest setting on a work so far; those that never ran through are left out."""
    best: dict[str, tuple[float, Setting]] = {}
    for setting in settings:
        times = [
            r["seconds_per_round"]
            for r in runs
            if r["work"] == work and r["who"] == setting.who and r["setting"] == setting.label and "error" not in r
        ]
        if times and (setting.who not in best or min(times) < best[setting.who][0]):
            best[setting.who] = (min(times), setting)
    return [setting for _, setting in best.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds of every run; absent: by work")
    parser.add_argument("--only", nargs="+", metavar="PEER", help="besides the plain loop, only these")
    parser.add_argument("--algorithm", help="what fedkeel runs; absent: fedavg, as the peers do")
    parser.add_argument("--best", type=Path, metavar="FILE", help="results whose best setting of each peer is taken")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    settings = [s for s in _settings() if not s.env or Path(s.python).exists()]
    if options.only:
        settings = [s for s in settings if s.who == PLAIN or s.who.lower() in map(str.lower, options.only)]
    images()
    earlier = [] if options.best is None else json.loads(options.best.read_text())["runs"]
    runs: list[dict[str, Any]] = []
    for number in range(options.passes):
        for work in options.works:
            fitting = [s for s in settings if WORKS[work].convolutional or "channels_last" not in s.arguments]
            known = earlier if number == 0 else runs
            wanted = best_of_each(fitting, known, work) if known else fitting
            for setting in order(wanted, number):
                found = run(setting, work, options.rounds or ROUNDS[work], options.algorithm, watched=number == 0)
                runs.append(found | {"pass": number})
                _tell(runs[-1])
                options.out.parent.mkdir(parents=True, exist_ok=True)
                text = ",\n".join(json.dumps(r, ensure_ascii=False) for r in runs)
                head = json.dumps(environment())
                write_atomically(options.out, f'{{"environment": {head},\n"runs": [\n{text}\n]}}\n')
    table = pages.peer_table(runs)
    print(f"\n{table}")
    if options.out == RESULTS:
        pages.fill("peers", table)


def _tell(found: dict[str, Any]) -> None:
    who = f"{found['work']}  {found['who']} ({found['setting']})"
    if "error" in found:
        print(f"{who}: failed\n{found['error'][-600:]}", flush=True)
        return
    memory_held = "" if found["peak_mb"] is None else f", {found['peak_mb']} MB"
    accuracy = "" if found["accuracy"] is None else f", accuracy {found['accuracy']:.1%}"
    print(
        f"{who}: {found['seconds_per_round']:.3f} s a round, first round after {found['startup_seconds']:.1f} s"
        f"{memory_held}{accuracy}, load {found['load']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
