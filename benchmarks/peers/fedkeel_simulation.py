"""fedkeel, as ``fedkeel bench`` runs it, as a process of its own."""

import argparse

import common
import torch

from fedkeel.bench.simulator import DEFAULT_EXECUTOR, Simulator, make_federation
from fedkeel.bench.works import find


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="W1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--executor", default=DEFAULT_EXECUTOR)
    options, clock = parser.parse_args(), common.Clock()
    torch.set_num_threads(1)
    federation = make_federation(common.SIZE, common.images())
    simulator = Simulator(
        find(options.work), common.SIZE, federation, options.algorithm, options.executor, common.CORES
    )
    for _ in range(options.rounds):
        simulator.run(1)
        clock.round_done(simulator.history.measured[-1].accuracy)
    simulator.close()
    clock.report()


if __name__ == "__main__":
    main()
