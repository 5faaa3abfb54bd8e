"""Every algorithm by name. Adding one to fedkeel means one file and one line here.

An algorithm's module is imported when it is asked for: some need libraries that take longer to import than to use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from fedkeel import arguments
from fedkeel.algorithms.contract import Algorithm, with_variant
from fedkeel.errors import InputError, invalid, shown, unknown


class Registry(Mapping[str, type[Algorithm]]):
    """Algorithms by name, each ``module:Class`` of this package until somebody looks."""

    def __init__(self, homes: dict[str, str]) -> None:
        self._homes = homes
        self._found: dict[str, type[Algorithm]] = {}

    def __getitem__(self, name: str) -> type[Algorithm]:
        if name not in self._found:
            module, _, cls = self._homes[name].partition(":")
            self._found[name] = getattr(importlib.import_module(f"fedkeel.algorithms.{module}"), cls)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes


ALGORITHMS = Registry(
    {
        "fedavg": "fedavg:FedAvg",
        "fedprox": "fedprox:FedProx",
        "scaffold": "scaffold:Scaffold",
        "feddyn": "feddyn:FedDyn",
        "feddc": "feddc:FedDC",
        "fedavgm": "fedavgm:FedAvgM",
        "centralised": "centralised:Centralised",
        "slowmo": "slowmo:SlowMo",
        "fedadam": "fedopt:FedAdam",
        "fedyogi": "fedopt:FedYogi",
        "fedadagrad": "fedopt:FedAdagrad",
        "fednova": "fednova:FedNova",
        "fedproxm": "fedproxm:FedProxM",
        "mifa": "mifa:Mifa",
        "mifam": "mifam:MifaM",
        "mimelite": "mimelite:MimeLite",
        "vrlsgd": "vrlsgd:VrlSgd",
        "fedpvr": "fedpvr:FedPvr",
        "moon": "moon:Moon",
        "moonm": "moonm:MoonM",
        "fedmlb": "fedmlb:FedMLB",
        "fedmlbm": "fedmlbm:FedMLBM",
        "fedreg": "fedreg:FedReg",
        "fedbn": "fedbn:FedBN",
        "fedgvr": "fedgvrgm:FedGVR",
        "fedgm": "fedgm:FedGM",
        "fedgvrgm": "fedgvrgm:FedGVRGM",
        "fedveca": "fedveca:FedVeca",
        "fedpmvr": "fedpmvr:FedPMVR",
        "gradma": "gradma:GradMA",
        "gradma_w": "gradma_w:GradMAW",
        "gradma_s": "gradma_s:GradMAS",
        "fedexp": "fedexp:FedExP",
        "fedcm": "fedcm:FedCM",
        "fedacg": "fedacg:FedACG",
        "fedavg_cm": "fedavg_cm:FedAvgCM",
        "scaffold_m": "scaffold_m:ScaffoldM",
        "fedvarp": "fedvarp:FedVARP",
        "fedinit": "fedinit:FedInit",
        "fedntd": "fedntd:FedNTD",
        "fedswa": "fedswa:FedSWA",
        "fedmoswa": "fedmoswa:FedMoSWA",
        "fedsam": "fedsam:FedSAM",
        "fedspeed": "fedspeed:FedSpeed",
        "fedlesam_d": "fedlesam_d:FedLESAMD",
        "fedsmoo": "fedsmoo:FedSMOO",
        "fedlc": "fedlc:FedLC",
        "fedrs": "fedrs:FedRS",
        "mofedsam": "mofedsam:MoFedSAM",
        "keel": "keel:Keel",
    }
)


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
    known = ALGORITHMS.get(str(getattr(algorithm, "name", "")))
    if known is None:
        return False
    return type(algorithm) in (known, with_variant(known)) and vars(algorithm).keys() <= {"params"}


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
