"""FedBN: what travels, what stays, and what a client uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.fedbn import joined
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds, tiny_federation, tiny_simulation
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.learning.task import Task

SIZES = (12, 7, 20, 10, 16)


def with_norm(name: str, eta_g: float = 1.0, **training: float) -> Simulation:
    """The tiny network with BatchNorm1d(5): d_BN = 10."""
    return tiny_simulation(make_algorithm(name, eta_g=eta_g), sizes=SIZES, norm=True, drop_last=True, **training)


def remembered(simulation: Simulation, state: RunState) -> State:
    """What all clients of the next round remember, together."""
    return State(**{name: torch.stack(rows) for name, rows in simulation.job(state).states.items()})


def test_joined_puts_every_number_in_its_place() -> None:
    norm = torch.tensor([False, True, True, False])
    own = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    assert joined(torch.tensor([1.0, 2.0]), own, norm).tolist() == [[1, 10, 20, 2], [1, 30, 40, 2]]


@pytest.mark.parametrize("eta_g", [1.0, 0.7])
def test_the_first_round_splits_what_fedavg_would_average(eta_g: float) -> None:
    """Both start from the same models, so FedBN's average is FedAvg's off the normalisation, and what each client
    keeps is the rest of the model that it would have uploaded, with its own statistics."""
    bn, avg = with_norm("fedbn", eta_g), with_norm("fedavg", eta_g)
    norm = bn.task.layout.mask("norm")
    mine, plain = rounds(bn, 1), rounds(avg, 1)
    uploads = avg.executor.run(avg.job(avg.start()))
    torch.testing.assert_close(mine.server.w[~norm], plain.server.w[~norm], rtol=0, atol=1e-15)
    assert torch.equal(mine.server.w[norm], bn.task.w0[norm])
    for client in range(5):
        assert torch.equal(mine.clients["beta"][client], uploads.message.y[client, norm])
        assert torch.equal(mine.client_buffers[client], uploads.buffers[client])
    assert torch.equal(mine.b, bn.task.b0)


def test_the_second_round_starts_from_the_average_with_each_clients_own_normalisation() -> None:
    simulation = with_norm("fedbn", steps=1)
    norm = simulation.task.layout.mask("norm")
    state = rounds(simulation, 1)
    models = simulation.algorithm.personal(state.server, remembered(simulation, state))
    assert models is not None
    again = simulation.executor.run(simulation.job(state))
    for client, batch in enumerate(simulation.schedule.batches(1, i, SIZES[i], 1)[0] for i in range(5)):
        x, y = simulation.samples.of_client(client)
        rows = torch.from_numpy(np.asarray(batch))
        net = simulation.task.net(state.client_buffers[client], train=True)
        point = models[client].clone().requires_grad_()
        loss = nn.functional.cross_entropy(net.forward(point, x[rows]), y[rows])
        (gradient,) = torch.autograd.grad(loss, point)
        moved = models[client] - 0.1 * gradient
        torch.testing.assert_close(again.message.shared[client], moved[~norm], rtol=0, atol=1e-14)
        torch.testing.assert_close(again.states.beta[client], moved[norm], rtol=0, atol=1e-14)


def test_the_normalisation_does_not_travel() -> None:
    """d = 6·8 + 8 + 8·5 + 5 + 10 + 5·3 + 3 = 129, of which 10 stay: 3 clients × 119 × 8 bytes, no statistics."""
    simulation = with_norm("fedbn", participation=0.6)
    _, record = simulation.step(simulation.start())
    assert record.bytes_down == record.bytes_up == 3 * 119 * 8


def test_a_client_never_seen_uses_the_average_with_the_initial_normalisation() -> None:
    simulation = with_norm("fedbn", participation=0.2)
    state = rounds(simulation, 1)
    template = simulation.algorithm.client_init(simulation.problem).beta
    everybody = state.clients["beta"].take(range(5), template)
    models = simulation.algorithm.personal(state.server, type(state.server)(beta=everybody))
    assert models is not None
    seen = list(state.clients["beta"])
    assert len(seen) == 1
    for client in set(range(5)) - set(seen):
        assert torch.equal(models[client], state.server.w)
    assert not torch.equal(models[seen[0]], state.server.w)


def test_clients_are_scored_with_their_own_models() -> None:
    """``client_mean`` comes first and is the mean of the clients' accuracies on the whole test set."""
    simulation = with_norm("fedbn")
    state = rounds(simulation, 3)
    scores = simulation.evaluate(state)
    models = simulation.algorithm.personal(state.server, remembered(simulation, state))
    assert models is not None
    own = [
        simulation.task.evaluate(model, state.client_buffers[i], *simulation.samples.test).accuracy
        for i, model in enumerate(models)
    ]
    assert list(scores) == ["client_mean", "global"]
    assert scores["client_mean"].accuracy == pytest.approx(sum(own) / 5)


def test_layers_are_known_by_type_not_by_name() -> None:
    """In a Sequential the layer is called "1"; a name with "bn" belongs to a dense layer here."""
    module = nn.Sequential()
    module.add_module("bn_like", nn.Linear(6, 4))
    module.add_module("1", nn.LayerNorm(4))
    module.add_module("head", nn.Linear(4, 3))
    simulation = Simulation(make_algorithm("fedbn"), Task(module), tiny_federation(), Training(epochs=1))
    assert simulation.algorithm.client_init(simulation.problem).beta.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_without_normalisation_there_is_one_model_for_all() -> None:
    simulation = tiny_simulation(make_algorithm("fedbn"))
    assert list(simulation.evaluate(rounds(simulation, 1))) == ["global"]
