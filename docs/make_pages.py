"""Builds docs/algorithms: one page an algorithm and an index. ``python docs/make_pages.py [--check]``

A page is put together from the registry (box, parameters, modes, laws, published numbers), from one measured round
(traffic and state), from the recorded traces in tests/golden, from docs/results/*.json where there are any, and from
the notes in docs/algorithms/notes, which are written by hand. With ``--check`` nothing is written; the exit code is 1
if a page on disk differs from what would be written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from fedkeel.algorithms.contract import Algorithm  # noqa: E402
from fedkeel.algorithms.registry import ALGORITHMS  # noqa: E402
from fedkeel.algorithms.state import PerClient, Rows  # noqa: E402
from fedkeel.check import tiny_simulation  # noqa: E402
from fedkeel.engine.executors import Job, Outcome, Serial  # noqa: E402
from fedkeel.engine.simulation import Simulation  # noqa: E402
from fedkeel.learning.task import Score  # noqa: E402
from tests.replay.setups import setup_of  # noqa: E402
from tests.replay.trace import Trace  # noqa: E402

PAGES = ROOT / "docs" / "algorithms"
NOTES = PAGES / "notes"
RESULTS = ROOT / "docs" / "results"
GOLDEN = ROOT / "tests" / "golden"
RESULTS_BEGIN, RESULTS_END = "<!-- results -->", "<!-- end of results -->"

FAMILIES = {
    "The five papers": ("fedgvrgm", "fedgvr", "fedgm", "fedveca", "gradma", "gradma_w", "gradma_s", "feddc", "fedpmvr"),
    "Averaging and server rules": (
        *("centralised", "fedavg", "fedavgm", "slowmo", "fedadam", "fedyogi", "fedadagrad", "fednova", "mifa", "mifam"),
    ),
    "Corrections of the local step": ("fedprox", "fedproxm", "scaffold", "feddyn", "vrlsgd", "fedpvr", "mimelite"),
    "Methods that look inside the model": ("moon", "moonm", "fedmlb", "fedmlbm", "fedreg", "fedbn"),
}
NEEDS = {
    "full": "everybody takes part",
    "equal_sizes": "clients of equal size",
    "equal_steps": "equal numbers of steps",
    "single_step": "one local step",
    "constant_lr": "a constant learning rate",
    "stages": "a model of several stages",
    "no_norm": "a model without normalisation layers",
    "one_client": "all data at one client",
}


# ---------------------------------------------------------------------------------------------- one measured round


@dataclass(frozen=True)
class Case:
    """A setting whose traffic and state are measured."""

    label: str = "default"
    params: Mapping[str, Any] = field(default_factory=dict)
    norm: bool = False
    observations: int = 0
    """Equal accuracies observed before the round, so that their gain is zero."""


CASES: dict[str, tuple[Case, ...]] = {
    "scaffold": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case("`option = 1`", {"option": 1}),
    ),
    "feddyn": (Case(), Case('`evaluate` with `"all"`', {"evaluate": ("global", "all")})),
    "feddc": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`mode = "literal"`', {"mode": "literal"}),
        Case('`evaluate` with `"all"`', {"evaluate": ("global", "all")}),
    ),
    "fednova": (Case(), Case("`gmf` above 0", {"gmf": 0.9})),
    "fedpvr": (Case(), Case('`traffic = "paper"`', {"traffic": "paper"})),
    "fedpmvr": (
        Case(),
        Case('`variant = "ema"` or `"repo"`', {"variant": "ema"}),
        Case('`variant = "step"`, `keep = true`', {"variant": "step", "keep": True}),
    ),
    "fedgvr": (
        Case("ε = 1 (the first h rounds)"),
        Case("ε < 1", {"h": 1}, observations=2),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
    ),
    "fedgvrgm": (
        Case("ε = 1 (the first h rounds)"),
        Case("ε < 1", {"h": 1}, observations=2),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`c_momentum = "heavy_ball"`', {"c_momentum": "heavy_ball"}),
    ),
    "fedveca": (
        Case(),
        Case('`traffic = "paper"`', {"traffic": "paper"}),
        Case('`grad_norm = "current"`', {"grad_norm": "current"}),
    ),
    "gradma": (Case(), Case('`mode = "code"`, a model of six tensors', {"mode": "code"})),
    "gradma_w": (Case(), Case('`mode = "code"`', {"mode": "code"})),
    "moon": (Case(), Case("`buffer = 2`", {"buffer": 2})),
    "moonm": (Case(), Case("`buffer = 2`", {"buffer": 2})),
    "fedbn": (Case("a model with BatchNorm", norm=True), Case("a model without")),
}


class Amount(Counter[str]):
    """How many numbers, by unit: ``Amount({"d": 2, "1": 1})`` is 2d + 1."""

    def __str__(self) -> str:
        parts = [_times(count, unit) for unit, count in self.items() if count]
        return (parts[0].strip("()") if len(parts) == 1 else " + ".join(parts)) if parts else "0"


def _times(count: int, unit: str) -> str:
    if unit == "1":
        return str(count)
    if count == 1:
        return unit
    return f"{count} × {unit}" if " " in unit else f"{count}{unit}"


@dataclass(frozen=True)
class Sizes:
    """The lengths by which a measured tensor is known again."""

    d: int
    v: int
    """Coordinates of the algorithm's ``mask``; 0 without one."""
    norm: int
    """Coordinates of normalisation layers, d_BN."""
    N: int

    def unit(self, numbers: int) -> tuple[str, int]:
        """The unit in which a tensor of so many numbers is counted, and how many of them it has."""
        for unit, length in (("d", self.d), ("v", self.v), ("d_BN", self.norm), ("N", self.N), ("N²", self.N**2)):
            if length and numbers == length:
                return unit, 1
        if self.norm and numbers == self.d - self.norm:
            return "(d − d_BN)", 1
        for unit, length in (("d", self.d), ("N²", self.N**2)):
            if numbers and numbers % length == 0:
                return unit, numbers // length
        return "1", numbers

    def amount(self, value: Any) -> Amount:
        """What one named value of a message or a state holds."""
        if isinstance(value, Rows):
            total: Amount = Amount()
            for row in value.values():
                total.update(self.amount(row))
            each, count = next(iter(total.items()), ("d", 0))
            return Amount({f"N·{each}": 1}) if count == self.N else total
        if not isinstance(value, Tensor):
            return Amount({"1": 1})
        unit, count = self.unit(value.numel())
        return Amount({f"{unit} bits" if value.dtype == torch.bool and unit != "1" else unit: count})


@dataclass(frozen=True)
class Measured:
    """What one round of an algorithm sends and keeps."""

    case: Case
    sizes: Sizes
    bytes_down: float
    """Of one client, as the run records it."""
    bytes_up: float
    down: dict[str, Amount]
    up: dict[str, Amount]
    client: dict[str, Amount]
    server: dict[str, Amount]
    models: tuple[str, ...]
    """The models that an evaluation reports."""
    has_drift: bool


class _Keeps(Serial):
    """The reference executor, remembering the last round."""

    job: Job
    outcome: Outcome

    def run(self, job: Job) -> Outcome:
        self.job, self.outcome = job, super().run(job)
        return self.outcome


def measure(name: str, case: Case) -> Measured:
    """Run one round of a tiny federation in which everybody takes part."""
    executor = _Keeps()
    # No incomplete batches: one of a single sample has no statistics for BatchNorm.
    simulation = tiny_simulation(
        ALGORITHMS[name](**case.params), (12, 7, 20, 10, 16), case.norm, executor, drop_last=True
    )
    state = simulation.start()
    for _ in range(case.observations or int(simulation.algorithm.observes)):
        state = simulation.observe(state, Score(0.5, 1.0, 1))
    state, record = simulation.step(state)
    known = _sizes(simulation)
    K = len(record.cohort)
    down = {
        key: known.amount(value.rows[0] if isinstance(value, PerClient) else value)
        for key, value in executor.job.message.items()
    }
    return Measured(
        case,
        known,
        record.bytes_down / K,
        record.bytes_up / K,
        down,
        {key: known.amount(value[0]) for key, value in executor.outcome.message.items()},
        {key: known.amount(value) for key, value in simulation.algorithm.client_init(simulation.problem).items()},
        {key: known.amount(value) for key, value in state.server.items()},
        tuple(simulation.evaluate(state)),
        bool(record.drifts),
    )


def _sizes(simulation: Simulation) -> Sizes:
    layout, params = simulation.task.layout, simulation.algorithm.params
    v = int(layout.mask(params.mask).sum()) if isinstance(getattr(params, "mask", None), str) else 0
    return Sizes(layout.d, v, int(layout.mask("norm").sum()), simulation.federation.N)


def total(named: Mapping[str, Amount]) -> Amount:
    """All values together, vectors first."""
    added: Amount = Amount()
    for amount in named.values():
        added.update(amount)
    order = ["d", "(d − d_BN)", "N·d", "v", "d_BN", "N²", "N"]
    return Amount({unit: added[unit] for unit in [*order, *sorted(set(added) - {*order, "1"}), "1"] if added[unit]})


@cache
def measure_all(name: str) -> list[Measured]:
    """Every case of an algorithm."""
    return [measure(name, case) for case in CASES.get(name, (Case(),))]


# ------------------------------------------------------------------------------------------------------- the pages


def page(name: str, measured: list[Measured]) -> str:
    """The page of one algorithm."""
    algorithm = ALGORITHMS[name]
    sections = [
        _head(algorithm),
        _run(name, measured[0]),
        f"## The algorithm\n\n{_box(algorithm)}",
        _parameters(algorithm),
        _modes(algorithm),
        _notes(name),
        _traffic(measured),
        _laws(algorithm),
        _claims(algorithm),
        f"{RESULTS_BEGIN}\n{_results(name)}{RESULTS_END}",
        _traces(name),
        f"Source: [`{_source(algorithm)}`](../../{_source(algorithm)}). [All algorithms](README.md).",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def index(measured: Mapping[str, list[Measured]]) -> str:
    """The table of all algorithms."""
    parts = [INDEX_HEAD]
    for family, names in FAMILIES.items():
        rows = []
        for name in names:
            paper, first = ALGORITHMS[name].paper, measured[name][0]
            rows.append(
                [
                    f"[`{name}`]({name}.md)",
                    f"{paper.authors}, {paper.venue} {paper.year}",
                    ALGORITHMS[name].idea,
                    str(total(first.down)),
                    _range_up(measured[name]),
                    str(total(first.client)),
                ]
            )
        parts.append(f"## {family}\n\n{table(['name', 'paper', 'idea', 'down', 'up', 'client keeps'], rows)}")
    parts.append(f"{RESULTS_BEGIN}\n{_all_results()}{RESULTS_END}")
    parts.append(INDEX_TAIL.format(tables=table(["table", "a row is", "columns"], LOGGED)))
    return "\n\n".join(parts) + "\n"


def _range_up(measured: list[Measured]) -> str:
    """What is uploaded, in both states of an algorithm whose uploads grow during a run."""
    cases = [m for m in measured if m is measured[0] or m.case.observations]
    return " or ".join(dict.fromkeys(str(total(m.up)) for m in cases))


INDEX_HEAD = """\
# Algorithms

One page each: the box, parameters, what is unclear or wrong in print and how it was read, measured traffic and state,
the laws it obeys, and the recorded runs it reproduces. [Adding your own](../adding-an-algorithm.md) takes fewer than 40
lines.

Traffic is counted per participating client and round, in 32-bit numbers: *d* is a model, *v* the coordinates of a mask,
*d_BN* those of normalisation layers. It is what a run measures with default settings. BatchNorm statistics are counted
on top, once each way, unless `training.buffers` keeps them local."""

INDEX_TAIL = """\
## What every run logs

`run.sqlite` in the run's directory, readable with any SQLite client while the run goes on:

{tables}

These pages are written by `python docs/make_pages.py`; the notes in `notes/` are the part that people edit."""


LOGGED = [
    [
        "`rounds`",
        "a round",
        "`lr`, `clients`, `steps`, `samples`, `train_loss`, `drift` (mean of ‖y_i − w‖), `bytes_down`, `bytes_up`, "
        "`seconds`",
    ],
    [
        "`metrics`",
        "an evaluated model of a round",
        "`model` (`global`, and what else the algorithm offers), `split`, `accuracy`, `loss`",
    ],
    ["`clients`", "a client of a round", "`steps`, `loss`, `drift`"],
    ["`client_metrics`", "a client, with `evaluation.clients = true`", "`split`, `accuracy`, `loss`"],
    [
        "`tensors`",
        "a value of the last state",
        "all that the next round depends on: server state, client state, buffers",
    ],
]


def _head(algorithm: type[Algorithm]) -> str:
    paper = algorithm.paper
    return f"# {algorithm.title}\n\n{algorithm.idea}\n\n{paper.authors}, *{paper.title}*, {paper.venue} {paper.year}."


def _source(algorithm: type[Algorithm]) -> str:
    return algorithm.__module__.replace(".", "/") + ".py"


def _box(algorithm: type[Algorithm]) -> str:
    """The module's docstring without its first line, boxes as code."""
    text = sys.modules[algorithm.__module__].__doc__ or ""
    paragraphs = re.split(r"\n\s*\n", text.partition("\n")[2].strip("\n"))
    return "\n\n".join(_as_code(p) if _is_box(p) else p.replace("``", "`") for p in paragraphs).rstrip()


def _is_box(paragraph: str) -> bool:
    return paragraph.startswith("    ") or bool(re.match(r"(client|worker|server)  ", paragraph))


def _as_code(paragraph: str) -> str:
    lines = paragraph.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(["```text", *(line[indent:].rstrip().replace("``", "") for line in lines), "```"])


def _parameters(algorithm: type[Algorithm]) -> str:
    rows = []
    for name, info in algorithm.Params.model_fields.items():
        if name == "mode":
            continue
        symbol, meaning = _symbol(info.description or "")
        rows.append([f"`{name}`", symbol, f"`{_value(info.default)}`", _allowed(info), meaning])
    if not rows:
        return "## Parameters\n\nNone."
    return "## Parameters\n\n" + table(["name", "symbol", "default", "allowed", "meaning"], rows)


def _symbol(description: str) -> tuple[str, str]:
    """``α, weight of the penalty`` as symbol and meaning."""
    first, comma, rest = description.partition(", ")
    is_symbol = comma and " " not in first and (len(first) <= 2 or not first.isascii() or "_" in first)
    return (first, rest) if is_symbol else ("", description)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return "absent" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _allowed(info: Any) -> str:
    annotation = info.annotation
    if get_origin(annotation) is Literal:
        return " \\| ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "some of " + ", ".join(f"`{choice}`" for choice in get_args(get_args(annotation)[0]))
    if annotation is bool:
        return "`true` \\| `false`"
    signs = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ "}
    limits = [
        f"{sign}{getattr(rule, word):g}"
        for rule in info.metadata
        for word, sign in signs.items()
        if getattr(rule, word, None) is not None
    ]
    return ", ".join(limits) or ("text" if annotation is str else "")


def _modes(algorithm: type[Algorithm]) -> str:
    modes = algorithm.Params.modes
    if not modes:
        return ""
    rows = [
        [f"`{mode}`", ", ".join(f"`{key} = {_toml(value)}`" for key, value in preset.items())]
        for mode, preset in modes.items()
    ]
    meaning = {"literal": "`literal`: as printed", "code": "`code`: as a published program computes"}
    text = f"`mode` presets what is not given explicitly ({'; '.join(meaning[mode] for mode in modes)})."
    return f"### Modes\n\n{text}\n\n{table(['mode', 'presets'], rows)}"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _notes(name: str) -> str:
    path = NOTES / f"{name}.md"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _traffic(measured: list[Measured]) -> str:
    rows = [
        [m.case.label, str(total(m.down)), str(total(m.up)), str(total(m.client)), str(total(m.server))]
        for m in measured
    ]
    first = measured[0]
    lines = [
        "## Traffic and state",
        "",
        f"Measured in one round with N clients, all taking part; traffic per client, in numbers ({_units(measured)}).",
        "",
        table(["setting", "down", "up", "a client keeps", "the server keeps"], rows),
        "",
        f"Down: {_listed(first.down)}. Up: {_listed(first.up)}.  ",
        f"A client keeps {_listed(first.client)}; the server {_listed(first.server)}.",
    ]
    return "\n".join(lines)


def _units(measured: list[Measured]) -> str:
    shown = {unit for m in measured for unit in (*total(m.down), *total(m.client))}
    meanings = {"v": "v: the coordinates of `mask`", "d_BN": "d_BN: those of normalisation layers"}
    return ", ".join(["d: a model", *(text for unit, text in meanings.items() if unit in shown)])


def _listed(named: Mapping[str, Amount]) -> str:
    return ", ".join(f"`{name}` {amount}" for name, amount in named.items() if amount.total()) or "nothing"


def _laws(algorithm: type[Algorithm]) -> str:
    if not algorithm.laws:
        return ""
    lines = []
    for law in algorithm.laws:
        given = " and ".join(NEEDS[need] for need in sorted(law.needs))
        lines.append(f"* {law.statement}" + (f" (given {given})" if given else "") + ".")
    head = "Checked to 1e-12 over four rounds by `fedkeel check " + algorithm.name + "`:"
    return f"## Laws\n\n{head}\n\n" + "\n".join(lines)


def _claims(algorithm: type[Algorithm]) -> str:
    if not algorithm.claims:
        return ""
    rows = [[claim.source, claim.setting, _with_unit(claim.value, claim.unit)] for claim in algorithm.claims]
    return "## Published numbers\n\n" + table(["where", "setting", "value"], rows)


def _with_unit(value: float, unit: str) -> str:
    return f"{value:g}" if unit == "loss" else f"{value:g} {unit}"


# ---------------------------------------------------------------------------------------------------------- traces


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
        how = ", ".join(f"`{key} = {_toml(value)}`" for key, value in shown.items()) or "defaults"
        found[algorithm.name].append(Replayed(path.name, origin, trace.rounds, how))
    return found


SPEC = "specification, computed independently"


def algorithm_default(algorithm: Algorithm, field_name: str) -> Any:
    """The default of a parameter."""
    return algorithm.Params.model_fields[field_name].default


def _traces(name: str) -> str:
    mine = traces()[name]
    if not mine:
        ties = " of its own; its laws tie it to algorithms that have them" if ALGORITHMS[name].laws else ""
        return f"## Recorded runs\n\nNone{ties}."
    rows = [[f"`{r.file}`", r.origin, str(r.rounds), r.how] for r in mine]
    text = (
        "Runs in `tests/golden` that every change must reproduce (`python -m tests.replay tests/golden/FILE`), in "
        "float64 and, where recorded, in float32:"
    )
    return f"## Recorded runs\n\n{text}\n\n{table(['file', 'source', 'rounds', 'replayed with'], rows)}"


# --------------------------------------------------------------------------------------------- commands and results

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


def _run(name: str, first: Measured) -> str:
    words = [f"fedkeel run {EXAMPLE}", *(f"--set {_quoted(setting)}" for setting in settings(name))]
    models = ", ".join(f"`{model}`" for model in first.models)
    logged = f"It logs, beside [what every run logs](README.md#what-every-run-logs), `metrics` of {models}"
    logged += "." if first.has_drift else "; `drift` stays empty, because no whole model is uploaded."
    return "```sh\n" + " \\\n    ".join(words) + f"\n```\n\n{logged}"


def _quoted(setting: str) -> str:
    return f"'{setting}'" if re.search(r"[\s\"{}\[\]]", setting) else setting


RELATED = {"fedgvr": "fedgvrgm", "fedgm": "fedgvrgm", "gradma_w": "gradma", "gradma_s": "gradma"}
"""Whose results a page also looks through for rows of its own."""


def _results(name: str) -> str:
    """What docs/results holds on an algorithm: its own tables whole, of shared ones its row beside FedAvg's."""
    blocks = []
    for path in sorted(RESULTS.glob("*.json")):
        subject = path.stem.partition("_")[0]
        head, rows = _table_of(path)
        if subject == name:
            blocks.append(_result_table(head, rows))
        elif subject in ("all", RELATED.get(name)) and any(row.get("algorithm") == name for row in rows):
            where = "README.md#measured" if subject == "all" else f"{subject}.md#measured"
            chosen = [row for row in rows if row.get("algorithm") in (name, "fedavg")]
            blocks.append(_result_table([*head[:1], f"[The whole table, and how it was measured]({where})."], chosen))
    return "## Measured\n\n" + "\n\n".join(blocks) + "\n" if blocks else ""


def _all_results() -> str:
    """The results that span all algorithms, whole."""
    blocks = [_result_table(*_table_of(path)) for path in sorted(RESULTS.glob("all_*.json"))]
    return "## Measured\n\n" + "\n\n".join(blocks) + "\n" if blocks else ""


def _table_of(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """What a file of results says about itself, and its rows; a file may also be the bare list of rows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return [], content
    head = [f"**{content['title']}**"] if content.get("title") else []
    head += [content["about"]] if content.get("about") else []
    head += [f"`{content['command']}`"] if content.get("command") else []
    return head, content.get("rows", [])


def _result_table(head: list[str], rows: list[dict[str, Any]]) -> str:
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if any(row.get(key) for row in rows)]
    body = table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])
    return "\n\n".join([*head, body])


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


# ------------------------------------------------------------------------------------------------------------ main


def build() -> dict[Path, str]:
    """Every page by its path."""
    measured = {name: measure_all(name) for name in ALGORITHMS}
    listed = [name for names in FAMILIES.values() for name in names]
    if sorted(listed) != sorted(ALGORITHMS):
        raise SystemExit(f"FAMILIES must list every algorithm once: {sorted(set(listed) ^ set(ALGORITHMS))}")
    pages = {PAGES / f"{name}.md": page(name, measured[name]) for name in ALGORITHMS}
    return pages | {PAGES / "README.md": index(measured)}


def stale(pages: Mapping[Path, str]) -> list[str]:
    """The pages on disk that differ; what comes from docs/results is compared only where there are results."""
    has_results = any(RESULTS.glob("*.json"))
    found = []
    for path, wanted in pages.items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        if not has_results:
            wanted, there = _without_results(wanted), _without_results(there)
        if there != wanted:
            found.append(path.name)
    extra = {path.name for path in PAGES.glob("*.md")} - {path.name for path in pages}
    return found + sorted(extra)


def _without_results(text: str) -> str:
    return re.sub(f"{RESULTS_BEGIN}.*?{RESULTS_END}", "", text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/algorithms from the registry, measurements and notes.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    checks = parser.parse_args().check
    pages = build()
    old = stale(pages)
    if checks:
        print("\n".join(f"out of date: {name}" for name in old) or f"{len(pages)} pages are up to date")
        return 1 if old else 0
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(pages)} pages written, {len(old)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
