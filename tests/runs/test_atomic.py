"""Files are wholly there or not at all, and whoever lies beside them is left alone."""

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.errors import FedkeelError, InputError
from fedkeel.runs.atomic import remove_leftovers, replacing, write_atomically


@pytest.fixture(scope="module")
def run() -> fk.Run:
    data = fk.data.load("mnist5k").partition("dirichlet", clients=4, alpha=1.0, seed=0)
    return fk.train("fedavg", model="logistic", data=data, rounds=1, steps=1)


@pytest.mark.parametrize("neighbour", ["w.tmp", "w.safetensors.tmp", ".w.safetensors.tmp", "w"])
def test_saving_a_model_leaves_its_neighbours_alone(run: fk.Run, tmp_path: Path, neighbour: str) -> None:
    (tmp_path / neighbour).write_text("mine")
    run.save_model(tmp_path / "w.safetensors")
    assert (tmp_path / neighbour).read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([neighbour, "w.safetensors"])


def test_a_saved_model_has_usual_permissions_and_keeps_those_it_had(run: fk.Run, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    (tmp_path / "other").touch()
    run.save_model(path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
    path.chmod(0o640)
    run.save_model(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_followed(run: fk.Run, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "models" / "1")
    run.save_model(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "models" / "1").stat().st_size > 1000


def test_a_missing_folder_is_named(run: fk.Run, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run.save_model(tmp_path / "none" / "w.safetensors")
    assert f"there is no folder {tmp_path / 'none'}; make it first" in str(caught.value)
    assert "round" not in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "device", "pipe"])
def test_only_a_file_is_replaced(run: fk.Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "w"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(FedkeelError, match=r"the model could not be written to .*; make room and the folder writable"):
        run.save_model(path)
    assert not path.is_file()
    assert [found.name for found in tmp_path.iterdir()] == ["w"]
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    write_atomically(tmp_path / "a", "old")

    def fails() -> None:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fails()
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_writer_leaves_is_found_and_removed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from fedkeel.runs.atomic import replacing
with replacing(Path({str(tmp_path)!r}) / "a"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert len(list(tmp_path.iterdir())) == 1
    for name in ("mine.tmp", ".mine.tmp", ".mine.0123.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.0123.tmp", ".mine.tmp", "mine.tmp"]


def test_a_model_without_room_leaves_nothing(run: fk.Run, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(FedkeelError, match="could not be written"):
            run.save_model(tmp_path / "w")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    run.save_model(tmp_path / "w")
