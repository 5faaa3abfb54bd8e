"""A few hundred random inputs; ``make hostile`` gives twenty thousand."""

import json
from unittest import mock

import pytest

from tests.hostile import __main__ as hostile
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


@pytest.mark.parametrize("hangs", [0, 1])
def test_the_last_line_counts_everything(hangs: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"wrong": 0, "silent": 0, "tracebacks": 0, "hangs": 0, "examples": ["an example"] * hangs}
    results = {"modules": {"modules": 2}, "damage": {"damages": 3}, "inputs": {"inputs": 4, "hangs": hangs}}
    ran = mock.patch.object(hostile, "result", lambda generator, count, seed: found | results[generator.name])
    with ran, mock.patch("sys.argv", ["hostile", "--seed", "5"]), pytest.raises(SystemExit) as ended:
        hostile.main()
    assert bool(ended.value.code) == bool(hangs)
    *before, last = capsys.readouterr().out.splitlines()
    assert list(json.loads(last).items()) == [
        ("modules", 2),
        ("wrong", 0),
        ("damages", 3),
        ("silent", 0),
        ("inputs", 4),
        ("tracebacks", 0),
        ("hangs", hangs),
    ]
    assert ("modules, seed 5: an example" in before) == bool(hangs)
