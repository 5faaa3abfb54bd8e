"""The average of models over rounds: what it is, that training never sees it, and that it is part of the run."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel import api, config
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine.averaging import Averaged, Averaging
from fedkeel.engine.pool import Pool
from fedkeel.engine.rounds import RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DataError, InputError
from fedkeel.learning.layout import Layout
from fedkeel.learning.models import build as build_model
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.fit import check_fits
from fedkeel.runs.fork import Fork
from fedkeel.runs.history import History, Measured
from fedkeel.runs.overview import overview
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import FILE, Store
from tests.engine.far_side import CASES, differences, made, near_and_far
from tests.runs.test_exact_resume import everything, timeless

EMA = Evaluation(average="ema", average_decay=0.5)
SWA = Evaluation(average="swa", average_from=2)


def averages(rule: Averaging, models: list[float]) -> list[float | None]:
    """w̄ after each round whose model is a single number."""
    found, averaged = [], None
    for t, w in enumerate(models, start=1):
        averaged = rule.after(t, averaged, torch.tensor([w], dtype=torch.float64), torch.zeros(0), Layout(()))
        found.append(None if averaged is None else float(averaged.w))
    return found


def test_the_exponential_average_of_three_models() -> None:
    """β = 1/2 over 1, 2, 4: weights 1 : 2 : 4, so 1, then (1 + 2·2)/3 = 5/3, then (1 + 2·2 + 4·4)/7 = 3."""
    assert averages(Averaging("ema", decay=0.5), [1, 2, 4]) == pytest.approx([1, 5 / 3, 3])


def test_the_plain_mean_from_a_round_on() -> None:
    """From round 2 on over 9, 2, 4, 6: nothing, 2, (2 + 4)/2 = 3, (2 + 4 + 6)/3 = 4."""
    assert averages(Averaging("swa", first=2), [9, 2, 4, 6]) == [None, 2, 3, 4]


def test_statistics_are_averaged_and_counters_are_not() -> None:
    """SWA of the means 0 and 1 is 1/2; of 3 and 4 batches the model has seen 4, not 3.5."""
    layout = tiny_simulation(make_algorithm("fedavg"), norm=True).task.buffer_layout
    counters = [entry for entry in layout if not entry.dtype.is_floating_point]
    assert counters
    size = max(entry.stop for entry in layout)
    before, b = torch.zeros(size), torch.ones(size)
    for entry in counters:
        before[entry.start : entry.stop], b[entry.start : entry.stop] = 3, 4
    rule = Averaging("swa")
    first = Averaged(str(rule), 1, torch.zeros(1), before)
    found = rule.after(2, first, torch.ones(1), b, layout)
    assert found is not None
    for entry in layout:
        assert set(found.b[entry.start : entry.stop].tolist()) == {0.5 if entry.dtype.is_floating_point else 4.0}


def simulation(name: str, evaluation: Evaluation, **options: Any) -> Simulation:
    options = {"participation": 0.6, "rounds": 4, "norm": True, "drop_last": True, **options}
    return tiny_simulation(make_algorithm(name), (12, 7, 20, 10, 16), averaging=evaluation.averaging, **options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_does_not_see_it(name: str) -> None:
    """Bit for bit the run without it; and w̄ is the mean, with weights 1 : 2 : 4 : 8, of the models of that run."""
    plain, watched = simulation(name, Evaluation()), simulation(name, EMA)
    one, two, models = plain.start(), watched.start(), []
    for _ in range(4):
        one, two = rounds(plain, 1, one), rounds(watched, 1, two)
        models.append(next(iter(plain.candidates(one).values()))[0].clone())
    assert everything(replace(two, averaged=None)) == everything(one)
    assert two.averaged is not None
    assert two.averaged.models == 4
    expected = sum(2**k * w for k, w in enumerate(models)) / 15
    torch.testing.assert_close(two.averaged.w, expected)


@pytest.mark.parametrize("name", ["fedavgm", "feddc", "fedbn", "fedgvrgm"])
@pytest.mark.parametrize("evaluation", [EMA, SWA], ids=["ema", "swa"])
def test_stopped_after_every_round_it_goes_on_to_the_same_bits(
    name: str, evaluation: Evaluation, tmp_path: Path
) -> None:
    """Serial and pool in turn, each round from the file alone; the store's digests cover it as all of the state."""
    whole, expected = execute(simulation(name, evaluation), evaluation)
    store, state, history = Store.create(tmp_path), None, None
    for round in range(1, 5):
        one = simulation(name, evaluation)
        if round % 2 == 0:
            one.executor = Pool(workers=2)
        if state is not None and history is not None:
            check_fits(one, state, history, "the run")
        execute(one, evaluation, store, None, state, history, stop=lambda: True)
        one.executor.close()
        store.close()
        store = Store.open(tmp_path)
        state, history = store.read_state(), store.history()
    store.close()
    assert state is not None
    assert history is not None
    assert state.averaged is not None
    assert everything(state) == everything(whole)
    assert timeless(history) == timeless(expected)


def test_over_sites_it_is_the_same(tmp_path: Path) -> None:
    """Messages are lost and sites are restarted: rounds in which fewer answer, or nobody, count alike."""
    near, far, far_side = near_and_far(made("scaffold"), CASES["everything"], tmp_path, averaging=EMA.averaging)
    one, two = rounds(near, 3), rounds(far, 3)
    assert one.averaged is not None
    assert two.averaged is not None
    assert differences(near, one, two, far_side) == []
    assert torch.equal(one.averaged.w, two.averaged.w)
    assert torch.equal(one.averaged.b, two.averaged.b)
    assert near.evaluate(one) == far.evaluate(two)


def test_it_is_what_a_run_reports_first() -> None:
    """Of FedDC, which offers two models itself; before the first model counts, the model itself stands there."""
    one = simulation("feddc", SWA)
    state = rounds(one, 1)
    assert list(one.evaluate(state)) == ["swa", "global", "selected"]
    assert one.evaluate(state)["swa"] == one.evaluate(state)["global"]
    state = rounds(one, 2, state)
    assert state.averaged is not None
    assert torch.equal(one.candidates(state)["swa"][0], state.averaged.w)
    assert torch.equal(one.candidates(state)["global"][0], state.server.w)


def test_clients_with_own_models_use_the_average_for_what_they_share() -> None:
    """FedBN's clients keep their norms; what is evaluated at them is the averaged rest with these norms."""
    one = simulation("fedbn", EMA)
    state = rounds(one, 3)
    assert state.averaged is not None
    by_hand = replace(state, server=state.server.replace(w=state.averaged.w), b=state.averaged.b, averaged=None)
    plain = simulation("fedbn", Evaluation())
    assert one.evaluate_clients(state) == plain.evaluate_clients(by_hand)
    assert one.evaluate_clients(state) != plain.evaluate_clients(replace(state, averaged=None))
    assert one.evaluate(state)["client_mean"] == plain.evaluate(by_hand)["client_mean"]


def experiment(text: str = "", rounds: int = 4) -> config.Experiment:
    table = tomllib.loads(
        f"""
        algorithm = "fedavgm"
        [data]
        name = "mnist5k"
        samples = 300
        [partition]
        clients = 5
        [model]
        name = "logistic"
        [run]
        executor = "serial"
        checkpoint_every = 2
        [training]
        rounds = {rounds}
        [evaluation]
        {text}
        """
    )
    (found,) = config.expand(table, [])
    return found


def test_the_averaged_model_is_exported_and_comes_back(tmp_path: Path) -> None:
    run = api.run(experiment('average = "ema"\naverage_decay = 0.5'), tmp_path / "run")
    assert run.state.averaged is not None
    assert run.history.default_model() == "ema"
    assert run.history.models() == ["ema", "global"]
    weights = run.state_dict()
    averaged = run.simulation.task.state_dict(run.state.averaged.w, run.state.averaged.b)
    assert all(torch.equal(weights[name], value) for name, value in averaged.items())
    module = build_model("logistic", (1, 28, 28), 10)
    fk.load_model(module, tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, averaged[name]) for name, value in module.state_dict().items())
    again = api.read_run(tmp_path / "run")
    assert everything(again.state) == everything(run.state)
    assert overview(tmp_path / "run").accuracy.last == pytest.approx(run.accuracy)


def test_a_fork_goes_on_with_the_same_average_and_begins_another_anew(tmp_path: Path) -> None:
    ema = 'average = "ema"\naverage_decay = 0.5'
    whole = api.run(experiment(ema), tmp_path / "whole")
    fork = api.run(experiment(ema), tmp_path / "same", fork=Fork(tmp_path / "whole", 2))
    assert everything(fork.state) == everything(whole.state)
    with pytest.warns(FedkeelWarning, match=r"decay 0.9 begins anew after round 2: the run in .* has another \(expo"):
        other = api.run(experiment('average = "ema"'), tmp_path / "other", fork=Fork(tmp_path / "whole", 2))
    assert other.state.averaged is not None
    assert other.state.averaged.models == 2
    without = api.run(experiment(), tmp_path / "without", fork=Fork(tmp_path / "whole", 2))
    assert without.state.averaged is None
    assert without.history.default_model() == "global"
    with pytest.warns(FedkeelWarning, match="has none"):
        late = api.run(experiment(ema, rounds=6), tmp_path / "late", fork=Fork(tmp_path / "without"))
    assert late.history.default_model() == "ema"
    assert [m.round for m in late.history.series()] == [1, 2, 5, 6]  # 1 and 2 are those of the first run
    assert late.state.averaged is not None
    assert late.state.averaged.models == 2


def test_a_resumed_run_keeps_its_average(tmp_path: Path) -> None:
    api.run(experiment('average = "ema"'), tmp_path / "run", stop=lambda: True)
    for other in ("", 'average = "ema"\naverage_decay = 0.5', 'average = "swa"\naverage_from = 2'):
        with pytest.raises(InputError, match=r"cannot go on with another configuration: evaluation\.average"):
            api.run(experiment(other), tmp_path / "run", resume=True)


def test_a_fork_reports_what_it_evaluates_last() -> None:
    """Rounds 1 and 2 of the old run reported the model itself, round 3 the average: the run reports the average."""
    history = History(measured=[Measured(t, name, "test", 0.5, 1.0) for t, name in [(1, "global"), (2, "global")]])
    history.measured += [Measured(3, name, "test", 0.5, 1.0) for name in ("ema", "global")]
    assert history.default_model() == "ema"
    assert [m.round for m in history.series()] == [3]


def test_a_state_with_a_foreign_average_is_refused() -> None:
    one = simulation("fedavg", EMA)
    state = rounds(one, 2)
    history = History(rounds=[_round(1), _round(2)])
    check_fits(one, state, history, "the run")
    assert state.averaged is not None

    def refused(other: Averaged, what: str) -> None:
        with pytest.raises(DataError, match=what):
            check_fits(one, replace(state, averaged=other), history, "the run")

    refused(replace(state.averaged, rule="another"), "rule of the average over rounds must be exponential")
    refused(replace(state.averaged, w=state.averaged.w[1:]), "kind of the average over rounds")
    refused(replace(state.averaged, models=3), "one of 3 models of 2 rounds")


def _round(t: int) -> Any:
    from fedkeel.runs.history import RoundSummary

    return RoundSummary(t, 0.1, 1, 1, 1, 1.0, 1.0, 0, 0, 0.1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("average_decay = 0.9", "without average_decay, which has an effect with average = 'ema' only"),
        ("average_from = 2", "without average_from, which has an effect with average = 'swa' only"),
        ('average = "swa"', "given average_from"),
        ('average = "ema"\naverage_from = 2', "without average_from"),
        ('average = "swa"\naverage_from = 5', "average_from must be at most the 4 rounds, got 5"),
        ('average = "mean"', "average must be"),
        ('average = "ema"\naverage_decay = 1.0', "average_decay must be"),
    ],
)
def test_settings_without_effect_are_errors(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        experiment(text)


def test_train_takes_it_too() -> None:
    data = fk.data.load("mnist5k").take(300).partition("iid", clients=3)
    options: dict[str, Any] = {"model": "logistic", "data": data, "rounds": 3, "executor": "serial"}
    run = fk.train("fedavg", average="ema", average_decay=0.5, **options)
    assert run.history.models() == ["ema", "global"]
    with pytest.raises(InputError, match="average_from must be at most the 3 rounds, got 9"):
        fk.train("fedavg", average="swa", average_from=9, **options)


def test_a_simulation_without_the_average_is_not_taken_for_one_with_it() -> None:
    with pytest.raises(InputError, match="must be made with the average that is to be evaluated"):
        execute(simulation("fedavg", Evaluation()), EMA)


def test_a_state_says_nothing_of_an_average_that_nobody_asked_for(tmp_path: Path) -> None:
    """Stores of runs without an average hold the same rows as ever."""
    import sqlite3

    api.run(experiment(), tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / FILE) as db:
        assert db.execute("SELECT count(*) FROM tensors WHERE owner = 'average'").fetchone() == (0,)
    assert RunState(0, fk.State(), torch.zeros(0), {}, None).averaged is None  # type: ignore[arg-type]
