"""Rules that deal labelled samples to clients: deterministic in the seed, disjoint, never an empty client."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkeel import arguments
from fedkeel.data.partitions import class_shares, client_priors, fedveca, simple
from fedkeel.data.partitions.rule import Indices, Param, Rule, generator, plain, whole
from fedkeel.errors import invalid, unknown

RULES: dict[str, Rule] = {
    rule.name: rule
    for family in (simple.RULES, client_priors.RULES, class_shares.RULES, fedveca.RULES)
    for rule in family
}


def rules() -> list[tuple[str, str, tuple[Param, ...]]]:
    """Every rule as (name, one-line description, parameters with their defaults and meaning)."""
    return [(rule.name, rule.doc, rule.params) for rule in RULES.values()]


def partition(
    labels: Indices, rule: str, clients: int, seed: int, params: dict[str, Any], labelled: bool = True
) -> tuple[tuple[Indices, ...], dict[str, Any]]:
    """Deal the samples with ``labels`` int64 [n] to ``clients``: sorted index vectors, and a plain record of the rule.

    The lists are disjoint and together hold every sample. Samples that are not ``labelled`` can be dealt only by rules
    that look at no labels.
    """
    if arguments.text("partition.rule", rule) not in RULES:
        raise unknown("partition rule", rule, sorted(RULES))
    clients = plain(clients)
    if not whole(clients, 1):
        raise invalid("partition.clients", "a whole number above 0", clients)
    if clients > len(labels):
        raise invalid("partition.clients", f"at most the number of training samples, {len(labels)}", clients)
    values = RULES[rule].fill(params)
    if not labelled and (RULES[rule].labels or values.get("balanced_classes")):
        free = ", ".join(sorted(name for name, known in RULES.items() if not known.labels))
        hint = "Or give from_arrays(..., partition_labels=...), a whole number for each training sample."
        raise invalid(
            "partition.rule", f"one that looks at no labels ({free}), since these samples have none", rule, hint
        )
    parts = RULES[rule].deal(labels, clients, generator(seed), **values)
    empty = [client for client, part in enumerate(parts) if part.size == 0]
    if empty:
        raise invalid(
            "partition.clients",
            f"small enough that no client stays empty under rule {rule!r}",
            clients,
            f"Client {empty[0]} would be empty: take fewer clients.",
        )
    record = {"name": rule, "clients": clients, "seed": int(seed), **values}
    return tuple(np.sort(part).astype(np.int64) for part in parts), record


__all__ = ["RULES", "Param", "Rule", "generator", "partition", "rules"]
