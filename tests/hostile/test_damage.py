"""A short run of random damage; ``python -m tests.hostile`` does many more."""

from tests.hostile import damage


def test_damage_is_noticed_or_harmless() -> None:
    found = damage.run(count=60, seed=1)
    assert (found["damages"], found["silent"], found["tracebacks"]) == (60, 0, 0), "\n".join(found["examples"])
    assert found["noticed"] > 10
