"""Random damage to real runs: it must be noticed, or change nothing.

Small runs of several algorithms, finished or cut off in the middle with their log, are damaged one way at a time: bits
flipped, blocks zeroed or filled with noise, files cut, pages of an earlier time put back, pages swapped. Then somebody
resumes, forks, reads or verifies the run, or loads its model. Allowed are a ``FedkeelError`` and exactly the result of
the undamaged run. Where the log of a killed run is damaged, SQLite takes it as ended there: rounds may be missing
from what is read, and are computed again to the same bits.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkeel import api, config
from fedkeel.data import Federation, from_clients
from fedkeel.engine.rounds import RunState
from fedkeel.errors import FedkeelError
from fedkeel.learning import models
from fedkeel.runs.directory import CONFIGURATION, ENVIRONMENT, MODEL, load_model
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import FILE, Store
from fedkeel.runs.verify import verify
from fedkeel.state.rows import Rows

LOG = f"{FILE}-wal"
ROUNDS, CUT, KEEP, LONGER = 6, 5, 2, 7
"""Rounds of a finished run; the round after which one is cut off; every so many are kept; rounds after going on."""
KINDS = (("fedavg", 1024), ("scaffold", 512), ("mifa", 4096), ("feddc", 65536), ("fedveca", 1024))
"""Algorithms with the bytes of a page: with small ones most of a file means something."""
Files = dict[str, bytes]
Contents = dict[str, Any]


@dataclass
class Specimen:
    """A run as its files, and what comes of it when nobody touches them."""

    name: str
    algorithm: str
    page: int
    files: Files
    earlier: list[bytes]
    """The database after earlier rounds, page by page as it lay then."""
    states: dict[int, Contents]
    """The state after every round."""
    expected: dict[str, Any] = field(default_factory=dict)
    """What each deed gives."""


def run(count: int, seed: int) -> dict[str, Any]:
    """``count`` damages; how many ended in another result without a word (``silent``) or in a traceback."""
    rng = random.Random(seed)
    tally: dict[str, Any] = {"damages": 0, "noticed": 0, "silent": 0, "tracebacks": 0, "examples": []}
    with _workshop() as folder:
        specimens = [specimen for kind in KINDS for specimen in _specimens(*kind, folder)]
        for number in range(count):
            specimen = specimens[number % len(specimens)]
            name, files, what = damaged(specimen, rng)
            deed = rng.choice(DEEDS_WITH[name])
            outcome, detail = _outcome(specimen, files, name, deed, folder)
            tally["damages"] += 1
            tally["noticed"] += outcome == "noticed"
            if outcome in ("silent", "tracebacks"):
                tally[outcome] += 1
                tally["examples"].append(f"{number}: {specimen.name}, {what}, {deed}: {detail}")
    return tally


@contextmanager
def _workshop() -> Iterator[Path]:
    memory = Path("/dev/shm")  # a disk would be waited for after every damage
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


# Runs


_FEDERATION: list[Federation] = []


def _federation() -> Federation:
    """Vectors of 2 KB: larger than a small page, so that they go on in others."""
    if not _FEDERATION:
        rng = np.random.default_rng(0)
        clients = [
            (rng.normal(size=(size, 100)).astype(np.float32), rng.integers(0, 5, size)) for size in (12, 7, 20, 1, 16)
        ]
        _FEDERATION.append(from_clients(clients, test=clients[2], classes=5))
    return _FEDERATION[0]


def _experiment(algorithm: str, rounds: int) -> config.Experiment:
    table = {
        "algorithm": {"name": algorithm},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "participation": 0.6, "batch_size": 5, "lr": 0.1},
        "evaluation": {"clients": True, "initial": True, "metrics": ["f1"] if algorithm != "fedavg" else []},
        "run": {"executor": "serial", "checkpoint_every": KEEP},
    }
    return config.expand(table, [])[0]


def _execute(algorithm: str, rounds: int, folder: Path, **more: Any) -> api.Run:
    return api.run(_experiment(algorithm, rounds), folder, federation=_federation(), **more)


def _specimens(algorithm: str, page: int, folder: Path) -> list[Specimen]:
    """A finished run, one cut off with all its rounds in the log, and one whose log was written back in between."""
    finished = _made(f"{algorithm}, finished", algorithm, page, folder, None)
    cut = _made(f"{algorithm}, cut off", algorithm, page, folder, None, CUT)
    mixed = _made(f"{algorithm}, cut off after writing back", algorithm, page, folder, CUT - 2, CUT)
    return [finished, cut, finished, mixed]


def _made(name: str, algorithm: str, page: int, folder: Path, write_back: int | None, cut: int = 0) -> Specimen:
    """The files of a run, taken after round ``cut`` while it goes on, or (0) at its end."""
    directory = folder / "made"
    directory.mkdir()
    with closing(sqlite3.connect(directory / FILE)) as db:
        db.execute(f"PRAGMA page_size = {page}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("VACUUM")
    earlier: list[bytes] = []
    states: dict[int, Contents] = {}
    files: Files = {}

    def watch(progress: Progress) -> None:
        with closing(Store.reading(directory)) as store:
            states[progress.round] = everything(store.read_state())
        if progress.round == write_back:
            with closing(sqlite3.connect(directory / FILE)) as db:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if progress.round == cut:
            files.update(_files(directory))
        elif not cut or progress.round < cut:
            earlier.append(_image(directory, folder / "image"))

    if not cut:  # in two sittings, so that settings and diary have changed between the first image and the last
        _execute(algorithm, ROUNDS - 2, directory, watch=watch)
    done = _execute(algorithm, ROUNDS, directory, watch=watch, resume=True)
    states[0] = everything(done.simulation.start())
    specimen = Specimen(name, algorithm, page, files or _files(directory), earlier, states)
    shutil.rmtree(directory)
    return specimen


def _files(directory: Path) -> Files:
    names = (FILE, LOG, CONFIGURATION, ENVIRONMENT, MODEL)
    return {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}


def _image(directory: Path, path: Path) -> bytes:
    """The database as it would be with its log written back."""
    with closing(sqlite3.connect(directory / FILE)) as db, closing(sqlite3.connect(path)) as copy:
        db.backup(copy)
    content = path.read_bytes()
    path.unlink()
    return content


# Damage


def damaged(specimen: Specimen, rng: random.Random) -> tuple[str, Files, str]:
    """The name of the file that was damaged, all files, and what was done to it, for people."""
    names = [name for name in specimen.files if specimen.files[name] and name != ENVIRONMENT]
    weights = [{FILE: 8, LOG: 6, MODEL: 1, CONFIGURATION: 1}[name] for name in names]
    if LOG in names:
        weights[names.index(FILE)] = 2 if len(specimen.files[FILE]) > 8 * specimen.page else 1
    (name,) = rng.choices(names, weights)
    whole = specimen.files[name]
    ways: list[Callable[[bytearray, random.Random, int, list[bytes]], str]] = [_flip, _flip, _zero, _noise, _cut]
    if name in (FILE, LOG):
        ways += [_swap, _stale, _stale] if name == FILE else [_swap]
    while True:
        content = bytearray(whole)
        what = rng.choice(ways)(content, rng, specimen.page, specimen.earlier)
        if content != whole:
            return name, specimen.files | {name: bytes(content)}, f"{name}: {what}"


def _place(content: bytearray, rng: random.Random, page: int) -> int:
    """Anywhere; in a database as often in its header, tables, indexes and other pages, however many there are."""
    if not content.startswith(b"SQLite format 3"):
        return rng.randrange(len(content))
    if rng.random() < 0.15:
        return rng.randrange(100)
    kinds: dict[str, list[int]] = {}
    for start in range(0, len(content), page):
        first = content[start + (100 if start == 0 else 0)]
        kind = {2: "index", 10: "index", 5: "interior", 13: "table"}.get(first, "overflow or free")
        kinds.setdefault(kind, []).append(start)
    start = rng.choice(kinds[rng.choice(sorted(kinds))])
    # Headers and pointers of a page stand at its beginning, its cells at its end.
    near = rng.choice((16, 64, page))
    inside = rng.randrange(min(near, page))
    return min(start + (inside if rng.random() < 0.6 else page - 1 - inside), len(content) - 1)


def _flip(content: bytearray, rng: random.Random, page: int, _: list[bytes]) -> str:
    places = [(_place(content, rng, page), rng.randrange(8)) for _ in range(rng.choice((1, 1, 1, 2)))]
    for at, bit in places:
        content[at] ^= 1 << bit
    return "bits flipped at " + ", ".join(f"{at}.{bit}" for at, bit in places)


def _zero(content: bytearray, rng: random.Random, page: int, _: list[bytes]) -> str:
    at, size = _place(content, rng, page), rng.choice((4, 16, 64, 512))
    content[at : at + size] = bytes(len(content[at : at + size]))
    return f"{size} bytes zeroed at {at}"


def _noise(content: bytearray, rng: random.Random, page: int, _: list[bytes]) -> str:
    at, size = _place(content, rng, page), rng.choice((1, 2, 8, 64, page))
    content[at : at + size] = rng.randbytes(len(content[at : at + size]))
    return f"{size} bytes of noise at {at}"


def _cut(content: bytearray, rng: random.Random, page: int, _: list[bytes]) -> str:
    size = rng.randrange(len(content))
    if rng.random() < 0.5 and len(content) > page:
        size = rng.randrange(len(content) // page) * page
    del content[size:]
    return f"cut to {size} bytes"


def _swap(content: bytearray, rng: random.Random, page: int, _: list[bytes]) -> str:
    is_log = not content.startswith(b"SQLite format 3")
    skip, size = (32, page + 24) if is_log else (0, page)
    count = (len(content) - skip) // size
    one, two = (skip + size * rng.randrange(count) for _ in range(2))
    content[one : one + size], content[two : two + size] = content[two : two + size], content[one : one + size]
    return f"pages at {one} and {two} swapped"


def _stale(content: bytearray, rng: random.Random, page: int, earlier: list[bytes]) -> str:
    """One page, seldom two, of an earlier time among those of now."""
    image = rng.choice(earlier)
    differing = [
        at for at in range(0, min(len(image), len(content)), page) if image[at : at + page] != content[at : at + page]
    ]
    chosen = rng.sample(differing, min(len(differing), rng.choice((1, 1, 2))))
    for at in chosen:
        content[at : at + page] = image[at : at + page]
    return f"pages of an earlier round at {', '.join(map(str, chosen))}"


# Deeds


def _resume(specimen: Specimen, folder: Path) -> Contents:
    """The run that went on, and what the next one to open it finds."""
    done = _execute(specimen.algorithm, LONGER, folder, resume=True)
    try:
        with closing(Store.open(folder)) as store:
            written = everything(store.read_state())
    except FedkeelError as error:
        written = {"error": str(error)}
    return _result(done) | {"written": written}


def _fork(specimen: Specimen, folder: Path) -> Contents:
    return _result(_execute(specimen.algorithm, LONGER, folder.with_name("forked"), fork=Fork(folder, KEEP)))


def _fork_last(specimen: Specimen, folder: Path) -> Contents:
    return _result(_execute(specimen.algorithm, LONGER, folder.with_name("forked"), fork=Fork(folder)))


def _read(specimen: Specimen, folder: Path) -> Contents:
    """All that a report can ask for."""
    with closing(Store.reading(folder)) as store:
        history, events = store.history(), store.events()
        states = {round: everything(store.read_state(round)) for round in store.kept_rounds()}
        settings = {key: store.meta(key) for key in ("configuration", "executor", "parent", MODEL)}
    rounds, measured = list(map(repr, history.rounds)), list(map(repr, history.measured))
    noted = [f"{round}: {values}" for round, values in history.noted.items()]
    return {
        "rounds": rounds,
        "measured": measured,
        "noted": noted,
        "events": events,
        "states": states,
        "settings": settings,
    }


def _verify(specimen: Specimen, folder: Path) -> Contents:
    verify(folder)
    return _read(specimen, folder) | {"configuration": (folder / CONFIGURATION).read_text()}


def _load(specimen: Specimen, folder: Path) -> Contents:
    data = _federation().dataset
    module = models.build("logistic", data.input_shape, data.classes)
    load_model(module, folder / MODEL)
    return {name: bits(tensor) for name, tensor in module.state_dict().items()}


DEEDS: dict[str, Callable[[Specimen, Path], Contents]] = {
    "resume": _resume,
    "fork": _fork,
    "fork of the last": _fork_last,
    "read": _read,
    "verify": _verify,
    "load": _load,
}
DEEDS_WITH = {
    FILE: ["resume", "resume", "fork", "fork of the last", "read", "verify"],
    LOG: ["resume", "resume", "fork of the last", "read", "verify"],
    CONFIGURATION: ["resume", "verify"],
    MODEL: ["load", "load", "verify"],
}


def _done(specimen: Specimen, files: Files, deed: str, folder: Path) -> Contents:
    directory = folder / "run"
    directory.mkdir()
    try:
        for name, content in files.items():
            (directory / name).write_bytes(content)
        return DEEDS[deed](specimen, directory)
    finally:
        shutil.rmtree(directory)
        shutil.rmtree(directory.with_name("forked"), ignore_errors=True)


def _outcome(specimen: Specimen, files: Files, name: str, deed: str, folder: Path) -> tuple[str, str]:
    try:
        got = _done(specimen, files, deed, folder)
    except FedkeelError as error:
        return ("silent", f"a sentence of several lines: {error}") if "\n" in str(error) else ("noticed", str(error))
    except Exception:
        return "tracebacks", traceback.format_exc(limit=-3)
    if deed not in specimen.expected:
        specimen.expected[deed] = _done(specimen, specimen.files, deed, folder)
    wanted = specimen.expected[deed]
    if got == wanted or (name == LOG and _is_earlier(got, wanted, specimen.states)):
        return "right", ""
    return "silent", "differs in " + ", ".join(key for key in wanted if got.get(key) != wanted[key])


def _is_earlier(got: Contents, wanted: Contents, states: dict[int, Contents]) -> bool:
    """Whether what was read is the run as it was some rounds before."""
    if "states" not in got:
        return False
    same_states = all(state == states[t] for t, state in got["states"].items() if t or state)
    return same_states and all(
        got[key] == wanted[key][: len(got[key])] for key in ("rounds", "measured", "noted", "events")
    )


def _result(done: api.Run) -> Contents:
    return {"state": everything(done.state), "history": timeless(done.history)}


def everything(state: RunState | None) -> Contents:
    if state is None:
        return {}
    values = {"t": state.t, "b": bits(state.b), "client_buffers": bits(state.client_buffers)}
    values |= {f"server.{name}": bits(value) for name, value in state.server.items()}
    return values | {f"client.{name}": bits(rows) for name, rows in state.clients.items()}


def bits(value: Any) -> Any:
    """A value as something that is equal only if all bits are, NaN included."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, Rows):
        return {client: bits(row) for client, row in value.items()}
    return repr(value)


def timeless(history: History) -> str:
    rounds = [replace(summary, seconds=0.0) for summary in history.rounds]
    return repr(rounds) + repr(history.measured) + repr(history.noted)
