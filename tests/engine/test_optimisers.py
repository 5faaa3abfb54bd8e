"""Adam and AdamW as local optimisers, and schedules over rounds, against torch's own."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.algorithms.contract import Local, Message, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.state import State
from fedkeel.engine.optimisers import takes_any
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.settings import Training
from fedkeel.errors import InputError

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64)
DATA = fk.data.from_arrays(X, LABELS, X, LABELS)
THREE_CLASSES = fk.data.from_arrays(X, np.arange(len(X)) % 3, X, np.arange(len(X)) % 3)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_one_client_with_all_samples_takes_torchs_steps(optimiser: str, executor: str) -> None:
    """Two rounds of four steps; the moments start anew in the second."""
    made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimiser]
    settings = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    run = fk.train(
        "fedavg",
        model=network(),
        data=DATA.partition("iid", clients=1),
        rounds=2,
        steps=4,
        batch_size=24,
        optimiser=optimiser,
        dtype="float64",
        executor=executor,
        **settings,
    )
    model = network().double()
    for _ in range(2):
        theirs = made(model.parameters(), **settings)  # type: ignore[operator]
        for _ in range(4):
            theirs.zero_grad()
            nn.CrossEntropyLoss()(model(torch.from_numpy(X).double()), torch.from_numpy(LABELS)).backward()
            theirs.step()
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(run.state_dict()[name], expected, rtol=1e-11, atol=1e-13)


def test_clients_of_unequal_work_and_several_processes() -> None:
    data = DATA.partition("quantity", clients=3, alpha=1.0, seed=1)
    ends = [
        fk.train(
            "fedprox",
            model=network(),
            data=data,
            rounds=2,
            epochs=2,
            batch_size=4,
            optimiser="adam",
            lr=0.01,
            dtype="float64",
            executor=executor,
            workers=workers,
        ).state.server.w
        for executor, workers in (("serial", 1), ("stacked", 2), ("pool", 2))
    ]
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-10, atol=1e-12)
    assert torch.equal(ends[2], ends[0])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_takes_adam_or_says_why_not(name: str) -> None:
    settings = {"rounds": 1, "steps": 1, "optimiser": "adam", "lr": 0.01, "executor": "serial"}
    data = THREE_CLASSES.partition("iid", clients=1)  # FedNTD has nothing to compare with two
    if takes_any(ALGORITHMS[name]):
        fk.train(name, model="2nn", data=data, **settings)  # type: ignore[arg-type]
        return
    with pytest.raises(InputError, match=f"training.optimiser must be 'sgd' with {name}, which reads gradients"):
        fk.train(name, model="2nn", data=data, **settings)  # type: ignore[arg-type]


def test_those_that_read_nothing_off_steps_take_any() -> None:
    assert sorted(name for name, known in ALGORITHMS.items() if takes_any(known)) == [
        "centralised",
        "fedacg",
        "fedadagrad",
        "fedadam",
        "fedavg",
        "fedavgm",
        "fedbn",
        "feddyn",
        "fedexp",
        "fedinit",
        "fedlc",
        "fedlesam_d",
        "fedmlb",
        "fedmlbm",
        "fedntd",
        "fedprox",
        "fedproxm",
        "fedrs",
        "fedsam",
        "fedsmoo",
        "fedspeed",
        "fedswa",
        "fedyogi",
        "moon",
        "moonm",
    ]


class Own(FedAvg):
    name, title = "own", "Own"


class Brave(Own):
    any_optimiser = True


class Liar(Brave):
    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return super().aggregate(server, uploads, round).noting(travel=uploads.travel[:, 0])


class LiarAtHome(Brave):
    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        return Message(y=y + 0 * local.travel), local.client


def test_an_algorithm_of_ones_own_says_that_it_takes_any() -> None:
    settings = {"data": DATA.partition("iid", clients=2), "rounds": 1, "steps": 1, "optimiser": "adam", "lr": 0.01}
    with pytest.raises(InputError, match="any_optimiser = True"):
        fk.train(Own, model=network(), **settings)  # type: ignore[arg-type]
    fk.train(Brave, model=network(), **settings)  # type: ignore[arg-type]
    for liar in (Liar, LiarAtHome):
        with pytest.raises(InputError, match=r"travel.* is that of plain SGD, and clients train with adam"):
            fk.train(liar, model=network(), executor="serial", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"momentum": 0.9, "optimiser": "adam"}, "given without momentum, which has no effect with optimiser = 'adam'"),
        ({"betas": (0.5, 0.9)}, "given without betas, which has no effect with optimiser = 'sgd'"),
        ({"eps": 1e-3}, "given without eps"),
        ({"optimiser": "adam", "betas": (0.9, 1.0)}, "betas must be two numbers of at least 0 and below 1"),
        ({"lr_every": 3}, "given without lr_every, which has no effect with lr_schedule = 'constant'"),
        ({"lr_schedule": "cosine", "lr_gamma": 0.5}, "given without lr_gamma"),
        (
            {"lr_schedule": "step", "lr_decay": 0.9},
            "given without lr_decay, which has no effect with lr_schedule = 'step'",
        ),
        ({"lr_schedule": "cosine", "lr_min": 1.0}, "given an lr_min of at most lr = 0.1"),
    ],
)
def test_settings_without_effect(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        fk.train("fedavg", model=network(), data=DATA.partition("iid", clients=2), **settings)  # type: ignore[arg-type]


def test_schedules_are_torchs() -> None:
    weight = nn.Parameter(torch.zeros(1))
    for ours, theirs in (
        (
            Training(rounds=12, lr=0.4, lr_schedule="step", lr_every=5, lr_gamma=0.5),
            lambda o: torch.optim.lr_scheduler.StepLR(o, 5, 0.5),
        ),
        (
            Training(rounds=12, lr=0.4, lr_schedule="cosine", lr_min=0.1),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, 0.1),
        ),
    ):
        optimiser = torch.optim.SGD([weight], lr=0.4)
        scheduler, expected = theirs(optimiser), []
        for _ in range(12):
            expected.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            scheduler.step()
        assert [RandomSchedule(ours, 0).lr(t) for t in range(12)] == pytest.approx(expected, rel=1e-12)


def test_the_example_of_regression_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "regression.py"))
    run = found["run"]
    assert all(score.loss < 0.05 for score in run.evaluate_clients().values())
    assert capsys.readouterr().out.count("mean squared error") == 5
    best = run.history.best()
    assert best.loss == min(point.loss for point in run.history.series())
    assert math.isnan(run.accuracy)
    with pytest.raises(InputError, match="no answer is right or wrong"):
        run.rounds_to(0.5)
