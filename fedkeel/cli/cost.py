"""``fedkeel cost``: what an experiment would cost with other numbers of clients, and what would stop it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from fedkeel import config, system
from fedkeel.algorithms.registry import ALGORITHMS, algorithm_class
from fedkeel.cli.main import print_json
from fedkeel.cli.screen import console, duration, headline, say, show_table, wrapped
from fedkeel.config import AlgorithmConfig, Experiment
from fedkeel.costs.calibration import Seconds, calibrate
from fedkeel.costs.estimate import Estimate, amount, estimate, rounded, share
from fedkeel.costs.structure import find_structure
from fedkeel.costs.trial import Trial, make_trial
from fedkeel.engine.schedule import round_half_up
from fedkeel.engine.threads import torch_threads
from fedkeel.errors import FedkeelError, invalid

LABEL = 14
"""Columns before the values of a line."""
MOST = 10**15
"""Clients or rounds: more are a slip of the keyboard."""
UNITS = {"B": 1} | {
    f"{letter}{i}B": base**power
    for i, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("KMGTP", start=1)
}


@dataclass(frozen=True)
class Asked:
    """The options as they were written."""

    clients: str | None
    per_round: str | None
    rounds: str | None
    memory: str | None
    cores: int | None
    algorithms: str | None
    timed: bool


@dataclass(frozen=True)
class Scale:
    """The options as numbers."""

    N: int
    S: int
    R: int
    memory: int
    cores: int


def show_cost(
    path: Path, settings: list[str], asked: Asked, data_dir: Path | None, allow_plugins: bool, as_json: bool
) -> None:
    """Find, time, compute, and print it all for people or for programs."""
    numbers = {
        name: None if text is None else count(f"--{name.replace('_', '-')}", text)
        for name, text in (("clients", asked.clients), ("per_round", asked.per_round), ("rounds", asked.rounds))
    }
    memory = system.memory() if asked.memory is None else size("--memory", asked.memory)
    runs = [run.experiment for run in config.plan(path, settings, allow_plugins)]
    experiments = _chosen(runs, asked.algorithms, allow_plugins)
    several = asked.algorithms is not None
    with torch_threads(experiments[0].run.threads):
        first = make_trial(experiments[0], data_dir, plugins=allow_plugins) if not several else None
        federation = first.federation if first else None
        found: list[Estimate] = []
        refused: list[tuple[str, str]] = []
        scale: Scale | None = None
        for experiment in experiments:
            try:
                trial = first or make_trial(experiment, data_dir, federation, allow_plugins)
                federation = trial.federation
                scale = scale or _scale(trial, numbers, memory, asked.cores or system.cores())
                found.append(_estimate(trial, scale, asked.timed))
            except FedkeelError as error:
                if not several or scale is None:
                    raise
                refused.append((experiment.algorithm.name, str(error)))
    if as_json:
        made = [one.as_dict() for one in found]
        failed = [{"algorithm": name, "error": why} for name, why in refused]
        print_json({"runs_in_file": len(runs), "estimates": made, "refused": failed})
        return
    assert scale is not None
    _head(experiments[0], found, scale, len(runs))
    if several:
        _show_table(found, refused)
    else:
        _show_one(found[0])


def count(name: str, text: str) -> int:
    """A whole number as people write it: 10000000, 10_000_000 or 1e7."""
    try:
        value = Decimal(text.strip()) if re.fullmatch(r"[\d_]*\.?[\d_]*([eE]\+?\d{1,2})?", text.strip()) else None
    except InvalidOperation:
        value = None
    if value is None or value != int(value) or not 1 <= value <= MOST:
        raise invalid(name, "a whole number of at least 1, such as 1e7 or 10_000_000", text)
    return int(value)


def size(name: str, text: str) -> int:
    """Bytes as people write them: 64GB, 1.5 TB, 512MiB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = next((one for known, one in UNITS.items() if found and known.lower() == found[2].lower()), None)
    if found is None or unit is None or float(found[1]) * unit < 1:
        raise invalid(name, "a number with a unit, such as 64GB, 1.5TB or 512MiB", text)
    return int(float(found[1]) * unit)


def _chosen(runs: Sequence[Experiment], names: str | None, allow_plugins: bool) -> list[Experiment]:
    """The first run of a file, or with it every algorithm asked for: as the file has it, else with its defaults."""
    if names is None:
        return [runs[0]]
    wanted = list(ALGORITHMS) if names.strip() == "all" else [name.strip() for name in names.split(",")]
    known = {run.algorithm.name: run for run in reversed(runs)}
    for name in wanted:
        algorithm_class(name, allow_plugins)
    return [known.get(name) or _with(runs[0], name) for name in dict.fromkeys(wanted)]


def _with(experiment: Experiment, algorithm: str) -> Experiment:
    return experiment.model_copy(update={"algorithm": AlgorithmConfig(name=algorithm)})


def _scale(trial: Trial, numbers: dict[str, int | None], memory: int, cores: int) -> Scale:
    here = trial.federation.N
    called = max(1, round_half_up(trial.training.participation * here))
    N = numbers["clients"] or here
    return Scale(N, numbers["per_round"] or min(called, N), numbers["rounds"] or trial.training.rounds, memory, cores)


def _estimate(trial: Trial, scale: Scale, timed: bool) -> Estimate:
    with _status(f"{trial.algorithm.title}: a few short rounds"):
        structure = find_structure(trial)
        calibration = calibrate(trial, structure) if timed else None
    return estimate(trial, structure, calibration, scale.N, scale.S, scale.R, scale.memory, scale.cores)


@contextmanager
def _status(text: str) -> Iterator[None]:
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def _head(experiment: Experiment, found: Sequence[Estimate], scale: Scale, runs: int) -> None:
    parts = [] if len(found) != 1 else [found[0].title]
    parameters = [f"{found[0].structure.d:,} parameters"] if found else []
    parts += [f"{scale.N:,} clients, {scale.S:,} a round, {scale.R:,} rounds", *parameters]
    headline([*parts, f"machines of {amount(scale.memory)} and {scale.cores} cores"])
    if runs > 1:
        say(f"The file stands for {runs} runs; this is about the first.", style="dim")
    if experiment.clock.is_on:
        say("What the virtual clock itself takes is not counted.", style="dim")
    faults = experiment.faults
    if faults.dropout or faults.lost or faults.late or faults.stragglers or faults.duplicates:
        say("Simulated faults are not counted: whoever is called answers once.", style="dim")


def _show_one(one: Estimate) -> None:
    s, scale, memory = one.structure, one.scale, one.memory
    vectors = ", ".join(f"{name} {amount(bytes_)}" for name, bytes_ in s.client.items()) or "nothing"
    _say("messages", f"{_between(s.least_down, s.down)} down, {_between(s.least_up, s.up)} up, for each client called")
    work = "" if s.gradients_a_step == 1 else f"; each of its steps costs {s.gradients_a_step:.3g} gradients"
    kept = f": {amount(s.client_bytes)} at every real site" if s.client else ""
    _say("a client", f"remembers {vectors}{kept}{work}")
    _say(
        "the server",
        f"remembers {amount(s.own)}"
        + (f", {amount(s.remembered)} for each client heard" if s.remembered else "")
        + (f" (at most {s.most:,} of them)" if s.most is not None else "")
        + f", {s.registered} B for each registered client",
    )
    _say(
        "calls",
        f"a client's turn comes every {rounded(one.calls.wait)} rounds on average; after {scale.R:,} rounds "
        f"{share(one.calls.once)} were called, {share(one.calls.twice)} at least twice",
    )
    _say(
        "traffic",
        f"{amount(one.down)} down and {amount(one.up)} up in a round; {amount(one.down * scale.R)} and "
        f"{amount(one.up * scale.R)} in all",
    )
    _say(
        "memory",
        f"{amount(memory.whole)} in a simulator: data {amount(memory.data)}, clients' rows {amount(memory.rows)}, "
        f"server {amount(memory.server)}, a round {amount(memory.round)}, processes {amount(memory.process)}"
        + (f"; on one machine {amount(one.on_disk)} of rows go to disk" if one.on_disk else ""),
    )
    if one.round_seconds is not None and one.all_seconds is not None and one.calibration is not None:
        _say(
            "time here",
            f"{_seconds(one.round_seconds)} a round, {_long(one.all_seconds)} in all ({one.calibration.executor})",
        )
    machines = f"{one.machines:,} hold all of it in memory" if one.machines > 1 else "one holds it in memory"
    theirs = "" if one.their_seconds is None else f"; with their cores {_long(one.their_seconds)} in all"
    _say("machines", machines + theirs)
    for limit in one.limits:
        _say("stops" if limit.stops else "mind", limit.why)
    if not one.limits:
        _say("limits", "none found")


def _show_table(found: Sequence[Estimate], refused: Sequence[tuple[str, str]]) -> None:
    timed = any(one.round_seconds is not None for one in found)
    columns: list[str | tuple[str, str]] = ["algorithm", ("down", "right"), ("up", "right"), ("site", "right")]
    columns += [("server", "right"), ("simulator", "right"), *([("a round here", "right")] * timed), "limits"]
    rows = [
        [
            one.algorithm,
            amount(one.down),
            amount(one.up),
            amount(one.structure.client_bytes),
            amount(one.memory.server),
            amount(one.memory.whole),
            *([_seconds(one.round_seconds) if one.round_seconds else "–"] * timed),
            ", ".join(limit.what for limit in one.limits if limit.stops),
        ]
        for one in found
    ]
    show_table(columns, rows)
    say("\ndown, up: the server's line in a round; site: what each real client keeps; all else as `fedkeel cost` says")
    told: set[str] = set()
    for one in found:
        for limit in one.limits:
            if limit.stops and limit.what not in told:
                told.add(limit.what)
                say(wrapped(f"{limit.what} ({one.title}): {limit.why}", ""))
    for name, why in refused:
        say(wrapped(f"{name} is not possible here: {why}", ""))


def _between(low: int, high: int) -> str:
    return amount(high) if low == high else f"{amount(low)} to {amount(high)}"


def _seconds(time: Seconds) -> str:
    if time.value < 1:
        return f"{rounded(time.value * 1000)} ± {rounded(time.spread * 1000)} ms"
    return f"{rounded(time.value)} ± {rounded(time.spread)} s"


def _long(time: Seconds) -> str:
    return f"{duration(time.value)} ± {duration(time.spread)}"


def _say(name: str, text: str) -> None:
    lines = wrapped(text, " " * LABEL)
    say(f"{name:<{LABEL}}{lines[LABEL:]}")
