"""A run that is described is made again elsewhere, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.engine.client import Equipment
from fedkeel.engine.description import Description, ModelDescription, digest_of
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.settings import Training
from fedkeel.errors import FedkeelError, InputError, ModelError
from fedkeel.learning.losses import as_loss
from fedkeel.learning.task import Task

TRAINING = Training(steps=3, lr=0.07, dtype="float64")


class Mine(FedAvg):
    """Has the name of a registered algorithm, and is another."""


def equipment(algorithm: Algorithm, task: Task | None = None) -> Equipment:
    made = task or Task(nn.Linear(2, 3), dtype=torch.float64)
    return Equipment(algorithm, made, TRAINING, RandomSchedule(TRAINING, 5), 5, 2.5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_described(name: str) -> None:
    here = equipment(make_algorithm(name))
    there = Description.read(Description.of("run", here).write()).equipment(here.task.train_module)
    assert type(there.algorithm) is type(here.algorithm)
    assert there.algorithm.params == here.algorithm.params
    assert (there.training, there.seed, there.max_update_norm) == (TRAINING, 5, 2.5)
    assert torch.equal(there.task.w0, here.task.w0)


def test_a_model_of_the_zoo_is_made_from_its_name_and_seed() -> None:
    model = ModelDescription(name="2nn", seed=3, input_shape=(1, 4, 4), classes=3)
    here = equipment(FedAvg(), model.task(torch.float64))
    text = Description.of("run", here, model).write()
    assert torch.equal(Description.read(text).equipment().task.w0, here.task.w0)
    other = Description.read(text.replace('"seed":3', '"seed":4'))
    with pytest.raises(ModelError, match="initial weights of 2nn are not those of the run 'run'"):
        other.equipment()


def test_a_site_minimises_the_loss_of_the_run() -> None:
    """Whatever the caller says of the loss, the description names the one that the task has."""
    model = ModelDescription(name="2nn", seed=3, input_shape=(4,), classes=3)
    module = model.task(torch.float64).train_module
    here = equipment(FedAvg(), Task(module, as_loss(nn.MSELoss()), torch.float64))
    text = Description.of("run", here, model).write()
    assert Description.of("run", here, model.model_copy(update={"loss": "huber"})).write() == text
    assert Description.read(text).model.loss == "mse"
    assert Description.read(text).equipment().task.loss.name == here.task.loss.name
    for wrong in ("null", '"huber"'):
        with pytest.raises(ModelError, match="the model, its loss, its version or its seed differs"):
            Description.read(text.replace('"loss":"mse"', f'"loss":{wrong}')).equipment()


def test_a_loss_without_a_name_cannot_be_described_with_a_model_of_the_zoo() -> None:
    model = ModelDescription(name="2nn", seed=3, input_shape=(4,), classes=3)
    module = model.task(torch.float64).train_module
    here = equipment(FedAvg(), Task(module, as_loss(nn.HuberLoss(delta=0.5)), torch.float64))
    with pytest.raises(InputError, match=r"with the loss nn.HuberLoss\(delta=0.5\) cannot be described"):
        Description.of("run", here, model)
    loss = here.task.loss
    assert Description.of("run", here).equipment(module, loss).task.loss == loss


def test_a_module_that_is_another_is_refused() -> None:
    described = Description.of("run", equipment(FedAvg()))
    with pytest.raises(ModelError, match="give its module here"):
        described.equipment()
    for module in (nn.Linear(2, 3), nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 3))):
        with pytest.raises(ModelError, match="are not those of the run"):
            described.equipment(module)


def test_the_digest_is_of_names_shapes_and_values() -> None:
    module = nn.Linear(2, 2)
    digests = {digest_of(Task(module)), digest_of(Task(module, dtype=torch.float64))}
    digests |= {digest_of(Task(nn.Sequential(module)))}
    nn.init.zeros_(module.bias)
    assert len(digests | {digest_of(Task(module))}) == 4


def test_an_own_class_is_named_by_its_module_and_imported_only_if_allowed() -> None:
    here = equipment(Mine())
    described = Description.of("run", here)
    assert described.algorithm == "tests.engine.test_description:Mine"
    with pytest.raises(InputError, match="is code outside fedkeel"):
        described.equipment(here.task.train_module)
    there = described.equipment(here.task.train_module, allow_plugins=True)
    assert type(there.algorithm) is Mine


def test_a_class_that_nobody_else_can_import_cannot_be_described() -> None:
    class Local(FedAvg):
        pass

    with pytest.raises(InputError, match="can be made in this program only"):
        Description.of("run", equipment(Local()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"run": "x"}',
        "null",
        '{"run": 1e999}',
        "[" * 100_000,
        '{"a":' * 5000,
        "\x00",
        " " * (1 << 21),
    ],
)
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(FedkeelError):
        Description.read(text)
