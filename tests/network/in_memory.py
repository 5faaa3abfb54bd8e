"""Sites in this process: a carrier that hands every letter to the client's half itself, with what may go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel import api, build, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.config import Experiment
from fedkeel.data.dataset import Split
from fedkeel.engine.exchange import Question
from fedkeel.engine.sites import Lost
from fedkeel.engine.wire import request_from_bytes
from fedkeel.network.client_half import ClientHalf
from fedkeel.network.letters import read_letter
from fedkeel.network.run import NetworkRun, Terms
from fedkeel.network.run import run as run_over_sites
from fedkeel.network.site_data import SiteData
from fedkeel.session import Listeners

CLIENTS = 5
AT_SITES = [name for name in ALGORITHMS if name != "centralised"]
"""Every algorithm but the one that pools all samples."""


def experiment(algorithm: str = "fedavg", **fields: Any) -> Experiment:
    """Five clients of 20 generated samples with 30 features, two rounds; ``fields`` as ``training__rounds=3``."""
    table: dict[str, Any] = {
        "data": {"name": "synthetic_feddyn", "clients": CLIENTS, "samples": 20},
        "model": {"name": "emnist_nn"},
        "algorithm": {"name": algorithm} | ({"P": 1} if algorithm == "fedreg" else {}),
        "training": {"rounds": 2, "batch_size": 8, "lr": 0.05},
        "run": {"executor": "serial"},
    }
    for name, value in fields.items():
        part, _, field = name.partition("__")
        table[part] = table.get(part, {}) | {field: value} if field else value
    return config.expand(table, [])[0]


def sites_experiment(algorithm: str = "fedavg", **fields: Any) -> Experiment:
    """The same where sites have data of their own."""
    return experiment(algorithm, **{"data": {"name": "sites"}} | fields)


def shares(of: Experiment) -> list[SiteData]:
    """What the sites of an experiment hold, each its share."""
    federation = build.make_federation(of)
    return [SiteData.of(federation, client) for client in range(federation.N)]


def own_data(client: int, samples: int = 12, classes: int = 3, features: int = 4, test: int = 0) -> SiteData:
    """Samples that only one site has: clouds around the corner of their class."""
    rng = np.random.default_rng(client)

    def drawn(count: int) -> Split:
        y = np.resize(np.arange(classes, dtype=np.int64), count)
        x = rng.standard_normal((count, features)).astype(np.float32)
        x[np.arange(count), y] += 2
        return Split(x, y)

    return SiteData.of_arrays(f"site {client}", drawn(samples), drawn(test) if test else None)


class Memory:
    """A carrier without a network. ``lost`` says of a client and a letter's round (from 1) whether it gets lost."""

    def __init__(self, data: Sequence[SiteData], folder: Path, lost: Callable[[int, int], bool] | None = None) -> None:
        self.folder = folder
        self.halves = [ClientHalf(client, one, folder / f"site-{client}") for client, one in enumerate(data)]
        self.lost = lost or (lambda client, round: False)
        self.calls: list[tuple[int, int]] = []
        """Client and round of every call that arrived."""

    def restart(self) -> None:
        """New processes over the same folders."""
        self.halves = [ClientHalf(half.client, half.data, half.memory) for half in self.halves]

    def exchange(self, letters: Mapping[int, bytes], within: float | None = None) -> Iterator[tuple[int, bytes | Lost]]:
        for client, data in letters.items():
            letter = read_letter(data)
            request = request_from_bytes(letter.request) if letter.request else None
            if request is not None and not isinstance(request, Question):
                if self.lost(client, request.round.t + 1):
                    yield client, Lost("its site is not online")
                    continue
                self.calls.append((client, request.round.t + 1))
            yield client, self.halves[client].reply(data)


class Spoiling:
    """Another carrier, of whose replies ``spoil`` makes what it likes."""

    def __init__(self, inner: Memory, spoil: Callable[[int, bytes, bytes], Iterable[tuple[int, bytes | Lost]]]) -> None:
        self.inner = inner
        self.spoil = spoil

    def exchange(self, letters: Mapping[int, bytes], within: float | None = None) -> Iterator[tuple[int, bytes | Lost]]:
        for client, reply in self.inner.exchange(letters):
            yield from [(client, reply)] if isinstance(reply, Lost) else self.spoil(client, letters[client], reply)


def over_sites(
    one: Experiment,
    directory: Path,
    carrier: Memory | Spoiling,
    quorum: float = 0.5,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    clients: int = CLIENTS,
) -> NetworkRun:
    return run_over_sites(one, directory, carrier, clients, Terms(0.0, quorum), Listeners(None, stop), resume)


def simulated(one: Experiment, directory: Path) -> api.Run:
    return api.run(one, directory)


def apart(here: Any, there: Any) -> list[str]:
    """What differs between two runs: everything of the model and the history but times."""
    from tests.engine.far_side import same

    one, two = here.state, there.state
    found = [f"server.{name}" for name in one.server if not same(one.server[name], two.server.get(name))]
    found += [] if same(one.b, two.b) else ["buffers"]
    found += [] if same(one.counted, two.counted) else ["who counted"]
    found += [] if repr(here.history.measured) == repr(there.history.measured) else ["evaluations"]
    found += [] if repr(here.history.noted) == repr(there.history.noted) else ["notes"]
    rounds = [[{**vars(r), "seconds": 0} for r in run.history.rounds] for run in (here, there)]
    found += [] if repr(rounds[0]) == repr(rounds[1]) else ["rounds"]
    model = [(run.directory / "model.safetensors").read_bytes() for run in (here, there)]
    return found + ([] if model[0] == model[1] else ["model.safetensors"])
