"""A task: a model and its loss as functions of flat vectors.

Everything that trains or is evaluated goes through here. Vectors carry a leading client axis K: parameters ``y`` are
[K, d], buffers ``b`` [K, m] (BatchNorm statistics and counters, kept apart from the parameters), batches [K, B, ...].
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkeel.errors import ModelError, invalid
from fedkeel.learning.dense import recognise
from fedkeel.learning.layout import Layout
from fedkeel.learning.losses import Loss, cross_entropy
from fedkeel.learning.staged import Staged


@dataclass(frozen=True)
class Batch:
    """The same step of K clients: inputs [K, B, ...] and targets [K, B].

    Where clients have unequal batches, ``weight`` [K, B] holds 1/n for a client's n samples and 0 for padding, and
    ``active`` [K] says who takes this step at all; both are None when every row is full.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    active: Tensor | None = None


class Net:
    """One client's model: a function of a flat vector [d], with buffers [m] that training mode may advance."""

    def __init__(self, task: Task, buffers: Tensor, train: bool) -> None:
        self._task = task
        self._module = task._train_module if train else task._eval_module
        parts = task.buffer_layout.unflatten(buffers)
        # Copies, not views: views share one version counter, and autograd would refuse what BatchNorm writes into one.
        self._buffers = {name: part.clone() for name, part in parts.items()} if train else parts

    def forward(self, vector: Tensor, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """The output for inputs x [B, ...]; ``start`` and ``stop`` run some stages only (staged models)."""
        named: dict[str, Tensor] = self._task.layout.unflatten(vector)
        named.update(self._typed_buffers())
        if start == 0 and stop is None:
            outputs: Tensor = functional_call(self._module, named, (x,))
        else:
            self._task.require_stages()
            outputs = functional_call(self._module, named, (x,), {"start": start, "stop": stop})
        for name in self._task.integer_buffers:
            self._buffers[name] = named[name].to(self._task.dtype)
        return outputs

    def features(self, vector: Tensor, x: Tensor) -> Tensor:
        """The output of everything before the last stage (MOON's projection) [B, f]."""
        return self.forward(vector, x, 0, self._task.levels)

    def buffers(self) -> Tensor:
        """The buffers [m] after the forward passes so far."""
        return self._task.buffer_layout.flatten(self._buffers, self._task.dtype)

    def _typed_buffers(self) -> dict[str, Tensor]:
        typed = dict(self._buffers)
        for name in self._task.integer_buffers:
            typed[name] = self._buffers[name].to(torch.long)
        return typed


Objective = Callable[[Net, Tensor, Batch, dict[str, Tensor]], Tensor]
"""``objective(net, y [d], one client's batch, extras) → scalar``: what a client minimises, if not the plain loss."""


@dataclass(frozen=True)
class Score:
    """A model on a set of samples."""

    accuracy: float
    loss: float
    samples: int


class Task:
    """A module and a loss, seen as functions of flat vectors.

    The module's own weights are only its initial value ``w0``; it is never trained in place.
    """

    def __init__(self, module: nn.Module, loss: Loss = cross_entropy, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise invalid("dtype", "float32 or float64", str(dtype))
        module = copy.deepcopy(module).to(dtype)
        self.loss = loss
        self.dtype = dtype
        self.layout = Layout.of_parameters(module)
        self.buffer_layout = Layout.of_buffers(module)
        self.integer_buffers = [e.name for e in self.buffer_layout if not e.dtype.is_floating_point]
        if self.layout.d == 0:
            raise ModelError(f"the model {type(module).__name__} has no trainable parameter; check requires_grad.")
        self.w0 = self.layout.flatten(dict(module.named_parameters()), dtype)
        self.b0 = self.buffer_layout.flatten(dict(module.named_buffers()), dtype)
        self._train_module = module.train()
        self._eval_module = copy.deepcopy(module).eval()
        self.dense = recognise(module, self.layout, loss)
        self.stochastic = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in module.modules())

    @property
    def d(self) -> int:
        """The number of trainable parameters."""
        return self.layout.d

    @property
    def levels(self) -> int:
        """Where a staged model can be cut (number of stages − 1)."""
        return self.require_stages().levels

    def require_stages(self) -> Staged:
        """The model as a staged one, or an error that says how to make it so."""
        if not isinstance(self._train_module, Staged):
            raise ModelError(
                f"this algorithm needs a model cut into stages, got {type(self._train_module).__name__}; "
                "build it as fedkeel.Staged({'body': ..., 'head': ...})."
            )
        return self._train_module

    def net(self, buffers: Tensor, train: bool) -> Net:
        """One client's model with buffers [m]; its forward passes in training mode advance a copy of them."""
        return Net(self, buffers, train)

    def gradient(
        self,
        y: Tensor,
        b: Tensor,
        batch: Batch,
        objective: Objective | None = None,
        extras: dict[str, Tensor] | None = None,
        train: bool = True,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [K, d], loss [K] and advanced buffers [K, m] of K clients on a batch each.

        ``objective`` replaces the plain loss; ``extras`` ([K, ...] each) are handed to it client by client. ``out``
        [K, d] may be overwritten to hold the gradient.
        """
        if objective is None and self.dense is not None:
            return *self.dense.gradient(y, batch.x, batch.y, batch.weight, out), b
        gradients, losses, buffers = [], [], []
        for i in range(len(y)):
            g, value, after = self._gradient_of_one(y[i], b[i], batch, i, objective, extras, train)
            gradients.append(g)
            losses.append(value)
            buffers.append(after)
        return _stack(gradients), _stack(losses), _stack(buffers)

    def _gradient_of_one(
        self,
        y: Tensor,
        b: Tensor,
        batch: Batch,
        i: int,
        objective: Objective | None,
        extras: dict[str, Tensor] | None,
        train: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        point = y.detach().requires_grad_()
        one = Batch(batch.x[i], batch.y[i], None if batch.weight is None else batch.weight[i])
        net = self.net(b, train)
        with torch.enable_grad():
            if objective is None:
                value = self.objective(net, point, one, {})
            else:
                value = objective(net, point, one, {name: rows[i] for name, rows in (extras or {}).items()})
            (gradient,) = torch.autograd.grad(value, point)
        return gradient, value.detach(), net.buffers() if len(self.buffer_layout) else b

    def objective(self, net: Net, vector: Tensor, batch: Batch, extras: dict[str, Tensor]) -> Tensor:
        """The plain loss of one client: mean over its batch, and the model's own λ/2·‖w‖² where it has one."""
        losses = self.loss.per_sample(net.forward(vector, batch.x), batch.y)
        value = losses.mean() if batch.weight is None else (losses * batch.weight).sum()
        if self.loss.l2:
            # A batch that is only part of a full pass carries its share of the penalty, so that the parts add up.
            share = 1.0 if batch.weight is None else batch.weight.sum()
            value = value + share * 0.5 * self.loss.l2 * vector.square().sum()
        return value

    @torch.no_grad()
    def evaluate(self, w: Tensor, b: Tensor, x: Tensor, y: Tensor, batch_size: int = 2048) -> Score:
        """Accuracy and mean loss of the model (w [d], b [m]) on samples x [n, ...], y [n], in evaluation mode."""
        net = self.net(b, train=False)
        hits, total = 0, 0.0
        for start in range(0, len(x), batch_size):
            targets = y[start : start + batch_size]
            outputs = net.forward(w, x[start : start + batch_size])
            hits += int(self.loss.correct(outputs, targets).sum())
            total += float(self.loss.per_sample(outputs, targets).sum(dtype=torch.float64))
        loss = total / len(x) + 0.5 * self.loss.l2 * float(w.double().square().sum())
        return Score(hits / len(x), loss, len(x))

    def state_dict(self, w: Tensor, b: Tensor) -> dict[str, Tensor]:
        """The model as ``torch.nn.Module.load_state_dict`` takes it."""
        named = {name: part.clone() for name, part in self.layout.unflatten(w).items()}
        for entry in self.buffer_layout:
            part = b[entry.start : entry.stop].view(entry.shape)
            named[entry.name] = part.round().to(entry.dtype) if entry.name in self.integer_buffers else part.clone()
        return {name: named.get(name, tensor) for name, tensor in self._train_module.state_dict().items()}


def _stack(rows: list[Tensor]) -> Tensor:
    """[K, ...] of K tensors; for one client a view, so that the reference path copies nothing."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
