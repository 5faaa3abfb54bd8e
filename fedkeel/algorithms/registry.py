"""Every algorithm by name. Adding one to fedkeel means one file and one line here."""

from __future__ import annotations

import importlib
from typing import Any

from fedkeel import arguments
from fedkeel.algorithms.centralised import Centralised
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.fedavgm import FedAvgM
from fedkeel.algorithms.fedbn import FedBN
from fedkeel.algorithms.feddc import FedDC
from fedkeel.algorithms.feddyn import FedDyn
from fedkeel.algorithms.fedgm import FedGM
from fedkeel.algorithms.fedgvr import FedGVR
from fedkeel.algorithms.fedgvrgm import FedGVRGM
from fedkeel.algorithms.fedmlb import FedMLB
from fedkeel.algorithms.fedmlbm import FedMLBM
from fedkeel.algorithms.fednova import FedNova
from fedkeel.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedkeel.algorithms.fedpmvr import FedPMVR
from fedkeel.algorithms.fedprox import FedProx
from fedkeel.algorithms.fedproxm import FedProxM
from fedkeel.algorithms.fedpvr import FedPvr
from fedkeel.algorithms.fedreg import FedReg
from fedkeel.algorithms.fedveca import FedVeca
from fedkeel.algorithms.gradma import GradMA
from fedkeel.algorithms.gradma_s import GradMAS
from fedkeel.algorithms.gradma_w import GradMAW
from fedkeel.algorithms.mifa import Mifa
from fedkeel.algorithms.mifam import MifaM
from fedkeel.algorithms.mimelite import MimeLite
from fedkeel.algorithms.moon import Moon
from fedkeel.algorithms.moonm import MoonM
from fedkeel.algorithms.scaffold import Scaffold
from fedkeel.algorithms.slowmo import SlowMo
from fedkeel.algorithms.vrlsgd import VrlSgd
from fedkeel.errors import InputError, invalid, shown, unknown

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        FedAvg,
        FedProx,
        Scaffold,
        FedDyn,
        FedDC,
        FedAvgM,
        Centralised,
        SlowMo,
        FedAdam,
        FedYogi,
        FedAdagrad,
        FedNova,
        FedProxM,
        Mifa,
        MifaM,
        MimeLite,
        VrlSgd,
        FedPvr,
        Moon,
        MoonM,
        FedMLB,
        FedMLBM,
        FedReg,
        FedBN,
        FedGVR,
        FedGM,
        FedGVRGM,
        FedVeca,
        FedPMVR,
        GradMA,
        GradMAW,
        GradMAS,
    )
}


def algorithm_class(name: str, allow_plugins: bool = False) -> type[Algorithm]:
    """The class of a registered algorithm, or, where plug-ins are allowed, of your own given as ``module:Class``.

    Importing a module runs it. A name may come from a file that somebody else wrote, so nobody's code is imported
    unless the caller says so.
    """
    name = arguments.text("the name of an algorithm", name)
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" in name:
        if not allow_plugins:
            raise InputError(
                f"the algorithm {shown(name)} is code outside fedkeel, which is imported only when asked for: "
                "if you trust it, use --allow-plugins (in Python allow_plugins=True, or pass the class itself)."
            )
        return _own(name)
    raise unknown("algorithm", name, list(ALGORITHMS))


def is_registered(algorithm: Algorithm) -> bool:
    """Whether an algorithm is one of these as it stands here, and nothing derived from it or put into it."""
    return type(algorithm) in ALGORITHMS.values() and vars(algorithm).keys() <= {"params"}


def make_algorithm(name: str, **params: Any) -> Algorithm:
    """An algorithm with its parameters checked."""
    return algorithm_class(name)(**params)


def as_algorithm(given: str | Algorithm | type[Algorithm], params: dict[str, Any] | None = None) -> Algorithm:
    """An algorithm from its name or its class and its parameters, or the object that it is already."""
    fields = {} if params is None else arguments.table("params", params)
    if isinstance(given, str):
        return make_algorithm(given, **fields)
    if isinstance(given, type) and issubclass(given, Algorithm) and hasattr(given, "name"):
        return given(**fields)
    allowed = "the name of an algorithm, or an object or a class derived from fedkeel.Algorithm with a name"
    if isinstance(given, type) or not hasattr(given, "name"):
        raise invalid("algorithm", allowed, given)
    if fields:
        raise InputError("params go with the name of an algorithm; an Algorithm object has its own already.")
    return arguments.instance("algorithm", given, Algorithm, allowed)


def _own(path: str) -> type[Algorithm]:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"the algorithm {shown(path)} cannot be imported: {error}; write it as module:Class."
        ) from None
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(
            f"the algorithm {shown(path)} must be a class derived from fedkeel.Algorithm, got {shown(found)}."
        )
    return found
