"""A client's samples give the same bits wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import rounds, tiny_simulation, tiny_task
from fedkeel.data import from_clients
from fedkeel.engine.samples import Samples, full_batches
from fedkeel.engine.simulation import Simulation


@pytest.mark.parametrize("width", [5, 6, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_passes_do_not_depend_on_who_comes_before(width: int, dtype: torch.dtype) -> None:
    """The product of all samples with some weights, for a client behind 0 to 16 samples of another."""
    rng = np.random.default_rng(width)
    x = rng.normal(size=(57, width)).astype(np.float32)
    own = (x, np.arange(57) % 3)
    weights = torch.from_numpy(rng.normal(size=(width, 10))).to(dtype)
    found = set()
    for before in range(1, 17):
        others = (rng.normal(size=(before, width)).astype(np.float32), np.arange(before) % 3)
        samples = Samples(from_clients([others, own], test=own, classes=3), dtype)
        (batch,) = full_batches(samples.data_of(1), 2048)
        found.add((batch.x[0] @ weights).numpy().tobytes())
    assert len(found) == 1


def test_clients_asked_for_a_score_give_the_accuracy_on_all_the_samples_drawn() -> None:
    """As a server without samples of its own has to do it."""

    class Asking(Simulation):
        def who(self, state):  # type: ignore[no-untyped-def]
            everybody = super().who(state)

            class Without(type(everybody)):  # type: ignore[misc]
                hold_validation = False

            return Without(everybody.who, everybody.settings, everybody.seed)

    plain = tiny_simulation(make_algorithm("fedavg"))
    asking = Asking(plain.algorithm, tiny_task(), plain.federation, plain.training)
    state = rounds(plain, 2)
    expected, got = plain.feedback(state), asking.feedback(state)
    assert (got.accuracy, got.samples) == (expected.accuracy, expected.samples) == (got.accuracy, 56)
    assert got.loss == pytest.approx(expected.loss, rel=1e-12)


def test_the_samples_asked_for_are_the_same_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions within each client, from the sizes alone, name the samples that the simulator draws from all."""
    monkeypatch.setattr("fedkeel.engine.samples.ASKED", 20)
    simulation = tiny_simulation(make_algorithm("fedavg"))
    clients = simulation.federation.clients
    rows = sorted(int(clients[i][p]) for i, own in simulation._asked.items() for p in own.tolist())
    x, _ = simulation.samples.validation
    train = simulation.federation.dataset.train.x
    assert torch.equal(x, simulation.samples.transform.prepare(train[rows], torch.float64))
    assert len(rows) == 20
