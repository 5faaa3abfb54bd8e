"""FedLC and FedRS: margins and scales from a client's own labels, by hand, and against a few lines of NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.fedlc import FedLC
from fedkeel.algorithms.fedrs import FedRS
from fedkeel.check import CLASSES, FEATURES, SIZES, tiny_federation
from fedkeel.check import rounds as after
from fedkeel.data import Federation, from_clients
from fedkeel.engine.client import local_of, train_together
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from fedkeel.learning.losses import Loss, by_name, cross_entropy, for_targets
from fedkeel.learning.task import Task


class Together(Serial):
    """All clients of a round as one stack."""

    def run(self, job: Job) -> Any:
        return train_together(job)


def ones(*labels: int) -> Federation:
    """One client whose samples are all x = 1."""
    client = (np.ones((len(labels), 1), dtype=np.float32), np.array(labels, dtype=np.int64))
    return from_clients([client], test=client, classes=2)


def step(algorithm: Algorithm, *labels: int) -> list[float]:
    """z = W x from W = 0, one full step with η = 1."""
    task = Task(nn.Linear(1, 2, bias=False), dtype=torch.float64)
    task.w0 = torch.zeros(2, dtype=torch.float64)
    training = Training(rounds=1, lr=1.0, steps=1, batch_size=len(labels), dtype="float64")
    run = Simulation(algorithm, task, ones(*labels), training, executor=Serial())
    return run.step(run.start())[0].server.w.tolist()  # type: ignore[no-any-return]


SIXTEEN = [0] * 16
TAU = 2 * math.log(3)
"""16^(−1/4) = ½ and 1^(−1/4) = 1: margins of ln 3 and 2 ln 3."""


def test_fedlc_by_hand() -> None:
    """16 samples of class 0, one of class 1: scores −ln 3 and −2 ln 3, p = (¾, ¼). W_0 = 16/17 − ¾ = −W_1."""
    assert step(FedLC(tau=TAU), *SIXTEEN, 1) == pytest.approx([16 / 17 - 0.75, 0.75 - 16 / 17])


def test_a_missing_class_counts_as_one_sample() -> None:
    """Without the sample of class 1 its margin is the same, 2 ln 3: W_0 = 1 − ¾."""
    assert step(FedLC(tau=TAU), *SIXTEEN) == pytest.approx([0.25, -0.25])


def test_a_missing_class_may_be_left_out() -> None:
    """1e-8 samples have a margin of 100·τ: p = (1, 0) but for e^−200, and W does not move. Nothing is NaN."""
    assert step(FedLC(tau=TAU, mode="code"), *SIXTEEN) == pytest.approx([0.0, 0.0], abs=1e-12)


def test_fedrs_by_hand() -> None:
    """All of class 0, z = 0, p = (½, ½): W_0 = ½ as in FedAvg, but W_1 = −α·½. With class 1 there it is FedAvg."""
    assert step(FedRS(alpha=0.5), *SIXTEEN) == pytest.approx([0.5, -0.25])
    assert step(FedRS(alpha=0.0), *SIXTEEN) == pytest.approx([0.5, 0.0])
    assert step(FedRS(alpha=0.5), *SIXTEEN, 1) == pytest.approx(step(FedAvg(), *SIXTEEN, 1))


def softmax_regression(outputs: int = CLASSES) -> Task:
    task = Task(nn.Linear(FEATURES, outputs), dtype=torch.float64)
    task.w0 = torch.linspace(-0.5, 0.5, task.d, dtype=torch.float64)
    return task


def run_of(algorithm: Algorithm, task: Task, stacked: bool = False, **training: Any) -> Simulation:
    settings = Training(**({"rounds": 3, "lr": 0.3, "epochs": 3, "batch_size": 50, "dtype": "float64"} | training))
    return Simulation(algorithm, task, tiny_federation(), settings, executor=Together() if stacked else Serial())


def by_numpy(outputs: int, scale: Any, shift: Any, rounds: int = 3) -> np.ndarray:
    """Softmax regression W x + b, three full steps of 0.3 a round; scale and shift are functions of label counts."""
    w = np.linspace(-0.5, 0.5, outputs * (FEATURES + 1))
    data = tiny_federation()
    clients = [
        (data.dataset.train.x[rows].reshape(len(rows), -1).astype(float), data.dataset.train.y[rows])
        for rows in data.clients
    ]
    for _ in range(rounds):
        ends = []
        for x, labels in clients:
            W, b = w[: outputs * FEATURES].reshape(outputs, FEATURES).copy(), w[outputs * FEATURES :].copy()
            n = np.bincount(labels, minlength=outputs)
            for _ in range(3):
                z = (x @ W.T + b) * scale(n) + shift(n)
                p = np.exp(z - z.max(axis=1, keepdims=True))
                error = (p / p.sum(axis=1, keepdims=True) - np.eye(outputs)[labels]) * scale(n) / len(x)
                W, b = W - 0.3 * error.T @ x, b - 0.3 * error.sum(axis=0)
            ends.append(np.concatenate([W.ravel(), b]))
        w = np.average(ends, axis=0, weights=[len(x) for x, _ in clients])
    return w


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize("outputs", [CLASSES, CLASSES + 2])
@pytest.mark.parametrize("kind", ["fedlc", "fedrs"])
def test_against_numpy(kind: str, outputs: int, plainly: bool, stacked: bool) -> None:
    """Five clients of unequal sizes, one of a single sample; two outputs more than classes are missing everywhere."""
    task = softmax_regression(outputs)
    if plainly:
        task.use_plain_autograd()
    if kind == "fedlc":
        algorithm: Algorithm = FedLC(tau=0.7)
        expected = by_numpy(outputs, lambda n: 1.0, lambda n: -0.7 * np.maximum(n, 1.0) ** -0.25)
    else:
        algorithm = FedRS(alpha=0.3)
        expected = by_numpy(outputs, lambda n: np.where(n > 0, 1.0, 0.3), lambda n: 0.0)
    w = after(run_of(algorithm, task, stacked), 3).server.w
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-9, atol=1e-12)


# Who counts, and what.


def test_a_client_counts_its_own_labels() -> None:
    """Every client's bincount, over as many classes as the model has scores for; the job knows no other samples."""
    run = run_of(FedLC(), softmax_regression(CLASSES + 1))
    job = run.job(run.start())
    data = tiny_federation()
    for i, size in enumerate(SIZES):
        counts = local_of(job, i).class_counts
        assert counts.shape == (1, CLASSES + 1)
        assert counts.sum() == size
        assert counts[0].tolist() == np.bincount(data.dataset.train.y[data.clients[i]], minlength=CLASSES + 1).tolist()


def test_models_by_autograd_are_asked_for_their_scores_once() -> None:
    task = Task(nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Softplus(), nn.Linear(4, 7)))
    assert task.dense is None
    assert task.scores_of(torch.zeros(3, FEATURES)) == 7


@pytest.mark.parametrize("algorithm", [FedLC, FedRS])
def test_other_losses_are_refused_in_a_sentence(algorithm: type[Algorithm]) -> None:
    own = Loss("own", cross_entropy.per_sample, cross_entropy.correct, answers="classes")
    run = run_of(algorithm(), Task(nn.Linear(FEATURES, CLASSES), own, torch.float64))
    with pytest.raises(
        InputError, match=rf"^{algorithm.title} counts every client's labels, .* got the loss own; choose"
    ):
        run.step(run.start())


def test_targets_that_are_no_labels_are_refused_in_a_sentence() -> None:
    x = np.ones((4, FEATURES), dtype=np.float32)
    soft = (x, np.full((4, CLASSES), 1 / 3, dtype=np.float32))
    federation = from_clients([soft], test=soft, targets="real")
    training = Training(rounds=1, steps=1, batch_size=2)
    for loss, got in ((for_targets(cross_entropy, 2), "cross_entropy over sequences"), (by_name("mse"), "nn.MSELoss")):
        run = Simulation(FedRS(), Task(nn.Linear(FEATURES, CLASSES), loss), federation, training, executor=Serial())
        with pytest.raises(InputError, match=rf"got the loss {got}"):
            run.step(run.start())
