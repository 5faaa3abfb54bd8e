"""The three fixed cases of FedVeca (rules of Wang et al., "Adaptive federated learning", JSAC 2019); no randomness."""

from __future__ import annotations

import numpy as np

from fedkeel.data.partitions.rule import Indices, Rule
from fedkeel.errors import InputError

TARGETS = 10  # the cases are defined for ten labels; more clients than that share the targets


def deal_case1(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Sample i goes to client i mod N."""
    return [np.arange(c, len(labels), clients) for c in range(clients)]


def deal_case2(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Label l goes to client l mod N: one client, one set of labels."""
    _check_digits(labels)
    return _deal_targets(labels % min(clients, TARGETS), clients)


def deal_case3(labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Labels 0–4 are shared evenly by the first half of the clients, 5–9 go by label to the second half."""
    _check_digits(labels)
    groups = min(clients, TARGETS)
    half = (groups + 1) // 2
    low = np.arange(len(labels)) % half
    high = half + labels % (groups - half) if groups > half else low
    return _deal_targets(np.where(labels < 5, low, high), clients)


def _deal_targets(targets: Indices, clients: int) -> list[Indices]:
    """Give each sample to the least loaded client with index ≡ target (mod 10), ties to the lowest index.

    Such clients take turns, because each of them serves one target only.
    """
    parts: list[Indices] = [np.empty(0, dtype=np.int64)] * clients
    for target in range(min(clients, TARGETS)):
        members = np.arange(target, clients, TARGETS)
        samples = np.flatnonzero(targets == target)
        for turn, client in enumerate(members):
            parts[client] = samples[turn :: len(members)]
    return parts


def _check_digits(labels: Indices) -> None:
    if labels.max() >= TARGETS:
        raise InputError(
            f"FedVeca's cases 2 and 3 are defined for labels 0 to 9, got {int(labels.max())}: use 'fedveca_case1', "
            "or a Dirichlet rule."
        )


RULES = (
    Rule("fedveca_case1", "FedVeca Case 1: sample i to client i mod N (iid)", deal_case1, draws=False, labels=False),
    Rule("fedveca_case2", "FedVeca Case 2: label l to client l mod N", deal_case2, draws=False),
    Rule(
        "fedveca_case3",
        "FedVeca Case 3: half of the clients share labels 0–4, the others own 5–9",
        deal_case3,
        draws=False,
    ),
)
