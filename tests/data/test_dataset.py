"""Data sets and federations: what they refuse, and the numbers they report."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data import Dataset, Federation, Split, from_arrays
from fedkeel.data.digest import digests
from fedkeel.errors import InputError


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_importing_the_data_package_does_not_import_torch_or_altair() -> None:
    code = "import sys, fedkeel.data; sys.exit(any(m in sys.modules for m in ('torch', 'altair', 'PIL', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_federation_counts_and_describes(tiny: Dataset) -> None:
    """Client 0: labels 0, 1; client 1: labels 0, 0. Together ¾, ¼, 0, 0, so the distances are ¼ and ¼."""
    federation = Federation(tiny, (ints(0, 1), ints(4, 8)), {"name": "by hand"})
    assert federation.counts().tolist() == [[1, 1, 0, 0], [2, 0, 0, 0]]
    assert (len(federation), federation.N, federation.n, federation.sizes.tolist()) == (2, 2, 4, [2, 2])
    assert federation.describe() == {
        "clients": 2,
        "samples": 4,
        "unused": 36,
        "size_min": 2,
        "size_median": 2.0,
        "size_max": 2,
        "classes_per_client": 1.5,
        "label_distance": 0.25,
    }


def test_partition_makes_a_federation_with_its_record(tiny: Dataset) -> None:
    federation = tiny.partition("dirichlet", clients=4, alpha=0.5, seed=3)
    assert federation.n == 40
    assert federation.rule == {
        "name": "dirichlet",
        "clients": 4,
        "seed": 3,
        "alpha": 0.5,
        "concentration": "alpha",
        "sigma": 0.0,
    }
    assert tiny.input_shape == (2,)


def test_partition_labels_replace_labels_where_rules_look(tiny: Dataset) -> None:
    two = replace(
        tiny,
        train=Split(tiny.train.x, tiny.train.y % 2),
        test=Split(tiny.test.x, tiny.test.y % 2),
        classes=2,
        class_names=("even", "odd"),
        partition_labels=tiny.train.y,
    )
    parts = two.partition("fedveca_case2", clients=4).clients
    assert [set((part % 4).tolist()) for part in parts] == [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ((), "federation.clients must be at least one list"),
        ((ints(0), ints()), "client 1 has no samples"),
        ((ints(0, 1), ints(1)), "client 1 holds a sample twice or one of another client"),
        ((ints(0, 0),), "client 0 holds a sample twice"),
        ((ints(0, 40),), "federation.clients[0] must be indices from 0 to 39, got 40"),
        ((ints(-1),), "federation.clients[0] must be indices from 0 to 39, got -1"),
        ((np.array([0.0]),), "federation.clients[0] must be an int64 vector"),
    ],
)
def test_a_federation_refuses_wrong_lists(tiny: Dataset, clients: tuple[np.ndarray, ...], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Federation(tiny, clients, {})
    assert sentence in str(caught.value)


def test_client_tests_are_checked(tiny: Dataset) -> None:
    with pytest.raises(InputError, match="client_tests must be 1 lists, got 2"):
        Federation(tiny, (ints(0),), {}, (ints(0), ints(1)))
    with pytest.raises(InputError, match=r"client_tests\[0\] must be indices from 0 to 3, got 4"):
        Federation(tiny, (ints(0),), {}, (ints(4),))


def test_a_data_set_refuses_what_does_not_fit(tiny: Dataset) -> None:
    with pytest.raises(InputError, match=r"tiny\.train labels must be integers from 0 to 2, got 3"):
        replace(tiny, classes=3, class_names=("a", "b", "c"))
    with pytest.raises(InputError, match=r"tiny\.class_names must be 4 names, got '1 names'"):
        replace(tiny, class_names=("a",))
    with pytest.raises(InputError, match="must be samples of the training shape"):
        replace(tiny, test=Split(np.zeros((1, 3), dtype=np.float32), ints(0)))
    with pytest.raises(InputError, match="one label for each of 40 training samples"):
        replace(tiny, partition_labels=ints(0))


def test_a_split_refuses_bad_arrays() -> None:
    good = np.zeros((2, 3), dtype=np.float32)
    for x, y, sentence in [
        (good.astype(np.float64), ints(0, 0), "split.x must be a uint8, float32 or (for tokens) int64 array"),
        (good, ints(0), "split.y must be as long as split.x"),
        (good[:0], ints(), "split.x must be an array with at least one sample"),
        (good, np.zeros(2), "split.y must be an int64 array of labels or a float32 array"),
        (np.array([[0.0, np.nan]], dtype=np.float32), ints(0), "NaN or infinity in sample 0"),
    ]:
        with pytest.raises(InputError) as caught:
            Split(x, y)
        assert sentence in str(caught.value)


def test_the_transform_must_fit_the_channels() -> None:
    x = np.zeros((2, 3, 4, 4), dtype=np.uint8)
    with pytest.raises(InputError, match="0, 1 or 3 values"):
        from_arrays(x, [0, 1], x, [0, 1], mean=(0.5, 0.5), std=(1, 1))


def test_a_part_of_the_training_samples_is_the_same_in_every_run(tiny: Dataset) -> None:
    few, more = tiny.take(5), tiny.take(9)
    assert len(few.train) == 5
    assert len(few.test) == len(tiny.test)
    assert few.note == f"5 of {len(tiny.train)} training samples"
    assert np.array_equal(few.train.x, tiny.take(5).train.x)
    rows = {row.tobytes() for row in more.train.x}
    assert all(row.tobytes() in rows for row in few.train.x)
    assert tiny.take(len(tiny.train)) is tiny


@pytest.mark.parametrize("samples", [0, 10**6, 2.5, True])
def test_no_more_samples_are_kept_than_there_are(tiny: Dataset, samples: object) -> None:
    with pytest.raises(InputError, match=r"data\.samples must be a whole number from 1 to"):
        tiny.take(samples)  # type: ignore[arg-type]


def test_labels_for_partitions_go_with_their_samples(tiny: Dataset) -> None:
    marked = replace(tiny, partition_labels=np.arange(len(tiny.train), dtype=np.int64))
    kept = marked.take(6)
    assert kept.partition_labels is not None
    assert np.array_equal(tiny.train.x[kept.partition_labels], kept.train.x)


def test_clients_test_on_samples_of_their_own() -> None:
    """A fifth of every client's, apart from what anybody trains on; the common test set stays as it was."""
    whole = fk.data.load("mnist5k").partition("dirichlet", clients=20, alpha=0.3, seed=1)
    dealt = fk.data.load("mnist5k").partition("dirichlet", clients=20, alpha=0.3, seed=1, client_test=0.2)
    assert dealt.held_tests is not None
    assert len(dealt.dataset.test) == len(whole.dataset.test)
    for before, kept, held in zip(whole.clients, dealt.clients, dealt.held_tests, strict=True):
        assert held.size == max(1, round(0.2 * before.size))
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.sort(before))
    both = dealt.hold_out(0.1)
    assert both.held_tests is dealt.held_tests
    assert digests(whole)["client tests"] != digests(dealt)["client tests"]
    with pytest.raises(InputError, match=r"data\.client_test must be absent where clients have test samples"):
        dealt.hold_out_tests(0.1)


def test_tests_that_somebody_trains_on_are_refused() -> None:
    dealt = fk.data.load("mnist5k").partition("iid", clients=2, client_test=0.5)
    assert dealt.held_tests is not None
    with pytest.raises(InputError, match=r"held_tests\[0\] must name samples that nobody trains"):
        replace(dealt, held_tests=(dealt.clients[1][:1], dealt.held_tests[1]))
    with pytest.raises(InputError, match=r"held_tests\[1\] must name samples"):
        replace(dealt, held_tests=(dealt.held_tests[0], dealt.held_tests[0]))
    with pytest.raises(InputError, match="validation must name samples that no client holds"):
        replace(dealt, validation=dealt.held_tests[0][:3])
    one = fk.data.from_arrays(np.zeros((3, 2)), np.arange(3), np.zeros((3, 2)), np.arange(3))
    with pytest.raises(InputError, match="single sample"):
        one.partition("iid", clients=3, client_test=0.5)
