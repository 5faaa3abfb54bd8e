"""Other readings of a paper: who computes them, and that they differ from the default one only where they say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Local, with_variant
from fedkeel.algorithms.corrections import shift
from fedkeel.algorithms.feddc import FedDC
from fedkeel.algorithms.registry import ALGORITHMS, is_registered, make_algorithm
from fedkeel.check import rounds, tiny_simulation
from fedkeel.learning.correction import Correction

VARIED = {name: cls for name, cls in ALGORITHMS.items() if cls.variant}


def readings(cls: type[Algorithm]) -> list[str]:
    """The parameters that ask for another reading."""
    return [name for name, info in cls.Params.model_fields.items() if info.json_schema_extra]


def another(cls: type[Algorithm], name: str) -> Any:
    """A value of a parameter that is not its default: readings are switches and choices."""
    info = cls.Params.model_fields[name]
    choices = (True, False) if info.annotation is bool else info.annotation.__args__  # type: ignore[union-attr]
    return next(choice for choice in choices if choice != info.default)


def trained(algorithm: Algorithm, **training: Any) -> dict[str, Any]:
    """What the server has after three rounds of two in five."""
    return dict(rounds(tiny_simulation(algorithm, participation=0.4, lr_decay=0.9, **training), 3).server)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        torch.equal(value.nan_to_num(), other[name].nan_to_num())
        for name, value in one.items()
        if isinstance(value, Tensor)
    )


def test_only_the_five_papers_have_variants_and_these_have_readings() -> None:
    assert {name for name, cls in ALGORITHMS.items() if readings(cls)} == set(VARIED)


@pytest.mark.parametrize("name", VARIED)
def test_a_reading_is_computed_by_the_variant_and_the_default_one_is_not(name: str) -> None:
    cls = VARIED[name]
    assert type(make_algorithm(name)) is cls
    for field in readings(cls):
        asked = make_algorithm(name, **{field: another(cls, field)})
        assert type(asked) is with_variant(cls) is not cls, field
        assert is_registered(asked)
        assert (asked.name, asked.title) == (cls.name, cls.title)


@pytest.mark.parametrize("name", sorted(set(VARIED) - {"fedpmvr"}))  # whose readings are other methods altogether
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_variant_asked_for_the_default_reading_gives_its_bits(name: str, momentum: float) -> None:
    """The two are written apart; where no parameter says otherwise they are the same method."""
    usual, varied = make_algorithm(name), make_algorithm(name)
    varied.__class__ = with_variant(type(usual))
    assert same(trained(usual, momentum=momentum), trained(varied, momentum=momentum))


class PlainSteps(FedDC):
    """Somebody's FedDC without any correction of the steps."""

    def correction(self, local: Local) -> Correction:
        return shift(torch.zeros_like(local.w))


@pytest.mark.parametrize("params", [{}, {"agg": "eq7"}])
def test_what_a_subclass_defines_stands_above_every_reading(params: dict[str, Any]) -> None:
    """Without correction α has no effect, whoever aggregates; and the aggregation is the one asked for."""
    ends = [trained(PlainSteps(alpha=alpha, **params)) for alpha in (0.1, 0.9)]
    assert same(*ends)
    assert isinstance(PlainSteps(**params), PlainSteps)
    assert same(trained(PlainSteps(**params)), trained(PlainSteps())) == (not params)
