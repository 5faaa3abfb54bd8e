"""The algorithms with their defaults on one federation: accuracy, rounds to 90 %, time and traffic.

No paper's experiment: one common setting, in which no default may diverge. MNIST, 100 clients of 600 samples with
class shares from Dirichlet(0.1), 10 of them a round; 2NN; 2 local epochs, batches of 50 (24 steps), η = 0.1, gradients
clipped at norm 10; 100 rounds, the test set after each. Where an algorithm refuses this setting it gets the nearest
one that it takes, with about as many local steps a round; the row says so. Nothing is tuned for anybody. CPU seconds
are rough, since other work ran beside: differences of a quarter mean nothing.
"""

from __future__ import annotations

from typing import Any

from common import Results, Row, arguments, data_set, first_round, lost, measure, spread

from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm

CLIENTS, TARGET = 100, 0.9
TRAINING: dict[str, Any] = {"batch_size": 50, "lr": 0.1, "clip": 10.0}
WORK: dict[str, dict[str, Any]] = {
    "centralised": {"steps": 240},
    "vrlsgd": {"steps": 2},
}
NOTES = {
    "centralised": "all samples at one client, 240 steps a round",
    "vrlsgd": "all 100 clients a round, 2 steps each",
    "fedveca": "chooses its own steps",
    "fedbn": "the model has no normalisation: this is FedAvg",
}
SLOWEST_LAST = ("gradma_w", "gradma", "fedreg")


def main() -> None:
    options = arguments(__doc__, rounds=100, seeds=(0,))
    dataset = data_set("mnist", options.data_dir)
    results = Results("all_on_mnist", __doc__, options, summary)
    names = [name for name in ALGORITHMS if name not in SLOWEST_LAST] + list(SLOWEST_LAST)
    for seed in options.seeds:
        federation = dataset.partition("dirichlet", clients=CLIENTS, seed=seed, alpha=0.1)
        pooled = dataset.partition("iid", clients=1, seed=seed)
        for name in names:
            if not results.wants(name, seed):
                continue
            needs = ALGORITHMS[name].needs
            data = pooled if "one_client" in needs else federation
            work = WORK.get(name, {"epochs": 2}) | {"participation": 1.0 if needs else 0.1}
            settings = TRAINING | work | {"rounds": options.rounds}
            run = measure(name, make_algorithm(name), "2nn", data, seed, **settings)
            reached = first_round(run["test"], 1, TARGET, below=False)
            results.add(run, rounds_to_target=reached, note=NOTES.get(name, ""))
    print(results.table())


def summary(runs: list[Row]) -> Row:
    """An algorithm over its seeds; traffic in MB of 10^6 bytes, all clients of a round together."""
    return {
        "algorithm": runs[0]["algorithm"],
        "final accuracy %": spread((run["final_accuracy"] for run in runs), 100),
        "best %": spread((run["best_accuracy"] for run in runs), 100),
        "rounds to 90 %": "/".join(str(run["rounds_to_target"] or "–") for run in runs),
        "MB down a round": spread((run["bytes_down_per_round"] for run in runs), 1e-6),
        "MB up a round": spread((run["bytes_up_per_round"] for run in runs), 1e-6),
        "CPU seconds": spread((run["cpu_seconds"] for run in runs), 1, 0),
        "diverged": lost(runs),
        "note": runs[0]["note"],
    }


if __name__ == "__main__":
    main()
