"""Clients on the far side of a wire, in this process: bytes there, bytes back, and whatever a network does to them.

Every client is a ``Site`` that is made from a description of the run, and remembers in a file of its own. The same
fates that ``engine/faults.py`` plans for a simulation befall its messages here. So each run has one in the simulator
whose bits it must have, and ``python -m tests.engine.far_side`` prints how many values differ: none.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.check import rounds, tiny_simulation, tiny_task
from fedkeel.engine.description import Description
from fedkeel.engine.exchange import Question
from fedkeel.engine.faults import Fate, fate
from fedkeel.engine.rounds import RunState
from fedkeel.engine.samples import ClientData
from fedkeel.engine.settings import Faults
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.site import BUFFERS, Site, own_data
from fedkeel.engine.site_memory import SiteMemory
from fedkeel.engine.sites import SiteRounds, Sites
from fedkeel.engine.wire import request_from_bytes
from fedkeel.learning.metrics import as_metrics
from fedkeel.state.rows import Rows

RUN = "far side"
SIZES = (12, 7, 20, 10, 16)
ROUNDS = 3


@dataclass(frozen=True)
class Weather:
    """What the network does to messages."""

    faults: Faults = field(default_factory=Faults)
    """Uploads that are lost, late or twice, and clients that drop out: planned as in a simulation."""
    restarts: bool = False
    """Whether every site is started anew before every message."""
    from_scratch: bool = True
    """Whether a site that starts makes model and algorithm anew, too, from the description."""
    requests_twice: bool = False
    old_requests: bool = False
    """Whether every request arrives once more after the next one."""


ROUGH = Faults(dropout=0.15, lost=0.25, late=0.2, duplicates=0.5)
CASES = {
    "nothing": Weather(),
    "lost, late, twice": Weather(ROUGH),
    "restarted": Weather(restarts=True),
    "requests twice": Weather(requests_twice=True),
    "everything": Weather(ROUGH, restarts=True, from_scratch=False, requests_twice=True, old_requests=True),
}


class FarSide:
    """The transport, and the sites behind it."""

    def __init__(self, near: Simulation, description: str, directory: Path, weather: Weather) -> None:
        self.near = near
        self.weather = weather
        self._description = description
        self._module = tiny_task(norm=len(near.task.buffer_layout) > 0).train_module
        self._directory = directory
        self._sites: dict[int, Site] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._old: dict[int, bytes] = {}
        self._lost_once: set[tuple[int, int, int]] = set()

    def exchange(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        late, self._waiting = self._waiting, []
        yield from late
        for client, request in requests.items():
            yield from self._befallen(client, request, self._fate(client, request))

    def site(self, client: int) -> Site:
        """A client as somebody elsewhere would set it up: from the description and its own samples."""
        if client not in self._sites or (self.weather.restarts and self.weather.from_scratch):
            equipment = Description.read(self._description).equipment(module=self._module)
            stored, rows = self.near.federation.dataset, self.near.federation.clients[client]
            data = own_data(equipment.task, stored.train.x[rows], stored.train.y[rows], stored.transform)
            memory = SiteMemory(self._directory, client)
            self._sites[client] = Site(RUN, client, equipment, data, memory, common_test=self.near.samples.test)
        elif self.weather.restarts:
            self._sites[client] = replace(self._sites[client], memory=SiteMemory(self._directory, client))
        return self._sites[client]

    def _fate(self, client: int, request: bytes) -> Fate:
        asked = request_from_bytes(request)
        if isinstance(asked, Question):  # one whose answer is lost is asked again
            key = (client, asked.t, int(asked.purpose))
            first = self.weather.faults.lost > 0 and key not in self._lost_once
            self._lost_once.add(key)
            return Fate("lost") if first and (client + asked.t) % 3 == 0 else Fate()
        return fate(self.weather.faults, self.near.seed, asked.round.t, client)

    def _befallen(self, client: int, request: bytes, what: Fate) -> Iterator[tuple[int, bytes]]:
        if what.answer == "dropout":
            return
        reply = self.site(client).reply(request)
        if self.weather.old_requests and client in self._old:
            self._waiting.append((client, self.site(client).reply(self._old[client])))
        self._old[client] = request
        if what.answer == "late":
            self._waiting.append((client, reply))
        elif what.answer == "arrives":
            yield client, reply
            if what.twice:
                yield client, reply
            if self.weather.requests_twice:
                yield client, self.site(client).reply(request)


def near_and_far(
    algorithm: Algorithm, weather: Weather, directory: Path, **training: Any
) -> tuple[Simulation, SiteRounds, FarSide]:
    """A simulation, and the same run with its clients behind a wire."""
    weather = replace(weather, faults=bearable(algorithm, weather.faults))
    work = {"norm": True, "drop_last": True, "dtype": "float64", "participation": 0.8, **training}
    near = tiny_simulation(algorithm, SIZES, faults=weather.faults, **work)
    near.task.metrics = as_metrics(["f1"])
    server = replace(near.server, policy=Faults())
    far_side = FarSide(near, Description.of(RUN, near.equipment).write(), directory, weather)
    x, y = near.samples.test
    example = ClientData(x[:4], y[:4], near.samples.transform)
    return near, SiteRounds(server, Sites(near.equipment, far_side, example, near.samples.test)), far_side


def bearable(algorithm: Algorithm, faults: Faults) -> Faults:
    """What of some faults the algorithm can bear."""
    alone = algorithm.needs & {"full", "one_client"}
    return faults.model_copy(update={"dropout": 0.0, "lost": 0.0, "late": 0.0}) if alone else faults


def made(name: str) -> Algorithm:
    """An algorithm with its defaults, but for work that says nothing about messages (FedReg's pseudo data)."""
    return make_algorithm(name, **({"P": 1} if name == "fedreg" else {}))


def differences(near: Simulation, one: RunState, two: RunState, far_side: FarSide) -> list[str]:
    """The values that differ between a simulated run and one over the wire: server's, and what clients remember."""
    found = [] if one.t == two.t and torch.equal(one.counted, two.counted) else ["rounds"]
    found += [f"server.{name}" for name in one.server if not same(one.server[name], two.server.get(name))]
    found += [] if same(one.b, two.b) else ["b"]
    tables = {name: dict(rows) for name, rows in one.clients.items()} | {BUFFERS: dict(one.client_buffers)}
    for client in range(near.N):
        expected = {name: rows[client] for name, rows in tables.items() if client in rows}
        if expected:
            kept = SiteMemory(far_side._directory, client).state_after(RUN, int(two.counted[client]))
            found += [f"client {client}.{name}" for name in expected if not same(expected[name], kept.get(name))]
    return found


def same(a: Any, b: Any) -> bool:
    """Equal to the bit; NaN, where it means "not known", equals NaN."""
    if isinstance(a, Rows):
        return isinstance(b, Rows) and set(a) == set(b) and all(same(a[client], b[client]) for client in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    return repr(a) == repr(b)


def compared(name: str, weather: Weather, directory: Path, count: int = ROUNDS, evaluate: bool = True) -> list[str]:
    """What differs after some rounds, in the states and, if asked for, in every evaluation."""
    near, far, far_side = near_and_far(made(name), weather, directory)
    one, two = rounds(near, count), rounds(far, count)
    found = differences(near, one, two, far_side)
    return found + evaluated_apart(near, far, one, two) if evaluate else found


def evaluated_apart(near: Simulation, far: SiteRounds, one: RunState, two: RunState) -> list[str]:
    """The evaluations that differ."""
    found = []
    for split in ("test", "train"):
        found += [] if near.evaluate(one, split) == far.evaluate(two, split) else [f"evaluation on {split}"]
    found += [] if near.evaluate_clients(one) == far.evaluate_clients(two) else ["evaluation by clients"]
    return found


def main() -> int:
    """The table; names as arguments pick algorithms."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(ALGORITHMS)
    print("Values and evaluations that differ from serial, by what happens to messages and sites:\n")
    print(f"{'':12}" + "".join(f"{case:>20}" for case in CASES))
    wrong = 0
    for name in names:
        cells = []
        for case in CASES.values():
            with tempfile.TemporaryDirectory() as directory:
                cells.append(len(compared(name, case, Path(directory), evaluate=case == CASES["nothing"])))
        wrong += sum(cells)
        print(f"{name:12}" + "".join(f"{cell:20}" for cell in cells), flush=True)
    print(f"\n{len(names)} algorithms × {len(CASES)} cases × {ROUNDS} rounds: {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
