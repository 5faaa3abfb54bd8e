"""Whether everything that a run's directory holds is what was written."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedkeel.errors import DataError
from fedkeel.runs import directory as run_directory
from fedkeel.runs.connection import FILE
from fedkeel.runs.store import Store


@dataclass(frozen=True)
class Verified:
    """What was compared with its digests in a sound run."""

    rounds: int
    state: bool
    """Whether there is a state yet."""
    kept: int
    """States of earlier rounds."""
    events: int
    model: bool
    """Whether there is a model file; a run that goes on has none yet."""
    bytes: int
    """Of the database, its log and the model."""


def verify(directory: Path) -> Verified:
    """Read everything; ``DataError`` names the first thing that is damaged. The run may be going on meanwhile."""
    with closing(Store.reading(directory, earlier=False)) as store:
        store.verify_pages()
        rounds = len(store.history().rounds)
        kept = store.verify_kept()
        state = store.read_state()
        events = len(store.events())
        _compare_configuration(directory, store)
        model = _compare_model(directory, store)
    files = [directory / name for name in (FILE, f"{FILE}-wal", run_directory.MODEL)]
    return Verified(
        rounds, state is not None, kept, events, model, sum(file.stat().st_size for file in files if file.exists())
    )


def _compare_configuration(directory: Path, store: Store) -> None:
    path = directory / run_directory.CONFIGURATION
    try:
        beside = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; --resume writes it anew.") from None
    if beside != store.configuration().encode():
        raise DataError(f"{path} is not the configuration that the run has in {FILE}; --resume writes it anew.")


def _compare_model(directory: Path, store: Store) -> bool:
    path, written = directory / run_directory.MODEL, store.meta(run_directory.MODEL)
    if not path.exists() and written is None:
        return False
    digest = run_directory.check_model(path)
    if written is not None and digest != written:
        raise DataError(f"{path} is not the model that the run wrote; --resume writes it anew.")
    return True
