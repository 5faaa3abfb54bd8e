"""A network of real processes on this machine: a server, its SuperLink, sites, and runs; all end with the test."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedkeel import config
from fedkeel.api import run as simulate
from fedkeel.network import places
from fedkeel.network.children import Children
from fedkeel.network.server import free_port
from fedkeel.runs.store import Store

FEDKEEL = [sys.executable, "-m", "fedkeel"]
PATIENCE = 180.0
"""Seconds within which anything must happen; long, since machines that test are busy."""


class Network:
    """Starts and ends the processes of one network."""

    def __init__(self, folder: Path, sites: int = 3, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.sites = sites
        self.network = folder / "network"
        self.host = host
        self.port, self.link_port = free_port(), free_port()
        places.make(self.network, sites, [host], self.port, self.link_port, days=1)
        self.at_server: list[str] = []
        self.at_sites: list[str] = []
        """Words before the commands of either side, such as ``ip netns exec NAME``."""
        self.children = Children(folder / "logs")
        self.pids: dict[str, int] = {}
        self.seen: set[int] = set()
        """Every process that was ever part of it."""

    def __enter__(self) -> Network:
        self.children.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        self.children.end()

    def start(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        settings = {"OMP_NUM_THREADS": "1", "FLWR_LOG_LEVEL": "ERROR", **(environment or {})}
        self.pids[name] = self.children.start(name, command, settings)
        self.seen.add(self.pids[name])

    def server(self) -> None:
        command = [*FEDKEEL, "network", "server", str(self.network / "server"), "--bind", self.host]
        self.start("server", [*self.at_server, *command])

    def site(self, client: int, data: Path | str, *more: str) -> None:
        folder = self.network / "sites" / f"client-{client}"
        command = [*FEDKEEL, "network", "site", str(folder), "--data", str(data), *more]
        self.start(f"client-{client}", [*self.at_sites, *command])

    def run(self, name: str, experiment: Path, *more: str) -> None:
        """Start a run; ``result`` waits for it."""
        out = ["--out", str(self.folder / "runs"), "--network", str(self.network), "--json"]
        command = [*FEDKEEL, "network", "run", str(experiment), *out, "--wait", f"{PATIENCE:g}", *more]
        self.start(name, [*self.at_server, *command])

    def up(self, experiment: Path) -> None:
        """A server and all sites, each with its share of an experiment."""
        self.server()
        for client in range(self.sites):
            self.site(client, experiment)

    def log(self, name: str) -> str:
        path = self.children.logs / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def result(self, name: str) -> int:
        """The exit code of a process, when it has ended."""
        self.until(lambda: name in self.children.ended(), f"{name} to end")
        return self.children.ended()[name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self._look()
        os.kill(self.pids[name], number)

    def superlink(self) -> int:
        """The process of Flower's SuperLink, which the server started."""
        found = [pid for pid in children_of(self.pids["server"]) if "superlink" in command_of(pid)]
        self.seen.update(found)
        return found[0]

    def rounds(self, label: str) -> int:
        """Whole rounds of a run so far."""
        directory = self.folder / "runs" / label
        if not (directory / "run.sqlite").exists():
            return 0
        try:
            store = Store.reading(directory)
        except Exception:  # it is just being made
            return 0
        try:
            return store.rounds_done()
        finally:
            store.close()

    def until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            self._look()
            if time.monotonic() > end:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.pids)
                raise AssertionError(f"waited in vain for {what}\n{logs}")
            time.sleep(0.1)

    def left_behind(self) -> list[str]:
        """The commands of processes of this network that are still there."""
        time.sleep(0.5)
        return [command_of(pid) for pid in sorted(self.seen) if command_of(pid)]

    def _look(self) -> None:
        for pid in list(self.pids.values()):
            self.seen.update(children_of(pid))


def experiment(folder: Path, name: str = "scaffold", sites: int = 3, rounds: int = 4, **more: Any) -> Path:
    """A small experiment over real digits, as a file."""
    table: dict[str, Any] = {
        "name": f"{name}-test",
        "seed": 3,
        "data": {"name": "mnist5k", "samples": 300},
        "partition": {"rule": "dirichlet", "clients": sites, "alpha": 0.5},
        "model": {"name": "logistic"},
        "algorithm": {"name": name},
        "training": {"rounds": rounds, "epochs": 1, "batch_size": 20, "lr": 0.1},
    }
    for key, value in more.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "experiment.toml"
    path.write_text(config.as_toml(table), encoding="utf-8")
    return path


def simulated(path: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The model that the simulator ends with, one client after the other."""
    (one,) = config.read(path, ["run.executor=serial"])
    return simulate(one, folder / "simulated").state_dict()


def trained(directory: Path) -> dict[str, torch.Tensor]:
    """The model of a finished run."""
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def same_bits(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return sorted(one) == sorted(two) and all(torch.equal(one[name], two[name]) for name in one)


def children_of(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        direct = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [*direct, *(one for child in direct for one in children_of(child))]


def command_of(pid: int) -> str:
    """The command line of a process; nothing if it is gone, or only waits to be buried."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return ""
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def faults_of(directory: Path) -> list[tuple[str, str]]:
    """Kind and text of what the diary of a run has on clients."""
    store = Store.reading(directory)
    try:
        return [(event.kind, event.text) for event in store.events()]
    finally:
        store.close()


def printed(text: str) -> Any:
    """The JSON that a run printed at its end."""
    return json.loads(text[text.index("[") :])
