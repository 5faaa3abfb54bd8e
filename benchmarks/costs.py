"""What a round of local training costs beside FedAvg's, by turns: CPU time in one process with one thread.

Four clients of 600 images, all in every round, batches of 50, as in the benchmark's works; nothing is evaluated.
Two rounds come first, so that methods that remember earlier models have some.

    python benchmarks/costs.py --work W2 --epochs 2 --clip 10
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch

from fedkeel import build
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.bench.simulator import make_federation
from fedkeel.bench.works import FULL, LR, find, make_images, make_model
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation

BASE = "fedavg"
SHOWN = ("fedpmvr", "moon", "fedmlb", "fedreg")


class Contender:
    """One algorithm and its run so far."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.name, self.simulation = name, simulation
        self.state = simulation.start()
        self.times: list[float] = []

    def round(self) -> float:
        """CPU seconds of one more round."""
        began = time.process_time()
        self.state, _ = self.simulation.step(self.state)
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="W2")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--algorithms", default=",".join(SHOWN))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = replace(FULL, clients=4, cohort=4, test=100)
    federation = make_federation(size, make_images(size))
    training = Training(epochs=asked.epochs, batch_size=size.batch, lr=LR, clip=asked.clip)
    contenders = []
    for name in (BASE, *asked.algorithms.split(",")):
        task = build.make_task(make_model(find(asked.work)), federation.dataset, 0, torch.float32)
        contenders.append(Contender(name, Simulation(make_algorithm(name), task, federation, training, 0)))
    for contender in contenders:
        contender.round(), contender.round()
    for turn in range(asked.turns):
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            contender.times.append(contender.round())
    base = contenders[0].times
    for contender in contenders:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(contender.times, base, strict=True))
        print(f"{contender.name:10} {statistics.median(contender.times):7.3f} s a round  {ratio:6.2f}×", flush=True)


if __name__ == "__main__":
    main()
