"""A client's memory in two phases, held against a model of it, and against damage."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
import torch

from fedkeel.engine.site_memory import LostTrackError, SiteMemory
from fedkeel.errors import DataError


def state(number: int) -> dict[str, torch.Tensor]:
    return {"c": torch.tensor([float(number), -0.0, torch.nan]), "k": torch.tensor(number)}


@pytest.mark.parametrize("seed", range(8))
def test_the_state_is_that_of_the_last_round_that_counted(seed: int, tmp_path: Path) -> None:
    """Rounds in which the client is called or not, whose uploads count or not, whose calls come twice or once more
    after the next, at sites that start anew at any moment: always what a client without a network would remember."""
    rng = random.Random(seed)
    counted, old = 0, None
    memory = SiteMemory(tmp_path, 3)
    for round in range(1, 30):
        if rng.random() < 0.3:
            continue
        for _ in range(rng.choice([1, 1, 2])):
            if rng.random() < 0.5:
                memory = SiteMemory(tmp_path, 3)
            found = memory.state_after("run", counted)
            assert found["k"].item() == counted if counted else found == {}
            memory.prepare("run", counted, round, state(round))
        if old is not None and rng.random() < 0.5:  # a call of before, delivered late
            before, when = old
            if before == counted:
                memory.state_after("run", before)
                memory.prepare("run", before, when, state(when))
            else:
                with pytest.raises(LostTrackError):
                    memory.state_after("run", before)
        old = (counted, round)
        if rng.random() < 0.6:
            counted = round
    assert counted > 0
    assert memory.state_after("run", counted)["k"].item() == counted


def test_runs_do_not_meet(tmp_path: Path) -> None:
    memory = SiteMemory(tmp_path, 0)
    memory.prepare("one", 0, 1, state(1))
    memory.prepare("two", 0, 1, state(2))
    assert memory.state_after("one", 1)["k"].item() == 1
    with pytest.raises(LostTrackError, match=r"client 0 does not hold .* that of round 2; it holds that of round 1"):
        memory.state_after("one", 2)
    with pytest.raises(LostTrackError, match="it holds none"):
        memory.state_after("three", 1)


def test_a_state_that_is_not_the_one_that_was_kept_is_never_given(tmp_path: Path) -> None:
    """Every change of a blob, and a state of another round, run or client put in its place."""
    memory = SiteMemory(tmp_path, 0)
    memory.prepare("run", 0, 1, state(1))
    memory.prepare("run", 1, 2, state(2))
    with sqlite3.connect(memory.path) as db:
        (good,) = db.execute("SELECT state FROM states WHERE round = 2").fetchone()
        (other,) = db.execute("SELECT state FROM states WHERE round = 1").fetchone()

    def replaced(blob: bytes) -> None:
        with sqlite3.connect(memory.path) as db:
            db.execute("UPDATE states SET state = ? WHERE round = 2", (blob,))
        with pytest.raises(DataError, match="is damaged"):
            memory.state_after("run", 2)

    rng = random.Random(0)
    for at in rng.sample(range(len(good)), 60):
        flipped = bytearray(good)
        flipped[at] ^= 1 << rng.randrange(8)
        replaced(bytes(flipped))
    replaced(other)
    replaced(b"")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "client-0.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError, match=r"client-0\.sqlite cannot be used"):
        SiteMemory(tmp_path, 0)
