"""What pages take from outside the registry: families, example commands, recorded runs and results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS
from tests.replay.setups import setup_of
from tests.replay.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "algorithms"
NOTES = PAGES / "notes"
RESULTS = ROOT / "docs" / "results"
GOLDEN = ROOT / "tests" / "golden"

FAMILIES = {
    "The five papers": ("fedgvrgm", "fedgvr", "fedgm", "fedveca", "gradma", "gradma_w", "gradma_s", "feddc", "fedpmvr"),
    "Averaging and server rules": (
        *("centralised", "fedavg", "fedavgm", "slowmo", "fedadam", "fedyogi", "fedadagrad", "fednova", "mifa", "mifam"),
    ),
    "Corrections of the local step": ("fedprox", "fedproxm", "scaffold", "feddyn", "vrlsgd", "fedpvr", "mimelite"),
    "Methods that look inside the model": ("moon", "moonm", "fedmlb", "fedmlbm", "fedreg", "fedbn"),
}


@dataclass(frozen=True)
class Replayed:
    """A recorded run and how it is replayed."""

    file: str
    origin: str
    rounds: int
    how: str


@cache
def traces() -> dict[str, list[Replayed]]:
    """The recorded runs by the algorithm that replays them."""
    found: dict[str, list[Replayed]] = {name: [] for name in ALGORITHMS}
    for path in sorted(GOLDEN.glob("*__*.npz")):
        trace = Trace.load(path)
        algorithm = setup_of(trace).algorithm
        commit = str(trace.meta.get("commit", ""))[:7]
        origin = f"[{trace.meta['source']}](https://github.com/{trace.meta['source']}) at {commit}" if commit else SPEC
        given = {key: getattr(algorithm.params, key) for key in sorted(algorithm.params.model_fields_set)}
        preset = algorithm.Params.modes.get(given.get("mode", "default"), {})
        shown = {
            key: value for key, value in given.items() if preset.get(key, algorithm_default(algorithm, key)) != value
        }
        how = ", ".join(f"`{key} = {toml(value)}`" for key, value in shown.items()) or "defaults"
        found[algorithm.name].append(Replayed(path.name, origin, trace.rounds, how))
    return found


SPEC = "specification, computed independently"


def algorithm_default(algorithm: Algorithm, field_name: str) -> Any:
    """The default of a parameter."""
    return algorithm.Params.model_fields[field_name].default


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False)


EXAMPLE = "examples/mnist5k.toml"
SETTINGS: dict[str, tuple[str, ...]] = {
    "centralised": ('partition={rule="iid", clients=1}', "training.participation=1"),
    "fedprox": ("algorithms.fedprox.mu=0.1",),
    "fedproxm": ("algorithms.fedproxm.mu=0.1", "algorithms.fedproxm.beta=0.5"),
    "feddyn": ("algorithms.feddyn.alpha=0.1",),
    "feddc": ("algorithms.feddc.alpha=0.1",),
    "fedavgm": ("algorithms.fedavgm.beta=0.5",),
    "slowmo": ("algorithms.slowmo.beta=0.5",),
    "fedadam": ("algorithms.fedadam.eta_g=0.01",),
    "fedyogi": ("algorithms.fedyogi.eta_g=0.01",),
    "fedadagrad": ("algorithms.fedadagrad.eta_g=0.03",),
    "fednova": ("partition.sigma=0.8",),
    "mifam": ("algorithms.mifam.beta=0.5",),
    "mimelite": ("training.lr=0.02", "algorithms.mimelite.beta=0.9"),
    "vrlsgd": ("training={rounds=20, steps=20, batch_size=20, lr=0.1, clip=10.0}",),
    "fedpvr": ("algorithms.fedpvr.mask=last1",),
    "moon": ("algorithms.moon.mu=1",),
    "moonm": ("algorithms.moonm.beta=0.5",),
    "fedmlbm": ("algorithms.fedmlbm.beta=0.5",),
    "fedbn": ("model.name=mlp_gradma",),
    "fedgvr": ("data.validation=0.1", "algorithms.fedgvr.mu=0.1"),
    "fedgm": ("algorithms.fedgm.mu=0.1", "algorithms.fedgm.beta=0.9"),
    "fedgvrgm": ("data.validation=0.1", "algorithms.fedgvrgm.mu=0.1"),
    "fedveca": (
        'partition={rule="fedveca_case3", clients=5}',
        "training={rounds=20, batch_size=20, lr=0.01}",
        "algorithms.fedveca.alpha=0.95",
    ),
    "fedpmvr": ("algorithms.fedpmvr.alpha=0.1", "algorithms.fedpmvr.variant=step"),
    "gradma": ("algorithms.gradma.beta1=0.5", "algorithms.gradma.beta2=0.5"),
    "gradma_s": ("algorithms.gradma_s.beta1=0.5", "algorithms.gradma_s.beta2=0.5"),
}


def settings(name: str) -> list[str]:
    """What the page's command sets."""
    return [f'sweep={{algorithm=["{name}"]}}', *SETTINGS.get(name, ())]


RELATED = {"fedgvr": "fedgvrgm", "fedgm": "fedgvrgm", "gradma_w": "gradma", "gradma_s": "gradma"}
"""Whose results a page also looks through for rows of its own."""


def table_of(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """What a file of results says about itself, and its rows; a file may also be the bare list of rows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return [], content
    head = [f"**{content['title']}**"] if content.get("title") else []
    head += [content["about"]] if content.get("about") else []
    head += [f"`{content['command']}`"] if content.get("command") else []
    return head, content.get("rows", [])
