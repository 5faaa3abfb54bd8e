"""One process at a time in a run's directory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedkeel.runs.lock import FILE, LockedError, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from fedkeel.runs.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
ROOT = Path(__file__).parents[2]


def test_a_second_process_is_told_who_holds_it_and_a_dead_one_does_not_block(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(LockedError, match=rf"is held by process {holder.pid} since 20\d\d-"), RunLock(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / FILE).stat().st_size > 0  # the dead one's name is still there, its lock is not
    with RunLock(tmp_path):
        assert str(os.getpid()) in (tmp_path / FILE).read_text()
    assert (tmp_path / FILE).read_text() == ""


def test_the_same_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with pytest.raises(LockedError, match="already going on in this process"), RunLock(tmp_path):
            pass
        child = os.fork()
        if child == 0:  # record locks are not inherited: the child sees its parent's
            try:
                RunLock(tmp_path).__enter__()
            except LockedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with RunLock(tmp_path):
        pass
