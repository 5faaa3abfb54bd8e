"""A task: a model and its loss as functions of flat vectors.

Everything that trains or is evaluated goes through here. Vectors carry a leading client axis K: parameters ``y`` are
[K, d], buffers ``b`` [K, m] (BatchNorm statistics and counters, kept apart from the parameters), batches [K, B, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkeel.errors import ModelError, invalid, shown
from fedkeel.learning.admission import check_module
from fedkeel.learning.calibration import Calibration
from fedkeel.learning.copies import copied
from fedkeel.learning.drawing import draws_nothing, held_by, keyed_if
from fedkeel.learning.kernels.bound import BoundModule
from fedkeel.learning.kernels.chain import Chain
from fedkeel.learning.kernels.dense import recognise
from fedkeel.learning.layout import Layout
from fedkeel.learning.losses import Loss, cross_entropy
from fedkeel.learning.metrics import Metric
from fedkeel.learning.staged import Staged
from fedkeel.learning.trial import same_draws


@dataclass(frozen=True)
class Batch:
    """The same step of K clients: inputs [K, B, ...] and targets [K, B, ...].

    Where clients have unequal batches, ``weight`` [K, B] holds 1/n for a client's n samples and 0 for padding, and
    ``active`` [K] says who takes this step at all; both are None when every row is full. ``hot`` are the targets as
    ``dense.minus_one_hot`` has them, where somebody asked for that.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    active: Tensor | None = None
    hot: Tensor | None = None

    def of(self, i: int) -> Batch:
        """Client i's alone, without the client axis."""
        return Batch(self.x[i], self.y[i], None if self.weight is None else self.weight[i])

    def repeated(self, times: int) -> Batch:
        """All clients' batches several times over [times·K, ...], for gradients at several points in one go."""
        parts = (self.x, self.y, self.weight, self.active, self.hot)
        return Batch(*(None if part is None else again(part, times) for part in parts))  # type: ignore[arg-type]


def again(part: Tensor, times: int) -> Tensor:
    """K clients' tensors [K, ...] several times over [times·K, ...]; one client's are not copied."""
    K, *sizes = part.shape
    return part.expand(times, *sizes) if K == 1 else part.repeat(times, *[1] * len(sizes))


class Batches(Sequence[Batch]):
    """The minibatches of a round. Asked for by number, a batch has memory of its own and may be kept."""

    def stream(self, classes: int | None = None) -> Iterator[Batch]:
        """Every batch once, in order; what one holds is overwritten when the next comes, which spares new memory.

        A dense network says of how many ``classes`` it is: it may be given the inputs as vectors [K, B, features] and
        the targets as ``hot`` [K, classes, B] as well, made for many steps at once.
        """
        return iter(self)

    @property
    def positions(self) -> Sequence[Tensor] | None:
        """Where each step's samples lie among all of the client's, if these are one client's and as they are there."""
        return None

    def __iter__(self) -> Iterator[Batch]:
        return (self[k] for k in range(len(self)))


def stream(batches: Iterable[Batch], classes: int | None = None) -> Iterator[Batch]:
    """``Batches.stream`` of those that have it."""
    return batches.stream(classes) if isinstance(batches, Batches) else iter(batches)


def positions(batches: Iterable[Batch]) -> Sequence[Tensor] | None:
    """``Batches.positions`` of those that have it."""
    return batches.positions if isinstance(batches, Batches) else None


class Net:
    """One client's model: a function of a flat vector [d], with buffers [m] that training mode may advance."""

    def __init__(self, task: Task, buffers: Tensor, train: bool) -> None:
        self._task = task
        self._module = task.train_module if train else task._eval_module
        # Copies, not views: views share one version counter, and autograd would refuse what BatchNorm writes into one.
        self._buffers = {name: part.clone() for name, part in task.buffer_layout.unflatten(buffers).items()}

    def forward(self, vector: Tensor, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """The output for inputs x [B, ...]; ``start`` and ``stop`` run some stages only (staged models)."""
        named: dict[str, Tensor] = self._task.layout.unflatten(vector)
        named.update(self._typed_buffers())
        if start == 0 and stop is None:
            outputs: Tensor = functional_call(self._module, named, (self._task.handed(x),))
        else:
            self._task.require_stages()
            outputs = functional_call(self._module, named, (self._task.handed(x),), {"start": start, "stop": stop})
        for name in self._buffers:  # which a module may have changed in place or replaced
            self._buffers[name] = named[name].detach().to(self._task.dtype)
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
            typed[name] = self._buffers[name].to(self._task.buffer_layout.dtypes[name])
        return typed


Objective = Callable[[Net, Tensor, Batch, dict[str, Tensor]], Tensor]
"""``objective(net, y [d], one client's batch, extras) → scalar``: what a client minimises, if not the plain loss."""


@dataclass(frozen=True)
class Score:
    """A model on a set of samples."""

    accuracy: float
    """The share of right answers; NaN where the loss knows no right ones."""
    loss: float
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)
    """What was asked for beside them, by name."""
    sums: dict[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """What ``metrics`` are made of; those of parts add up."""


@dataclass(frozen=True)
class Marks:
    """A model on part of a set of samples: right answers, and the sum of the losses."""

    hits: float
    loss: float
    samples: int
    sums: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Of the metrics that were asked for."""


Seeds = Callable[[int], int]
"""From the number of a part of some samples to the seed of what a model draws there."""

SAMPLES_AT_ONCE = 1250
IMAGES_AT_ONCE = 500
SAMPLES_OF_A_PASS = 2048
IMAGES_OF_A_PASS = 128
"""With more of them, what convolutions give does not stay in the cache until the way back (docs/benchmarks.md)."""
"""How many samples are evaluated at a time; what convolutions make of an image is large, and should stay in cache."""


class Task:
    """A module and a loss, seen as functions of flat vectors.

    The module's own weights are only its initial value ``w0``; it is never trained in place.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise invalid("dtype", "float32 or float64", str(dtype))
        check_module(module, dtype)
        self.given: nn.Module | None = module
        """The module as it came, until ``verification`` has seen that the copies have nothing to do with it."""
        module = copied(module).to("cpu", dtype)
        self.loss = loss
        self.dtype = dtype
        self.device = torch.device(device)
        """Where gradients and outputs are computed; w0 and b0 lie in main memory."""
        self.layout = Layout.of_parameters(module)
        self.buffer_layout = Layout.of_buffers(module)
        self.integer_buffers = [e.name for e in self.buffer_layout if not e.dtype.is_floating_point]
        self.w0 = self.layout.flatten(dict(module.named_parameters()), dtype)
        self.b0 = self.buffer_layout.flatten(dict(module.named_buffers()), dtype)
        module.to(self.device)
        self.train_module = module.train()
        """The copy that computes in training mode; parameters and buffers are put into it."""
        self._eval_module = copied(module).eval()
        self.bound = BoundModule(module, self.layout, self.buffer_layout, dtype)
        self.dense = recognise(module, self.layout, loss)
        self.by_hand = self.chain is not None
        """Whether derivatives by inputs and inside the model go through its layers by hand."""
        self.kernels_tried = False
        """Whether ``kernels.trial`` has seen what is computed by hand."""
        self.convolutional = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self.channels_last = self.convolutional
        """Whether images are to be laid out as convolutions like them."""
        self._scores: int | None = None if self.dense is None else self.dense.classes
        self.notices: list[str] = []
        """What ``verification`` found that a person should know."""
        self.metrics: dict[str, Metric] = {}
        """What is measured beside accuracy and loss, by name."""
        self.writes_inputs = False
        """Whether the model writes into what it is given, and must have a copy."""
        self.not_functional = ""
        """Why the model cannot be called as a function of its parameters, if it cannot."""
        self.draws_nothing = draws_nothing(module, loss)
        """Whether the model is known to draw no random numbers; of one with code of its own, nobody knows."""
        self.plainly = False
        """Whether the fast ways were left for good."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process the task is made anew of its module, with what was found out about it here.

        Pickled part by part, the memory that its parts share would come apart without a word.
        """
        found = {name: getattr(self, name) for name in _FOUND_OUT}
        return _made_anew, (self.train_module, self.loss, self.dtype, self.device, self.plainly, found)

    @property
    def generators(self) -> list[Any]:
        """Those that parts of the model keep as their own."""
        copies = (self.train_module, self._eval_module, self.bound.module)
        return held_by(part for module in copies for part in module.modules())

    @property
    def d(self) -> int:
        """The number of trainable parameters."""
        return self.layout.d

    @property
    def chain(self) -> Chain | None:
        """The layers one behind the other, where all of them are known, and the samples are images or vectors."""
        links = self.bound.links
        return links if links is not None and (links.convolves or self.dense is not None) else None

    @cached_property
    def frozen(self) -> BoundModule:
        """A second copy of the model, for parameters that stand beside a client's own."""
        return BoundModule(self.train_module, self.layout, self.buffer_layout, self.dtype)

    def seen_by_chain(self, x: Tensor) -> Tensor:
        """Inputs [B, ...] as ``chain`` takes them: a dense network may expect vectors."""
        return x.flatten(1) if self.dense is not None else x

    @property
    def levels(self) -> int:
        """Where a staged model can be cut (number of stages − 1)."""
        return self.require_stages().levels

    def require_stages(self) -> Staged:
        """The model as a staged one, or an error that says how to make it so."""
        if not isinstance(self.train_module, Staged):
            raise ModelError(
                f"this algorithm needs a model cut into stages, got {type(self.train_module).__name__}; "
                "build it as fedkeel.Staged({'body': ..., 'head': ...})."
            )
        return self.train_module

    def net(self, buffers: Tensor, train: bool) -> Net:
        """One client's model with buffers [m]; its forward passes in training mode advance a copy of them."""
        if self.not_functional:
            raise ModelError(self.not_functional)
        return Net(self, buffers, train)

    def handed(self, x: Tensor) -> Tensor:
        """Inputs as a model may have them: a copy for those that write into them."""
        return x.clone() if self.writes_inputs else x

    @torch.no_grad()
    def plain_outputs(self, x: Tensor) -> object:
        """What the module itself gives for inputs x [B, ...] in evaluation mode: a tensor, if it is a sound model."""
        with same_draws(self.draws_nothing, self.device):
            return self.module_at(self.w0, self.b0).to(self.device)(x.clone())

    def scores_of(self, x: Tensor) -> int:
        """How many scores the model gives for a sample of x [n, ...]; found once."""
        if self._scores is None:
            outputs = self.plain_outputs(x[:1])
            assert isinstance(outputs, Tensor)  # as ``fitting`` has seen
            self._scores = outputs.shape[1]
        return self._scores

    def gradient(
        self,
        y: Tensor,
        b: Tensor,
        batch: Batch,
        objective: Objective | None = None,
        extras: dict[str, Tensor] | None = None,
        train: bool = True,
        out: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [K, d], loss [K] and advanced buffers [K, m] of K clients on a batch each.

        ``objective`` replaces the plain loss; ``extras`` ([K, ...] each) are handed to it client by client. ``out``
        [K, d] may be overwritten to hold the gradient. ``calibration`` changes the scores of the plain cross-entropy.
        """
        if calibration is not None and (objective is not None or self.loss is not cross_entropy):
            raise ValueError("scores are calibrated in the plain cross-entropy and nowhere else")
        if objective is None and self.dense is not None:
            return *self.dense.gradient(y, batch.x, batch.y, batch.weight, out, calibration), b
        gradient = torch.empty_like(y) if out is None else out
        losses, buffers = [], []
        for i in range(len(y)):
            one = batch.of(i)
            if objective is None:
                own_scores = None if calibration is None else calibration.of(i)
                value, after = self._gradient_of_loss(y[i], b[i], one, train, gradient[i], own_scores)
            else:
                own = {name: rows[i] for name, rows in (extras or {}).items()}
                value, after = self._gradient_of(objective, y[i], b[i], one, own, train, gradient[i])
            losses.append(value)
            buffers.append(after)
        return gradient, _stack(losses), _stack(buffers)

    def _gradient_of_loss(
        self, y: Tensor, b: Tensor, one: Batch, train: bool, out: Tensor, calibration: Calibration | None
    ) -> tuple[Tensor, Tensor]:
        """The plain loss's gradient at one client, written to ``out`` [d]."""

        def loss(outputs: Tensor) -> Tensor:
            return self.mean_loss(outputs if calibration is None else calibration.scores(outputs), one)

        value, after = self.bound.gradient(y, b, self.handed(one.x), loss, train, out)
        if self.loss.l2:
            out.add_(y, alpha=self._l2_share(one))
            value = value + 0.5 * self._l2_share(one) * y.square().sum()
        return value, after

    def _gradient_of(
        self,
        objective: Objective,
        y: Tensor,
        b: Tensor,
        one: Batch,
        extras: dict[str, Tensor],
        train: bool,
        out: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """An objective's gradient at one client, written to ``out`` [d]."""
        point = y.detach().requires_grad_()
        net = self.net(b, train)
        with torch.enable_grad():
            value = objective(net, point, one, extras)
            (gradient,) = torch.autograd.grad(value, point)
        out.copy_(gradient)
        return value.detach(), net.buffers() if len(self.buffer_layout) else b

    def objective(self, net: Net, vector: Tensor, batch: Batch, extras: dict[str, Tensor]) -> Tensor:
        """The plain loss of one client: mean over its batch, and the model's own λ/2·‖w‖² where it has one."""
        value = self.mean_loss(net.forward(vector, batch.x), batch)
        return value + 0.5 * self._l2_share(batch) * vector.square().sum() if self.loss.l2 else value

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Of one client's batch, without λ/2·‖w‖²."""
        losses = self.loss.per_sample(outputs, batch.y)
        return losses.mean() if batch.weight is None else (losses * batch.weight).sum()

    def use_plain_autograd(self) -> None:
        """Leave the fast ways for good."""
        self.dense, self.channels_last, self.by_hand, self.plainly = None, False, False, True
        self.bound = BoundModule(self.train_module, self.layout, self.buffer_layout, self.dtype, plainly=True)

    def _l2_share(self, batch: Batch) -> float:
        """λ; of a batch that is only part of a full pass its share, so that the parts add up."""
        return self.loss.l2 * (1.0 if batch.weight is None else float(batch.weight.sum()))

    def evaluate(self, w: Tensor, b: Tensor, x: Tensor, y: Tensor, seeds: Seeds | None = None) -> Score:
        """Accuracy and mean loss of the model (w [d], b [m]) on samples x [n, ...], y [n], in evaluation mode.

        ``seeds`` names by the number of a part the seed of what the model draws there; without it, that is anything.
        """
        parts = self.sheets(len(x))
        marks = zip(parts, self.seeds_of(parts, seeds), strict=True)
        return self.score(w, [self.mark(w, b, x[part], y[part], seed) for part, seed in marks])

    @property
    def samples_of_a_pass(self) -> int:
        """How many samples of a pass over all of them are computed at once."""
        return IMAGES_OF_A_PASS if self.convolutional and self.device.type == "cpu" else SAMPLES_OF_A_PASS

    @torch.no_grad()
    def losses(self, y: Tensor, b: Tensor, batch: Batch) -> Tensor:
        """The plain losses [K] of K clients on a batch each, at parameters y [K, d], in evaluation mode.

        They are those that ``gradient`` gives with ``train = False``, up to rounding, at a third of its price.
        """
        if self.dense is not None:
            return self.dense.losses(y, batch.x, batch.y, batch.weight)
        found = []
        for i in range(len(y)):
            one = batch.of(i)
            value = self.mean_loss(self.outputs(y[i], b[i], one.x), one)
            found.append(value + 0.5 * self._l2_share(one) * y[i].square().sum() if self.loss.l2 else value)
        return _stack(found)

    @torch.no_grad()
    def answers(self, w: Tensor, b: Tensor, x: Tensor, seeds: Seeds | None = None) -> Tensor:
        """What the model (w [d], b [m]) answers to samples x [n, ...], computed as ``evaluate`` does it [n, ...]."""
        w, b = w.to(self.device), b.to(self.device)
        found, parts = [], self.sheets(len(x))
        for part, seed in zip(parts, self.seeds_of(parts, seeds), strict=True):
            with keyed_if(seed, self.device, [] if seed is None else self.generators):
                found.append(self.outputs(w, b, x[part]).cpu())
        return torch.cat(found)

    def seeds_of(self, parts: Sequence[slice], seeds: Seeds | None) -> list[int | None]:
        """A seed for each part, where the model may draw."""
        return [None if seeds is None or self.draws_nothing else seeds(number) for number in range(len(parts))]

    def sheets(self, samples: int) -> list[slice]:
        """The parts in which samples are evaluated. They are always the same, so that it does not matter by whom."""
        size = IMAGES_AT_ONCE if self.convolutional else SAMPLES_AT_ONCE
        return [slice(start, start + size) for start in range(0, samples, size)]

    @torch.no_grad()
    def mark(self, w: Tensor, b: Tensor, x: Tensor, y: Tensor, seed: int | None = None) -> Marks:
        """The model on one part of the samples; what it draws follows from the seed, if there is one."""
        w, b = w.to(self.device), b.to(self.device)
        with keyed_if(seed, self.device, [] if seed is None else self.generators):
            outputs = self.outputs(w, b, x)
            # Truth values or shares; where no answer is right or wrong, there is no accuracy.
            right = self.loss.correct
            hits = math.nan if right is None else float(right(outputs, y).cpu().sum(dtype=torch.float64))
            sums = {name: tuple(metric.sums(outputs, y).tolist()) for name, metric in self.metrics.items()}
            # Summed in main memory, since not every accelerator has double precision.
            return Marks(hits, float(self.loss.per_sample(outputs, y).cpu().sum(dtype=torch.float64)), len(y), sums)

    def outputs(self, w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        """What the model (w [d], b [m]) answers to x [B, ...] in evaluation mode, computed the fast way."""
        return self.bound.outputs(w, b, self.handed(x)) if self.dense is None else self.dense.logits(w, x)

    def score(self, w: Tensor, marks: Sequence[Marks]) -> Score:
        """The parts' marks, in the order of the parts, as one score."""
        n = sum(part.samples for part in marks)
        loss = sum(part.loss for part in marks) / n + 0.5 * self.loss.l2 * float(w.double().square().sum())
        return Score(sum(part.hits for part in marks) / n, loss, n, *self.metrics_of([part.sums for part in marks]))

    def metrics_of(
        self, parts: Sequence[dict[str, tuple[float, ...]]]
    ) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
        """The metrics of all samples from the sums over parts of them, and the sums over all.

        Parts that somebody elsewhere computed may lack metrics; then the whole does. Whether samples can have their
        sums was looked at when they arrived.
        """
        sums = {
            name: tuple(sum(column, 0.0) for column in zip(*(part[name] for part in parts), strict=True))
            for name in self.metrics
            if all(name in part for part in parts)
        }
        return {name: self._metric(name, found) for name, found in sums.items()}, sums

    def _metric(self, name: str, sums: tuple[float, ...]) -> float:
        try:
            return self.metrics[name].value(sums)
        except (ArithmeticError, ValueError) as error:  # a root of what is negative, a mean over none
            raise ModelError(f"the metric {name} has no value for the sums {shown(sums)}: {error}.") from None

    @torch.no_grad()
    def state_dict(self, w: Tensor, b: Tensor) -> dict[str, Tensor]:
        """The model as ``torch.nn.Module.load_state_dict`` takes it: every name with memory of its own."""
        state = self.module_at(w, b).state_dict()
        for name, value in state.items():
            state[name] = value.detach().clone() if isinstance(value, Tensor) else value
        return state

    @torch.no_grad()
    def module_at(self, w: Tensor, b: Tensor) -> nn.Module:
        """A copy of the module with these parameters [d] and buffers [m], in main memory and evaluation mode."""
        module = copied(self._eval_module).to("cpu")
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for name, part in self.layout.unflatten(w).items():
            parameters[name].copy_(part)
        for name, part in self.buffer_layout.unflatten(b).items():
            buffers[name].copy_(part.round() if name in self.integer_buffers else part)
        return module


_FOUND_OUT = ("kernels_tried", "notices", "metrics", "writes_inputs", "not_functional", "draws_nothing")
"""What others find out about a task, or ask of it, once it is made."""


def _made_anew(
    module: nn.Module,
    loss: Loss,
    dtype: torch.dtype,
    device: torch.device,
    plainly: bool,
    found: dict[str, Any],
) -> Task:
    task = Task(module, loss, dtype, device)
    if plainly:
        task.use_plain_autograd()
    for name, value in found.items():
        setattr(task, name, value)
    task.given = None
    return task


def _stack(rows: list[Tensor]) -> Tensor:
    """[K, ...] of K tensors; for one client a view, so that the reference path copies nothing."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
