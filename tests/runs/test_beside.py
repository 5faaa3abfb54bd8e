"""A round's model evaluated beside the training of the next round: the same run, only sooner done."""

from pathlib import Path

import pytest
import torch

from fedkeel.algorithms.contract import Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import tiny_simulation
from fedkeel.engine.pool import Pool
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from fedkeel.runs import runner
from fedkeel.runs.runner import Evaluation, Progress, execute
from fedkeel.runs.store import Store
from tests.runs.test_exact_resume import everything, timeless

ROUNDS = 5


def pooled(simulation: Simulation) -> Simulation:
    simulation.executor = Pool(workers=2)
    return simulation


def trained_when_told(simulation: Simulation, evaluation: Evaluation) -> list[tuple[int, int]]:
    """(round that is reported, rounds trained by then) of a whole run."""
    seen: list[tuple[int, int]] = []
    trained = 0
    step = simulation.step

    def counted(*arguments):  # type: ignore[no-untyped-def]
        nonlocal trained
        trained += 1
        return step(*arguments)

    simulation.step = counted  # type: ignore[method-assign]

    def watch(progress: Progress) -> None:
        assert bool(progress.measured) == (progress.round % evaluation.every == 0 or progress.round == ROUNDS)
        seen.append((progress.round, trained))

    execute(simulation, evaluation, watch=watch)
    simulation.executor.close()
    return seen


@pytest.mark.parametrize("name", ["fedavg", "feddc", "fedveca", "fedgvrgm"])
@pytest.mark.parametrize("every", [1, 2])
def test_the_run_is_the_one_with_evaluation_in_between(name: str, every: int, tmp_path: Path) -> None:
    """FedDC offers two models to evaluate; FedGVRGM asks for its model's score before every round."""
    evaluation = Evaluation(every=every, initial=True)
    state, history = execute(tiny_simulation(make_algorithm(name), participation=0.6, rounds=ROUNDS), evaluation)
    store = Store.create(tmp_path)
    simulation = pooled(tiny_simulation(make_algorithm(name), participation=0.6, rounds=ROUNDS))
    beside, found = execute(simulation, evaluation, store)
    simulation.executor.close()
    assert everything(beside) == everything(state)
    assert timeless(found) == timeless(history) == timeless(store.history())
    store.close()


def test_short_rounds_are_reported_after_the_next_is_trained() -> None:
    simulation = pooled(tiny_simulation(FedAvg(), rounds=ROUNDS))
    assert trained_when_told(simulation, Evaluation()) == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 5)]


def test_a_round_without_evaluation_waits_for_nothing() -> None:
    simulation = pooled(tiny_simulation(FedAvg(), rounds=ROUNDS))
    assert trained_when_told(simulation, Evaluation(every=2)) == [(1, 1), (2, 3), (3, 3), (4, 5), (5, 5)]


@pytest.mark.parametrize("why", ["one process", "long rounds", "training samples too", "clients too"])
def test_otherwise_a_round_is_reported_at_once(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = tiny_simulation(FedAvg(), rounds=ROUNDS)
    if why != "one process":
        pooled(simulation)
    if why == "long rounds":
        monkeypatch.setattr(runner, "SHORT", 0.0)
    evaluation = Evaluation(train=why == "training samples too", clients=why == "clients too")
    assert trained_when_told(simulation, evaluation) == [(t, t) for t in range(1, ROUNDS + 1)]


def test_personal_models_are_evaluated_at_once() -> None:
    simulation = pooled(tiny_simulation(make_algorithm("fedbn"), rounds=ROUNDS))
    assert trained_when_told(simulation, Evaluation()) == [(t, t) for t in range(1, ROUNDS + 1)]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_stopped_ends_with_the_round_that_is_trained(processes: int, tmp_path: Path) -> None:
    whole, history = execute(tiny_simulation(FedAvg(), rounds=3), Evaluation())
    simulation, store = tiny_simulation(FedAvg(), rounds=ROUNDS), Store.create(tmp_path)
    if processes == 2:
        pooled(simulation)
    asked = iter([False, False, True])
    state, found = execute(simulation, Evaluation(), store, stop=lambda: next(asked))
    simulation.executor.close()
    assert torch.equal(state.server.w, whole.server.w)
    assert timeless(found) == timeless(history)
    assert store.rounds_done() == 3
    store.close()


class FailsInRoundThree(FedAvg):
    name = "fails_in_round_three"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        if round.t == 2:
            raise InputError("no third round.")
        return super().aggregate(server, uploads, round)


def test_a_round_is_kept_whatever_becomes_of_the_next(tmp_path: Path) -> None:
    _, history = execute(tiny_simulation(FedAvg(), rounds=3), Evaluation())
    simulation, store = pooled(tiny_simulation(FailsInRoundThree(), rounds=3)), Store.create(tmp_path)
    with pytest.raises(InputError, match="no third round"):
        execute(simulation, Evaluation(), store)
    simulation.executor.close()
    kept = store.history()
    store.close()
    assert kept.measured == history.measured[:2]
    assert [summary.round for summary in kept.rounds] == [1, 2]
