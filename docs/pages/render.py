"""The pages as Markdown."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from docs.pages import own_method
from docs.pages.data import EXAMPLE, FAMILIES, RELATED, RESULTS, family, notes, settings, table_of, toml, traces
from docs.pages.measure import Amount, Measured, total
from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.papers.format import papers
from fedkeel.papers.printed import printed_in
from fedkeel.template import allowed

RESULTS_BEGIN, RESULTS_END = "<!-- results -->", "<!-- end of results -->"
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


def page(name: str, measured: list[Measured]) -> str:
    """The page of one algorithm."""
    algorithm = ALGORITHMS[name]
    sections = [
        _head(algorithm),
        _run(name, measured[0]),
        f"## The algorithm\n\n{_box(algorithm)}",
        _parameters(algorithm),
        _modes(algorithm),
        re.sub(r"<!-- made: (.*) -->", lambda found: own_method.made(found[1]), notes(name).text),
        _traffic(measured),
        _laws(algorithm),
        _published(algorithm),
        f"{RESULTS_BEGIN}\n{_results(name)}{RESULTS_END}",
        _traces(name),
        f"Source: [`{_source(algorithm)}`](../../{_source(algorithm)}). [All algorithms](README.md).",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def index(measured: Mapping[str, list[Measured]]) -> str:
    """The table of all algorithms."""
    parts = [INDEX_HEAD]
    for title in FAMILIES:
        rows = []
        for name in family(title):
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
        parts.append(f"## {title}\n\n{table(['name', 'paper', 'idea', 'down', 'up', 'client keeps'], rows)}")
    parts.append(NEWER)
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

NEWER = """\
## What the newer methods rest on

The methods of the five papers and their baselines replay runs that their authors' programs recorded, or a
specification that was computed apart. The seventeen methods from FedExP to MoFedSAM (FedExP, FedCM, FedACG, FedAvg-M,
SCAFFOLD-M, FedVARP, FedInit, FedNTD, FedSWA, FedMoSWA, FedSAM, MoFedSAM, FedSpeed, FedSMOO, FedLESAM-D, FedLC, FedRS)
have numbers by hand, laws, and a second computation of their box in the tests, but no recorded runs yet. Their rules
were taken from public programs where these could be read: the authors' own of FedExP, FedACG, FedNTD, FedSWA and
FedLESAM, FL-Simulator's of FedCM, FedInit, FedSAM, MoFedSAM, FedSpeed and FedSMOO, and several of FedLC and FedRS.
FedAvg-M, SCAFFOLD-M and FedVARP follow their published boxes at second hand. What the pages of these methods call
printed was not checked against the papers themselves."""

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
        "`named_values`",
        "a metric of a model or of a client, with `evaluation.metrics`; a value that the algorithm noted "
        "(`history.values(name)`)",
        "`model`, `split`, `name`, `client` (−1: of none), `value`",
    ],
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
    for name, info in algorithm.Params.listed().items():
        symbol, meaning = _symbol(info.description or "")
        rows.append([f"`{name}`", symbol, f"`{_value(info.default)}`", cell(allowed(info)), meaning])
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


def _modes(algorithm: type[Algorithm]) -> str:
    modes = algorithm.Params.modes
    if not modes:
        return ""
    rows = [
        [f"`{mode}`", ", ".join(f"`{key} = {toml(value)}`" for key, value in preset.items())]
        for mode, preset in modes.items()
    ]
    meaning = {"literal": "`literal`: as printed", "code": "`code`: as a published program computes"}
    text = f"`mode` presets what is not given explicitly ({'; '.join(meaning[mode] for mode in modes)})."
    return f"### Modes\n\n{text}\n\n{table(['mode', 'presets'], rows)}"


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


def _published(algorithm: type[Algorithm]) -> str:
    rows = []
    for one in printed_in(algorithm.name):
        paper, where = one.exhibit.paper, one.exhibit.where
        rows.append([f"[{papers()[paper].short}, {where}](../papers/{paper}.md)", one.exhibit.title, str(one.numbers)])
    if not rows:
        return ""
    return "## Published numbers\n\nWith ours beside them:\n\n" + table(["where", "what", "numbers"], rows)


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


def _run(name: str, first: Measured) -> str:
    words = [f"fedkeel run {EXAMPLE}", *(f"--set {_quoted(setting)}" for setting in settings(name))]
    models = ", ".join(f"`{model}`" for model in first.models)
    logged = f"It logs, beside [what every run logs](README.md#what-every-run-logs), `metrics` of {models}"
    logged += "." if first.has_drift else "; `drift` stays empty, because no whole model is uploaded."
    return "```sh\n" + " \\\n    ".join(words) + f"\n```\n\n{logged}"


def _quoted(setting: str) -> str:
    return f"'{setting}'" if re.search(r"[\s\"{}\[\]]", setting) else setting


def _results(name: str) -> str:
    """What docs/results holds on an algorithm: its own tables whole, of shared ones its row beside FedAvg's."""
    blocks = []
    for path in sorted(RESULTS.glob("*.json")):
        subject = path.stem.partition("_")[0]
        head, rows = table_of(path)
        if not rows:
            continue
        if subject == name:
            blocks.append(_result_table(head, rows))
        elif subject in ("all", RELATED.get(name)) and any(row.get("algorithm") == name for row in rows):
            where = "README.md#measured" if subject == "all" else f"{subject}.md#measured"
            chosen = [row for row in rows if row.get("algorithm") in (name, "fedavg")]
            blocks.append(_result_table([*head[:1], f"[The whole table, and how it was measured]({where})."], chosen))
    return "## Measured\n\n" + "\n\n".join(blocks) + "\n" if blocks else ""


def _all_results() -> str:
    """The results that span all algorithms, whole."""
    blocks = []
    for path in sorted(RESULTS.glob("all_*.json")):
        head, rows = table_of(path)
        blocks.append(_result_table(head, rows))
        measured = {row["algorithm"] for row in rows}
        missing = [f"`{name}`" for name in ALGORITHMS if name not in measured]
        blocks += [f"Not measured in this setting: {', '.join(missing)}."] if missing else []
    return "## Measured\n\n" + "\n\n".join(blocks) + "\n" if blocks else ""


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


def cell(text: str) -> str:
    """Text that ends no cell of a table."""
    return text.replace("|", "\\|") or "–"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
