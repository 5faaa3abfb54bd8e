"""The demo's scenes, and what a method says of itself outside its paper's range."""

from __future__ import annotations

import warnings

import pytest

import fedkeel
from fedkeel import config
from fedkeel.check import tiny_federation
from fedkeel.cli.scenes import SCENES, Outcome, Scene
from fedkeel.notices import FedkeelWarning


def test_every_paper_has_a_scene() -> None:
    assert [scene.algorithm for scene in SCENES] == ["fedgvrgm", "fedveca", "gradma", "feddc", "fedpmvr"]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.algorithm)
def test_a_scene_is_two_sound_experiments_that_differ_in_the_method(scene: Scene) -> None:
    own, baseline = (config.expand(given, [])[0] for given in scene.experiments(500, 0))
    assert own.training.rounds == baseline.training.rounds == scene.rounds
    assert (own.algorithm.name, baseline.algorithm.name) == (scene.algorithm, scene.baseline)
    assert (own.data, own.partition, own.model) == (baseline.data, baseline.partition, baseline.model)
    assert own.data.name == "mnist5k"


@pytest.mark.parametrize(
    ("mean", "whole", "said"),
    [
        ((0.80, 0.70), True, "holds here"),
        ((0.70, 0.80), True, "does not hold here"),
        ((0.703, 0.70), True, "no difference here"),
        ((0.80, 0.70), False, "too few rounds to tell"),
    ],
)
def test_the_verdict_says_what_was_seen(mean: tuple[float, float], whole: bool, said: str) -> None:
    assert Outcome(mean, mean, whole).verdict == said


@pytest.mark.parametrize(
    ("name", "participation", "told"), [("fedveca", 0.4, 1), ("fedveca", 1.0, 0), ("fedavg", 0.4, 0)]
)
def test_part_of_the_clients_is_outside_the_range_of_fedveca(name: str, participation: float, told: int) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", FedkeelWarning)
        fedkeel.train(
            name, model="logistic", data=tiny_federation(), rounds=1, participation=participation, executor="serial"
        )
    assert sum("paper has all clients in every round" in str(warning.message) for warning in seen) == told
