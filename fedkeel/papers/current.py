"""Whether a record is of the run that a paper's file describes now: else it would pass for what it is not.

Its key is compared, and so are all values that it was computed with, of which it must have those that the key is made
of. Keys leave out what is at its default, so that a field that is added changes none; a default that is changed,
however, must not go unnoticed. Work that was shared cannot be in a key, since it follows from the run that it is shared
with: it is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkeel import config
from fedkeel.errors import DataError, InputError, shown
from fedkeel.papers.format import Paper
from fedkeel.papers.plan import Planned, planned
from fedkeel.papers.records import Record, Records
from fedkeel.papers.sharing import share

LENGTH = {"training.rounds", "training.until.accuracy", "training.until.loss"}
"""Decide how many numbers there are, not which."""
WORK = {"training.epochs", "training.steps"}


def resolved(experiment: config.Experiment) -> dict[str, Any]:
    """An experiment as records hold it: everything but its name, who computes it, and who looks on."""
    return experiment.model_dump(exclude_none=True, exclude={"name", "run", "measure"})


def differs(run: Planned, record: Record, leader: Record | None = None) -> str:
    """What a record has otherwise than a run that is planned now; empty: nothing.

    ``leader`` is the record of the run whose work it shares, if there is one.
    """
    shared = WORK if run.like is not None else set()
    why = computed_otherwise(run.experiment, run.key, record.key, record.experiment, LENGTH | shared)
    if why or run.like is None:
        return why
    return _work_differs(record, dict(_leaves(record.experiment)), leader)


def computed_otherwise(
    experiment: config.Experiment, key: str, of_record: str, then: Mapping[str, Any], but: Collection[str] = ()
) -> str:
    """What a record, by its key and resolved experiment, has otherwise than an experiment; empty: nothing."""
    if of_record != key:
        return "it is of another configuration"
    now, was = dict(_leaves(resolved(experiment))), dict(_leaves(then))
    if not was:
        return "it does not say what it was computed with"
    given = dict(_leaves(experiment.model_dump(exclude_defaults=True, exclude={"name", "run", "measure"})))
    for name in sorted(given.keys() - was.keys() - set(but)):
        return f"it does not say with which {name} it was computed, which is {shown(given[name])} now"
    for name in sorted(was.keys() - set(but)):
        if now.get(name) != was[name]:
            return f"it was computed with {name} = {shown(was[name])}, which is {shown(now.get(name))} now"
    return ""


def _work_differs(record: Record, then: Mapping[str, Any], leader: Record | None) -> str:
    if record.work is None:
        return "it does not say which work it shares"
    expected = {f"training.{kind}": value for kind, value in share(record.work, then["training.batch_size"]).items()}
    found = {name: then[name] for name in WORK if name in then}
    if found != expected:
        return f"it has {_said(found)} where {_said(expected)} are its share of the work"
    if leader is not None and (leader.steps, leader.rounds) != (record.work.steps, record.work.rounds):
        return (
            f"it shares {record.work.steps} steps of {record.work.rounds} rounds, and {leader.method} took "
            f"{leader.steps} in {leader.rounds}"
        )
    return ""


def _said(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in fields.items()) or "neither epochs nor steps"


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", list(value) if isinstance(value, tuple) else value


def _leader(run: Planned, records: Records) -> Record | None:
    like = run.like
    return None if like is None else records.get(like.paper, like.setting, like.method, like.seed, like.scale)


def refuse_stale(paper: Paper, records: Records) -> None:
    """An error for a record that the paper's file does not describe any more."""
    for record in records:
        if record.paper != paper.id:
            continue
        if record.setting not in paper.settings or record.method not in paper.methods:
            why = f"{paper.id}.toml has no such setting or method"
        else:
            run = planned(paper, record.setting, record.method, record.scale, record.seed)
            why = differs(run, record, _leader(run, records))
        if why:
            raise DataError(
                f"the record {record.name} of {record.paper} in {records.folder} is not one of {paper.id}.toml as it "
                f"is now: {why}; run it again, or move it away."
            )


MINE = "move it and the run's folder away, or choose another folder with --out"
THEIRS = "leave --published out to compute it anew"


def check_published(folder: Path) -> None:
    """Refuse to take records from a folder that is not there: all would be computed anew in silence."""
    if not folder.is_dir():
        raise InputError(f"there are no published records: {folder} is no folder here; {THEIRS}.")


def check_records(runs: Iterable[Planned], records: Records, advice: str = MINE) -> None:
    """Refuse records of other runs under the names of these; ``advice`` is what to do about one."""
    for run in runs:
        record = records.get(run.paper, run.setting, run.method, run.seed, run.scale)
        why = "" if record is None else differs(run, record, _leader(run, records))
        if why:
            raise InputError(
                f"the record {run.name} of {run.paper} in {records.folder} is not one of {run.paper}.toml as it is "
                f"now: {why}; {advice}."
            )
