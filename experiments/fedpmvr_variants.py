"""FedPMVR's six readings against FedAvg: accuracy, and which of them diverge (manuscript of 2024, Tables 1 and 2).

MNIST, LeNet-5, 10 clients, all in every round, every class dealt by Dirichlet(0.1) without a cap on sizes; 2 local
epochs, batches of 32, SGD with η = 0.01, momentum 0.9 and weight decay 1e-6, as in the paper. What is less than in the
paper: {SAMPLES} training samples in place of 60,000 (the test set is whole), and few rounds in place of up to 300. The
paper does not say which α it used; its grid is 0.001 to 0.8.
"""

from __future__ import annotations

from typing import Any

from common import Results, Row, arguments, data_set, lost, measure, spread

from fedkeel.algorithms.registry import make_algorithm

SAMPLES = 4000
ALPHAS = (0.1, 0.3)
VARIANTS = ("shrink", "ema", "alg1", "step", "repo")
TRAINING: dict[str, Any] = {"epochs": 2, "batch_size": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-6}
DESCRIPTION = (__doc__ or "").replace("{SAMPLES}", f"{SAMPLES:,}")


def rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """Label of a row to algorithm and parameters; ``repo_dead`` does not use α."""
    chosen = {f"{v} α={a}": ("fedpmvr", {"variant": v, "alpha": a}) for v in VARIANTS for a in ALPHAS}
    return {"fedavg": ("fedavg", {}), "repo_dead": ("fedpmvr", {"variant": "repo_dead"})} | chosen


def main() -> None:
    options = arguments(DESCRIPTION, rounds=10)
    dataset = data_set("mnist", options.data_dir, SAMPLES)
    results = Results("fedpmvr_variants", DESCRIPTION, options, summary)
    for seed in options.seeds:
        federation = dataset.partition("dirichlet_classwise", clients=10, seed=seed, alpha=0.1, cap=False)
        for label, (name, params) in rows().items():
            if results.wants(label, seed):
                algorithm = make_algorithm(name, **params)
                run = measure(label, algorithm, "lenet5", federation, seed, rounds=options.rounds, **TRAINING)
                results.add(run)
    print(results.table())


def summary(runs: list[Row]) -> Row:
    """A variant over its seeds."""
    params = runs[0]["params"]
    return {
        "algorithm": runs[0]["algorithm"],
        "variant": params.get("variant"),
        "α": params["alpha"] if params.get("variant") in VARIANTS else None,
        "best accuracy %": spread((run["best_accuracy"] for run in runs), 100),
        "final accuracy %": spread((run["final_accuracy"] for run in runs), 100),
        "diverged": lost(runs),
    }


if __name__ == "__main__":
    main()
