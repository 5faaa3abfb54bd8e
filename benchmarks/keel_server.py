"""What Keel's server does in a round beside FedAvg's: 10 answers, with 100, 1,000 and 10,000 clients remembered.

    python benchmarks/keel_server.py
    python benchmarks/keel_server.py --clients 100 1000 --parameters 100000

Nobody trains here: answers are drawn, a part of each in common with all and a part with a tenth of the clients, as
label skew has it. The memory is filled first, and three rounds warm it up: after that most inner products are known, as
in a long run. Medians; FedAvg's step is measured in turn. Ten thousand are not all remembered: that takes 8 GB for
their updates, and more for their inner products. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.contract import Algorithm, Clients, Problem, Round, Uploads
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Message, State
from fedkeel.learning.layout import Layout

COHORT, GROUPS, WARM_UP = 10, 10, 3
ROUND = Round(t=0, lr=0.1, lr0=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--parameters", type=int, default=199_210, help="of the model; by default the 2NN's")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--most", type=int, nargs="+", default=[100, 1000], help="also with so many remembered at most (m)"
    )
    parser.add_argument("--whole", type=int, default=1000, help="all are remembered up to so many clients")
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = [
        measured(N, given.parameters, given.rounds, m)
        for N in given.clients
        for m in [*([None] * (given.whole >= N)), *(m for m in given.most if m < N)]
    ]
    print(json.dumps(made, indent=2))


def measured(N: int, d: int, rounds: int, m: int | None) -> dict[str, float | int | None]:
    """Seconds of the server's step, of Keel and of FedAvg."""
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(1 + GROUPS, d, generator=draw) / d**0.5
    shared[1:] -= shared[1:].mean(0)  # what one group wants the others do not
    layout = Layout.of_parameters(nn.Linear(d, 1, bias=False))
    problem = Problem(torch.zeros(d), layout, torch.ones(N, dtype=torch.int64), 1)
    keel, plain = make_algorithm("keel", m=m), make_algorithm("fedavg")
    state, other = keel.server_init(problem), plain.server_init(problem)
    state = filled(state, N if m is None else m, lambda i: answer(shared, i, draw), keel.params.beta2)
    times: list[tuple[float, float]] = []
    for number in range(WARM_UP + rounds):
        ids = tuple(sorted(torch.randperm(N, generator=draw)[:COHORT].tolist()))
        moves = torch.stack([answer(shared, i, draw) for i in ids])
        state, own = step(keel, state, moves, ids, N)
        other, theirs = step(plain, other, moves, ids, N)
        if number >= WARM_UP:
            times.append((own, theirs))
    ours, fedavgs = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "clients": N,
        "m": m,
        "remembered": len(state.D),
        "active": int(state.noted["active"]),
        "parameters": d,
        "keel_ms": round(1e3 * ours, 2),
        "fedavg_ms": round(1e3 * fedavgs, 2),
        "slowest_keel_ms": round(1e3 * max(own for own, _ in times), 2),
    }


def answer(shared: Tensor, i: int, draw: torch.Generator) -> Tensor:
    """A client's move [d]: a part of all, a part of its group, and a part of its own."""
    d = shared.shape[1]
    return 0.1 * (0.2 * shared[0] + shared[1 + i % GROUPS] + torch.randn(d, generator=draw) / d**0.5)


def filled(server: State, count: int, move: Callable[[int], Tensor], beta2: float) -> State:
    """The memory after so many clients have answered once."""
    ids = tuple(range(count))
    return memory.remember(memory.mem_red(server, ids, count), ids, map(move, ids), beta2)


def step(algorithm: Algorithm, state: State, moves: Tensor, ids: tuple[int, ...], N: int) -> tuple[State, float]:
    """The state after the cohort's answers, and the seconds that it took."""
    clients = Clients(ids, torch.ones(len(ids), dtype=torch.int64), N, N, len(ids), len(ids), torch.float32)
    start: Tensor = algorithm.broadcast(state, ROUND, clients)["w"]
    answers = Message(y=start - moves)
    uploads = Uploads(answers, clients, torch.ones(len(ids)), lambda: torch.ones(len(ids), 1), lambda w: torch.zeros(0))
    began = time.perf_counter()
    made = algorithm.aggregate(state, uploads, ROUND)
    return made, time.perf_counter() - began


if __name__ == "__main__":
    main()
