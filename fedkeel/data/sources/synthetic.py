"""Generated federations Synthetic(α, β), where the clients' optima (α) and inputs (β) differ by a chosen amount."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel.data.dataset import Dataset, Federation, Indices, Split
from fedkeel.data.partitions.rule import number, whole
from fedkeel.data.partitions.sizes import lognormal_sizes
from fedkeel.data.sources.source import Request, Source, part_generator
from fedkeel.errors import check_seed, invalid

STREAM = 0x73796E7468  # second half of the Philox key: draws of generated data
LARGEST_CLIENT = 1_000_000  # one LogNormal(4, 2) draw in two million is larger, and would only fill the memory
LARGEST_SET = 2 << 30  # numbers in memory
DEFAULTS_FEDDYN = {
    "alpha": 0.0,
    "beta": 0.0,
    "clients": 20,
    "samples": 200,
    "sigma": 0.0,
    "features": 30,
    "classes": 5,
    "seed": 0,
}
DEFAULTS_FEDPROX = {
    "alpha": 1.0,
    "beta": 1.0,
    "clients": 30,
    "features": 60,
    "classes": 10,
    "iid": False,
    "seed": 0,
}


def load_feddyn(request: Request) -> Federation:
    """FedDyn's and FedDC's Synthetic(α, β): α = 0 means one shared labelling, β = 0 inputs alike; test = train."""
    p = {**DEFAULTS_FEDDYN, **request.params}
    _check("synthetic_feddyn", p)
    rng = part_generator(p["seed"], STREAM)
    sizes = lognormal_sizes(p["samples"] * p["clients"], p["clients"], p["sigma"], rng)
    parts = _draw(rng, sizes, p, shared_solution=p["alpha"] == 0, same_inputs=p["beta"] == 0)
    split = _joined(parts)
    citation = "Acar et al., 'Federated learning based on dynamic regularization', ICLR 2021"
    dataset = _dataset(
        "synthetic_feddyn", p["classes"], split, split, request, citation, "test set = all training data"
    )
    return Federation(dataset, _ranges(sizes), {"name": "synthetic_feddyn", **p})


def load_fedprox(request: Request) -> Federation:
    """FedProx's Synthetic(α, β): sizes ⌊LogNormal(4, 2)⌋ + 50, nine tenths of each client for training."""
    p = {**DEFAULTS_FEDPROX, **request.params}
    _check("synthetic_fedprox", p)
    rng = part_generator(p["seed"], STREAM)
    drawn = rng.lognormal(4, 2, p["clients"])
    sizes = np.minimum(drawn, LARGEST_CLIENT).astype(np.int64) + 50
    parts = _draw(rng, sizes, p, shared_solution=p["iid"], same_inputs=p["iid"])
    kept = sizes * 9 // 10
    train = _joined([(x[:k], y[:k]) for (x, y), k in zip(parts, kept, strict=True)])
    test = _joined([(x[k:], y[k:]) for (x, y), k in zip(parts, kept, strict=True)])
    citation = "Li et al., 'Federated optimization in heterogeneous networks', MLSys 2020"
    dataset = _dataset(
        "synthetic_fedprox", p["classes"], train, test, request, citation, "test set = a tenth per client"
    )
    return Federation(dataset, _ranges(kept), {"name": "synthetic_fedprox", **p}, _ranges(sizes - kept))


def _joined(parts: list[tuple[npt.NDArray[np.float32], Indices]]) -> Split:
    """All clients' samples in a row."""
    return Split(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))


def _ranges(sizes: Indices) -> tuple[Indices, ...]:
    """Consecutive index ranges of the given sizes."""
    return tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))


def _draw(
    rng: np.random.Generator, sizes: Indices, p: dict[str, Any], shared_solution: bool, same_inputs: bool
) -> list[tuple[npt.NDArray[np.float32], Indices]]:
    """x ~ N(v_i, diag(j^−1.2)), label = argmax(x W_i + b_i), with v_i ~ N(B_i, 1) and W_i, b_i ~ N(u_i, 1)."""
    features, classes = p["features"], p["classes"]
    u = rng.normal(0, p["alpha"], len(sizes))
    B = rng.normal(0, p["beta"], len(sizes))
    spread = np.arange(1, features + 1) ** -0.6  # standard deviation: the square root of j^−1.2
    W, b = rng.standard_normal((features, classes)), rng.standard_normal(classes)
    parts = []
    for i, size in enumerate(sizes):
        v = np.zeros(features) if same_inputs else rng.normal(B[i], 1, features)
        if not shared_solution:
            W, b = rng.normal(u[i], 1, (features, classes)), rng.normal(u[i], 1, classes)
        x = v + spread * rng.standard_normal((size, features))
        parts.append((x.astype(np.float32), np.argmax(x @ W + b, axis=1).astype(np.int64)))
    return parts


def _dataset(name: str, classes: int, train: Split, test: Split, request: Request, citation: str, note: str) -> Dataset:
    names = tuple(str(c) for c in range(classes))
    return Dataset(name, train, test, classes, names, request.transform, citation, "generated, free", note)


def _check(name: str, p: dict[str, Any]) -> None:
    for key in ("alpha", "beta", "sigma"):
        if key in p and not (number(p[key]) and p[key] >= 0):
            raise invalid(f"{name}.{key}", "a number of at least 0", p[key])
    for key, least in (("clients", 1), ("samples", 1), ("features", 1), ("classes", 2)):
        if key in p and not whole(p[key], least):
            raise invalid(f"{name}.{key}", f"a whole number of at least {least}", p[key])
    check_seed(f"{name}.seed", p["seed"])
    # Sizes of FedProx's clients are drawn: e^(4 + 2²/2) ≈ 400 samples in the mean.
    numbers = p["clients"] * (p.get("samples", 400) * p["features"] + p["features"] * p["classes"])
    if numbers > LARGEST_SET:
        allowed = f"such that clients × samples × features stay below {LARGEST_SET:,}"
        raise invalid(f"{name}.clients", allowed, p["clients"], "Generate less.")
    if not isinstance(p.get("iid", False), bool):
        raise invalid(f"{name}.iid", "true or false", p["iid"])


SOURCES = (
    Source(
        "synthetic_feddyn",
        "generated: Synthetic(α, β) of FedDyn and FedDC, 20 clients of 200 samples",
        4000,
        4000,
        5,
        False,
        load_feddyn,
        params=DEFAULTS_FEDDYN,
    ),
    Source(
        "synthetic_fedprox",
        "generated: Synthetic(α, β) of FedProx, 30 clients of very different sizes",
        0,
        0,
        10,
        False,
        load_fedprox,
        params=DEFAULTS_FEDPROX,
    ),
)
