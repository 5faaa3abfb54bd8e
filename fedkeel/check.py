"""``check_algorithm``: the whole contract, run on anybody's algorithm, in the manner of scikit-learn's check_estimator.

Each check has a name, runs the algorithm on a tiny federation (five clients of unequal size, one of a single sample)
and says what went wrong. fedkeel's own registry passes the same checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Algorithm, Law
from fedkeel.algorithms.registry import algorithm_class, make_algorithm
from fedkeel.algorithms.state import PerClient, Rows, State, bytes_down, bytes_up
from fedkeel.data import Federation, from_clients
from fedkeel.engine.executors import Job, Outcome, Serial, train_together
from fedkeel.engine.settings import Faults, Training
from fedkeel.engine.simulation import RunState, Simulation
from fedkeel.errors import FedkeelError
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Task
from fedkeel.runs.store import Store

SIZES = (12, 7, 20, 1, 16)
CLASSES, FEATURES = 3, 6


class ContractError(FedkeelError):
    """An algorithm breaks the contract."""


@dataclass(frozen=True)
class CheckResult:
    """One named check and how it went."""

    check: str
    passed: bool
    detail: str = ""


def check_algorithm(algorithm: str | type[Algorithm]) -> None:
    """Run every check; raise ``ContractError`` that names the ones that fail."""
    failed = [result for result in run_checks(algorithm) if not result.passed]
    if failed:
        lines = "\n".join(f"  {result.check}: {result.detail}" for result in failed)
        raise ContractError(f"{len(failed)} checks failed:\n{lines}")


def run_checks(algorithm: str | type[Algorithm]) -> list[CheckResult]:
    """Every check with its result, in order."""
    cls = algorithm_class(algorithm, allow_plugins=True) if isinstance(algorithm, str) else algorithm
    results = [_result(check.__doc__ or check.__name__, check, cls) for check in CHECKS]
    laws = [_result(f"law: {law.statement}", partial(check_law, law=law), cls) for law in cls.laws]
    return results + laws


def _result(name: str, check: Callable[[type[Algorithm]], None], cls: type[Algorithm]) -> CheckResult:
    try:
        check(cls)
    except Exception as error:
        return CheckResult(name, False, f"{type(error).__name__}: {error}")
    return CheckResult(name, True)


def tiny_federation(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Federation:
    """Clients with skewed labels and Gaussian classes; small enough to run hundreds of rounds in a second."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, FEATURES))
    clients = []
    for i, size in enumerate(sizes):
        y = np.where(rng.random(size) < 0.7, i % CLASSES, rng.integers(0, CLASSES, size))
        x = centres[y] + 0.5 * rng.normal(size=(size, FEATURES))
        clients.append((x.astype(np.float32), y.astype(np.int64)))
    test = (
        np.concatenate([x for x, _ in clients]),
        np.concatenate([y for _, y in clients]),
    )
    return from_clients(clients, test=test, classes=CLASSES)


def tiny_task(norm: bool = False, dtype: torch.dtype = torch.float64) -> Task:
    """A staged network of two hidden layers, with BatchNorm on request."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        middle: list[nn.Module] = [nn.Linear(8, 5), nn.Tanh()]
        if norm:
            middle.insert(1, nn.BatchNorm1d(5))
        module = Staged(
            {
                "fc1": nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh()),
                "fc2": nn.Sequential(*middle),
                "head": nn.Linear(5, CLASSES),
            }
        )
    return Task(module, dtype=dtype)


def tiny_simulation(
    algorithm: Algorithm,
    sizes: tuple[int, ...] = SIZES,
    norm: bool = False,
    executor: Serial | None = None,
    faults: Faults | None = None,
    **training: Any,
) -> Simulation:
    """A federation of five clients under the algorithm, or what it needs in their place."""
    work = {"rounds": 4, "lr": 0.1, "batch_size": 5} | training
    if "one_client" in algorithm.needs:
        sizes = (sum(sizes),)
    if algorithm.needs & {"full", "one_client"}:
        work["participation"] = 1.0
    if "equal_steps" in algorithm.needs:
        work.setdefault("steps", 5)
    if "steps" not in work:
        work.setdefault("epochs", 2)
    federation = tiny_federation(sizes)
    return Simulation(
        algorithm, tiny_task(norm), federation, Training(**work), executor=executor or Serial(), faults=faults
    )


def rounds(simulation: Simulation, count: int, state: RunState | None = None) -> RunState:
    """The state after some rounds; algorithms that observe are fed the validation score before each."""
    state = state or simulation.start()
    for _ in range(count):
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        state, _ = simulation.step(state)
    return state


def _params_are_frozen(cls: type[Algorithm]) -> None:
    """parameters have defaults, know their ranges and cannot be changed"""
    algorithm = cls()
    for name in type(algorithm.params).model_fields:
        try:
            setattr(algorithm.params, name, None)
        except Exception:
            continue
        raise AssertionError(f"params.{name} could be changed; derive Params from fedkeel.AlgorithmParams")


def _describes_itself(cls: type[Algorithm]) -> None:
    """it says its name, idea and paper"""
    for attribute in ("name", "title", "idea", "paper"):
        if not getattr(cls, attribute, None):
            raise AssertionError(f"the class attribute {attribute} is missing")


def _state_is_plain(cls: type[Algorithm]) -> None:
    """states hold tensors, numbers and Rows only, under the same names in every round"""
    simulation = tiny_simulation(cls())
    before = simulation.start()
    after = rounds(simulation, 2)
    if tuple(before.server.w.shape) != (simulation.task.d,):
        raise AssertionError(f"server.w must be a vector of {simulation.task.d}, got {tuple(before.server.w.shape)}")
    if set(before.server) != set(after.server):
        raise AssertionError(f"the server's names changed from {sorted(before.server)} to {sorted(after.server)}")
    for owner in (before.server, after.server, simulation.algorithm.client_init(simulation.problem)):
        for name, value in owner.items():
            if not isinstance(value, Tensor | Rows | bool | int | float | str):
                raise AssertionError(f"{name} is a {type(value).__name__}; keep tensors, numbers or Rows")


def _is_pure(cls: type[Algorithm]) -> None:
    """a round changes nothing that it was given"""
    simulation = tiny_simulation(cls())
    state = rounds(simulation, 2)
    if simulation.algorithm.observes:
        state = simulation.observe(state, simulation.feedback(state))
    copies = _copied(state)
    simulation.step(state)
    for name, (value, copy) in copies.items():
        if not torch.equal(value, copy):
            raise AssertionError(f"{name} was changed in place; return a new tensor instead")


def _is_deterministic(cls: type[Algorithm]) -> None:
    """the same state gives the same bits again"""
    one = rounds(tiny_simulation(cls()), 3).server.w
    two = rounds(tiny_simulation(cls()), 3).server.w
    if not torch.equal(one, two):
        raise AssertionError(
            f"two runs differ by {float((one - two).abs().max()):.1e}; draw nothing at random yourself"
        )


def _runs_partial(cls: type[Algorithm]) -> None:
    """it runs with partial participation, unequal sizes and a client of one sample, and stays finite"""
    simulation = tiny_simulation(cls(), participation=0.4)
    state = rounds(simulation, 6)
    if not bool(torch.isfinite(state.server.w).all()):
        raise AssertionError("the global model is not finite")


def _runs_with_faults(cls: type[Algorithm]) -> None:
    """it runs when clients drop out, lose uploads, straggle and answer twice (as far as it can), and stays finite"""
    absent = {} if "full" in cls.needs else {"dropout": 0.2, "lost": 0.2, "late": 0.1}
    slow = {} if "equal_steps" in cls.needs else {"stragglers": 0.5}
    simulation = tiny_simulation(cls(), faults=Faults(duplicates=0.5, **absent, **slow))
    state = rounds(simulation, 6)
    if not bool(torch.isfinite(state.server.w).all()):
        raise AssertionError("the global model is not finite")


def _runs_with_norm(cls: type[Algorithm]) -> None:
    """it runs on a model with BatchNorm and lets no statistics into its vectors"""
    simulation = tiny_simulation(cls(), sizes=(12, 7, 20, 10, 16), norm=True, drop_last=True)
    state = rounds(simulation, 3)
    if state.server.w.shape != simulation.task.w0.shape:
        raise AssertionError("the model grew: BatchNorm statistics belong to the buffers")
    if not bool(torch.isfinite(state.server.w).all()):
        raise AssertionError("the global model is not finite")


def _is_batched(cls: type[Algorithm]) -> None:
    """several clients computed as one give what one after the other gives"""

    class Together(Serial):
        def run(self, job: Job) -> Outcome:
            together = train_together(job)
            alone = super().run(job)
            _compare("message", alone.message, together.message)
            _compare("client state", alone.states, together.states)
            return alone

    rounds(tiny_simulation(cls(), executor=Together()), 3)


def _resumes(cls: type[Algorithm]) -> None:
    """a run written to disk and read back goes on to the same bits"""
    simulation = tiny_simulation(cls(), participation=0.6)
    half = rounds(simulation, 3)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder))
        store.commit(half, None, None, [])
        restored = store.read_state()
        store.close()
    whole, resumed = rounds(simulation, 3, half), rounds(simulation, 3, restored)
    if not torch.equal(whole.server.w, resumed.server.w):
        gap = float((whole.server.w - resumed.server.w).abs().max())
        raise AssertionError(f"the resumed run differs by {gap:.1e}; keep everything in the states")


def _learns(cls: type[Algorithm]) -> None:
    """it learns an easy problem"""
    simulation = tiny_simulation(cls(), rounds=60, lr=0.2, sizes=(12, 7, 20, 9, 16))
    first = simulation.task.evaluate(simulation.task.w0, simulation.task.b0, *simulation.samples.test)
    state = rounds(simulation, 60)
    last = next(iter(simulation.evaluate(state).values()))
    if not last.loss < 0.8 * first.loss:
        raise AssertionError(f"the loss went from {first.loss:.3f} to {last.loss:.3f} in 60 rounds")


def _counts_traffic(cls: type[Algorithm]) -> None:
    """its messages can be weighed"""
    simulation = tiny_simulation(cls())
    job = simulation.job(rounds(simulation, 1))
    outcome = simulation.executor.run(job)
    K = len(job.clients.ids)
    for name, value in outcome.message.items():
        if not isinstance(value, Tensor) or len(value) != K:
            raise AssertionError(f"the upload {name} must be a tensor of {K} rows")
    for name, value in job.message.items():
        if not isinstance(value, Tensor | PerClient | int | float):
            raise AssertionError(f"the broadcast {name} is a {type(value).__name__}; send tensors and numbers")
    if min(bytes_down(job.message, K), bytes_up(outcome.message)) <= 0:
        raise AssertionError("a message weighs nothing")


CHECKS: list[Callable[[type[Algorithm]], None]] = [
    _describes_itself,
    _params_are_frozen,
    _state_is_plain,
    _is_pure,
    _is_deterministic,
    _runs_partial,
    _runs_with_faults,
    _runs_with_norm,
    _is_batched,
    _resumes,
    _counts_traffic,
    _learns,
]


def check_law(cls: type[Algorithm], law: Law) -> None:
    """Both sides of an identity on the same problem, for four rounds, to 1e-12."""
    full = "full" in law.needs
    sizes = (10,) * 5 if law.needs & {"equal_sizes", "equal_steps"} else (12, 7, 20, 9, 16)
    work: dict[str, Any] = {"participation": 1.0 if full else 0.6}
    if "equal_steps" in law.needs:
        work["steps"] = 4
    if "single_step" in law.needs:
        work["steps"] = 1
    decay = 1.0 if "constant_lr" in law.needs else 0.97
    sides = []
    for algorithm in (cls(**law.mine), make_algorithm(law.other, **law.theirs)):
        sides.append(rounds(tiny_simulation(algorithm, sizes=sizes, lr_decay=decay, **work), 4).server.w)
    gap = float((sides[0] - sides[1]).abs().max())
    if not gap <= 1e-12:
        raise AssertionError(f"the two sides differ by {gap:.1e}")


def _compare(what: str, one: State, two: State) -> None:
    if set(one) != set(two):
        raise AssertionError(f"the {what} has {sorted(one)} for one client and {sorted(two)} for several")
    for name in one:
        gap = float((one[name].double() - two[name].double()).abs().max()) if one[name].numel() else 0.0
        if not gap <= 1e-9:
            raise AssertionError(f"{name} in the {what} differs by {gap:.1e} between one client and several at a time")


def _copied(state: RunState) -> dict[str, tuple[Tensor, Tensor]]:
    copies = {}
    for owner, values in (("server", state.server), ("client", state.clients)):
        for name, value in values.items():
            if isinstance(value, Tensor):
                copies[f"{owner}.{name}"] = (value, value.clone())
            elif isinstance(value, Rows):
                copies |= {f"{owner}.{name}[{i}]": (row, row.clone()) for i, row in value.items()}
    return copies
