"""FedVeca's Table I, SVM row: test accuracy and loss of six methods after 100 rounds (Luo et al., IEEE TPDS 2024).

MNIST, even against odd digits, pixels / 255; linear SVM with squared hinge, λ = 0.1, started at zero; 5 clients dealt
by Case 3, all in every round; η = 0.01, batches of 100; FedVeca with τ_0 = 10 and α = 0.95. The batch size, λ and τ_0
are not in the paper: they are those of the program that it builds upon (Wang et al., JSAC 2019) and a choice of ours.

As in the paper, FedVeca runs first and the others get its work: with τ_all, all steps it took, every client has
τ_i = ⌊E_avg n_i/B⌋ steps a round, E_avg = (τ_all/rounds)(B/n); centralised SGD takes τ_all steps of the same batch.
"""

from __future__ import annotations

from typing import Any

import torch
from common import Results, Row, arguments, data_set, lost, measure, spread
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Clients, Message, Problem
from fedkeel.algorithms.registry import algorithm_class, make_algorithm
from fedkeel.data import Federation

BATCH, LR, CLIENTS = 100, 0.01, 5
BASELINES: dict[str, dict[str, Any]] = {"fedavg": {}, "fednova": {}, "fedprox": {"mu": 0.01}, "scaffold": {}}
PAPER = {  # Table I, first row: accuracy in percent, loss
    "fedavg": (85.75, 0.2313),
    "fednova": (85.32, 0.2344),
    "fedprox": (85.76, 0.2314),
    "scaffold": (86.92, 0.2207),
    "fedveca": (86.63, 0.2222),
    "centralised": (86.87, 0.2206),
}


def with_steps(name: str, steps: list[int], **params: Any) -> Algorithm:
    """A registered algorithm whose client i takes ``steps[i]`` local steps, whatever the settings say."""

    def local_steps(self: Algorithm, down: Message, clients: Clients, problem: Problem) -> Tensor:
        return torch.tensor([steps[client] for client in clients.ids])

    fixed = type("Fixed", (algorithm_class(name),), {"local_steps": local_steps})
    algorithm: Algorithm = fixed(**params)
    return algorithm


def steps_like(federation: Federation, total: int, rounds: int) -> list[int]:
    """τ_i that share the work of ``total`` steps in proportion to the clients' data."""
    epochs = total / rounds * BATCH / federation.n
    return [max(1, int(epochs * n / BATCH)) for n in federation.sizes]


def main() -> None:
    options = arguments(__doc__, rounds=100)
    dataset = data_set("mnist_even_odd", options.data_dir)
    federation = dataset.partition("fedveca_case3", clients=CLIENTS)
    pooled = dataset.partition("iid", clients=1)
    results = Results("fedveca_svm", __doc__, options, summary)
    common: dict[str, Any] = {"rounds": options.rounds, "batch_size": BATCH, "lr": LR}
    for seed in options.seeds:
        veca = next((run for run in results.of("fedveca") if run["seed"] == seed), None)
        if veca is None:
            algorithm = make_algorithm("fedveca", tau_0=10, alpha=0.95)
            veca = results.add(measure("fedveca", algorithm, "svm", federation, seed, **common))
        steps = steps_like(federation, veca["steps"], options.rounds)
        for name, params in BASELINES.items():
            if results.wants(name, seed):
                run = measure(name, with_steps(name, steps, **params), "svm", federation, seed, **common)
                results.add(run, tau=steps)
        if results.wants("centralised", seed):
            per_round = round(veca["steps"] / options.rounds)
            run = measure("centralised", make_algorithm("centralised"), "svm", pooled, seed, steps=per_round, **common)
            results.add(run)
    print(results.table())


def summary(runs: list[Row]) -> Row:
    """A method over its seeds, next to Table I."""
    name = runs[0]["algorithm"]
    return {
        "algorithm": name,
        "accuracy %": spread((run["final_accuracy"] for run in runs), 100),
        "paper %": PAPER[name][0],
        "loss": spread((run["final_loss"] for run in runs), 1, 4),
        "paper's loss": PAPER[name][1],
        "steps": spread((run["steps"] for run in runs), 1, 0),
        "diverged": lost(runs),
    }


if __name__ == "__main__":
    main()
