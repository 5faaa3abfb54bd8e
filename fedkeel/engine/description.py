"""A run as it is described to a client elsewhere, so that it makes algorithm, model and settings for itself.

Nothing but names and numbers travel. Weights do not: both sides draw or load them, and compare a digest.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from fedkeel.algorithms.registry import algorithm_class, is_registered
from fedkeel.algorithms.validate import sentence
from fedkeel.engine.client import Equipment
from fedkeel.engine.devices import CPU
from fedkeel.engine.randomness import Purpose, torch_seed
from fedkeel.engine.schedule import RandomSchedule
from fedkeel.engine.settings import Training
from fedkeel.errors import InputError, ModelError
from fedkeel.learning import models
from fedkeel.learning.drawing import keyed
from fedkeel.learning.losses import Loss, LossName, as_loss, cross_entropy, known_as
from fedkeel.learning.metrics import KNOWN, as_metrics
from fedkeel.learning.task import Task

DTYPES = {"float32": torch.float32, "float64": torch.float64}
LONGEST = 1 << 20
"""Bytes of the longest description that is read."""


class ModelDescription(BaseModel):
    """A model of the zoo by name, or one that every site has to bring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(None, description="a model of the zoo; absent: the site gives the module")
    seed: int = Field(0, ge=0, description="of its initial weights")
    input_shape: tuple[int, ...] = Field((), description="shape of a sample")
    classes: int = Field(0, ge=0)
    loss: LossName | None = Field(None, description="what is minimised; absent: the loss of the model's own paper")

    def task(self, dtype: torch.dtype, device: torch.device = CPU) -> Task:
        """The model of that name as a task."""
        assert self.name is not None
        with keyed(torch_seed(self.seed, Purpose.WEIGHTS)):
            module = models.build(self.name, self.input_shape, self.classes)
        return Task(module, as_loss(self.loss) or models.spec(self.name).loss, dtype, device)

    def with_loss(self, loss: Loss) -> ModelDescription:
        """The same with the name of the loss that a run minimises; sites know no others by name."""
        if self.name is None or loss == models.spec(self.name).loss:
            return self.model_copy(update={"loss": None})
        name = known_as(loss)
        if name is None:
            raise InputError(
                f"a run of {self.name} with the loss {loss.name} cannot be described to clients elsewhere, which have "
                "no name for it; describe it without the model, and let every site bring module and loss."
            )
        return self.model_copy(update={"loss": name})


class Description(BaseModel):
    """Everything that a client has to know before its first round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(min_length=1, max_length=200, description="the run's name, under which a site keeps its state")
    algorithm: str = Field(max_length=200, description="a registered name, or module:Class of one's own")
    params: dict[str, Any] = {}
    training: Training
    seed: int = Field(ge=0, lt=1 << 64)
    max_update_norm: float | None = Field(None, gt=0)
    metrics: tuple[str, ...] = Field((), max_length=100, description="those of fedkeel's that are asked of clients")
    model: ModelDescription
    weights: str = Field(description="digest of the initial weights")

    @classmethod
    def of(cls, run: str, equipment: Equipment, model: ModelDescription | None = None) -> Description:
        """How a run is described; without a ``model``, every site has to bring the module."""
        if type(equipment.schedule) is not RandomSchedule:
            raise InputError(
                f"a run with the schedule {type(equipment.schedule).__name__} cannot be described to clients "
                "elsewhere: they draw their minibatches themselves (RandomSchedule)."
            )
        return cls(
            run=run,
            algorithm=name_of(equipment),
            params=equipment.algorithm.params.model_dump(mode="json"),
            training=equipment.training,
            seed=equipment.seed,
            max_update_norm=equipment.max_update_norm,
            metrics=tuple(name for name, metric in equipment.task.metrics.items() if KNOWN.get(name) is metric),
            model=(model or ModelDescription()).with_loss(equipment.task.loss),
            weights=digest_of(equipment.task),
        )

    @classmethod
    def read(cls, text: str | bytes) -> Description:
        """A description that arrived as JSON."""
        if len(text) > LONGEST:
            raise InputError(f"the description of a run has {len(text):,} bytes, more than the {LONGEST:,} allowed.")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise sentence("description", cls, error) from None

    def write(self) -> str:
        """The description as JSON."""
        return self.model_dump_json()

    def equipment(
        self,
        module: nn.Module | None = None,
        loss: Loss | None = None,
        allow_plugins: bool = False,
        device: torch.device = CPU,
    ) -> Equipment:
        """What a client trains with, made here; its initial weights must be those of the server.

        ``module`` and ``loss`` are given where the description names no model. An algorithm that is not one of
        fedkeel's own is imported only with ``allow_plugins``.
        """
        algorithm = algorithm_class(self.algorithm, allow_plugins)(**self.params)
        dtype = DTYPES[self.training.dtype]
        if self.model.name is not None:
            task = self.model.task(dtype, device)
        elif module is not None:
            task = Task(module, loss or cross_entropy, dtype, device)
        else:
            raise ModelError(f"the run {self.run!r} uses a model of its own; give its module here.")
        if digest_of(task) != self.weights:
            raise ModelError(
                f"the initial weights of {self.model.name or type(module).__name__} are not those of the run "
                f"{self.run!r}: the model, its loss, its version or its seed differs between here and the server."
            )
        task.metrics = as_metrics(self.metrics)
        schedule = RandomSchedule(self.training, self.seed)
        return Equipment(algorithm, task, self.training, schedule, self.seed, self.max_update_norm)


def name_of(equipment: Equipment) -> str:
    """What an algorithm is called elsewhere: its registered name, or ``module:Class`` if it is any other class."""
    cls = type(equipment.algorithm)
    if is_registered(equipment.algorithm):
        return str(cls.name)
    if cls.__module__ == "__main__" or "<" in cls.__qualname__ or "." in cls.__qualname__:
        raise InputError(
            f"the algorithm {cls.__qualname__} can be made in this program only; put the class into a module that "
            "the sites can import as module:Class."
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def digest_of(task: Task) -> str:
    """The initial weights and buffers, with their names, shapes, precision and loss, as 32 hexadecimal digits."""
    entries = [[e.name, list(e.shape)] for layout in (task.layout, task.buffer_layout) for e in layout]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([entries, str(task.dtype), task.loss.name, task.loss.l2]).encode())
    for vector in (task.w0, task.b0):
        digest.update(vector.contiguous().numpy().tobytes())
    return digest.hexdigest()
