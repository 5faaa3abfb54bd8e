"""``check_algorithm``: the whole contract, run on anybody's algorithm, in the manner of scikit-learn's check_estimator.

Each check has a name, runs the algorithm on a tiny federation (five clients of unequal size, one of a single sample)
and says what went wrong, and where in the algorithm's source. One mistake is reported once: names, types and shapes
come first, and a check that could only fail for the same reason again is not run. fedkeel's own registry passes the
same checks.
"""

from __future__ import annotations

import inspect
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.algorithms.contract import Algorithm, Law, Problem
from fedkeel.algorithms.registry import algorithm_class, make_algorithm
from fedkeel.algorithms.state import PerClient, State, bytes_down, bytes_up
from fedkeel.data import Federation, from_clients
from fedkeel.engine.averaging import Averaging
from fedkeel.engine.buffered import STALENESS
from fedkeel.engine.client import local_of, train_together
from fedkeel.engine.clock import Clock, takes_stale_uploads
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.robust import takes_any_mean
from fedkeel.engine.rounds import RunState
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import FedkeelError, invalid
from fedkeel.learning.drawing import keyed
from fedkeel.learning.loop import Trained
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Task
from fedkeel.runs.store import Store
from fedkeel.state.rows import Rows

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
    where: str = ""
    """``file:line`` in the algorithm's own source, as far as that is known."""
    ran: bool = True
    """False where an earlier failure would only be repeated."""


class MethodError(AssertionError):
    """What is wrong with the values of one of the algorithm's methods."""

    def __init__(self, method: str, text: str) -> None:
        super().__init__(text)
        self.method = method


Check = Callable[[type[Algorithm]], None]


def check_algorithm(algorithm: str | type[Algorithm]) -> None:
    """Run every check; raise ``ContractError`` that names the ones that fail."""
    results = run_checks(algorithm)
    failed = [result for result in results if result.ran and not result.passed]
    if failed:
        lines = [f"  {r.check}: {r.detail}" + (f" ({r.where})" if r.where else "") for r in failed]
        left = sum(not result.ran for result in results)
        rest = [f"  {left} more checks were not run, since they would fail for the same reason"] if left else []
        count = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        raise ContractError("\n".join([f"{count} failed:", *lines, *rest]))


def run_checks(algorithm: str | type[Algorithm]) -> list[CheckResult]:
    """Every check with its result, in order."""
    cls = algorithm_class(algorithm, allow_plugins=True) if isinstance(algorithm, str) else algorithm
    if not (isinstance(cls, type) and issubclass(cls, Algorithm) and hasattr(cls, "name")):
        raise invalid("algorithm", "a name, or a class derived from fedkeel.Algorithm with a name", algorithm)
    laws: list[tuple[str, Check]] = [(f"law: {law.statement}", partial(check_law, law=law)) for law in cls.laws]
    failed: set[Check] = set()
    raised: set[tuple[str, str]] = set()
    results = []
    for name, check in [*((_name(check), check) for check in CHECKS), *laws]:
        explained = failed & (_EXPLAINED_BY.get(check, _BEFORE_LAWS) | _BEFORE_ALL - {check})
        if explained:
            said = " and ".join(sorted(_name(other) for other in explained))
            results.append(CheckResult(name, False, f"not run, because this does not hold: {said}", ran=False))
            continue
        result, kind = _result(name, check, cls)
        if not result.passed:
            failed.add(check)
            if kind and (kind, result.where) in raised:  # the same line raised the same error in an earlier check
                detail = f"{kind} in the same place again"
                result = CheckResult(name, False, detail, result.where, ran=False)
            raised.add((kind, result.where))
        results.append(result)
    return results


def _name(check: Check) -> str:
    return check.__doc__ or "a check"


def _result(name: str, check: Check, cls: type[Algorithm]) -> tuple[CheckResult, str]:
    """How a check went; and the kind of exception that the algorithm itself raised, empty if it was the check's."""
    try:
        check(cls)
    except MethodError as fault:
        return CheckResult(name, False, str(fault), _defined(cls, fault.method)), ""
    except Exception as error:
        where = _raised_in(cls, error)
        kind = "" if isinstance(error, AssertionError) and not where else type(error).__name__
        return CheckResult(name, False, f"{kind}: {error}" if kind else str(error), where), kind
    return CheckResult(name, True), ""


def _defined(cls: type[Algorithm], method: str) -> str:
    """Where the algorithm's author wrote a method; empty where it is inherited from the contract."""
    for owner in _own_classes(cls):
        if method in vars(owner):
            function = inspect.unwrap(vars(owner)[method])
            try:
                return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
            except (OSError, TypeError):  # typed into a console
                return f"{owner.__name__}.{method}"
    return ""


def _raised_in(cls: type[Algorithm], error: Exception) -> str:
    """The innermost line of the algorithm's own source on the way to an error."""
    own = {inspect.getsourcefile(owner) for owner in _own_classes(cls) if _has_source(owner)}
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename in own
    ]
    return lines[-1] if lines else ""


def _own_classes(cls: type[Algorithm]) -> list[type]:
    return [owner for owner in cls.__mro__ if owner not in (Algorithm, object)]


def _has_source(owner: type) -> bool:
    try:
        return inspect.getsourcefile(owner) is not None
    except TypeError:
        return False


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
    with keyed(1):
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
    robust: Robust | None = None,
    averaging: Averaging | None = None,
    clock: Clock | None = None,
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
    return Simulation(
        algorithm,
        tiny_task(norm),
        tiny_federation(sizes),
        Training(**work),
        executor=executor or Serial(),
        faults=faults,
        robust=robust,
        averaging=averaging,
        clock=clock,
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


def _states_have_shapes(cls: type[Algorithm]) -> None:
    """states and messages hold tensors, numbers and Rows, under the same names and in the same shapes in every round"""
    simulation = tiny_simulation(cls())
    algorithm, problem = simulation.algorithm, simulation.problem
    client = algorithm.client_init(problem)
    _require_state("client_init", client, problem)
    for name, value in client.items():
        if not isinstance(value, Tensor):
            raise MethodError("client_init", f"{name} is a {type(value).__name__}; a client keeps tensors")
    server = algorithm.server_init(problem)
    _require_state("server_init", server, problem, holds_w=True)
    state = simulation.start()
    if algorithm.observes:
        state = simulation.observe(state, simulation.feedback(state))
        _require_state("observe", state.server, problem, holds_w=True)
    job = simulation.job(state)
    for name, value in job.message.items():
        if not isinstance(value, Tensor | PerClient | int | float):
            raise MethodError("broadcast", f"{name} is a {type(value).__name__}; send tensors and numbers")
    last = "local_round" if _defined(cls, "local_round") else "finish"
    local = local_of(job, 0)
    returned: Any
    if last == "finish":
        y = local.train(algorithm.correction(local)).y
        returned, wanted = algorithm.finish(local, y), "(message, client state)"
    else:
        returned, wanted = algorithm.local_round(local), "(message, client state, what local.train gave)"
    if not (isinstance(returned, tuple) and len(returned) == wanted.count(",") + 1):
        raise MethodError(last, f"it must return {wanted}, got {type(returned).__name__}")
    if last == "local_round" and not isinstance(returned[2], Trained):
        raise MethodError(last, f"the third value must be what local.train gave, got {_kind(returned[2])}")
    upload, after = returned[:2]
    for what, found in (("upload", upload), ("client state", after)):
        if not isinstance(found, State):
            raise MethodError(
                last, f"the {what} must be a {'Message' if what == 'upload' else 'State'}, got {_kind(found)}"
            )
        for name, value in found.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != 1:
                raise MethodError(
                    last,
                    f"{name} in the {what} must have a row for each of the K clients (K = 1), got {_kind(value)}",
                )
    _require_same(last, "the client's state", {name: value[None] for name, value in client.items()}, after)
    stepped, _ = simulation.step(state)
    _require_state("aggregate", stepped.server, problem, holds_w=True)
    # Lists of rounds or clients may grow; vectors of a model's size may not.
    vectors = {name: value for name, value in server.items() if _kind(value) == _kind(problem.w0)}
    _require_same("aggregate", "the server's state", server, stepped.server, shapes_of=vectors)


def _require_state(method: str, found: object, problem: Problem, holds_w: bool = False) -> None:
    if not isinstance(found, State):
        raise MethodError(method, f"it must return a State, got {_kind(found)}")
    for name, value in found.items():
        if not isinstance(value, Tensor | Rows | bool | int | float | str):
            raise MethodError(method, f"{name} is a {type(value).__name__}; keep tensors, numbers or Rows")
    if holds_w and ("w" not in found or _kind(found["w"]) != _kind(problem.w0)):
        got = _kind(found["w"]) if "w" in found else "no w"
        raise MethodError(method, f"the state must hold the global model w, {_kind(problem.w0)}, got {got}")


def _require_same(
    method: str, what: str, before: Mapping[str, Any], after: Mapping[str, Any], shapes_of: Iterable[str] | None = None
) -> None:
    """The same names and, of all or some values, the same types and shapes."""
    if set(before) != set(after):
        raise MethodError(method, f"the names in {what} changed from {sorted(before)} to {sorted(after)}")
    for name in before if shapes_of is None else shapes_of:
        if _kind(before[name]) != _kind(after[name]):
            raise MethodError(method, f"{name} in {what} changed from {_kind(before[name])} to {_kind(after[name])}")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


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
    if min(bytes_down(job.message, len(job.clients.ids)), bytes_up(outcome.message)) <= 0:
        raise AssertionError("a message weighs nothing")


def _takes_any_mean(cls: type[Algorithm]) -> None:
    """if it says any_mean, it is the same when every client's upload is replaced by the mean of all"""
    if not takes_any_mean(cls):
        return
    faults = Faults(bad_update="skip-client", stragglers=0.0 if "equal_steps" in cls.needs else 0.5)
    sides = [
        rounds(tiny_simulation(cls(), (10,) * 5, faults=faults, robust=robust), 4).server
        for robust in (Robust(), Robust(rule="trimmed-mean", f=0))
    ]
    for name, value in sides[0].items():
        if isinstance(value, Rows):
            raise MethodError("aggregate", f"{name} keeps what single clients sent; do not say any_mean")
        gap = (
            float((value.double() - sides[1][name].double()).abs().max())
            if isinstance(value, Tensor) and value.numel()
            else 0.0
        )
        if not gap <= 1e-9:
            raise MethodError("aggregate", f"{name} differs by {gap:.1e} then; do not say any_mean")


def _takes_stale_uploads(cls: type[Algorithm]) -> None:
    """if it says any_staleness, its server steps with uploads of clients that started from earlier models"""
    if not takes_stale_uploads(cls):
        return
    clock = Clock(speed=1.0, speed_sigma=2.0, mode="buffered", buffer=2)
    simulation = tiny_simulation(cls(), clock=clock, participation=0.8)
    state, stale = simulation.start(), 0.0
    for _ in range(6):
        state, record = simulation.step(state)
        found = record.noted[STALENESS]
        stale = max([stale, *found.values()] if isinstance(found, dict) else [stale])
    if not stale:
        raise AssertionError("no upload was stale")


CHECKS: list[Check] = [
    _describes_itself,
    _params_are_frozen,
    _states_have_shapes,
    _is_pure,
    _is_deterministic,
    _runs_partial,
    _runs_with_faults,
    _runs_with_norm,
    _is_batched,
    _resumes,
    _counts_traffic,
    _takes_any_mean,
    _takes_stale_uploads,
    _learns,
]
_BEFORE_ALL: set[Check] = {_describes_itself, _states_have_shapes}
"""Without these nothing else says anything."""
_BEFORE_LAWS: set[Check] = {_is_deterministic, _is_pure}
_EXPLAINED_BY: dict[Check, set[Check]] = {
    _describes_itself: set(),
    _params_are_frozen: set(),
    _states_have_shapes: set(),
    _is_pure: set(),
    _is_deterministic: {_is_pure},
    _runs_partial: set(),
    _runs_with_faults: {_runs_partial},
    _runs_with_norm: {_runs_partial},
    _is_batched: {_is_pure, _is_deterministic},
    _resumes: {_is_pure, _is_deterministic, _runs_partial},
    _counts_traffic: set(),
    _takes_any_mean: {_is_pure, _is_deterministic},
    _takes_stale_uploads: {_is_pure, _is_deterministic},
    _learns: {_is_pure, _runs_partial},
}
"""Earlier checks whose failure would only be repeated by a later one."""


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
