"""FedACG by hand, and everything that is measured from where its clients start, which is not the server's w.

F = ½(x − 1)² for one client, η = 0.1, λ = ½, one step, no spring: from w = 0, m = 0 to w = m = 0.1; then z = 0.15.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedkeel.algorithms.contract import Clients, Round
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import Message, PerClient
from fedkeel.engine.exchange import Call
from fedkeel.engine.executors import Serial
from fedkeel.engine.settings import Faults
from fedkeel.engine.simulation import Simulation
from fedkeel.measure.drift import DriftWatch
from fedkeel.measure.settings import Measuring
from fedkeel.runs.runner import Evaluation, execute
from tests.algorithms.quadratic import path, rounds, simulation


def run(clients: list[tuple[float, float]], lam: float = 0.5, beta: float = 0.0, **settings: Any) -> Simulation:
    defaults: dict[str, Any] = {"lr": 0.1, "steps": 1}
    return simulation(make_algorithm("fedacg", lam=lam, beta=beta), clients, **(defaults | settings))


def with_faults(run: Simulation, **faults: Any) -> Simulation:
    return Simulation(run.algorithm, run.task, run.federation, run.training, executor=Serial(), faults=Faults(**faults))


def test_two_rounds() -> None:
    """Round 2: y = 0.15 + 0.1·0.85 = 0.235 = w, Δ̄ = 0.085, m = 0.05 + 0.085."""
    states, _ = rounds(run([(1, 1)]), 2)
    assert [float(state.server.w[0]) for state in states] == pytest.approx([0, 0.1, 0.235])
    assert [float(state.server.m[0]) for state in states] == pytest.approx([0, 0.1, 0.135])


def test_the_spring_is_tied_to_what_was_sent() -> None:
    """β = 1, two steps. Round 1: 0.1, then 0.1 + 0.1 (0.9 − 0.1) = 0.18 = m, z = 0.27.

    Round 2: 0.27 + 0.073 = 0.343, then 0.343 + 0.1 (0.657 − 0.073) = 0.4014. Tied to w = 0.18 it would be 0.3711.
    """
    assert path(run([(1, 1)], beta=1.0, steps=2), 2) == pytest.approx([0, 0.18, 0.4014])


def test_it_is_its_box() -> None:
    """Plain loops over three clients with different steps, in changing cohorts; x is the paper's θ."""
    clients, sizes = [(1.0, 1.0), (2.0, -3.0), (0.5, 2.0)], [1, 3, 2]
    cohorts, lam, beta, eta = [[0, 1], [2], [1, 2], [0, 1, 2]], 0.6, 0.2, 0.07
    x, m, found = 0.0, 0.0, [0.0]
    for cohort in cohorts:
        z, moves = x + lam * m, []
        for i in cohort:
            y = z
            for _ in range(sizes[i]):
                y -= eta * (clients[i][0] * (y - clients[i][1]) + beta * (y - z))
            moves.append(y - z)
        m = lam * m + sum(moves) / len(moves)
        x += m
        found.append(x)
    ours = run(clients, lam, beta, sizes=sizes, cohorts=cohorts, lr=eta, steps=None, epochs=1)
    assert path(ours, len(cohorts)) == pytest.approx(found, abs=1e-14)


def test_drift_is_the_way_from_what_was_sent() -> None:
    """In two coordinates: 0.1·√2, then 0.085·√2, although w itself moves by 0.135·√2."""
    _, records = rounds(run([(1, 1)]), 2)
    assert [record.drifts for record in records] == [
        (pytest.approx(0.1 * math.sqrt(2)),),
        (pytest.approx(0.085 * math.sqrt(2)),),
    ]


def test_drift_of_those_that_answer() -> None:
    """Each from its own start, whoever is missing: b = (1, 3, −1), Δ_i = 0.1 (b_i − z)."""
    lossy = with_faults(run([(1, 1), (1, 3), (1, -1)], rounds=8), lost=0.4)
    states, records = rounds(lossy, 8)
    assert any(len(record.cohort) == 2 for record in records)
    for state, record in zip(states, records, strict=False):
        z = float(state.server.w[0] + 0.5 * state.server.m[0])
        expected = [0.1 * abs((1, 3, -1)[i] - z) * math.sqrt(2) for i in record.cohort]
        assert record.drifts == pytest.approx(expected)


def test_measured_where_clients_start() -> None:
    """b = (3, −1), β = 2. Round 1 as with b = 1: w = m = 0.1. Round 2 at z = 0.15: g = −2.85, 1.15, mean −0.85.

    In two coordinates ‖mean‖² = 1.445 (at w it were 1.62). The spring is slack at z, so that the variance stays 8, and
    the updates are 0.285·√2 and 0.115·√2 long.
    """
    here = run([(1, 3), (1, -1)], beta=2.0, rounds=2)
    _, history = execute(here, Evaluation(), look=DriftWatch(here, Measuring(every=1)))
    assert history.values("measure.gamma_denominator") == pytest.approx({1: 2, 2: 1.445})
    assert history.values("measure.variance_before") == pytest.approx({1: 8, 2: 8})
    assert history.values("measure.variance_after") == pytest.approx({1: 8, 2: 8})
    distances = {0: pytest.approx(0.285 * math.sqrt(2)), 1: pytest.approx(0.115 * math.sqrt(2))}
    assert history.values("measure.distance_of")[2] == distances


def test_a_limit_on_updates_is_one_on_the_way_from_what_was_sent() -> None:
    """D = 0.1 is less than the 0.085·√2 = 0.1202 of round 2: w = z + 0.1/√2 in each coordinate."""
    limited = with_faults(run([(1, 1)]), max_update_norm=0.1, bad_update="clip")
    first = 0.1 / math.sqrt(2)
    z = 1.5 * first
    assert path(limited, 2) == pytest.approx([0, first, z + first])


def test_where_a_client_starts() -> None:
    """What all are sent, a row of its own, or the server's model where no whole one is sent."""
    w, rows = torch.ones(2), torch.tensor([[2.0, 2.0], [3.0, 3.0]])
    clients = Clients((4, 7), torch.ones(2), 9, 9, 2, 2, torch.float32)

    def start(row: int | None, **message: Any) -> list[float]:
        call = Call(Round(0, 0.1, 0.1), clients, Message(**message), torch.ones(2), torch.empty(0), 1, torch.zeros(2))
        return call.start(torch.zeros(2), row).tolist()

    assert start(1, w=w) == start(None, w=w) == [1, 1]
    assert start(1, w=PerClient(rows)) == [3, 3]
    assert start(None, w=PerClient(rows)) == start(0) == start(0, w=torch.ones(1)) == start(0, shared=w) == [0, 0]


def test_the_model_that_is_reported_is_w() -> None:
    here = run([(1, 1)])
    state = rounds(here, 2)[0][-1]
    (model,) = here.candidates(state).values()
    assert torch.equal(model[0], state.server.w)
