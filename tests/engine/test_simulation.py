"""A round as a whole: weights, traffic, buffers, evaluation, and what stops a run."""

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds, tiny_federation, tiny_simulation, tiny_task
from fedkeel.data import from_clients
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DivergedError, ModelError
from fedkeel.learning.task import Task


def test_one_round_of_fedavg_is_the_data_weighted_mean_of_local_models() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"))
    job = simulation.job(simulation.start())
    outcome = simulation.executor.run(job)
    sizes = simulation.problem.sizes.double()
    expected = (outcome.message.y * (sizes / sizes.sum()).unsqueeze(1)).sum(0)
    state, _ = simulation.step(simulation.start())
    assert torch.allclose(state.server.w, expected, atol=1e-15)


def test_traffic_is_counted_from_the_messages() -> None:
    """d numbers of 8 bytes down and up for FedAvg, 2d down for SCAFFOLD, at five clients."""
    d = tiny_task().d
    for name, down in (("fedavg", d), ("scaffold", 2 * d), ("feddyn", d), ("feddc", 2 * d)):
        simulation = tiny_simulation(make_algorithm(name))
        _, record = simulation.step(simulation.start())
        assert (record.bytes_down, record.bytes_up) == (5 * down * 8, 5 * d * 8), name


def test_buffers_travel_and_are_counted() -> None:
    """BatchNorm(5): 5 means, 5 variances and a counter, 11 numbers beside the model each way."""
    simulation = tiny_simulation(make_algorithm("fedavg"), sizes=(12, 7), norm=True, drop_last=True)
    _, record = simulation.step(simulation.start())
    assert record.bytes_up == 2 * (simulation.task.d + 11) * 8


@pytest.mark.parametrize(
    ("rule", "weights"), [("average", (12 / 20, 8 / 20)), ("uniform", (0.5, 0.5)), ("freeze", None), ("local", None)]
)
def test_buffer_rules(rule: str, weights: tuple[float, float] | None) -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"), sizes=(12, 8), norm=True, buffers=rule, batch_size=4)
    start = simulation.start()
    outcome = simulation.executor.run(simulation.job(start))
    state, _ = simulation.step(start)
    if weights is None:
        assert torch.equal(state.b, start.b)
    else:
        mixed = weights[0] * outcome.buffers[0] + weights[1] * outcome.buffers[1]
        floating = [
            i for e in simulation.task.buffer_layout if e.dtype.is_floating_point for i in range(e.start, e.stop)
        ]
        assert torch.allclose(state.b[floating], mixed[floating], atol=1e-15)
    assert (len(state.client_buffers) == 2) == (rule == "local")


def test_samples_are_counted_as_trained_on() -> None:
    """Sizes 12, 7, 20, 1, 16 in two epochs: 2·56 = 112."""
    simulation = tiny_simulation(make_algorithm("fedavg"))
    _, record = simulation.step(simulation.start())
    assert record.samples == 112
    assert record.steps == (6, 4, 8, 2, 8)


def test_every_candidate_is_evaluated() -> None:
    simulation = tiny_simulation(make_algorithm("feddc", evaluate=("global", "selected", "all")))
    scores = simulation.evaluate(rounds(simulation, 2))
    assert list(scores) == ["global", "selected", "all"]


def test_training_loss_is_over_the_union_of_the_clients() -> None:
    """The tiny federation's test set is the union of its training sets, so both scores must agree."""
    simulation = tiny_simulation(make_algorithm("fedavg"))
    state = rounds(simulation, 2)
    test, train = simulation.evaluate(state, "test")["global"], simulation.evaluate(state, "train")["global"]
    assert train.loss == pytest.approx(test.loss, abs=1e-12)
    assert train.accuracy == pytest.approx(test.accuracy)


def test_clients_are_evaluated_on_their_own_samples() -> None:
    simulation = tiny_simulation(make_algorithm("fedavg"))
    scores = simulation.evaluate_clients(simulation.start())
    assert [scores[i].samples for i in range(5)] == [12, 7, 20, 1, 16]


def test_the_number_of_registered_but_absent_clients_costs_no_state() -> None:
    simulation = tiny_simulation(make_algorithm("scaffold"), participation=0.2)
    state, record = simulation.step(simulation.start())
    assert set(state.clients["c"]) == set(record.cohort)


def test_divergence_stops_with_a_reason() -> None:
    """Inputs of size 100 make gradients of that size, and a step of 1e308·100 is infinite."""
    x, y = np.full((4, 2), 100.0, dtype=np.float32), np.array([0, 1, 1, 0])
    federation = from_clients([(x, y), (x, y)], test=(x, y))
    task = Task(nn.Linear(2, 2), dtype=torch.float64)
    simulation = Simulation(make_algorithm("fedavg"), task, federation, Training(lr=1e308, batch_size=1))
    with pytest.raises(DivergedError, match=r"FedAvg diverged in round \d+: .*smaller training.lr"):
        rounds(simulation, 5)


def test_a_model_for_other_inputs_is_refused_before_training() -> None:
    with pytest.raises(ModelError, match=r"cannot take the inputs of own \(6 each\)"):
        Simulation(make_algorithm("fedavg"), Task(nn.Linear(7, 3)), tiny_federation(), Training())


def test_a_model_with_too_few_outputs_is_refused() -> None:
    with pytest.raises(ModelError, match="2 outputs but own has 3 classes"):
        Simulation(make_algorithm("fedavg"), Task(nn.Linear(6, 2)), tiny_federation(), Training())


def test_float32_and_float64_agree() -> None:
    ends = []
    for dtype in (torch.float32, torch.float64):
        simulation = Simulation(
            make_algorithm("feddc"), tiny_task(dtype=dtype), tiny_federation(), Training(epochs=2, batch_size=5)
        )
        ends.append(rounds(simulation, 3).server.w.double())
    assert float((ends[0] - ends[1]).abs().max()) < 1e-5


def test_dropout_is_keyed_by_round_and_client() -> None:
    """A model that is all dropout noise gives the same bits again, and other bits under another seed."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    ends = []
    for seed in (0, 0, 1):
        simulation = Simulation(make_algorithm("fedavg"), Task(module), tiny_federation(), Training(lr=0.5), seed)
        torch.manual_seed(len(ends))  # what the caller does with the global generator must not matter
        ends.append(rounds(simulation, 2).server.w)
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_augmentation_is_keyed_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((6, 3, 8, 8)).astype(np.float32), np.arange(6) % 2
    federation = from_clients([(x[:3], y[:3]), (x[3:], y[3:])], test=(x, y))
    object.__setattr__(federation.dataset, "transform", type(federation.dataset.transform)(1.0, augment="crop_flip"))
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    ends = [
        rounds(Simulation(make_algorithm("fedavg"), Task(module), federation, Training(lr=0.5), seed), 2).server.w
        for seed in (0, 0, 1)
    ]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
