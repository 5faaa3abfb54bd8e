"""Sweeps say what they sweep: in whichever way TOML spells it, in names that stay folders, and over seeds."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel import config, sweeps
from fedkeel.errors import InputError

BASE = {"training": {"lr": 0.1, "clip": 5.0, "rounds": 2}}


@pytest.mark.parametrize(
    "sweep",
    [
        '"training.lr" = [0.1, 0.2]\n"training.clip" = [1.0, 2.0]',
        "training.lr = [0.1, 0.2]\ntraining.clip = [1.0, 2.0]",
        "training = {lr = [0.1, 0.2], clip = [1.0, 2.0]}",
        "[sweep.training]\nlr = [0.1, 0.2]\nclip = [1.0, 2.0]",
    ],
)
def test_every_spelling_of_a_dotted_key_sweeps_the_same(tmp_path: Path, sweep: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f"[sweep]\n{sweep}\n")
    runs = config.plan(path)
    assert [(r.experiment.training.lr, r.experiment.training.clip) for r in runs] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]
    assert runs[1].swept == {"training.lr": 0.1, "training.clip": 2.0}
    assert runs[1].experiment.label == "fedavg-mnist5k-seed0-lr=0.1-clip=2"
    narrowed = config.plan(path, ["sweep.training.lr=[0.3]", "sweep.training.clip="])
    assert [r.swept for r in narrowed] == [{"training.lr": 0.3}]
    assert [r.swept for r in config.plan(path, ["sweep="])] == [{}]


def test_one_field_under_two_spellings_is_refused() -> None:
    with pytest.raises(InputError, match=r"goes over training\.lr twice"):
        config.expand({"sweep": {"training.lr": [0.1], "training": {"lr": [0.2]}}}, [])


def test_a_setting_without_a_value_removes_a_key() -> None:
    (experiment,) = config.expand(BASE, ["training.clip="])
    assert experiment.training.clip is None
    assert experiment.training.lr == 0.1
    (experiment,) = config.expand(BASE, ["training="])
    assert experiment.training.rounds == 100


@pytest.mark.parametrize("name", ["training.clpi", "trianing", "sweep.seed", "training.lr.value", "seed"])
def test_nothing_is_removed_in_silence(name: str) -> None:
    with pytest.raises(InputError, match="removes a key that the experiment does not have"):
        config.expand(BASE, [f"{name}="])


def test_names_that_told_runs_apart_stay() -> None:
    """Folders of earlier runs are found again."""
    runs = config.expand({"sweep": {"algorithm": ["fedavg", "feddyn"], "seed": [0, 1]}}, [])
    assert [run.label for run in runs] == [f"{a}-mnist5k-seed{s}" for a in ("fedavg", "feddyn") for s in (0, 1)]


values = st.one_of(
    st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=9).map(lambda text: text * 30), st.booleans()
)
fields = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9).map(lambda name: name * 4)


@given(
    st.lists(st.dictionaries(fields, values, max_size=3), min_size=1, max_size=4),
    st.text("aé-", min_size=1, max_size=9).map(lambda text: text * 22),
)
def test_names_are_distinct_short_and_printable(swept: list[dict[str, Any]], base: str) -> None:
    made = sweeps.labels([base] * len(swept), swept)
    assert len({name.casefold() for name in made}) == len(made)
    if len(swept) > 1:
        assert all(len(name.encode()) <= sweeps.LONGEST and "/" not in name and name.isprintable() for name in made)


@given(st.floats(allow_nan=False))
def test_values_are_said_unmistakably(value: float) -> None:
    assert float(sweeps.said(value)) == value


def test_spread_over_seeds() -> None:
    swept = [{"training.lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (0, 1, 2)]
    assert sweeps.over_seeds(swept) == [[0, 1, 2], [3, 4, 5]]
    assert sweeps.over_seeds([{"seed": 0}]) == sweeps.over_seeds([{}]) == []
    found = sweeps.spread([0.5, 0.6, 0.8])
    assert found is not None
    assert found.std == pytest.approx(statistics.stdev([0.5, 0.6, 0.8]))
    assert str(found) == "63.33% ± 15.28%"
    single = sweeps.spread([0.5])
    assert single is not None
    assert math.isnan(single.std)
    assert str(single) == "50.00%"
