"""What is searched: sound data, values that every algorithm takes, and nobody forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.errors import InputError
from fedkeel.tuning.contest import (
    begins,
    contest,
    entrants,
    final_experiment,
    searched,
    settings,
    trial_experiment,
    why_not,
)
from fedkeel.tuning.spaces import Dimension, Value, placed, space_of, spaces, without_space
from tests.tuning.made import TINY


def test_every_algorithm_with_numbers_to_set_has_a_space() -> None:
    missing = without_space()
    assert not missing, (
        f"{', '.join(missing)} have parameters but no entry in fedkeel/tuning/spaces.toml, so that they would be tuned "
        "over the common fields only: add [algorithms.NAME] with one to three parameters, as ranges (low, high, scale) "
        "or choices that hold the default and the values of the paper."
    )


def test_spaces_are_of_registered_algorithms_and_small() -> None:
    for name, own in spaces().algorithms.items():
        assert name in ALGORITHMS, f"spaces.toml has {name}, which is not registered"
        assert 1 <= len(own) <= 3, f"{name} has {len(own)} parameters of its own to search; one to three are allowed"
        assert own.keys() <= ALGORITHMS[name].Params.model_fields.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_corner_is_an_experiment_and_the_defaults_lie_inside(name: str) -> None:
    """All lowest, all highest, and each choice by itself, are taken; the first trial is the algorithm as it is."""
    about = TINY if not why_not(TINY, name) else replace(TINY, sections=TINY.sections | {"training": {"steps": 3}})
    assert why_not(about, name) == ""
    space, start = searched(about, name)
    assert space == space_of(name), "a default lies outside the range that is shipped; widen it in spaces.toml"
    one, two = trial_experiment(about, name, start), trial_experiment(about, name, {})
    assert one.model_dump(exclude={"algorithm"}) == two.model_dump(exclude={"algorithm"})
    assert ALGORITHMS[name].Params(**one.algorithm_params()) == ALGORITHMS[name].Params(**two.algorithm_params())

    def ends(dimension: Dimension) -> tuple[Value, ...]:
        low, high = dimension.low, dimension.high
        return dimension.choices or (() if low is None or high is None else (low, high))

    for at in (0, -1):
        trial_experiment(about, name, {field: ends(dimension)[at] for field, dimension in space.items()})
    for field, dimension in space.items():
        for value in dimension.choices:
            trial_experiment(about, name, start | {field: value})


def test_a_value_of_false_leaves_a_field_out() -> None:
    table = {"training": {"lr": 0.1, "clip": 5.0}}
    assert placed(table, {"training.clip": False, "algorithm.mu": 0.5}) == {
        "training": {"lr": 0.1},
        "algorithm": {"mu": 0.5},
    }
    assert table["training"]["clip"] == 5.0


def test_a_range_is_widened_to_hold_what_an_experiment_has() -> None:
    log = Dimension(low=0.01, high=0.5, scale="log")
    assert log.holding(0.1) is log
    assert log.holding(0.001) == Dimension(low=0.001, high=0.5, scale="log")
    assert Dimension(choices=(False, 10.0)).holding(3.0).choices == (3.0, False, 10.0)
    with pytest.raises(InputError, match="cannot be widened"):
        log.holding(False)


def test_tried_values_can_be_written_down() -> None:
    """Four digits, and never outside: 0.0123456 becomes 0.01235, and 0.50001 of a range that ends there 0.5."""
    dimension = Dimension(low=0.01, high=0.5, scale="log")
    assert dimension.rounded(0.0123456) == 0.01235
    assert dimension.rounded(0.50001) == 0.5
    assert Dimension(low=2, high=20, scale="linear").rounded(7) == 7


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"low": 0.1, "high": 1.0}, "low, high and scale, or choices"),
        ({"low": 0.1, "high": 1.0, "scale": "log", "choices": (1,)}, "not both"),
        ({"low": 1.0, "high": 0.1, "scale": "log"}, "low below high"),
        ({"low": 0.0, "high": 0.1, "scale": "log"}, "low above 0"),
    ],
)
def test_ranges_that_are_none(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Dimension(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", settings())
def test_every_setting_is_an_experiment_for_somebody_and_says_why_not_for_the_rest(name: str) -> None:
    about = contest(name)
    taking_part = [one for one in ALGORITHMS if not why_not(about, one)]
    assert len(taking_part) > len(ALGORITHMS) / 2
    assert why_not(about, "vrlsgd") == "it needs every client in every round"


def test_entrants_are_the_best_of_another_setting_and_the_papers_methods() -> None:
    ranking = ["slowmo", "fedavgm", *(name for name in ALGORITHMS if name not in ("slowmo", "fedavgm", "feddc"))]
    found = entrants("lenet", ranking)
    assert set(ranking[:10]) <= set(found)
    assert {"feddc", "fedgvrgm", "fedveca", "gradma", "fedpmvr"} <= set(found)
    assert entrants("mnist", None) == list(ALGORITHMS)
    with pytest.raises(InputError, match="run that first"):
        entrants("lenet", None)


def test_who_does_not_begin_at_the_defaults_is_tuned_over_these_fields_all_the_same() -> None:
    """A field that is not searched would be fixed for good; Keel begins at GradMA-S's defaults."""
    for name, values in begins().items():
        assert values.keys() <= spaces().algorithms[name].keys()
    _, start = searched(contest("fashion-mnist"), "keel")
    _, other = searched(contest("fashion-mnist"), "gradma_s")
    assert start == other
    assert final_experiment(
        contest("fashion-mnist"), "keel", start | {"algorithm.beta1": 0.7}, 1
    ).algorithm_params() == {
        "beta1": 0.7,
        "beta2": 0.5,
        "eta_g": 1.0,
    }
