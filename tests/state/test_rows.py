"""Tables of clients' rows: values that share what did not change, in memory up to a budget and in a file beyond."""

import errno
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedkeel.state import row_memory
from fedkeel.state.row_memory import RowMemory, current_memory, remember_within
from fedkeel.state.rows import Rows


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[RowMemory]:
    """At most two rows of four float64 in memory."""
    with remember_within(2 * 32, tmp_path) as memory:
        yield memory


def test_put_gives_a_new_table_and_leaves_the_old() -> None:
    old = Rows().put([1, 5000], torch.tensor([[1.0], [2.0]]))
    new = old.put([5000, 7], torch.tensor([[3.0], [4.0]]))
    assert (sorted(old), sorted(new)) == ([1, 5000], [1, 7, 5000])
    assert (float(old[5000]), float(new[5000]), len(old), len(new)) == (2.0, 3.0, 2, 3)
    assert new[1] is old[1]


def test_put_copies_what_it_is_given() -> None:
    given = torch.zeros(1, 2)
    table = Rows().put([0], given)
    given += 1
    assert torch.equal(table[0], torch.zeros(2))


def test_drop_and_default() -> None:
    table = Rows().put([0, 2000], torch.ones(2, 3)).drop([2000, 9])
    assert list(table) == [0]
    assert len(table) == 1
    assert torch.equal(table.take([0, 2000], torch.zeros(3)), torch.tensor([[1.0] * 3, [0.0] * 3]))
    with pytest.raises(KeyError, match="2000"):
        table[2000]


def test_changed_since_names_the_touched_rows_only() -> None:
    old = Rows().put(range(3000), torch.zeros(3000, 1))
    new = old.put([4, 2999], torch.ones(2, 1)).drop([10])
    assert sorted(client for client, _ in new.changed_since(old)) == [4, 2999]
    assert list(new.gone_since(old)) == [10]


def test_rows_beyond_the_budget_go_to_disk_and_read_the_same(tight: RowMemory) -> None:
    """Five rows of 32 bytes and a budget of 64: two stay in memory, three go to the file."""
    rows = torch.randn(5, 4, dtype=torch.float64)
    table = Rows().put(range(5), rows)
    assert (tight.in_memory, tight.on_disk) == (64, 96)
    assert torch.equal(table.take(range(5), rows[0]), rows)


def test_a_slot_is_used_again_only_when_nobody_looks_at_it(tight: RowMemory) -> None:
    """The old table is gone, but a view of its fourth row is not: that row's memory must not be handed out."""
    table = Rows().put(range(4), torch.arange(16.0, dtype=torch.float64).view(4, 4))
    view = table[3][1:3]
    table = table.put(range(4), torch.full((4, 4), -1.0, dtype=torch.float64))
    gc.collect()
    table = table.put([9], torch.full((1, 4), -2.0, dtype=torch.float64))
    assert view.tolist() == [13.0, 14.0]
    assert tight.in_memory + tight.on_disk == 6 * 32  # five rows of the table, and the one behind the view


def test_memory_is_used_again_only_when_nobody_looks_at_it() -> None:
    memory = RowMemory(1000)
    row = memory.keep(torch.arange(4.0, dtype=torch.float64))
    address, view = row.data_ptr(), row[1:3]
    del row
    other = memory.keep(torch.full((4,), -1.0, dtype=torch.float64))
    assert (view.tolist(), other.data_ptr() == address, memory.in_memory) == ([1.0, 2.0], False, 64)
    del view
    assert memory.in_memory == 32
    third = memory.keep(other)
    assert (third.data_ptr(), memory.in_memory) == (address, 64)


def test_memory_goes_back_with_the_last_row() -> None:
    """Before that a segment stays, and 1,000 rows one after the other need no second one."""
    memory = RowMemory(1000)
    first = memory.keep(torch.zeros(4))
    for _ in range(1000):
        memory.keep(first)
    (shelf,) = memory._shelves.values()
    assert (len(shelf.segments), shelf.unused, len(shelf.free)) == (1, 128, 1)
    del first
    assert (memory._shelves, memory.in_memory) == ({}, 0)
    assert memory.keep(torch.ones(4)).tolist() == [1.0] * 4


def test_rows_of_many_segments_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 24 bytes in slots of 64, three to a segment: the seventh opens the third segment."""
    monkeypatch.setattr("fedkeel.state.row_memory.SEGMENT", 200)
    memory = RowMemory(1000)
    rows = [memory.keep(torch.full((3,), float(k), dtype=torch.float64)) for k in range(7)]
    assert [row.tolist() for row in rows] == [[k] * 3 for k in range(7)]
    assert len(next(iter(memory._shelves.values())).segments) == 3


def test_a_row_larger_than_a_segment(tight: RowMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.state.row_memory.SEGMENT", 64)
    rows = torch.randn(3, 100)
    assert torch.equal(Rows().put(range(3), rows).take(range(3), rows[0]), rows)


def test_rows_on_a_full_disk_are_refused(tmp_path: Path) -> None:
    """No file may grow beyond 3 MB: files of 1 and 2 MB can be had, one of 4 MB cannot.

    In a process of its own, since a mapped page without room behind it would end the process.
    """
    code = f"""
import resource, torch
from fedkeel.state.row_memory import RowSpaceError, remember_within
from fedkeel.state.rows import Rows
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
with remember_within(0, {str(tmp_path)!r}):
    table = Rows()
    try:
        for client in range(100):
            table = table.put([client], torch.full((1, 1 << 16), float(client)))
    except RowSpaceError as error:
        assert all(float(table[k].sum()) == k * (1 << 16) for k in table)
        print(len(table), error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    rows, _, message = ended.stdout.partition(" ")
    assert int(rows) == 4 + 8  # of 256 kB each, in files of 1 and 2 MB
    assert message.startswith(f"clients' vectors beyond 0 MB go to a file in {tmp_path}, where 4,194,304 bytes more")
    assert message.rstrip().endswith("make room there, or allow more memory (run.memory_mb).")


def test_room_on_disk_is_taken_before_it_is_written(tight: RowMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise somebody else may take it, and the next write to the mapped page ends the process."""
    reserved = []
    for name in ("posix_fallocate", "pwrite"):
        real = getattr(row_memory.os, name)
        monkeypatch.setattr(row_memory.os, name, lambda *a, real=real, name=name: reserved.append(name) or real(*a))
    Rows().put(range(3), torch.zeros(3, 4, dtype=torch.float64))
    assert reserved == ["posix_fallocate"]

    def cannot(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(row_memory.os, "posix_fallocate", cannot)
    table = Rows().put(range(3), torch.ones(3, 5, dtype=torch.float64))
    assert reserved == ["posix_fallocate", "pwrite"]
    assert torch.equal(table.take(range(3), table[0]), torch.ones(3, 5, dtype=torch.float64))


def test_a_budget_belongs_to_its_block_and_to_the_tables_made_there(tmp_path: Path) -> None:
    with remember_within(0, tmp_path) as tight:
        inside = Rows()
    outside = Rows().put([0], torch.ones(1, 4))
    assert tight.on_disk == 0
    assert current_memory() is not tight
    inside = inside.put([0], torch.ones(1, 4))
    assert tight.on_disk == 16
    assert outside[0].tolist() == inside[0].tolist()


def test_threads_have_budgets_of_their_own(tmp_path: Path) -> None:
    """Each sees its own memory although the blocks overlap."""
    both = threading.Barrier(2, timeout=60)
    found = {}

    def work(budget: int) -> None:
        with remember_within(budget, tmp_path) as mine:
            both.wait()
            table = Rows().put(range(4), torch.full((4, 4), float(budget)))
            both.wait()
            found[budget] = (current_memory() is mine, mine.in_memory, mine.on_disk, float(table[3].sum()))
            both.wait()

    threads = [threading.Thread(target=work, args=(budget,)) for budget in (0, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: (True, 0, 64, 0.0), 32: (True, 32, 32, 128.0)}


def test_threads_may_share_a_memory() -> None:
    """Four threads that keep and drop rows: nobody is ever given a slot that another looks at."""
    memory = RowMemory(1 << 20)
    wrong = []

    def work(mine: float) -> None:
        kept: list[torch.Tensor] = []
        for turn in range(2000):
            kept.append(memory.keep(torch.full((8,), mine)))
            if turn % 3:
                kept.pop(0)
            if not all(bool((row == mine).all()) for row in kept[-3:]):
                wrong.append(mine)
        wrong.extend(mine for row in kept if not bool((row == mine).all()))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(float(k),)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    gc.collect()
    assert memory.in_memory == 0
