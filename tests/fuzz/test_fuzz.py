"""A few hundred damaged inputs; ``make fuzz`` gives thousands."""

import pytest

from tests.fuzz.targets import TARGETS, Target, attack


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_our_own_errors_come_out(target: Target) -> None:
    assert attack(target, 75, repeatable=True) >= 75
