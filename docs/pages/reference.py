"""The reference of every key of an experiment file, made from the schema."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from docs.pages.data import ROOT
from docs.pages.render import cell, table
from fedkeel import config
from fedkeel.data import rules
from fedkeel.data.sources import SOURCES
from fedkeel.template import Key, keys

PATH = ROOT / "docs" / "reference.md"


def reference() -> str:
    """The page."""
    parts = [HEAD]
    for name, group in groupby(keys(), key=lambda key: key.table):
        title = f"## `[{name}]`" if name else "## At the top of the file"
        parts.append(f"{title}\n\n{_keys(list(group))}")
        if name == "partition":
            parts.append(f"Further keys are the rule's own:\n\n{_rules()}")
        elif name == "data":
            parts.append(f"Generated sets have keys of their own, and bring their clients:\n\n{_generated()}")
        elif name == "algorithm":
            parts.append(
                "Further keys are the algorithm's own: its [page](algorithms/README.md) and `fedkeel algorithms NAME` "
                'list them. `algorithm = "feddc"` is short for a table with a name alone.'
            )
    return "\n\n".join([*parts, TAIL]) + "\n"


HEAD = """\
# Every key of an experiment file

`fedkeel init` writes a file with all of them. A key that is not there has its default; a key that is not known, or that
would have no effect, is refused with its line."""

TAIL = """\
## `[algorithms.NAME]`

Parameters of an algorithm that count in the runs which use it: for sweeps over algorithms.

## `[sweep]`

One run for every combination of the lists. Keys are dotted names, with or without quotes:

```toml
[sweep]
algorithm = ["fedavg", "feddc"]
training.lr = [0.05, 0.1]
seed = [0, 1, 2]
```

Names of runs end with the swept values that they would not contain otherwise (`fedavg-mnist5k-seed0-lr=0.05`). Where
`seed` is swept, the last table has mean and standard deviation over seeds.

## `--set`

`fedkeel run FILE --set training.lr=0.05` changes a key, `--set training.clip=` removes one, `--set sweep.seed=[0]`
changes a list of the sweep, `--set sweep=` runs the file without its sweep.

This page is written by `python docs/make_pages.py`."""


def _keys(listed: Sequence[Key]) -> str:
    rows = [[f"`{k.name}`", _default(k.default), cell(k.allowed), cell(k.meaning)] for k in listed]
    return table(["key", "default", "allowed", "meaning"], rows)


def _rules() -> str:
    rows = [
        [f"`{name}`", cell(doc), f"`{p.name}` = {_default(p.default)}", cell(f"{p.doc} ({p.allowed})")]
        for name, doc, params in rules()
        for p in params
    ]
    rows += [[f"`{name}`", cell(doc), "–", "–"] for name, doc, params in rules() if not params]
    return table(["rule", "what", "key", "meaning"], rows)


def _generated() -> str:
    generated = [source for source in SOURCES.values() if source.params]
    return table(
        ["data set", "keys and defaults"],
        [[f"`{s.name}`", ", ".join(f"`{key} = {config.toml(v)}`" for key, v in s.params.items())] for s in generated],
    )


def _default(value: object) -> str:
    return "absent" if value is None else f"`{config.toml(value)}`"
