"""Tuning: equal budgets, held-out samples only, the same trials whatever is killed and however many run at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from fedkeel import build, config
from fedkeel.cli.tuning_run import finish
from fedkeel.data import Dataset, Split, load
from fedkeel.errors import DataError, InputError
from fedkeel.papers.work import RUNS
from fedkeel.runs.recorded import RECORDS
from fedkeel.runs.store import FILE
from fedkeel.tuning import records as kept
from fedkeel.tuning.contest import (
    SECTIONS,
    Contest,
    contest,
    contest_of,
    final_experiment,
    searched,
    trial_experiment,
    why_not,
)
from fedkeel.tuning.plan import check_current
from fedkeel.tuning.proposals import STARTUP, propose
from fedkeel.tuning.records import Collected, best
from fedkeel.tuning.spaces import AVERAGE, spaces
from fedkeel.tuning.work import work
from tests.tuning.made import TINY, record

ROOT = Path(__file__).parents[2]
TIMED = {"seconds", "commit", "environment"}


def numbers(found: Collected) -> dict[str, Any]:
    """Everything in the records that no clock and no machine decides."""
    return {one.name: one.model_dump(exclude=TIMED) for one in found.found.values()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Collected]:
    """Two algorithms through the tiny contest, in this process."""
    out = tmp_path_factory.mktemp("done")
    outcome = work(TINY, ["fedavg", "fedavgm", "vrlsgd"], out, 0)
    assert outcome.failures == {}
    assert outcome.not_run.keys() == {"vrlsgd"}
    return out, outcome.records


def test_everybody_has_the_same_budget_and_fresh_seeds(done: tuple[Path, Collected]) -> None:
    out, found = done
    for name in ("fedavg", "fedavgm"):
        trials, finals = found.trials(name), found.finals(name)
        assert [one.number for one in trials] == [0, 1]
        assert {one.rounds for one in trials} == {TINY.trial_rounds}
        assert {one.experiment["seed"] for one in trials} == {0}
        assert [one.experiment["seed"] for one in finals] == [1, 2]
        assert {one.rounds for one in finals} == {TINY.rounds}
        assert [one.chosen for one in finals] == [best(trials).choice] * 2
        assert trials[0].chosen == searched(TINY, name)[1]
        assert trials[1].chosen != trials[0].chosen
    assert not list((out / RUNS).rglob(FILE)), "stores of finished runs are kept"
    (run,) = config.read(out / "best" / "tiny" / "fedavgm.toml")
    assert run == final_experiment(TINY, "fedavgm", best(found.trials("fedavgm")).choice, 1)


def test_what_is_done_is_used_again(done: tuple[Path, Collected]) -> None:
    out, found = done
    heard: list[str] = []
    again = work(TINY, ["fedavg", "fedavgm"], out, 0, hear=lambda news: heard.append(news.kind))
    assert set(heard) == {"kept"}
    assert numbers(again.records) == numbers(found)


def test_what_is_published_is_used_again_only_where_asked_for(done: tuple[Path, Collected], tmp_path: Path) -> None:
    """FedAvg is published; FedAvgM is not, and is computed. Without asking, a published algorithm is computed anew."""
    _, found = done
    published = tmp_path / "published"
    for one in [*found.trials("fedavg"), *found.finals("fedavg")]:
        kept.write(published, one)
    heard: list[tuple[str, str]] = []
    both = ["fedavg", "fedavgm"]
    again = work(
        TINY, both, tmp_path / "out", 0, hear=lambda n: heard.append((n.run.algorithm, n.kind)), published=published
    )
    assert {kind for name, kind in heard if name == "fedavg"} == {"kept"}
    assert "done" in {kind for name, kind in heard if name == "fedavgm"}
    assert numbers(again.records) == numbers(found)
    assert not list((tmp_path / "out" / RECORDS).rglob("fedavg--*")), "published records stay where they are"
    heard.clear()
    work(TINY, ["fedavg"], tmp_path / "new", 0, hear=lambda n: heard.append((n.run.algorithm, n.kind)))
    assert "kept" not in {kind for _, kind in heard}
    more = replace(TINY, seeds=3)  # the third seed goes beside what it was chosen from, so that all goes on without it
    work(more, ["fedavg"], tmp_path / "more", 0, published=published)
    heard.clear()
    work(more, ["fedavg"], tmp_path / "more", 0, hear=lambda n: heard.append((n.run.algorithm, n.kind)))
    assert [kind for _, kind in heard] == ["kept"] * 5
    with pytest.raises(InputError, match=r"nowhere is no folder here; leave --published out"):
        work(TINY, ["fedavg"], tmp_path / "fourth", 0, published=tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"in .*/published is one of 2 trials .*; leave --published out"):
        work(replace(TINY, trials=3), ["fedavg"], tmp_path / "third", 0, published=published)


def garbled(name: str, *rest: Any, **params: Any) -> Dataset:
    """A data set whose test set is nonsense."""
    found = load(name, *rest, **params)
    assert isinstance(found, Dataset)
    noise = np.random.default_rng(0)
    y = noise.permutation(found.test.y)
    return replace(found, test=Split(noise.permutation(found.test.x), y))


def test_tuning_never_sees_the_test_set(
    done: tuple[Path, Collected], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With garbage in its place, every trial has the same curve and the same values follow; only what is judged on the
    test set after tuning is other."""
    monkeypatch.setattr(build, "load", garbled)
    _, found = done
    other = work(TINY, ["fedavg"], tmp_path, 0).records
    mine = Collected({key: one for key, one in found.found.items() if key[0] == "fedavg"})
    assert [numbers(other)[one.name] for one in mine.trials("fedavg")] == [
        numbers(mine)[one.name] for one in mine.trials("fedavg")
    ]
    assert all(
        numbers(other)[one.name]["series"]["accuracy"] != numbers(mine)[one.name]["series"]["accuracy"]
        for one in mine.finals("fedavg")
    )


def test_held_out_samples_are_nobodys_and_stand_where_the_test_set_was() -> None:
    federation = build.make_federation(trial_experiment(TINY, "fedavg", {}))
    whole = build.make_federation(final_experiment(TINY, "fedavg", {}, seed=0))
    train = federation.dataset.train
    held = {train.x[i].tobytes() for i in range(len(train))} - {
        train.x[i].tobytes() for part in federation.clients for i in part
    }
    assert {x.tobytes() for x in federation.dataset.test.x} <= held
    assert federation.validation is None
    assert federation.n + len(federation.dataset.test) == whole.n
    real = {x.tobytes() for x in whole.dataset.test.x}
    assert not real & {x.tobytes() for x in federation.dataset.test.x}
    assert "in the place of the test set" in federation.dataset.note


def test_an_experiment_must_hold_out_what_it_is_judged_by() -> None:
    with pytest.raises(InputError, match=r"data\.evaluate_on must be 'test' without data\.validation"):
        config.expand({"data": {"evaluate_on": "validation"}}, [])


def test_proposals_follow_from_the_records_alone() -> None:
    """The same twice, other for another algorithm or another result; TPE's after the first five."""
    earlier = [record(TINY, "fedprox", "trial", number, 0.1 * number) for number in range(3)]
    assert propose(TINY, "fedprox", earlier) == propose(TINY, "fedprox", earlier)
    assert propose(TINY, "fedprox", earlier) != propose(TINY, "fedprox", earlier[:2])
    for number in range(3, 7):
        values = propose(TINY, "fedprox", earlier)
        space, _ = searched(TINY, "fedprox")
        assert all(dimension.holds(values[name]) for name, dimension in space.items())
        earlier.append(record(TINY, "fedprox", "trial", number, 0.1 * number, values))
    turned = [*earlier[:-1], record(TINY, "fedprox", "trial", 6, 0.0, earlier[-1].chosen)]
    assert propose(TINY, "fedprox", earlier) != propose(TINY, "fedprox", turned)


def test_every_trial_measures_the_average_and_the_model_and_the_better_one_is_run(tmp_path: Path) -> None:
    """FedDC offers two models of its own, of which it reports the first; an average is put before them."""
    found = work(replace(TINY, trials=1), ["feddc"], tmp_path, 0).records
    (trial,) = found.trials("feddc")
    assert [name for name in trial.series if "accuracy" in name] == ["accuracy", "accuracy:global", "accuracy:selected"]
    assert AVERAGE not in trial.chosen
    assert trial.experiment["evaluation"]["average"] == "ema"
    (_, averaged), (_, own) = trial.series["accuracy"], trial.series["accuracy:global"]
    assert trial.value == max(averaged[-1] or 0, own[-1] or 0)
    assert all(one.chosen[AVERAGE] == trial.choice[AVERAGE] for one in found.finals("feddc"))
    assert all(
        one.experiment["evaluation"]["average"] == (trial.choice[AVERAGE] or None) for one in found.finals("feddc")
    )


def test_the_better_of_two_models_is_chosen_and_the_model_itself_between_equals() -> None:
    for averaged, own, wanted in ((0.6, 0.5, "ema"), (0.5, 0.6, False), (0.5, 0.5, False)):
        trial = record(TINY, "fedavg", "trial", 0, averaged, own=own)
        assert trial.choice == trial.chosen | {AVERAGE: wanted}
        assert trial.value == max(averaged, own)
        assert final_experiment(TINY, "fedavg", trial.choice, 1).evaluation.average == (wanted or None)
    half = record(TINY, "fedavg", "trial", 0, 0.5)
    del half.series["accuracy:global"]
    with pytest.raises(DataError, match="has not the two models that a trial measures"):
        half.value  # noqa: B018


def test_an_own_average_is_tried_in_the_place_of_the_usual_one() -> None:
    """Taken out, the fields that belong to it go, too: alone they would be refused."""
    (one,) = config.expand({"evaluation": {"average": "swa", "average_from": 3}, "training": {"rounds": 7}}, [])
    about = contest_of([one], "own", 4, None, 0.1)
    assert trial_experiment(about, "fedavg", {}).evaluation.average == "swa"
    assert final_experiment(about, "fedavg", {AVERAGE: "swa"}, 1).evaluation == one.evaluation
    assert final_experiment(about, "fedavg", {AVERAGE: False}, 1).evaluation.average is None


def test_everybody_tries_the_same_common_values_first() -> None:
    """Fields of their own follow the common ones, so that these are drawn alike; from trial 5 on everybody learns."""
    common = spaces().common
    earlier = {name: [record(TINY, name, "trial", 0, 0.5)] for name in ("fedavg", "fedavgm", "gradma")}
    for number in range(1, STARTUP):
        tried = {name: propose(TINY, name, mine) for name, mine in earlier.items()}
        values = [{field: one[field] for field in common} for one in tried.values()]
        assert values == [values[0]] * 3
        for name, mine in earlier.items():
            mine.append(record(TINY, name, "trial", number, 0.5 + 0.01 * number, tried[name]))
    later = [propose(TINY, name, mine) for name, mine in earlier.items()]
    assert len({one["training.lr"] for one in later}) == 3


def test_a_trial_that_diverges_is_the_worst_and_no_error(tmp_path: Path) -> None:
    """η = 1e30 ends in the first round: the value is 0, the next trial follows, and the better one is chosen."""
    wild = replace(TINY, sections=TINY.sections | {"training": {"lr": 1e30, "weight_decay": 1.0}}, seeds=0)
    outcome = work(wild, ["fedavg"], tmp_path, 0)
    first, second = outcome.records.trials("fedavg")
    assert outcome.failures == {}
    assert first.has_diverged
    assert first.value == 0.0
    assert second.number == 1


def test_records_of_another_contest_are_refused(done: tuple[Path, Collected]) -> None:
    out, _ = done
    cases: dict[str, Contest] = {
        "which is 5 now": replace(TINY, trial_rounds=5),
        "one of 2 trials where 3 are asked for": replace(TINY, trials=3),
        "another configuration": replace(TINY, sections=TINY.sections | {"model": {"name": "2nn"}}),
        "another space": replace(TINY, sections=TINY.sections | {"training": {"lr": 0.9}}),
    }
    for complaint, other in cases.items():
        with pytest.raises(InputError, match=complaint):
            work(other, ["fedavg"], out, 0)


def test_a_tuning_that_began_elsewhere_is_refused() -> None:
    """Keel's defaults lie in its space, but a first trial at them would be of a budget that nobody else has."""
    about = contest("fashion-mnist")
    _, start = searched(about, "keel")
    began = record(about, "keel", "trial", 0, 0.5)
    assert check_current(about, [began], [], Path())[0].chosen == start
    other = record(about, "keel", "trial", 0, 0.5, start | {"algorithm.beta1": 0.8, "algorithm.beta2": 0.6})
    with pytest.raises(InputError, match="the values that tuning begins with"):
        check_current(about, [other], [], Path())


def test_a_failure_stops_one_algorithm_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CIFAR-100 is not there: everybody fails, which is told in one sentence, and nothing is recorded."""
    nowhere = replace(TINY, sections=TINY.sections | {"data": {"name": "cifar100", "samples": 10}})
    outcome = work(nowhere, ["fedavg", "fedprox"], tmp_path, 0, data_dir=tmp_path)
    assert outcome.failures.keys() == {"fedavg", "fedprox"}
    assert not (tmp_path / RECORDS).exists()
    with pytest.raises(typer.Exit):
        finish(outcome, quiet=True)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("fedkeel: fedavg, fedprox did not come to an end: cifar100 is not there")
    assert said.count("cifar100 is not there") == 1


def test_no_section_that_results_depend_on_is_left_out_of_a_trial() -> None:
    """A section that an experiment gains must be named here or there: left out, it would be tuned without a word."""
    decided = {"name", "seed", "algorithm"}
    without_effect = {"measure", "run"}
    assert {*SECTIONS, *decided, *without_effect} == config.Experiment.model_fields.keys()
    (one,) = config.expand({"clock": {"speed": 10.0, "deadline": 3.0}}, [])
    assert trial_experiment(contest_of([one], "own", 4, None, 0.1), "fedavg", {}).clock.deadline == 3.0


def test_own_experiments_keep_their_parameters(tmp_path: Path) -> None:
    """μ = 5 lies outside what is shipped: the range is widened, and the first trial has it."""
    table = {"algorithm": {"name": "fedprox", "mu": 5.0}, "training": {"rounds": 7}, "data": {"validation": 0.3}}
    (one,) = config.expand(table, [])
    about = contest_of([one], "own", 4, None, 0.1)
    space, start = searched(about, "fedprox")
    assert start["algorithm.mu"] == 5.0
    assert space["algorithm.mu"].high == 5.0
    assert (about.trial_rounds, about.validation) == (7, 0.3)
    assert final_experiment(about, "fedprox", start, 1).data == one.data
    swept = config.expand({"sweep": {"training.lr": [0.1, 0.2]}}, [])
    with pytest.raises(InputError, match="may differ in their algorithms only"):
        contest_of(swept, "own", 4, None, 0.1)
    (early,) = config.expand({"training": {"until": {"accuracy": 0.9}}}, [])
    with pytest.raises(InputError, match=r"training\.until must be absent"):
        contest_of([early], "own", 4, None, 0.1)


def test_the_yardstick_sees_as_many_samples_a_round_as_a_cohort() -> None:
    """60 % of the clients with one epoch each are 0.6 epochs of everything."""
    made = trial_experiment(TINY, "centralised", {})
    assert made.training.epochs == 0.6
    assert (made.partition.rule, made.partition.clients, made.training.participation) == ("iid", 1, 1.0)
    assert why_not(TINY, "centralised") == ""


EXPERIMENT = """
algorithm = "fedavg"
[data]
name = "mnist5k"
samples = 300
[partition]
clients = 5
[model]
name = "logistic"
[training]
rounds = 40
batch_size = 20
"""


def command(file: Path, out: Path) -> list[str]:
    words = [sys.executable, "-m", "fedkeel", "tune", str(file), "--trials", "3", "--workers", "1", "--json"]
    return [*words, "--out", str(out)]


def test_a_killed_command_goes_on_with_the_same_trials(tmp_path: Path) -> None:
    """SIGKILL in the middle of the second trial, to the command alone: its worker notices. The next call loses no
    trial and repeats none, and all are those of a call that nobody disturbed, made in this process."""
    file, out = tmp_path / "own.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command(file, out), env=environment, stdout=subprocess.DEVNULL)
    store = out / RUNS / "own" / "fedavg--trial01" / FILE
    deadline = time.monotonic() + 120
    while not store.exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = (out / RECORDS / "own" / "fedavg--trial00.json").read_bytes()
    assert len(list((out / RECORDS / "own").iterdir())) < 3
    ended = subprocess.run(command(file, out), env=environment, capture_output=True, check=True)
    (told,) = json.loads(ended.stdout)
    assert told["trials"] == 3
    assert (out / RECORDS / "own" / "fedavg--trial00.json").read_bytes() == first
    (run,) = config.read(file)
    whole = work(contest_of([run], "own", 3, None, 0.1), ["fedavg"], tmp_path / "whole", 0)
    assert numbers(Collected.of("own", out)) == numbers(whole.records)


def test_a_store_beside_its_record_goes_and_a_store_without_one_is_finished(tmp_path: Path) -> None:
    """The two moments between a run's end and its store's: neither loses a trial nor doubles it."""
    one = replace(TINY, trials=1, seeds=0)
    whole = work(one, ["fedavg"], tmp_path, 0).records
    (there,) = (tmp_path / RECORDS / "tiny").iterdir()
    left = tmp_path / RUNS / "tiny" / "fedavg--trial00"
    left.mkdir(parents=True)
    (left / "leftover").touch()
    work(one, ["fedavg"], tmp_path, 0)
    assert not left.exists()
    there.unlink()
    assert numbers(work(one, ["fedavg"], tmp_path, 0).records) == numbers(whole)


def test_a_damaged_record_is_named(done: tuple[Path, Collected], tmp_path: Path) -> None:
    _, found = done
    path = kept.write(tmp_path, found.trials("fedavg")[0])
    path.rename(path.with_name("fedavg--trial07.json"))
    with pytest.raises(DataError, match=r"is that of tiny/fedavg--trial00"):
        Collected.of("tiny", tmp_path)
