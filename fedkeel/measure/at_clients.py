"""What a run's model is worth to each client, and whether a model of its own would be worth more.

Accuracies are on a client's own test samples. Whatever is trained here takes plain local steps with the run's own
settings (batches, optimiser, learning rate); nothing of it goes into the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Clients, Message, Round
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.engine.client import Equipment, Work, answer_each
from fedkeel.engine.devices import CPU
from fedkeel.engine.exchange import Call, Model
from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.threads import one_thread
from fedkeel.errors import InputError


@dataclass(frozen=True)
class OwnModels:
    """Accuracies of clients under the global model and under one of their own, in [0, 1] by client."""

    how: str
    """How their own came about, in words."""
    shared: dict[int, float]
    own: dict[int, float]

    @property
    def gain(self) -> float:
        """The mean of own − shared over clients."""
        return sum(self.own[client] - self.shared[client] for client in self.own) / len(self.own)

    @property
    def better_off(self) -> float:
        """The share of clients whose own model is the better one; equal ones do not count."""
        return sum(self.own[client] > self.shared[client] for client in self.own) / len(self.own)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return {
            "how": self.how,
            "gain": self.gain,
            "better_off": self.better_off,
            "shared": self.shared,
            "own": self.own,
        }


@dataclass(frozen=True)
class Newcomers:
    """Accuracies of the global model at clients that it was trained with, and at those that never took part."""

    split: str
    """``test`` where clients have test samples; else ``train``, which the second kind never showed to anybody."""
    seen: dict[int, float]
    unseen: dict[int, float]


def newcomers(simulation: Simulation, state: RunState) -> Newcomers:
    """Tell clients by whether an upload of theirs ever counted."""
    counted = {client for client, last in enumerate(state.counted.tolist()) if last}
    scores = {client: score.accuracy for client, score in simulation.evaluate_clients(state).items()}
    seen = {client: accuracy for client, accuracy in scores.items() if client in counted}
    unseen = {client: accuracy for client, accuracy in scores.items() if client not in counted}
    return Newcomers(simulation.client_split(state), seen, unseen)


def fine_tuned(simulation: Simulation, state: RunState, epochs: int = 1) -> OwnModels:
    """Each client trains the model that it would use for some more epochs on its own samples.

    The learning rate is that of the run's last round.
    """
    training = simulation.training.model_copy(update={"epochs": epochs, "steps": None})
    lr = simulation.schedule.lr(max(0, state.t - 1))
    used = _used(simulation, state)

    def own(client: int) -> Model:
        return trained_alone(simulation, client, used(client), training, [(state.t, lr)])

    return _compared(simulation, state, f"after {epochs} epoch{'s' if epochs > 1 else ''} of fine-tuning", used, own)


def local_only(simulation: Simulation, state: RunState, rounds: int) -> OwnModels:
    """Each client trains the initial model alone, for so many rounds' worth of steps."""
    first = simulation.task.w0, simulation.task.b0
    plan = [(t, simulation.schedule.lr(t)) for t in range(rounds)]

    def own(client: int) -> Model:
        return trained_alone(simulation, client, first, simulation.training, plan)

    how = f"trained alone for {rounds} round{'s' if rounds > 1 else ''}"
    return _compared(simulation, state, how, _used(simulation, state), own)


Models = Callable[[int], Model]
"""From a client to a model."""


def _compared(simulation: Simulation, state: RunState, how: str, shared: Models, own: Models) -> OwnModels:
    federation, task = simulation.federation, simulation.task
    if not federation.have_tests:
        raise InputError(
            "clients have no test samples of their own, and a model is not judged by those that it was trained on: "
            "hold some out before the run (data.client_test = 0.2, in Python federation.hold_out_tests(0.2))."
        )

    def accuracy(client: int, model: Model) -> float:
        seeds = part_seeds(simulation.seed, Purpose.CLIENT_SCORES, state.t, client)
        return task.evaluate(*model, *simulation.samples.client_test(client), seeds).accuracy

    with one_thread():
        there = [client for client in range(simulation.N) if len(simulation.samples.client_test(client)[1])]
        before = {client: accuracy(client, shared(client)) for client in there}
        after = {client: accuracy(client, own(client)) for client in there}
    return OwnModels(how, before, after)


def _used(simulation: Simulation, state: RunState) -> Models:
    """The models that clients use, as ``Rounds.evaluate_clients`` has them."""
    state = simulation.reported(state)
    residents = simulation.residents(state)
    personal = residents.personal(simulation.question_to_all(state, "own"))
    return lambda client: (
        state.server.w if personal is None else personal[client],
        residents.buffers_of(client, state.b),
    )


def trained_alone(
    simulation: Simulation, client: int, model: Model, training: Training, plan: Iterable[tuple[int, float]]
) -> Model:
    """A model after a client has trained it alone, in rounds given by number and learning rate."""
    w, b = model
    task, problem, schedule = simulation.task, simulation.problem, simulation.schedule
    equipment = Equipment(FedAvg(), task, training, schedule, simulation.seed)
    size = problem.sizes[[client]]
    alone = Clients((client,), size, problem.N, simulation.federation.n, 1, int(size), w.dtype)
    steps = torch.tensor([training.local_steps(int(size))])
    never = torch.zeros(1, dtype=torch.int32)
    for t, lr in plan:
        call = Call(Round(t, lr, schedule.lr(0)), alone, Message(w=w), steps, b, problem.common_steps, never)
        work = Work(equipment, call, simulation.samples, {}, b.unsqueeze(0)).on(task.device)
        (outcome,) = answer_each(work, [[0]])
        w = _own(outcome.message.y)
        b = b if equipment.buffer_rule == "freeze" else _own(outcome.buffers)
    return w, b


def _own(rows: Tensor) -> Tensor:
    """The only row, in memory of its own."""
    return rows[0].to(CPU, copy=True)
