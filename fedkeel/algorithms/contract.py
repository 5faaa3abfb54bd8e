"""What an algorithm is: pure functions over explicit state.

A round runs through them in this order; everything an algorithm remembers stands in ``State`` values that it returns:

    server_init(problem)               → server state, holds w [d]
    client_init(problem)               → one client's state (named vectors)
    broadcast(server, round, clients)  → message down
    local_steps(down, clients)         → steps of each client, where the algorithm decides them
    local_round(local)                 → message up [K, ...], client states' [K, ...], what training gave
    aggregate(server, uploads, round)  → server state'
    candidates(server)                 → models to evaluate
    observe(server, metrics)           → server state', only where a paper feeds results back

Values of a round that a run should keep by name go with the state: ``return server.replace(w=…).noting(tau=…)``.
``advanced`` has what single methods need beyond that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from pydantic.fields import FieldInfo
from torch import Tensor

from fedkeel.algorithms.advanced import AdvancedHooks, AdvancedServices
from fedkeel.algorithms.state import Message as Message
from fedkeel.algorithms.state import PerClient, State
from fedkeel.algorithms.validate import Settings, checked
from fedkeel.errors import FedkeelError, InputError
from fedkeel.learning.correction import Correction
from fedkeel.learning.layout import Layout
from fedkeel.learning.loop import Sgd
from fedkeel.learning.loop import Trained as Trained
from fedkeel.learning.pace import Pace
from fedkeel.learning.rule import Gradient, Rule
from fedkeel.learning.task import Batch, Task

Mode = Literal["default", "literal", "code"]
"""The repaired reading of a paper, its print word for word, or its authors' program with its quirks."""


class AlgorithmParams(Settings):
    """Hyper-parameters named by the paper's symbols. ``mode`` presets fields that are not given explicitly."""

    modes: ClassVar[dict[str, dict[str, Any]]] = {}

    mode: Mode = "default"

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        mode = given.get("mode") if isinstance(given, dict) else None
        return cls.modes.get(mode, {}) | given if isinstance(mode, str) else given

    @classmethod
    def listed(cls) -> dict[str, FieldInfo]:
        """The fields to show to people: the method's own first, then those that ask for another reading."""
        shown = {name: info for name, info in cls.model_fields.items() if name != "mode"}
        return dict(sorted(shown.items(), key=lambda item: item[0] in cls._readings()))

    @property
    def reads_otherwise(self) -> bool:
        """Whether another reading of the paper than the default one is asked for."""
        fields = type(self).model_fields
        return any(getattr(self, name) != fields[name].default for name in self._readings())

    @classmethod
    def _readings(cls) -> list[str]:
        return [name for name, info in cls.model_fields.items() if info.json_schema_extra == _READING]


_READING: dict[str, Any] = {"reading": True}


def reading(default: Any, description: str) -> Any:
    """A field that asks for another reading of a paper than its default one: its print, its program, part of it."""
    return Field(default, description=description, json_schema_extra=_READING)


@dataclass(frozen=True)
class Paper:
    """Where an algorithm comes from."""

    title: str
    authors: str
    venue: str
    year: int


@dataclass(frozen=True)
class Law:
    """An identity that an algorithm claims: with ``mine`` it equals algorithm ``other`` with ``theirs``.

    ``needs`` names what the identity rests on: ``full`` participation, ``equal_sizes``, ``equal_steps``, ….
    """

    statement: str
    mine: dict[str, Any]
    other: str
    theirs: dict[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Clients:
    """K clients of a round, in the order in which everything about them is stacked."""

    ids: tuple[int, ...]
    sizes: Tensor
    """Samples n_i of each [K]."""
    N: int
    """All registered clients."""
    n: int
    """All samples of all clients."""
    S: int
    """The size of this round's whole cohort."""
    cohort_n: int
    """The samples of this round's whole cohort."""
    dtype: torch.dtype

    @cached_property
    def omega(self) -> Tensor:
        """ω_i = N·n_i/n, the data weight with mean one over all clients [K, 1]."""
        return (self.sizes.to(self.dtype) * (self.N / self.n)).unsqueeze(1)

    @cached_property
    def p(self) -> Tensor:
        """p_i^S = n_i/Σ_S n_j, the data weight inside the cohort [K]."""
        return self.sizes.to(self.dtype) / self.cohort_n

    @cached_property
    def uniform(self) -> Tensor:
        """1/S for every client [K]."""
        return torch.full((len(self.ids),), 1 / self.S, dtype=self.dtype)

    def weights(self, rule: str) -> Tensor:
        """``n``: by data, ``uniform``: equal; both sum to one over the cohort [K]."""
        return self.p if rule == "n" else self.uniform

    def __getitem__(self, rows: slice) -> Clients:
        return Clients(self.ids[rows], self.sizes[rows], self.N, self.n, self.S, self.cohort_n, self.dtype)

    def take(self, rows: list[int]) -> Clients:
        """Some of the clients, still of the same cohort."""
        return replace(self, ids=tuple(self.ids[row] for row in rows), sizes=self.sizes[rows])

    def as_cohort(self) -> Clients:
        """The same clients as a whole cohort: S, cohort_n and with them all weights are theirs alone."""
        return replace(self, S=len(self.ids), cohort_n=int(self.sizes.sum()))

    def as_equals(self) -> Clients:
        """The same clients as if each had one sample: no weight depends on how many they say that they have."""
        return replace(self, sizes=torch.ones_like(self.sizes), n=self.N, cohort_n=self.S)


@dataclass(frozen=True)
class Round:
    """The round being run."""

    t: int
    """Counts from 0."""
    lr: float
    """η_t, the client learning rate of this round."""
    lr0: float
    """η before any decay."""


@dataclass(frozen=True)
class Problem:
    """What the algorithm is told before the first round."""

    w0: Tensor
    """Initial parameters [d]."""
    layout: Layout
    sizes: Tensor
    """Samples of every client [N]: the server knows them, a client does not (``local.clients`` has its own)."""
    common_steps: int
    """Local steps of a client of average size; FedDyn's program gives every client this many."""
    b0: Tensor = field(default_factory=lambda: torch.empty(0))
    """Initial buffers [m], for algorithms whose clients remember whole models."""

    @property
    def N(self) -> int:
        return len(self.sizes)

    def zeros(self) -> Tensor:
        """A vector of d zeros."""
        return torch.zeros_like(self.w0)


@dataclass(frozen=True)
class Uploads:
    """What the server holds when the cohort is done."""

    message: Message
    """The uploads, stacked in client order: every value [S, ...]."""
    clients: Clients
    steps: Tensor
    """Local steps K_i that each client took [S]."""
    reach: Callable[[], Tensor]
    """Computes ``travel``."""
    losses_at: Callable[[Tensor], Tensor]
    """Asks the cohort for its losses at a model [d]: F_i over all of each client's samples [S] (one more exchange)."""

    @cached_property
    def travel(self) -> Tensor:
        """η_t·‖a_i‖₁ of each client [S, 1]: the step sizes behind y_i − w, momentum included (η_t·K_i without)."""
        return self.reach()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


@dataclass(frozen=True)
class Local(AdvancedServices):
    """What K clients see during a round, and the services they may call."""

    task: Task
    problem: Problem
    round: Round
    clients: Clients
    client: State
    """Their remembered vectors [K, ...]."""
    message: Message
    steps: Tensor
    """Local steps K_i [K]."""
    steps_per_epoch: Tensor
    """Batches in one pass over each client's data [K]."""
    sgd: Sgd
    b: Tensor
    """Buffers to start from [K, m]."""
    make_batches: Callable[[], Sequence[Batch]]
    full_batches: Callable[[], Sequence[Batch]]
    """All data of every client once, in large batches, for full gradients."""
    make_pseudo_batches: Callable[[], Sequence[Batch]]

    @cached_property
    def down(self) -> State:
        """The message as these clients read it: shared values as sent, their own rows of per-client ones [K, ...]."""
        return State(**{k: v.rows if isinstance(v, PerClient) else v for k, v in self.message.items()})

    @cached_property
    def w(self) -> Tensor:
        """The received global model, one row a client [K, d]."""
        w: Tensor = self.down.w
        return w.expand(len(self.clients.ids), -1)

    @cached_property
    def travel(self) -> Tensor:
        """η_t·‖a_i‖₁ [K, 1], see ``Uploads.travel``."""
        if self.sgd.adam is not None:
            raise no_travel("adam")
        return travel(self.round.lr, self.steps, self.sgd.momentum, self.w.dtype, self.pace)

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """The minibatches of the steps, one after the other."""
        return self.make_batches()

    def train(
        self, correction: Correction | None = None, *, gradient: Gradient | None = None, start: Tensor | None = None
    ) -> Trained:
        """Run the shared loop: what it gives holds the trained parameters y [K, d].

        ``correction`` is added to every gradient; ``gradient`` takes the plain one's place; ``start`` [K, d] is the
        global model unless given. ``train_by`` can do more.
        """
        return self.train_by(Rule(gradient=gradient, correction=correction), start)

    def full_gradient(self, at: Tensor) -> Tensor:
        """∇F_i at parameters [K, d], over all of each client's samples, in evaluation mode [K, d]."""
        gradient = torch.zeros_like(at)
        for batch in self.full_batches():
            gradient += self.task.gradient(at, self.b, batch, train=False)[0]
        return gradient


Answer = tuple[Message, State, Trained]
"""Of K clients: uploads, new states, and what training gave, from which losses, buffers and norms are read."""


def travel(lr: float, steps: Tensor, momentum: float | Tensor, dtype: torch.dtype, pace: Pace | None = None) -> Tensor:
    """η·‖a_i‖₁ [K, 1] (or [K, d] where momentum differs by coordinate).

    With momentum ρ the gradient of step k is applied again in all later steps, 1 + ρ + ρ² + … times in all; the sum
    over K steps is (K − ρ(1 − ρ^K)/(1 − ρ))/(1 − ρ), and K for ρ = 0. In other words, step k applies 1 + ρ + … + ρ^k
    = (1 − ρ^(k+1))/(1 − ρ) gradients, and f_k times as much where its size has a factor f_k.
    """
    K = steps.to(dtype).unsqueeze(1)
    rho = torch.as_tensor(momentum, dtype=dtype, device=steps.device)
    if pace is not None:
        k = torch.arange(pace.factors.shape[1], dtype=dtype, device=steps.device).unsqueeze(1)
        applied = (1 - rho ** (k + 1)) / (1 - rho)
        return lr * torch.where(k.T < K, pace.factors.to(dtype), 0) @ applied
    return lr * (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho)


def pace_of(algorithm: Algorithm, steps: Tensor, dtype: torch.dtype) -> Pace | None:
    """How an algorithm changes the step size of clients that take so many steps [K]."""
    factors = algorithm.pace(steps.cpu())
    if factors is None:
        return None
    if factors.dim() != 2 or len(factors) != len(steps) or factors.shape[1] < int(steps.max()):
        raise InputError(
            f"pace of {algorithm.name} must give a factor for every step, [{len(steps)}, {int(steps.max())}] for "
            f"steps {steps.tolist()}, got {list(factors.shape)}."
        )
    return Pace(factors.to(dtype).to(steps.device))  # in this order, since not every accelerator has double precision


def no_travel(optimiser: str) -> FedkeelError:
    """What an algorithm is told that asks for the way of plain SGD where clients take another."""
    return InputError(
        f"travel, the step sizes behind y − w, is that of plain SGD, and clients train with {optimiser}: an algorithm "
        "that reads it must not say any_optimiser = True."
    )


class Algorithm(AdvancedHooks):
    """The contract, with FedAvg's answers wherever a method has nothing of its own to say."""

    name: ClassVar[str]
    title: ClassVar[str]
    """How the method is written in print, e.g. ``FedDC``."""
    paper: ClassVar[Paper]
    idea: ClassVar[str]
    """One sentence."""
    laws: ClassVar[tuple[Law, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    """What the method cannot do without: ``full`` participation, ``equal_steps``, ``one_client``."""
    any_optimiser: ClassVar[bool] = False
    """Whether clients may train with Adam: the method takes their models as they are, and reads nothing off steps.

    Others divide by η·K, project or average the gradients of steps, or say themselves how a step is taken. A class that
    you derive from one of fedkeel's says it for itself.
    """
    any_mean: ClassVar[bool] = False
    """Whether a robust rule (``[robust]``) may stand in the place of the server's mean.

    So it is where ``aggregate`` uses uploads only in means with weights that sum to one and reads neither steps nor
    losses of clients, and where nobody keeps a sum over rounds that counts on the exact mean, as control variates do:
    the error of every round would stay in it. A class that you derive from one of fedkeel's says it for itself.
    """
    any_staleness: ClassVar[bool] = False
    """Whether the server may step with uploads of clients that started from earlier models (``clock.mode``).

    So it is where clients receive tensors alone, upload ``y`` alone, and ``aggregate`` reads of it nothing but the
    moves y_i − w from what was broadcast: no steps, no losses, no sums over rounds that count on every client having
    had the same model. A class that you derive from one of fedkeel's says it for itself.
    """
    sets_steps: ClassVar[bool] = False
    """Whether ``local_steps`` always says how many steps clients take; ``training.epochs`` and ``steps`` are unused."""
    observes: ClassVar[bool] = False
    """Whether ``observe`` is to be called before every round with the score of the model that the round starts from."""
    unknown: ClassVar[frozenset[str]] = frozenset()
    """Values of the server state in which NaN or inf means "not known"; everything else there must be finite."""

    class Params(AlgorithmParams):
        """An algorithm without parameters of its own."""

    params: AlgorithmParams
    """Say ``params: Params`` below your own, and a type checker knows its fields."""

    def __init__(self, params: AlgorithmParams | None = None, **fields: Any) -> None:
        self.params = params if params is not None else checked(self.name, self.Params, fields)
        if self.params.reads_otherwise and not issubclass(type(self), other := with_variant(type(self))):
            self.__class__ = other

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0)

    def client_init(self, problem: Problem) -> State:
        return State()

    def broadcast(self, server: State, round: Round, clients: Clients) -> Message:
        return Message(w=server.w)

    def local_steps(self, down: Message, clients: Clients, problem: Problem) -> Tensor | None:
        """Steps of each client [K], or None for the configured local work."""
        return None

    def local_round(self, local: Local) -> Answer:
        trained = local.train(self.correction(local))
        return *self.finish(local, trained.y), trained

    def correction(self, local: Local) -> Correction | None:
        """What is added to every local gradient."""
        return None

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        """After training: the upload [K, ...] and the clients' new state [K, ...]."""
        return Message(y=y), local.client

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        raise NotImplementedError

    def candidates(self, server: State) -> dict[str, Tensor]:
        """Models worth evaluating, by name; the first is the one a run reports."""
        return {"global": server.w}

    def observe(self, server: State, metrics: dict[str, float]) -> State:
        """Evaluation results of the model that the next round starts from (``accuracy`` in [0, 1], ``loss``)."""
        return server


def with_variant(cls: type[Algorithm]) -> type[Algorithm]:
    """A class with the other readings of its paper, which stand below whatever a subclass of it defines."""
    if not cls.variant:
        return cls
    module, _, name = cls.variant.partition(":")
    variant: type[Algorithm] = getattr(importlib.import_module(module), name)
    if issubclass(variant, cls):
        return variant
    if cls not in _SUBCLASSES:
        _SUBCLASSES[cls] = type(cls.__name__, (cls, variant), {"__module__": cls.__module__})
    return _SUBCLASSES[cls]


_SUBCLASSES: dict[type[Algorithm], type[Algorithm]] = {}
"""Classes derived from a paper's by others, with its other readings."""
