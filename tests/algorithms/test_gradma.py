"""GradMA, GradMA-W and GradMA-S on quadratics by hand, and the server's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms import gradma_memory as memory
from fedkeel.algorithms.contract import Problem
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import rounds as after
from fedkeel.check import tiny_federation
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import DivergedError, InputError
from fedkeel.learning.projection import project
from fedkeel.learning.task import Task
from tests.algorithms.quadratic import Point, path, rounds, simulation

# Both coordinates of these models are equal, so every projection is one on a line: a row forbids one sign.


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("prev", "global", "anchor"), 0.1),
        (("anchor",), 0.1),
        (("prev", "global"), 0.271),
        ((), 0.271),
    ],
)
def test_the_third_row_stops_a_worker_after_its_first_step(rows: tuple[str, ...], expected: float) -> None:
    """h = 1, b = 1, η = 0.1: the first step goes to 0.1. From there g = −0.9 leads on, but ⟨x_τ − x, u⟩ ≥ 0 forbids a
    negative u, so u = 0. Without that row nothing conflicts, and three steps end at 1 − 0.9³ = 0.271.
    """
    run = simulation(make_algorithm("gradma_w", rows=rows), [(1, 1)], lr=0.1, steps=3)
    assert path(run, 1)[1] == pytest.approx(expected)


def test_the_previous_point_moves_along() -> None:
    """h = 1, b = 1, η = 1.5, first row only: 0 → 1.5, over the optimum. There g = 0.5 is against −1 at 0, so u = 0; in
    the third step the previous point is 1.5 as well, nothing conflicts, and 1.5 − 1.5·0.5 = 0.75.
    """
    algorithm = make_algorithm("gradma_w", rows=("prev",), prev_init="global")
    assert path(simulation(algorithm, [(1, 1)], lr=1.5, steps=3), 1)[1] == pytest.approx(0.75)


@pytest.mark.parametrize(("prev_init", "expected"), [("stored", 2.375), ("global", 2.25)])
def test_a_worker_remembers_its_last_model(prev_init: str, expected: float) -> None:
    """b = (1, 5), η = 1/2, one step. Round 1: y = (0.5, 2.5), w = 1.5.

    Round 2, client 0: g = 0.5, but at its last model 0.5 the gradient was −0.5, so u = 0 and y = 1.5 (from the global
    model: 1.25). Client 1: g = −3.5 and −2.5 agree, y = 3.25. w = (1.5 + 3.25)/2 = 2.375, or (1.25 + 3.25)/2 = 2.25.
    """
    run = simulation(make_algorithm("gradma_w", prev_init=prev_init), [(1, 1), (1, 5)], lr=0.5, steps=1)
    assert path(run, 2) == pytest.approx([0, 1.5, expected])


@pytest.mark.parametrize(("unseen", "expected"), [("initial", 2.5), ("global", 1.75)])
def test_the_last_model_of_a_worker_who_has_none(unseen: str, expected: float) -> None:
    """Client 1 (b = 5) moves w to 2.5. Client 0 (b = 1) then has g = 1.5, against −1 at the initial model: u = 0.

    The program takes the received model instead, where nothing conflicts: 2.5 − 0.75.
    """
    algorithm = make_algorithm("gradma_w", unseen=unseen)
    run = simulation(algorithm, [(1, 1), (1, 5)], cohorts=[[1], [0], [0]], lr=0.5, steps=1)
    assert path(run, 2) == pytest.approx([0, 2.5, expected])
    if unseen == "global":  # now it has one, 1.75, with the gradient 0.75 as at the global model
        assert path(run, 3)[3] == pytest.approx(1.375)


def server_run(
    name: str = "gradma_s", cohorts: tuple[tuple[int, ...], ...] = ((0,), (1,)), **params: Any
) -> Simulation:
    """b = (1, −3), h = 1, η = 0.1, one step: d_i = 0.1 (w − b_i)."""
    return simulation(make_algorithm(name, **params), [(1, 1), (1, -3)], cohorts=cohorts, lr=0.1, steps=1)


@pytest.mark.parametrize(
    ("params", "expected"), [({}, 0.1), ({"m": 1}, -0.16), ({"beta2": 0.0}, -0.16), ({"rho_g": -1.0}, -0.16)]
)
def test_the_server_does_not_undo_what_it_remembers(params: dict[str, Any], expected: float) -> None:
    """Round 1: d = −0.1 = m̃ = D[0], w = 0.1. Round 2, client 1: d = 0.31, m = 0.5·(−0.1) + 0.31 = 0.26.

    D = (−0.05, 0.31) leaves m̃ = 0. Where client 0 is evicted, decayed to zero or not looked at, m̃ = m.
    """
    states, _ = rounds(server_run(**params), 2)
    assert [float(s.server.w[0]) for s in states] == pytest.approx([0, 0.1, expected])
    assert float(states[2].server.m[0]) == pytest.approx(0.1 - expected)


def test_momentum_goes_on_from_the_projected_one() -> None:
    """As above with a third client like the second and m = 2, so that in round 3 it takes the place of client 0 (as
    often seen as client 1, but earlier). m̃ = 0 after round 2: m = 0 + 0.31, w = 0.1 − 0.31; from m it were 0.13 + 0.31.
    """
    algorithm = make_algorithm("gradma_s", m=2)
    run = simulation(algorithm, [(1, 1), (1, -3), (1, -3)], cohorts=[[0], [1], [2]], lr=0.1, steps=1)
    states, _ = rounds(run, 3)
    assert [float(s.server.w[0]) for s in states] == pytest.approx([0, 0.1, 0.1, -0.21])
    assert states[3].server.buf.tolist() == [1, 2]


def test_updates_accumulate_and_decay() -> None:
    """D[0] = −0.1, then 0.5·(−0.1) + 0.1 (0.1 − 1) = −0.14, then half of it while client 1 is there."""
    server = rounds(server_run(cohorts=((0,), (0,), (1,))), 3)[0][3].server
    assert server.buf.tolist() == [0, 1]
    assert server.c.tolist() == [2, 1]
    assert server.age.tolist() == [1, 0]
    assert float(server.D[0][0]) == pytest.approx(-0.14)
    assert set(server.D) == {0, 1}


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("gradma_w", {}, -0.1),
        ("gradma_w", {"weights": "n"}, 0.0),
        ("gradma_w", {"eta_g": 0.5}, -0.05),
        ("gradma_s", {"rho_g": -1.0, "weights": "n"}, 0.0),
        ("gradma_s", {"rho_g": -1.0, "eta_g": 0.5}, -0.05),
        ("gradma", {"rho_g": -1.0}, -0.1),
        ("gradma", {}, 0.0),
    ],
)
def test_weights_and_server_rate(name: str, params: dict[str, Any], expected: float) -> None:
    """Sizes (3, 1), d = (−0.1, 0.3): the mean is 0.1, by samples 0; the two conflict, so a projected server stands."""
    run = simulation(make_algorithm(name, **params), [(1, 1), (1, -3)], sizes=[3, 1], lr=0.1, steps=1)
    assert path(run, 1)[1] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("name", ["gradma", "gradma_w", "gradma_s"])
def test_only_the_model_travels(name: str) -> None:
    """Two doubles each way and client; a worker keeps one model, GradMA-S none."""
    states, records = rounds(server_run(name, cohorts=((0, 1),)), 1)
    assert (records[0].bytes_down, records[0].bytes_up) == (32, 32)
    assert set(states[1].clients) == (set() if name == "gradma_s" else {"x"})


def test_a_memory_smaller_than_a_cohort_is_refused() -> None:
    with pytest.raises(InputError, match=r"gradma_s\.m must be at least the 2 clients of a round, got 1"):
        rounds(server_run(cohorts=((0, 1),), m=1), 1)


def test_a_diverging_run_is_reported() -> None:
    """(1 − η h)^K = (−9999)^80 overflows; neither projection hides it."""
    run = simulation(make_algorithm("gradma", rows=("prev",)), [(100, 1), (100, -1)], lr=100, steps=80)
    with pytest.raises(DivergedError):
        rounds(run, 3)


@pytest.mark.parametrize(("decay", "expected"), [("weights", 0.95), ("all", 0.95**3)])
def test_weight_decay_before_or_after_the_projection(decay: str, expected: float) -> None:
    """h = 0 leaves only λ w, λ = 1/2, from w = 1 with η = 0.1. The program adds it before: after the first step it
    leads further away from the global model and is projected to zero. After the projection it acts in all three steps.
    """
    run = simulation(make_algorithm("gradma_w", decay=decay), [(0, 0)], lr=0.1, steps=3, weight_decay=0.5)
    start = replace(run.start(), server=State(w=torch.ones(2, dtype=torch.float64)))
    assert float(run.step(start)[0].server.w[0]) == pytest.approx(expected)


@pytest.mark.parametrize(("dropout", "same"), [("shared", True), ("own", False)])
def test_the_gradients_of_a_step_drop_the_same_units(dropout: str, same: bool) -> None:
    """From the global model the first two rows are then g itself, and a single step is FedAvg's to the bit."""
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.8), nn.Linear(16, 3)), dtype=torch.float64)
    ends = []
    for algorithm in (
        make_algorithm("gradma_w", prev_init="global", dropout=dropout),
        make_algorithm("fedavg", weights="uniform"),
    ):
        run = Simulation(algorithm, task, tiny_federation(), Training(steps=1, batch_size=5, lr=0.5))
        ends.append(after(run, 6).server.w)
    assert torch.allclose(ends[0], ends[1], rtol=0, atol=1e-14) == same


def empty(blocks: Any = "flat") -> State:
    task = Task(Point(), dtype=torch.float64)
    return State(**memory.initial(Problem(task.w0, task.layout, torch.ones(9), 1), blocks))


def cohorts(m: int, *played: tuple[int, ...]) -> dict[int, int]:
    """Clients in the buffer, in order of entry, with their counters, after some cohorts."""
    server = empty()
    for cohort in played:
        server = memory.mem_red(server, cohort, m)
        server = memory.remember(server, cohort, torch.ones(len(cohort), 2, dtype=torch.float64), 0.5)
    assert set(server.D) == set(server.buf.tolist())
    assert server.gram.shape[1:] == (len(server.buf), len(server.buf))
    return dict(zip(server.buf.tolist(), server.c.tolist(), strict=True))


def test_the_least_frequent_leaves_first() -> None:
    """Client 1 was there once, client 0 twice; whoever comes back starts counting afresh."""
    assert cohorts(2, (0,), (1,), (0,), (2,)) == {0: 2, 2: 1}
    assert cohorts(2, (0,), (1,), (0,), (2,), (1,)) == {0: 2, 1: 1}


def test_among_equals_the_earliest_entry_of_the_current_stay_leaves() -> None:
    """0 leaves for 2; back in, it is the latest: 1 leaves for 0, 2 for 1, and only then 0 for 3."""
    assert list(cohorts(2, (0,), (1,), (2,))) == [1, 2]
    assert list(cohorts(2, (0,), (1,), (2,), (0,))) == [2, 0]
    assert list(cohorts(2, (0,), (1,), (2,), (0,), (1,), (3,))) == [1, 3]


def test_who_takes_part_is_not_evicted_and_the_order_of_a_cohort_matters() -> None:
    """0 and 1 were there three times and once; 0 is in the cohort, so 1 makes room. (5, 4) enters in that order."""
    assert cohorts(2, (0, 1), (1,), (1,), (2, 0)) == {0: 2, 2: 1}
    assert list(cohorts(2, (5, 4), (6,))) == [4, 6]
    assert list(cohorts(2, (4, 5), (6,))) == [5, 6]


@pytest.mark.parametrize("blocks", ["flat", "tensor"])
def test_inner_products_are_kept_up_to_date(blocks: str) -> None:
    """Against a computation from nothing, over 60 random cohorts of 3 out of 9 with room for 5; decay is exact."""
    rng = np.random.default_rng(0)
    server = empty(blocks)
    slow: dict[int, torch.Tensor] = {}
    asked = 0
    for _ in range(60):
        cohort = tuple(rng.choice(9, size=3, replace=False).tolist())
        updates = torch.from_numpy(rng.normal(size=(3, 2)))
        server = memory.remember(memory.mem_red(server, cohort, 5), cohort, updates.clone(), 0.4)
        slow = {i: 0.4 * D for i, D in slow.items() if i in server.buf.tolist()}
        slow |= {i: slow.get(i, 0) + update for i, update in zip(cohort, updates, strict=True)}
        directions, gram = memory.directions(server, 0.4)
        project(torch.from_numpy(rng.normal(size=2)), directions, 0.0, server.bounds, gram)
        for known, start, stop in zip(gram, server.bounds, server.bounds[1:], strict=False):
            parts = torch.stack(directions)[:, start:stop]
            true = parts @ parts.T
            assert torch.allclose(
                known.where(known.isfinite(), 0), true.where(known.isfinite(), 0), rtol=1e-14, atol=1e-15
            )
            assert bool(known.isfinite().diagonal().all())
            asked += int(known.isfinite().sum()) - len(known)
        server = server.replace(gram=gram)
        for i, row, age in zip(server.buf.tolist(), directions, server.age.tolist(), strict=True):
            assert torch.allclose(0.4**age * row, slow[i], rtol=1e-12, atol=0)
    assert asked > 0


def test_a_long_absence_loses_no_direction() -> None:
    """0.1^400 is no longer a number in double precision, but the direction still counts; β2 = 0 forgets at once."""
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    server = memory.remember(memory.mem_red(empty(), (0,), 2), (0,), one, 0.1)
    for _ in range(400):
        server = memory.remember(memory.mem_red(server, (1,), 2), (1,), one.flip(1), 0.1)
    assert [row.tolist() for row in memory.directions(server, 0.1)[0]] == [[1, 0], pytest.approx([0, 1 / 0.9])]
    gram = memory.directions(server, 0.0)[1]
    assert gram.diagonal(dim1=1, dim2=2).ne(0).tolist() == [[False, True]]


def test_modes() -> None:
    """The errata's readings: the program keeps no local model in GradMA, does in GradMA-W, and weights by samples."""
    chosen = {
        (name, mode): {
            k: v for k, v in make_algorithm(name, mode=mode).params if k in ("prev_init", "blocks", "weights")
        }
        for name in ("gradma", "gradma_w")
        for mode in ("default", "literal", "code")
    }
    stored, kept = {"prev_init": "stored"}, {"prev_init": "global"}
    assert chosen["gradma", "default"] == stored | {"blocks": "flat", "weights": "uniform"}
    assert chosen["gradma", "literal"] == kept | {"blocks": "tensor", "weights": "uniform"}
    assert chosen["gradma", "code"] == kept | {"blocks": "tensor", "weights": "n"}
    assert chosen["gradma_w", "literal"] == stored | {"blocks": "tensor", "weights": "uniform"}
    assert chosen["gradma_w", "code"] == stored | {"blocks": "tensor", "weights": "n"}
