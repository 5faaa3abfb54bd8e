"""What GradMA-S's projection adds to a round: 100 remembered clients, a model of a million parameters.

    python benchmarks/server.py --rounds 24

Rounds of GradMA-S and of FedAvg take turns, on the images and with the local work of ``fedkeel bench``. Before that,
rounds of one step each fill GradMA-S's memory. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fedkeel import build
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.bench.simulator import make_federation
from fedkeel.bench.works import FULL, LR, make_images
from fedkeel.data import Federation
from fedkeel.engine.choice import make_executor
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    federation = make_federation(FULL, make_images(FULL))
    ours, plain = (simulation(federation, name, epochs=FULL.epochs) for name in ("gradma_s", "fedavg"))
    for run in (ours, plain):  # workers start before there is anything to remember, as in a run from its beginning
        run.step(run.start())
    state, other = filled(federation), plain.start()
    aggregate = timed(ours)
    for number in range(-1, rounds):  # one to warm up
        state, own = step(ours, state)
        other, theirs = step(plain, other)
        if number < 0:
            turns: list[tuple[float, float]] = []
            aggregate.clear()
        else:
            turns.append((own, theirs))
    ours.executor.close()
    plain.executor.close()
    report = {
        "parameters": ours.task.d,
        "remembered": len(state.server.D),
        "rounds": rounds,
        "gradma_s_seconds": statistics.median(own for own, _ in turns),
        "fedavg_seconds": statistics.median(theirs for _, theirs in turns),
        "ratio": statistics.median(own / theirs for own, theirs in turns),
        "aggregate_seconds": statistics.median(aggregate),
        "aggregate_range": [min(aggregate), max(aggregate)],
    }
    print(json.dumps(report, indent=2))


def simulation(federation: Federation, name: str, **work: Any) -> Simulation:
    """An algorithm on a network of a million parameters, with so many epochs or steps."""
    torch.manual_seed(0)
    widths = [784, 1000, 200, 10]
    layers = [part for n, m in pairwise(widths) for part in (nn.Linear(n, m), nn.ReLU())]
    task = build.make_task(nn.Sequential(nn.Flatten(), *layers[:-1]), federation.dataset, 0, torch.float32)
    training = Training(participation=FULL.cohort / FULL.clients, batch_size=FULL.batch, lr=LR, **work)
    executor = make_executor("pool", len(os.sched_getaffinity(0)))
    return Simulation(make_algorithm(name), task, federation, training, 0, executor)


def filled(federation: Federation) -> RunState:
    """GradMA-S once every client has been seen."""
    short = simulation(federation, "gradma_s", epochs=None, steps=1)
    state = short.start()
    while len(state.server.D) < federation.N:
        state, _ = short.step(state)
    short.executor.close()
    return state


def step(simulation: Simulation, state: RunState) -> tuple[RunState, float]:
    """A round and its seconds."""
    began = time.perf_counter()
    state, _ = simulation.step(state)
    return state, time.perf_counter() - began


def timed(simulation: Simulation) -> list[float]:
    """Seconds of every aggregation from now on."""
    aggregate, seconds = simulation.algorithm.aggregate, []

    def watched(*arguments: Any) -> Any:
        began = time.perf_counter()
        server = aggregate(*arguments)
        seconds.append(time.perf_counter() - began)
        return server

    simulation.algorithm.aggregate = watched  # type: ignore[method-assign]
    return seconds


if __name__ == "__main__":
    main()
