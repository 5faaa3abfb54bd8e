"""The listing commands: algorithms, data, models, partitions, checks."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedkeel.cli.main import print_json
from fedkeel.cli.screen import hanging, say, show_table
from fedkeel.errors import InputError, shown
from fedkeel.papers.settings import Setting, settings_of


def show_algorithms(as_json: bool) -> None:
    """All algorithms with their papers."""
    from fedkeel.algorithms.registry import ALGORITHMS

    if as_json:
        print_json([_described(name) for name in ALGORITHMS])
        return
    rows = [[name, f"{a.paper.authors}, {a.paper.year}", a.idea] for name, a in ALGORITHMS.items()]
    show_table(["name", "paper", "idea"], rows)
    say("\nOne in detail: fedkeel algorithms feddc")


def show_algorithm(name: str, as_json: bool) -> None:
    """One algorithm: box, parameters, modes, laws."""
    from fedkeel.algorithms.registry import algorithm_class

    described = _described(name)
    if as_json:
        print_json(described)
        return
    algorithm = algorithm_class(name, allow_plugins=True)
    say(
        (algorithm.title, "bold"),
        f"  {described['paper']['title']} ({described['paper']['authors']}, "
        f"{described['paper']['venue']} {described['paper']['year']})",
    )
    say(f"{algorithm.idea}\n")
    say(hanging(described["box"]))
    rows = [[p["name"], p["default"], p["allowed"], p["meaning"]] for p in described["params"]]
    show_table(["parameter", "default", "allowed", "meaning"], rows)
    for mode, preset in described["modes"].items():
        say(f"mode {mode!r}: {', '.join(f'{k} = {v}' for k, v in preset.items())}")
    if described["any_mean"]:
        say("robust rules: allowed ([robust] in an experiment)")
    if described["any_staleness"]:
        say("buffered asynchronous rounds: allowed ([clock] mode = 'buffered')")
    for law in described["laws"]:
        say(f"law: {law}")
    if described["published"]:
        say(f"published numbers: fedkeel paper verdict {' '.join(described['published'])}")
    _show_settings(described["settings"])


def _show_settings(settings: list[dict[str, Any]]) -> None:
    """The paper's own experiments: the first with all its fields and what is open, the others by their names."""
    for one in settings[:1]:
        say("")
        say((one["name"], "bold"), f"  {one['where']}")
        for table, values in one["experiment"].items():
            say(hanging(f"    {table}: " + ", ".join(f"{key} {value}" for key, value in values.items())))
        for missing in one["open"]:
            say(hanging(f"    open: {missing}"))
        say("\n".join(f"    {command}" for command in one["commands"]))
    if len(settings) > 1:
        say("\nFurther settings of its paper, for fedkeel init --paper NAME:")
        show_table(["name", "where"], [[one["name"], one["where"]] for one in settings[1:]])


def _described(name: str) -> dict[str, Any]:
    import sys

    from fedkeel.algorithms.registry import algorithm_class
    from fedkeel.engine.clock import takes_stale_uploads
    from fedkeel.engine.robust import takes_any_mean
    from fedkeel.papers.printed import printed_in

    algorithm = algorithm_class(name, allow_plugins=True)
    text = sys.modules[algorithm.__module__].__doc__ or ""
    params = [
        {
            "name": field,
            "default": ", ".join(info.default) if isinstance(info.default, tuple) else info.default,
            "allowed": _allowed(info),
            "meaning": info.description or "",
        }
        for field, info in algorithm.Params.listed().items()
    ]
    paper = algorithm.paper
    return {
        "name": name,
        "title": algorithm.title,
        "idea": algorithm.idea,
        "paper": {"title": paper.title, "authors": paper.authors, "venue": paper.venue, "year": paper.year},
        "box": "\n".join(line for line in text.splitlines() if line.startswith("    ")) + "\n",
        "params": params,
        "modes": algorithm.Params.modes,
        "any_mean": takes_any_mean(algorithm),
        "any_staleness": takes_stale_uploads(algorithm),
        "laws": [law.statement for law in algorithm.laws],
        "settings": [
            {
                "name": one.name,
                "where": one.where,
                "experiment": one.tables(name),
                "open": list(one.open),
                "commands": _commands(one, name),
            }
            for one in settings_of(name)
        ],
        "published": {one.exhibit.id: one.numbers for one in printed_in(name)},
    }


def _commands(setting: Setting, algorithm: str) -> list[str]:
    other = "" if algorithm == setting.algorithms[0] else f" --algorithm {algorithm}"
    return [f"fedkeel init --paper {setting.name}{other}", f"fedkeel run {setting.file(algorithm)}"]


def _allowed(info: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    limits = [
        f"{sign} {getattr(rule, word):g}"
        for rule in info.metadata
        for word, sign in signs.items()
        if hasattr(rule, word)
    ]
    choices = getattr(info.annotation, "__args__", ())
    if choices and all(isinstance(choice, str | int) for choice in choices):
        return " | ".join(str(choice) for choice in choices)
    return ", ".join(limits)


def show_data(data_dir: Path | None, as_json: bool) -> None:
    """All data sets, and whether their files are there."""
    from fedkeel.data import sources
    from fedkeel.data.sources import is_there

    listed: list[dict[str, Any]] = [
        {
            "name": s.name,
            "what": s.doc,
            "train": s.train,
            "test": s.test,
            "classes": s.classes,
            "download": s.download,
            "there": is_there(s.name, data_dir),
        }
        for s in sources()
    ]
    if as_json:
        print_json(listed)
        return
    columns: list[str | tuple[str, str]] = [
        "name",
        ("train", "right"),
        ("test", "right"),
        ("classes", "right"),
        "files",
        "what",
    ]
    rows = [
        [
            s["name"],
            f"{s['train']:,}" if s["train"] else "–",
            f"{s['test']:,}" if s["test"] else "–",
            s["classes"],
            ("there" if s["there"] else "needed") if s["download"] else "–",
            s["what"],
        ]
        for s in listed
    ]
    show_table(columns, rows)
    say("\nFiles are looked for in --data-dir or $FEDKEEL_DATA, then in the cache, then downloaded.")


def show_models(as_json: bool) -> None:
    """All models."""
    from fedkeel.learning import models

    specs = [models.spec(name) for name in models.names()]
    if as_json:
        print_json(
            [
                {
                    "name": s.name,
                    "paper": s.paper,
                    "what": s.summary,
                    "input_shape": s.input_shape,
                    "classes": s.classes,
                    "parameters": s.params,
                }
                for s in specs
            ]
        )
        return
    rows = [[s.name, f"{s.params:,}", "×".join(map(str, s.input_shape)), s.paper, s.summary] for s in specs]
    show_table(["name", ("parameters", "right"), "input", "paper", "what"], rows)


def show_rules(as_json: bool) -> None:
    """All partition rules with their parameters."""
    from fedkeel.data import rules

    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "what": doc,
            "params": [{"name": p.name, "default": p.default, "meaning": p.doc} for p in params],
        }
        for name, doc, params in rules()
    ]
    if as_json:
        print_json(listed)
        return
    rows = [
        [r["name"], r["what"] + "".join(f"\n{p['name']} = {p['default']}: {p['meaning']}" for p in r["params"])]
        for r in listed
    ]
    show_table(["rule", "what"], rows)


def show_partition(
    name: str,
    rule: str,
    clients: int,
    settings: list[str],
    seed: int,
    out: Path | None,
    data_dir: Path | None,
    subset_ok: bool,
    as_json: bool,
) -> None:
    """How a data set is dealt: numbers, the first clients, and a picture on request."""
    from fedkeel.data import Dataset, load, preview_chart, save_chart

    loaded = load(name, data_dir, subset_ok=subset_ok)
    federation = (
        loaded.partition(rule, clients, seed, **dict(_parameter(s) for s in settings))
        if isinstance(loaded, Dataset)
        else loaded
    )
    facts = federation.describe()
    counts = federation.counts()
    if out is not None:
        save_chart(preview_chart(federation), out)
    if as_json:
        print_json({"rule": federation.rule, **facts, "counts": counts.tolist(), "picture": str(out) if out else None})
        return
    settled = {key: value for key, value in federation.rule.items() if key not in ("name", "clients")}
    how = ", ".join(f"{key} {value}" for key, value in settled.items())
    say((federation.dataset.name, "bold"), f" · {federation.N} clients · {federation.rule.get('name', 'own')} ({how})")
    say(
        f"{facts['samples']:,} samples, {facts['size_min']:,} to {facts['size_max']:,} a client "
        f"(median {facts['size_median']:,.0f}), "
        f"{facts['classes_per_client']:.1f} classes a client, label distance {facts['label_distance']:.2f}\n"
    )
    shown = min(federation.N, 12)
    names = [str(label) for label in federation.dataset.class_names][:20]
    columns: list[str | tuple[str, str]] = ["client", ("samples", "right"), *((label, "right") for label in names)]
    rows = [[i, int(federation.sizes[i]), *(int(c) or "·" for c in counts[i][: len(names)])] for i in range(shown)]
    show_table(columns, rows)
    if shown < federation.N:
        say(f"… and {federation.N - shown} more clients")
    say(f"Picture: {out}" if out else "Picture: add --out clients.png", soft_wrap=True)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes name=value such as alpha=0.3, got {shown(text)}.")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name.strip(), value.strip()


def show_check(name: str, as_json: bool) -> bool:
    """The contract of an algorithm, check by check; true if all hold."""
    from fedkeel.check import run_checks

    results = run_checks(name)
    if as_json:
        print_json([asdict(result) for result in results])
        return all(result.passed for result in results)
    for result in (result for result in results if result.ran):
        mark, colour = ("✓", "green") if result.passed else ("✗", "red")
        say((mark, colour), hanging(f"{mark} {result.check}").removeprefix(mark))
        for line in filter(None, (result.detail, result.where)):
            say(f"    {line}", soft_wrap=True)
    passed, left = sum(result.passed for result in results), sum(not result.ran for result in results)
    said = f"{passed} passed, {len(results) - passed - left} failed"
    say(said + (f", {left} not run because they would fail for the same reason" if left else ""))
    return passed == len(results)
