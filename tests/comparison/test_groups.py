"""``fedkeel compare``: numbers by hand, real runs over seeds, and what must not be compared in silence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedkeel import api, config
from fedkeel.cli.main import app
from fedkeel.comparison.groups import Read, compare_groups, paired, read, without_duplicates
from fedkeel.errors import InputError
from fedkeel.measure.settings import Measuring
from fedkeel.runs.history import History, Measured, RoundSummary


def run(algorithm: str, seed: int, accuracies: list[float], **settings: Any) -> Read:
    history = History(
        [RoundSummary(t, 0.1, 1, 1, 1, 0.0, 0.0, 10, 10, 1.0) for t in range(1, len(accuracies) + 1)],
        [Measured(t, "global", "test", value, 1.0) for t, value in enumerate(accuracies, start=1)],
    )
    data = {"samples": "a", "partition": f"of {seed}"} | settings.pop("data", {})
    fields = {"algorithm.name": algorithm, **settings}
    return Read(f"runs/{algorithm}-{seed}", seed, fields, len(accuracies), data, "layers", history)


def test_an_interval_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s = 1, t(2; 0.975) = 4.3027, so 2 ± 4.3027/√3 = 2 ± 2.4841."""
    found = paired([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert (found.low, found.high) == (pytest.approx(-0.48414, abs=1e-4), pytest.approx(4.48414, abs=1e-4))
    assert (paired([1.0, 2.0]).low, paired([1.0, 2.0]).mean) == (None, 1.5)


def test_speed_ups_are_over_the_base_and_say_where_they_are_bounds() -> None:
    """The base reaches 0.5 in rounds 4 and 2, the other in 1 and 2: (4 + 2) / (1 + 2) = 2. A base that never gets
    there counts with its four rounds: at least (4 + 2) / 3.
    """
    runs = [run("fedavg", 0, [0.1, 0.2, 0.3, 0.5]), run("fedavg", 1, [0.1, 0.5, 0.5, 0.5])]
    runs += [run("feddc", 0, [0.5, 0.6, 0.6, 0.6]), run("feddc", 1, [0.1, 0.6, 0.6, 0.6])]
    base, other = compare_groups(runs, 0.5).groups
    assert (base.speed_up, other.speed_up, other.at_least) == (1, 2, False)
    assert (other.rounds_to_target, other.bytes_to_target, other.smoothed_rounds_to_target) == (1.5, 30, None)
    assert other.over_base["last"].mean == pytest.approx(0.1)
    never = [run("fedavg", 0, [0.1] * 4), *runs[1:]]
    base, other = compare_groups(never, 0.5).groups
    assert (other.speed_up, other.at_least, base.speed_up, base.reached) == (2, True, None, 1)
    flipped = compare_groups(never, 0.5, base="feddc")
    assert flipped.base == "feddc"
    assert flipped.groups[0].speed_up is None


def test_other_data_are_refused_and_other_partitions_are_said() -> None:
    one = run("fedavg", 0, [0.5])
    with pytest.raises(InputError, match="differ in the training samples"):
        compare_groups([one, run("feddc", 0, [0.5], data={"samples": "b"})], 0.5)
    warnings = compare_groups([one, run("feddc", 0, [0.5], data={"partition": "b"})], 0.5).warnings
    assert any("same seed, but differ in which samples each client holds" in w for w in warnings)
    assert compare_groups([one, run("feddc", 0, [0.6])], 0.5).warnings == ()
    assert any(
        "training.lr" in w for w in compare_groups([one, run("feddc", 0, [0.5], **{"training.lr": 1})], 0.5).warnings
    )
    with pytest.raises(InputError, match="same settings and the same seed"):
        compare_groups([one, one], 0.5)


def test_of_duplicates_the_longest_is_shown_and_else_the_first() -> None:
    """The first was interrupted after two of three rounds; the last, of the same length as the second, differs."""
    runs = [run("fedavg", 0, accuracies) for accuracies in ([0.1, 0.2], [0.1, 0.2, 0.3], [0.1, 0.2, 0.4])]
    runs = [replace(one, name=f"runs/{letter}", rounds=3) for one, letter in zip(runs, "abc", strict=True)]
    other = run("feddc", 0, [0.5])
    shown, left = without_duplicates([runs[0], other, *runs[1:]])
    assert shown == [runs[1], other]
    assert [str(one) for one in left] == [
        "runs/a is left out: it has the settings and the seed 0 of runs/b, which has 3 rounds to its 2.",
        "runs/c is left out: it has the settings and the seed 0 of runs/b, which comes first; their numbers are not "
        "the same.",
    ]
    assert [str(one) for one in without_duplicates([runs[1], replace(runs[1])])[1]] == [
        "runs/b is given more than once, and shown once."
    ]


def test_runs_on_other_data_or_of_another_model_are_no_duplicates() -> None:
    one = run("fedavg", 0, [0.5])
    others = [run("fedavg", 0, [0.5], data={"samples": "b"}), replace(one, layers="others"), run("fedavg", 1, [0.5])]
    assert without_duplicates([one, *others]) == ([one, *others], [])


def test_groups_of_one_algorithm_are_named_by_what_differs() -> None:
    runs = [run("fedavg", 0, [0.5], **{"training.lr": rate}) for rate in (0.1, 0.2)]
    assert [group.name for group in compare_groups(runs, 0.5).groups] == ["fedavg lr=0.1", "fedavg lr=0.2"]
    with pytest.raises(InputError, match="may be"):
        compare_groups(runs, 0.5, base="fedavg")


def test_real_runs_over_three_seeds(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": 3, "participation": 0.4, "steps": 3},
        "run": {"executor": "serial"},
        "sweep": {"algorithm": ["fedavg", "scaffold"], "seed": [0, 1, 2]},
    }
    folders = []
    for experiment in config.expand(table, []):
        folders.append(str(tmp_path / experiment.label))
        watched = Measuring(every=2) if experiment.seed == 1 else Measuring()  # which makes no other run of it
        api.run(experiment.model_copy(update={"measure": watched}), tmp_path / experiment.label)
    result = CliRunner().invoke(app, ["compare", *folders, "--target", "0.3", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(g["name"], g["seeds"]) for g in found["groups"]] == [("fedavg", [0, 1, 2]), ("scaffold", [0, 1, 2])]
    last = found["groups"][1]["over_base"]["last"]
    assert last["low"] <= last["mean"] <= last["high"]
    assert found["warnings"] == []
    text = CliRunner().invoke(app, ["compare", *folders, "--target", "0.3"]).output
    assert "95% t interval" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_that_until_ended_is_whole_unless_it_missed_the_target(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": 6, "participation": 0.4, "steps": 3, "until": {"accuracy": 0.05}},
        "run": {"executor": "serial"},
    }
    (experiment,) = config.expand(table, [])
    ran = api.run(experiment, tmp_path / "ended")
    assert (ran.ended, ran.state.t < 6) == ("until", True)
    assert compare_groups([read(tmp_path / "ended")], 0.05).warnings == ()
    (missed,) = compare_groups([read(tmp_path / "ended")], 0.99).warnings
    assert f"was ended by `until` after round {ran.state.t}, before it reached 0.99" in missed

    del table["training"]["until"]
    (experiment,) = config.expand(table, [])
    api.run(experiment, tmp_path / "stopped", stop=lambda: True)
    (stopped,) = compare_groups([read(tmp_path / "stopped")], 0.05).warnings
    assert "has done 1 of 6 rounds" in stopped
