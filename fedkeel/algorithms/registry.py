"""Every algorithm by name. Adding one to fedkeel means one file and one line here."""

from __future__ import annotations

import importlib
from typing import Any

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.fedavgm import FedAvgM
from fedkeel.algorithms.feddc import FedDC
from fedkeel.algorithms.feddyn import FedDyn
from fedkeel.algorithms.fedprox import FedProx
from fedkeel.algorithms.scaffold import Scaffold
from fedkeel.errors import InputError, unknown

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (FedAvg, FedProx, Scaffold, FedDyn, FedDC, FedAvgM)
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of a registered algorithm, or of your own given as ``module:Class``."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" in name:
        return _own(name)
    raise unknown("algorithm", name, list(ALGORITHMS))


def make_algorithm(name: str, **params: Any) -> Algorithm:
    """An algorithm with its parameters checked."""
    return algorithm_class(name)(**params)


def _own(path: str) -> type[Algorithm]:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the algorithm {path!r} cannot be imported: {error}; write it as module:Class.") from None
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(f"the algorithm {path!r} must be a class derived from fedkeel.Algorithm, got {found!r}.")
    return found
