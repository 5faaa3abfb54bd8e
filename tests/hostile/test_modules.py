"""A short run of random modules against plain torch; ``python -m tests.hostile`` has the long one."""

from __future__ import annotations

from tests.hostile.modules import run


def test_random_modules_are_what_torch_says() -> None:
    found = run(150, seed=0)
    assert found["modules"] == 150
    assert not found["wrong"], "\n".join(found["examples"])
