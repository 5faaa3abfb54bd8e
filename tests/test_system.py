"""What is asked of the system, also where the system cannot answer."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedkeel import system
from fedkeel.engine.choice import make_executor
from fedkeel.state import row_memory

ROOT = Path(__file__).parents[1]


def test_cores_are_those_that_this_process_may_use() -> None:
    code = (
        "import os; from fedkeel.system import cores; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "print(cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_without_a_list_of_cores_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert system.cores() == 3
    assert make_executor("pool").describe() == "pool, 3 workers"
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert system.cores() == 1


def test_memory_is_assumed_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.memory() > 1 << 28
    monkeypatch.setattr(os, "sysconf", lambda name: -1)
    assert system.memory() == system.ASSUMED_MEMORY
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert system.memory() == system.ASSUMED_MEMORY
    assert row_memory.a_quarter_of_memory() == system.ASSUMED_MEMORY // 4


def test_a_forked_child_finds_the_lock_free() -> None:
    """While another thread of the parent holds it, which in the child is not there to let it go."""
    lock, taken, over = system.ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            taken.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        with lock.held():
            os._exit(7)
    over.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
