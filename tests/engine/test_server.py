"""The server's half alone: no samples, no executor, no client's memory; answers are made by hand."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Local, Problem, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Message, State
from fedkeel.check import rounds, tiny_simulation
from fedkeel.engine import server
from fedkeel.engine.exchange import Answers, Outcome, Question
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.server import Server, ServerState, UnansweredError
from fedkeel.engine.settings import Training
from fedkeel.errors import InputError
from fedkeel.learning.layout import Layout
from fedkeel.learning.task import Score


def made(name: str = "fedavg", **training: float) -> Server:
    """Three clients with 2, 6 and 8 samples and a model of one parameter, at 1."""
    settings = Training(steps=2, batch_size=4, **training)
    problem = Problem(torch.tensor([1.0]), Layout(()), torch.tensor([2, 6, 8]), 2)
    return Server(make_algorithm(name), problem, settings, RandomSchedule(settings, 0))


def answers(ids: tuple[int, ...], models: list[float], **values: torch.Tensor) -> Answers:
    K = len(ids)
    outcome = Outcome(
        Message(y=torch.tensor(models).unsqueeze(1), **values),
        State(),
        torch.empty(K, 0),
        torch.zeros(K),
        [torch.empty(0)] * K,
        torch.full((K,), torch.nan),
    )
    return Answers(ids, torch.full((K,), 2), outcome, K, 4)


def nobody(question: object) -> dict[int, Score]:
    return {}


def test_it_knows_no_samples_executor_or_memory() -> None:
    source = Path(server.__file__).read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name and name.rsplit(".")[-1] in ("samples", "executors", "residents")}
    assert not {name for name in imported if name and name.startswith("fedkeel.data")}


def test_a_call_tells_each_client_what_it_needs() -> None:
    call = made().open(made().start())
    assert call.clients.ids == (0, 1, 2)
    assert (call.clients.N, call.clients.n, call.clients.S, call.clients.cohort_n) == (3, 16, 3, 16)
    assert (call.steps.tolist(), call.common_steps, call.counted.tolist()) == ([2, 2, 2], 2, [0, 0, 0])
    one = call.take([1])
    assert (one.clients.ids, one.clients.sizes.tolist(), one.clients.S) == ((1,), [6], 3)


def test_those_present_may_be_given() -> None:
    assert made().open(made().start(), present=[0, 2]).clients.ids == (0, 2)


def test_only_those_who_answered_are_weighed() -> None:
    """Models 3 and 5 with 2 and 6 samples, the client with 8 is silent: (2·3 + 6·5)/8 = 4.5."""
    half = made()
    state = half.start()
    after, record = half.close(state, half.open(state), answers((0, 1), [3.0, 5.0]), nobody)
    assert after.server.w.tolist() == [4.5]
    assert (after.t, after.counted.tolist(), record.cohort) == (1, [1, 1, 0], (0, 1))
    assert record.drifts == (2.0, 4.0)
    assert (record.bytes_down, record.bytes_up) == (12, 8)
    assert half.open(after).counted.tolist() == [1, 1, 0]


def test_a_round_without_answers_changes_nothing() -> None:
    half = made()
    state = half.start()
    silence = Answers((), torch.empty(0, dtype=torch.int64), None, 0, 0)
    after, record = half.close(state, half.open(state), silence, nobody)
    assert (after.t, after.server, after.counted.tolist()) == (1, state.server, [0, 0, 0])
    assert record.cohort == ()


class Asks(FedAvg):
    """Looks at the clients' losses at the model that it has."""

    name = "asks"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        losses = uploads.losses_at(server.w)
        return super().aggregate(server, uploads, round).replace(losses=losses)


@pytest.mark.parametrize("silent", [None, 1])
def test_losses_are_asked_of_the_cohort_and_must_come(silent: int | None) -> None:
    half = replace(made(), algorithm=Asks())
    state = half.start()
    asked = []

    def ask(question: Question) -> dict[int, Score]:
        asked.append(question)
        return {client: Score(0.5, 1.0 + client, 4) for client in question.ids if client != silent}

    def closed() -> ServerState:
        return half.close(state, half.open(state), answers((0, 1), [3.0, 5.0]), ask)[0]

    if silent is None:
        assert closed().server.losses.tolist() == [1.0, 2.0]
    else:
        with pytest.raises(UnansweredError, match="client 1 did not answer"):
            closed()
    (question,) = asked
    assert (question.ids, question.on, question.t, question.w.tolist()) == ((0, 1), "train", 0, [1.0])


class Curious(FedAvg):
    """Looks at what only the server knows."""

    name = "curious"

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        assert local.problem.N == 5
        return Message(y=y * local.problem.sizes.sum()), local.client


def test_a_client_is_not_told_how_many_samples_others_have() -> None:
    with pytest.raises(InputError, match="a client does not know how many samples others have"):
        rounds(tiny_simulation(Curious()), 1)
