"""Disks, files and memory that fail: one sentence each, and the last committed round stands."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel import api, config
from fedkeel.algorithms.contract import Local
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.state import Message, State
from fedkeel.check import tiny_simulation
from fedkeel.engine.pool import Pool
from fedkeel.errors import FedkeelError
from fedkeel.runs.runner import Evaluation, OutOfMemoryError, Progress, execute
from fedkeel.runs.store import FILE, Store, rounds_done


def experiment(rounds: int = 6) -> config.Experiment:
    table: dict[str, Any] = {
        "partition": {"clients": 8, "alpha": 0.5},
        "algorithm": {"name": "scaffold"},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "participation": 0.5, "batch_size": 50},
    }
    return config.expand(table, [])[0]


def sentence(call: Callable[[], object]) -> str:
    """What the person reads."""
    with pytest.raises(FedkeelError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond a size: a write that fails in the kernel, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def goes_on_as_if_nothing_had_been(folder: Path, whole: Path) -> None:
    api.run(experiment(), folder, resume=True)
    api.run(experiment(), whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """The log reaches its limit in round 3; rounds 1 and 2 stand, and with room again the run goes on."""
    size = 0

    def fill(progress: Progress) -> None:
        nonlocal size
        if progress.round == 2:
            size = (tmp_path / "r" / f"{FILE}-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with largest_file(resource.RLIM_INFINITY):
        message = sentence(lambda: api.run(experiment(), tmp_path / "r", watch=fill))
    assert message.startswith(f"round 3 could not be written to {tmp_path / 'r' / FILE}: ")
    assert "the last whole round is 2: make room or make the folder writable, then go on with --resume." in message
    assert rounds_done(tmp_path / "r") == 2
    goes_on_as_if_nothing_had_been(tmp_path / "r", tmp_path / "whole")


def test_no_room_to_start(tmp_path: Path) -> None:
    with largest_file(10):
        message = sentence(lambda: api.run(experiment(), tmp_path / "r"))
    assert "make room there" in message
    api.run(experiment(), tmp_path / "r")


def test_no_room_for_the_model(tmp_path: Path) -> None:
    """The rounds are all there; resuming only writes the model."""

    def fill(progress: Progress) -> None:
        if progress.round == 6:
            (tmp_path / "r" / "model.safetensors").mkdir()

    message = sentence(lambda: api.run(experiment(), tmp_path / "r", watch=fill))
    assert message.startswith(f"the model could not be written to {tmp_path / 'r' / 'model.safetensors'}: ")
    assert message.endswith("all rounds are kept: make room, then --resume writes it.")
    assert rounds_done(tmp_path / "r") == 6
    (tmp_path / "r" / "model.safetensors").rmdir()
    goes_on_as_if_nothing_had_been(tmp_path / "r", tmp_path / "whole")


@contextmanager
def mounted(*words: str) -> Iterator[None]:
    """A mount of the test's own; skipped where that is not allowed."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount")
    if subprocess.run(["mount", *words], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", words[-1]], check=True)


def test_a_real_full_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with mounted("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path / "disk")):
        message = sentence(lambda: api.run(experiment(rounds=60), tmp_path / "disk" / "r"))
        assert "could not be written" in message
        assert "full" in message
        done = rounds_done(tmp_path / "disk" / "r")
        assert f"the last whole round is {done}:" in message
        shutil.copytree(tmp_path / "disk" / "r", tmp_path / "r")
    api.run(experiment(rounds=60), tmp_path / "r", resume=True)


def vectors_on_disk() -> config.Experiment:
    """Four clients a round, whose vectors of 0.8 MB all go to a file in the run's folder."""
    setup, model = experiment(3), config.ModelConfig(name="2nn")
    return setup.model_copy(update={"model": model, "run": setup.run.model_copy(update={"memory_mb": 0})})


def test_a_full_disk_under_the_clients_vectors(tmp_path: Path) -> None:
    """The disk has room for the start of the run, but not for the vectors of its first round.

    In a process of its own: a write to a mapped page without room behind it is a bus error.
    """
    (tmp_path / "disk").mkdir()
    folder = tmp_path / "disk" / "r"
    code = f"""
from pathlib import Path
from fedkeel import api, errors
from tests.crash.test_faults import vectors_on_disk
try:
    api.run(vectors_on_disk(), Path({str(folder)!r}))
except errors.FedkeelError as error:
    print(error)
"""
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path / "disk")):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith(f"clients' vectors beyond 0 MB go to a file in {folder}, where ")
        shutil.copytree(folder, tmp_path / "r")
    assert rounds_done(tmp_path / "r") == 0
    api.run(vectors_on_disk(), tmp_path / "r", resume=True)
    assert rounds_done(tmp_path / "r") == 3


def test_a_read_only_disk(tmp_path: Path) -> None:
    """A finished run there can still be read and forked, but not continued."""
    api.run(experiment(), tmp_path / "disk" / "r")
    with mounted("--bind", str(tmp_path / "disk"), str(tmp_path / "disk")):
        remount = ["mount", "-o", "remount,ro,bind", str(tmp_path / "disk")]
        if subprocess.run(remount, check=False, capture_output=True).returncode:
            pytest.skip("remounting is not allowed here")
        message = sentence(lambda: api.run(experiment(9), tmp_path / "disk" / "r", resume=True))
        assert "cannot be locked: Read-only file system; make it writable, or choose another with --out." in message
        message = sentence(lambda: api.run(experiment(), tmp_path / "disk" / "new"))
        assert "cannot be made: Read-only file system" in message
        with closing(Store.reading(tmp_path / "disk" / "r")) as store:
            assert len(store.history().rounds) == 6


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("mine")
    assert "cannot be made: File exists; choose another" in sentence(lambda: api.run(experiment(), tmp_path / "r"))
    assert (tmp_path / "r").read_text() == "mine"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "r"
    api.run(experiment(), folder)
    return folder


def test_a_truncated_store(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "r")
    content = (folder / FILE).read_bytes()
    for size in (len(content) // 2, 4096, 50, 1):
        (folder / FILE).write_bytes(content[:size])
        message = sentence(lambda: api.run(experiment(9), folder, resume=True))
        assert "is not a readable run" in message
        assert "restore it from a copy or start a new run." in message


def test_a_store_with_a_page_of_noise(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "r")
    content = bytearray((folder / FILE).read_bytes())
    content[3 * 65536 : 3 * 65536 + 512] = os.urandom(512)
    (folder / FILE).write_bytes(bytes(content))
    assert "is not a readable run" in sentence(lambda: api.run(experiment(9), folder, resume=True))


@pytest.mark.parametrize("content", [b"[trai", b"\xff\xfe", b""])
def test_a_truncated_experiment_toml_is_written_anew(whole: Path, tmp_path: Path, content: bytes) -> None:
    """The store has a copy of its own, which is the one that counts."""
    folder = shutil.copytree(whole, tmp_path / "r")
    (folder / "experiment.toml").write_bytes(content)
    message = sentence(lambda: config.read(folder / "experiment.toml")) if content else ""
    assert "is not valid TOML" in message or "cannot be read" in message or not content
    api.run(experiment(8), folder, resume=True)
    assert config.read(folder / "experiment.toml")[0] == experiment(8)


class Greedy(FedAvg):
    """Client 2 wants more memory than its process may have, from round 3 on."""

    name = "greedy"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        if local.clients.ids == (2,) and local.round.t == 2:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
            torch.zeros(1 << 30)
        return super().finish(local, y)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc to know what is in use")
def test_a_worker_without_memory(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    simulation = tiny_simulation(Greedy())
    simulation.executor = pool = Pool(workers=2)
    with pytest.raises(OutOfMemoryError) as caught:
        execute(simulation, Evaluation(), store)
    pool.close()
    assert str(caught.value) == (
        "round 3 needs more memory than there is (no room for 4,294,967,296 bytes); the last whole round is 2: "
        "try fewer workers (run.workers), a smaller model or batch, or a machine with more memory."
    )
    state = store.read_state()
    assert state is not None
    assert state.t == 2
    store.close()


class Fails(FedAvg):
    name = "fails"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        if local.round.t == 1:
            raise FedkeelError("this round is not liked.")
        return super().finish(local, y)


def test_a_fault_is_noted_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "failing", sys.modules[__name__])
    setup = experiment().model_copy(update={"algorithm": config.AlgorithmConfig(name="failing:Fails")})
    with suppress(FedkeelError):
        api.run(setup, tmp_path / "r", allow_plugins=True)
    last = Store.reading(tmp_path / "r").events()[-1]
    assert (last.kind, last.round, last.text) == ("fault", 1, "FedkeelError: this round is not liked.")
