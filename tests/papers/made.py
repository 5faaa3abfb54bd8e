"""Papers and records made up for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkeel.papers.format import Paper, Scale, read
from fedkeel.papers.records import Ended, Record, Records

HEAD = """
[paper]
title = "A paper"
authors = "Somebody et al."
venue = "Somewhere 2024"
own = ["feddc"]
base = "fedavg"
[smoke]
data = { name = "mnist5k" }
training = { rounds = 2 }
[settings.a]
where = "section 1"
data = { name = "mnist" }
model = { name = "mlp_2nn" }
partition = { rule = "iid", clients = 10 }
training = { rounds = 10, lr = 0.1, epochs = 1, batch_size = 50 }
[settings.a.reduced]
says = "5 instead of 10 rounds"
training = { rounds = 5 }
[settings.far]
base = "a"
needs = ["gpu"]
[methods.fedavg]
title = "FedAvg"
[methods.scaffold]
title = "SCAFFOLD"
[methods.feddc]
title = "FedDC"
"""


def paper(exhibits: str, head: str = HEAD) -> Paper:
    """A paper with these tables and figures."""
    return read("made", head + exhibits)


def record(
    method: str = "feddc",
    accuracy: Sequence[float | None] = (),
    seed: int = 0,
    scale: Scale = "full",
    ended: Ended = "finished",
    rounds: int | None = None,
    setting: str = "a",
    series: Mapping[str, Sequence[float | None]] | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
    key: str = "",
) -> Record:
    """A record with an evaluation after every round, the first in round 1."""
    named = {"accuracy": accuracy, **(series or {})} if accuracy or series is None else dict(series)
    done = max(map(len, named.values())) if rounds is None else rounds
    return Record(
        paper="made",
        setting=setting,
        scale=scale,
        method=method,
        seed=seed,
        key=key,
        experiment={},
        fedkeel="0",
        rounds=done,
        ended=ended,
        series={name: (tuple(range(1, len(one) + 1)), tuple(one)) for name, one in named.items()},
        values={name: (tuple(range(1, len(one) + 1)), tuple(one)) for name, one in (values or {}).items()},
        steps=0,
        bytes_up=0,
        bytes_down=0,
        seconds=0.0,
    )


def records(*made: Record) -> Records:
    """As if they had been read."""
    return Records(Path("made"), {(r.paper, r.setting, r.method, r.scale, r.seed): r for r in made})
