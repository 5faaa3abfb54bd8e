"""A few hundred random inputs; ``make hostile`` gives twenty thousand."""

from tests.hostile import guarded, inputs


def test_only_success_or_a_sentence() -> None:
    found = inputs.run(400, seed=1)
    assert (found["tracebacks"], found["hangs"]) == (0, 0), found["examples"]


def test_an_input_can_be_given_again() -> None:
    assert inputs.trial(3, 14)[0] == inputs.trial(3, 14)[0]


def test_what_dies_or_hangs_is_counted() -> None:
    """Input 1 raises, input 2 never ends, input 3 kills the process; the others are fine."""
    found = guarded.run_guarded("tests.hostile.faulty", 5, seed=0)
    assert (found.tracebacks, found.hangs) == (2, 1)
    assert [example["number"] for example in found.examples] == [1, 2, 3]
