"""Tables of clients' rows: values that share what did not change, in memory up to a budget and in a file beyond."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedkeel.algorithms import state
from fedkeel.algorithms.row_memory import RowMemory
from fedkeel.algorithms.state import Rows, remember_within


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[RowMemory]:
    """At most two rows of four float64 in memory."""
    remember_within(2 * 32, tmp_path)
    yield state._memory
    remember_within(None)


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
    monkeypatch.setattr("fedkeel.algorithms.row_memory.SEGMENT", 200)
    memory = RowMemory(1000)
    rows = [memory.keep(torch.full((3,), float(k), dtype=torch.float64)) for k in range(7)]
    assert [row.tolist() for row in rows] == [[k] * 3 for k in range(7)]
    assert len(next(iter(memory._shelves.values())).segments) == 3


def test_a_row_larger_than_a_segment(tight: RowMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkeel.algorithms.row_memory.SEGMENT", 64)
    rows = torch.randn(3, 100)
    assert torch.equal(Rows().put(range(3), rows).take(range(3), rows[0]), rows)
