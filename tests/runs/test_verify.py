"""``fedkeel verify``: a sound run, one that goes on, and every part that can be damaged."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel import api, config
from fedkeel.cli.main import app
from fedkeel.errors import DataError
from fedkeel.learning import models
from fedkeel.runs.directory import DIGEST
from fedkeel.runs.runner import Progress
from fedkeel.runs.store import FILE, Store
from fedkeel.runs.verify import verify


def experiment() -> config.Experiment:
    table: dict[str, Any] = {
        "partition": {"clients": 8, "alpha": 0.5},
        "algorithm": {"name": "scaffold"},
        "model": {"name": "logistic"},
        "training": {"rounds": 4, "participation": 0.5, "batch_size": 50},
        "evaluation": {"clients": True, "metrics": ["f1"]},
        "run": {"checkpoint_every": 2, "executor": "serial"},
    }
    return config.expand(table, [])[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "r"
    api.run(experiment(), folder)
    return folder


def test_a_sound_run_is_counted(finished: Path) -> None:
    found = verify(finished)
    assert (found.rounds, found.state, found.kept, found.events, found.model) == (4, True, 2, 2, True)
    assert found.bytes > (finished / FILE).stat().st_size


def test_a_run_that_goes_on_can_be_verified(tmp_path: Path) -> None:
    seen = []

    def look(progress: Progress) -> None:
        seen.append(verify(tmp_path / "r").rounds)

    api.run(experiment(), tmp_path / "r", watch=look)
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE clients SET loss = 0 WHERE round = 2", "the numbers of round 2 do not fit"),
        ("UPDATE client_metrics SET accuracy = 1 WHERE round = 3", "the numbers of round 3 do not fit"),
        ("UPDATE named_values SET value = 1 WHERE round = 3 AND client = -1", "the numbers of round 3 do not fit"),
        ("UPDATE named_values SET name = 'f2' WHERE round = 4 AND name = 'f1'", "the numbers of round 4 do not fit"),
        ("UPDATE named_values SET value = 'x' WHERE round = 2", "do not fit|holds what it cannot"),
        ("DELETE FROM named_values WHERE round = 2", "the numbers of round 2 do not fit"),
        ("DELETE FROM named_values", "the numbers of round 1 do not fit"),
        ("INSERT INTO named_values VALUES (9, '', '', 'a', 1, 1)", "rows of round 9, which has no checksum"),
        ("UPDATE metrics SET split = 1 WHERE round = 3", "do not fit|holds what it cannot"),
        ("DELETE FROM rounds WHERE round = 4", "the numbers of round 4 do not fit"),
        ("DELETE FROM checks WHERE round = 4", "rows of round 4, which has no checksum"),
        ("INSERT INTO clients VALUES (9, 1, 1, 1, 1)", "rows of round 9, which has no checksum"),
        ("UPDATE tensors SET round = 3 WHERE name = 'w'", "state does not fit the checksum of round 4"),
        ("DELETE FROM tensors WHERE owner = 'client' AND client >= 0", "state does not fit the checksum of round 4"),
        ("UPDATE kept SET round = 3 WHERE round = 4 AND name = 't'", "a value of round 3, which was not kept"),
        ("DELETE FROM kept WHERE round = 2 AND name = 'c'", "kept at round 2 does not fit"),
        ("UPDATE kept SET data = zeroblob(length(data)) WHERE name = 'w'", r"server\.w is damaged"),
        ("UPDATE meta SET value = 'seed = 1' WHERE key = 'configuration'", "settings of the run do not fit"),
        ("DELETE FROM meta WHERE key = 'server_order'", "settings of the run do not fit"),
        ("UPDATE events SET text = 'nothing' WHERE kind = 'finished'", "the diary does not fit"),
        ("DELETE FROM seal", "the seal over its rounds is damaged"),
        ("UPDATE seal SET events = 'x'", "the diary does not fit"),
    ],
)
def test_whatever_is_changed_is_named(statement: str, said: str, finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "r")
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute(statement)
    with pytest.raises(DataError, match=said):
        verify(folder)


def test_an_index_that_lies_is_found_before_anything_is_written(finished: Path, tmp_path: Path) -> None:
    """The entry of client.c in the index of tensors is renamed: a write of it would make a second row."""
    folder = shutil.copytree(finished, tmp_path / "r")
    with closing(sqlite3.connect(folder / FILE)) as db:
        page, (root,) = (
            db.execute("PRAGMA page_size").fetchone()[0],
            db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_tensors_1'").fetchone(),
        )
    content = bytearray((folder / FILE).read_bytes())
    at = content.index(b"serverw", (root - 1) * page, root * page)
    content[at + 6] = ord("v")
    (folder / FILE).write_bytes(bytes(content))
    with closing(Store.reading(folder)) as store:
        assert store.read_state() is not None  # a reader does not ask the index
    with pytest.raises(DataError, match="tensors"):
        Store.open(folder)
    with pytest.raises(DataError, match="tensors"):
        verify(folder)


def test_files_beside_the_database(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "r")
    (folder / "experiment.toml").write_text("seed = 1\n")
    with pytest.raises(DataError, match=r"experiment\.toml is not the configuration that the run has in run\.sqlite"):
        verify(folder)
    shutil.copy(finished / "experiment.toml", folder)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(content))
    with pytest.raises(DataError, match="its tensors do not fit their digest"):
        verify(folder)
    module = models.build("logistic", (1, 28, 28), 10)
    before = [tensor.clone() for tensor in module.state_dict().values()]
    with pytest.raises(DataError, match="its tensors do not fit their digest"):
        fk.load_model(module, folder / "model.safetensors")
    assert all(map(torch.equal, before, module.state_dict().values()))
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is not a readable"):
        verify(folder)


@pytest.mark.parametrize("bit", range(8))
def test_a_model_whose_digest_lost_its_name_is_damaged(bit: int, finished: Path, tmp_path: Path) -> None:
    """A flipped bit in the name of the digest must not make the file one of those that never had any."""
    content = bytearray((finished / "model.safetensors").read_bytes())
    content[content.index(DIGEST.encode()) + bit] ^= 1 << bit % 5
    content[-5] ^= 1
    (tmp_path / "m.safetensors").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"do not fit their digest|not a readable"):
        fk.load_model(models.build("logistic", (1, 28, 28), 10), tmp_path / "m.safetensors")


def test_the_command_names_each_run(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "r")
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:70000])
    said = CliRunner().invoke(app, ["verify", str(finished), str(folder)])
    assert said.exit_code == 1
    good, bad = said.stdout.splitlines()
    assert good.startswith(f"{finished}: sound: 4 rounds, the last state, 2 kept states, 2 events, the model; ")
    assert bad.startswith(f"{folder}: not sound: ")
    listed = CliRunner().invoke(app, ["verify", str(finished), "--json"])
    assert listed.exit_code == 0
    assert json.loads(listed.stdout)[0]["rounds"] == 4
