"""What the sources' hyper-parameters mean here."""

from __future__ import annotations

from typing import Any


def work(hyper: dict[str, Any]) -> dict[str, Any]:
    """Local work and optimiser, from whichever name a source gives them."""
    return {
        "epochs": hyper.get("epochs", hyper.get("localE", hyper.get("wk_iters"))),
        "batch_size": hyper["batch_size"],
        "weight_decay": hyper.get("weight_decay", 0.0),
        "clip": hyper.get("clip_max_norm"),
        "momentum": hyper.get("momentum", hyper.get("mom", 0.0)),
    }


def keep(hyper: dict[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """The hyper-parameters that are parameters here: some under the same name, some as ``ours="theirs"``."""
    kept = {name: hyper[name] for name in names if name in hyper}
    return kept | {ours: hyper[theirs] for ours, theirs in renamed.items() if theirs in hyper}
