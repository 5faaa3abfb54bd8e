"""Where the time of a round went: kept with it, and no part of what two runs are compared by."""

from contextlib import closing
from pathlib import Path

import pytest

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.engine.pool import Pool
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store

PARTS = {"time.training", "time.aggregation"}


def test_every_round_says_where_its_time_went(tmp_path: Path) -> None:
    """Evaluated are rounds 2 and 3, the last; a commit's time is known in the next round."""
    with closing(Store.create(tmp_path)) as store:
        _, history = execute(tiny_simulation(make_algorithm("fedavg"), rounds=3), Evaluation(every=2), store)
        kept = store.history()
    assert {t: set(times) for t, times in kept.times.items()} == {
        1: PARTS,
        2: PARTS | {"time.evaluation", "time.commit"},
        3: PARTS | {"time.evaluation", "time.commit"},
    }
    assert kept.times == history.times
    assert all(value > 0 for times in kept.times.values() for value in times.values())
    for summary in kept.rounds:
        parts = kept.times[summary.round]
        assert parts["time.training"] + parts["time.aggregation"] == pytest.approx(summary.seconds)
    assert kept.noted == {}


def test_an_evaluation_beside_the_next_round_has_no_time_of_its_own() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"), rounds=3)
    simulation.executor = Pool(workers=2)
    _, history = execute(simulation, Evaluation())
    simulation.executor.close()
    assert set(history.values("time.evaluation")) == {3}


def test_times_are_no_difference_between_runs() -> None:
    (_, one), (_, two) = (execute(tiny_simulation(make_algorithm("fedavg"), rounds=2), Evaluation()) for _ in "ab")
    assert one.times != two.times
    one.rounds = two.rounds
    assert one == two


def test_fairness_is_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    with closing(Store.create(tmp_path)) as store:
        simulation = tiny_simulation(make_algorithm("fedavg"), rounds=3)
        state, history = execute(simulation, Evaluation(every=2, clients=True), store)
        kept = store.history()
    assert list(kept.fairness) == [2, 3]
    assert kept.fairness == history.fairness
    scores = simulation.evaluate_clients(state)
    assert kept.fairness[3].mean == pytest.approx(sum(s.accuracy for s in scores.values()) / len(scores))
