"""What a model, a loss or an algorithm draws by itself follows from seed, round and client, whoever computes it."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.algorithms.contract import Local, Message, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import make_algorithm
from fedkeel.algorithms.state import State
from fedkeel.check import CLASSES, FEATURES, tiny_federation
from fedkeel.engine.grouping import can_stack
from fedkeel.engine.settings import Training
from fedkeel.engine.simulation import Simulation
from fedkeel.engine.threads import torch_threads
from fedkeel.learning import models
from fedkeel.learning.drawing import draws_nothing, keyed, put_aside
from fedkeel.learning.losses import Loss, cross_entropy
from fedkeel.learning.task import Task
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store

ROUNDS = 3


class Own(nn.Module):
    """A network whose hidden layer goes through somebody's code."""

    def __init__(self, between: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x.flatten(1)), self.training))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x.flatten(1).unsqueeze(2))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = x.flatten(1).unsqueeze(2).expand(-1, -1, 4)
        return self.last(self.attention(words, words, words)[0].mean(1))


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    module[1].register_forward_hook(lambda _, __, out: out + 0.1 * torch.randn_like(out))
    return module


def noisy_numpy(hidden: Tensor, training: bool) -> Tensor:
    return hidden + torch.from_numpy(np.random.normal(size=tuple(hidden.shape))).to(hidden.dtype)


class Noisy(nn.Linear):
    """Looks like a dense layer, and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * torch.randn(1)


class OwnGenerator(Own):
    """Keeps a generator of its own, which goes on from wherever the client before left it."""

    def __init__(self, generator: Any) -> None:
        super().__init__(lambda hidden, training: hidden)
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.generator, torch.Generator):
            noise = float(torch.rand(1, generator=self.generator))
        else:
            noise = self.generator.random()
        return super().forward(x) * noise


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "nn.Dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, CLASSES)
    ),
    "F.dropout": lambda: Own(lambda hidden, training: F.dropout(hidden, 0.5, training)),
    "F.dropout, always": lambda: Own(lambda hidden, training: F.dropout(hidden, 0.5, True)),
    "LSTM": Recurrent,
    "MultiheadAttention": Attentive,
    "noise": lambda: Own(lambda hidden, training: hidden + torch.randn_like(hidden)),
    "noise of NumPy": lambda: Own(noisy_numpy),
    "noise of Python": lambda: Own(lambda hidden, training: hidden * random.random()),
    "noise in evaluation only": lambda: Own(lambda hidden, training: hidden * (1 if training else random.random())),
    "RReLU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 8), nn.RReLU(), nn.Linear(8, CLASSES)),
    "a generator of torch": lambda: OwnGenerator(torch.Generator()),
    "a generator of NumPy": lambda: OwnGenerator(np.random.default_rng()),
    "an old generator of NumPy": lambda: OwnGenerator(np.random.RandomState()),
    "a generator of Python": lambda: OwnGenerator(random.Random()),
    "hook": hooked,
    "subclass": lambda: nn.Sequential(nn.Flatten(), Noisy(FEATURES, CLASSES)),
}


class DrawsInItsRound(FedAvg):
    name = "draws-in-its-round"

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        return Message(y=y + 0.01 * torch.randn_like(y)), local.client


class KeepsAGenerator(FedAvg):
    name = "keeps-a-generator"

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        return Message(y=y + 0.01 * self.generator.normal()), local.client

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        after = super().aggregate(server, uploads, round)
        return after.replace(w=after.w + self.generator.normal() * 0.01)


class DrawsAtTheServer(FedAvg):
    name = "draws-at-the-server"

    def server_init(self, problem: Any) -> State:
        return State(w=problem.w0 + 0.01 * torch.randn_like(problem.w0))

    def broadcast(self, server: State, round: Round, clients: Any) -> Message:
        return Message(w=server.w + 0.01 * torch.randn_like(server.w))

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        after = super().aggregate(server, uploads, round)
        return after.replace(w=after.w + float(np.random.normal()) * 0.01)

    def candidates(self, server: State) -> dict[str, Tensor]:
        return {"global": server.w * random.uniform(0.9, 1.1)}


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none") * torch.rand(len(targets))


NOISY_LOSS = Loss("noisy", noisy_loss, cross_entropy.correct)


@pytest.fixture
def federation() -> fk.data.Federation:
    return tiny_federation((12, 9, 14, 8, 10))


def made(kind: str) -> nn.Module:
    with keyed(3):
        return DRAWING[kind]()


def numbers(run: fk.Run) -> tuple[bytes, list[tuple[float, float]]]:
    """The last model's bits and all scores."""
    return run.state.server.w.numpy().tobytes(), [(one.accuracy, one.loss) for one in run.history.measured]


def trained(federation: fk.data.Federation, model: nn.Module, **changed: Any) -> tuple[bytes, Any]:
    settings: dict[str, Any] = {"algorithm": "fedavg", "executor": "serial", "rounds": ROUNDS, "batch_size": 4}
    return numbers(fk.train(**settings | {"model": model, "data": federation, "participation": 0.8} | changed))


def shared_generators() -> tuple[bytes, str, Any]:
    return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), random.getstate()


@pytest.mark.parametrize("kind", DRAWING)
def test_draws_depend_on_the_seed_and_on_nothing_else(kind: str, federation: fk.data.Federation) -> None:
    """Whoever computes, whatever was drawn before: the same bits and scores; the caller's generators stay put."""
    module = made(kind)
    assert not draws_nothing(module, cross_entropy)
    found = shared_generators()
    expected = trained(federation, module)
    assert shared_generators() == found
    torch.rand(7), np.random.rand(3), random.random()
    for executor, workers in [("serial", None), ("pool", 2), ("stacked", 2), ("stacked", 1), ("auto", 2)]:
        assert trained(federation, module, executor=executor, workers=workers) == expected, executor
    assert trained(federation, module, seed=1) != expected


@pytest.mark.parametrize("algorithm", ["fedveca", "gradma", "fedreg", "fedbn"])
@pytest.mark.parametrize("kind", ["F.dropout, always", "noise of NumPy", "a generator of torch"])
def test_a_run_stopped_after_any_round_goes_on_to_the_same_bits(
    kind: str, algorithm: str, federation: fk.data.Federation, tmp_path: Path
) -> None:
    """Of algorithms that look at several gradients, ask for losses, make pseudo data, have personal models."""
    evaluation = Evaluation(train=True, clients=True, initial=True)

    def simulation() -> Simulation:
        training = Training(rounds=ROUNDS, batch_size=4, steps=3)
        return Simulation(make_algorithm(algorithm), Task(made(kind)), federation, training)

    whole, expected = execute(simulation(), evaluation)
    store, state, history = Store.create(tmp_path), None, None
    for _ in range(ROUNDS):
        torch.rand(3), np.random.rand(3), random.random()
        state, history = execute(simulation(), evaluation, store, None, state, history, stop=lambda: True)
    store.close()
    assert state is not None
    assert torch.equal(state.server.w, whole.server.w)
    assert history is not None
    assert history.measured == expected.measured


@pytest.mark.parametrize("algorithm", [DrawsInItsRound, DrawsAtTheServer, KeepsAGenerator])
def test_an_algorithm_may_draw(algorithm: type[FedAvg], federation: fk.data.Federation) -> None:
    """Also where its clients would be computed together: what they draw together is not what each would draw."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    found = shared_generators()
    expected = trained(federation, module, algorithm=algorithm())
    assert shared_generators() == found
    for executor, workers in (("serial", 1), ("pool", 2)):
        torch.rand(1), np.random.rand(1), random.random()
        assert trained(federation, module, algorithm=algorithm(), executor=executor, workers=workers) == expected
    together = [
        trained(federation, module, algorithm=algorithm(), executor="stacked", workers=1, dtype="float64")
        for _ in range(2)
    ]
    assert together[0] == together[1]
    alone = trained(federation, module, algorithm=algorithm(), dtype="float64")
    weights = [torch.frombuffer(bytearray(bits), dtype=torch.float64) for bits, _ in (together[0], alone)]
    torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-11)


def test_a_loss_may_draw(federation: fk.data.Federation) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    expected = trained(federation, module, loss=NOISY_LOSS)
    torch.rand(1)
    for executor, workers in (("serial", 1), ("pool", 2), ("stacked", 2)):
        assert trained(federation, module, loss=NOISY_LOSS, executor=executor, workers=workers) == expected


@pytest.mark.parametrize("kind", DRAWING)
def test_models_that_may_draw_are_not_stacked(kind: str) -> None:
    assert not can_stack(Task(made(kind)))


@pytest.mark.parametrize("name", models.names())
def test_models_of_the_zoo_draw_nothing_without_dropout(name: str) -> None:
    """So that their rounds need no care, which takes longer than a step of the smallest."""
    model = models.build(name)
    assert draws_nothing(model, models.spec(name).loss) != any(isinstance(part, nn.Dropout) for part in model.modules())


def test_generators_come_back_after_an_error() -> None:
    def fail() -> None:
        torch.rand(1), np.random.rand(1), random.random()
        raise RuntimeError

    np.random.normal()  # leaves every second one of NumPy's normal numbers in store
    found = shared_generators()
    with pytest.raises(RuntimeError), keyed(5):
        fail()
    assert shared_generators() == found


def test_a_numpy_generator_of_another_kind_is_put_back() -> None:
    before = np.random.get_bit_generator()
    mine = np.random.PCG64(3)
    try:
        np.random.set_bit_generator(mine)
        with keyed(5):
            one = np.random.rand()
        with keyed(5):
            assert np.random.rand() == one
        assert np.random.get_bit_generator() is mine
        assert np.random.rand() == np.random.Generator(np.random.PCG64(3)).random()
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), lambda: np.random.normal(), lambda: random.random(), lambda: torch.manual_seed(1)]
)
def test_draws_are_noticed(draw: Callable[[], object]) -> None:
    with keyed(5) as key:
        assert not key.was_used()
        draw()
        assert key.was_used()
        assert key.was_used()  # asking changes nothing


def test_what_is_put_aside_once_is_put_back_once() -> None:
    """Blocks that follow each other need not save anything; one inside another must."""
    found = shared_generators()
    with put_aside(torch.device("cpu")):
        for _ in range(2):
            with keyed(5):
                first, second = torch.rand(1), torch.rand(1)
        with keyed(5):
            assert torch.rand(1) == first
            with keyed(6):
                torch.rand(3), np.random.rand(3), random.random()
            assert torch.rand(1) == second
    assert shared_generators() == found
    with keyed(5):
        torch.rand(1)
    assert shared_generators() == found


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """The results of functions that run at the same time, each in a thread of its own."""
    results: list[Any] = [None] * len(works)
    ready = threading.Barrier(len(works))

    def work(number: int) -> None:
        ready.wait()
        try:
            results[number] = works[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return results


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_runs_in_threads_are_the_runs_alone(executor: str, federation: fk.data.Federation) -> None:
    """Models that draw, models that do not, and clients' rows, at the same time: the bits of each alone."""
    kinds = ["F.dropout", "noise of NumPy"]
    how = {"executor": executor, "workers": 1 if executor == "serial" else 2}

    def work(number: int) -> Callable[[], Any]:
        if number % 3 == 2:
            return lambda: trained(federation, "2nn", algorithm="scaffold", seed=number, **how)  # type: ignore[arg-type]
        module = made(kinds[number % 3])
        return lambda: trained(federation, module, algorithm="feddyn", seed=number, **how)

    works = [work(number) for number in range(6)]
    threads, found = torch.get_num_threads(), shared_generators()
    expected = [one() for one in works]
    assert together(works) == expected
    assert torch.get_num_threads() == threads
    assert shared_generators() == found


def test_threads_of_torch_are_not_changed_under_a_run(federation: fk.data.Federation) -> None:
    """The number decides bits and belongs to the process: another run that wants another number is refused."""
    refused: list[BaseException] = []

    def other(_: object) -> None:
        def train() -> None:
            try:
                fk.train("fedavg", data=federation, rounds=1, executor="serial", threads=2)
            except fk.FedkeelError as error:
                refused.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    before = torch.get_num_threads()
    fk.train("fedavg", data=federation, rounds=1, executor="serial", threads=1, watch=other)
    assert "threads must be 1" in str(refused[0])
    assert torch.get_num_threads() == before
    fk.train("fedavg", data=federation, rounds=1, executor="serial", threads=2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("first", ["main", "other"])
def test_a_run_that_ends_first_leaves_its_thread_as_it_was(first: str) -> None:
    """Whichever ends first: the main thread, one that began beside it, and new ones have the number from before."""
    before = torch.get_num_threads()
    began, end, found = threading.Event(), threading.Event(), []

    def other() -> None:
        with torch_threads(1):
            began.set()
            end.wait(timeout=60)
            assert torch.get_num_threads() == 1
        found.append(torch.get_num_threads())

    torch.set_num_threads(3)
    thread = threading.Thread(target=other)
    try:
        with torch_threads(1):
            thread.start()
            began.wait(timeout=60)
            if first == "other":
                end.set()
                thread.join(timeout=60)
            with torch_threads(1):
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        end.set()
        thread.join(timeout=60)
        new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        new.start()
        new.join(timeout=60)
        assert found == [3, 3]
        assert torch.get_num_threads() == 3
    finally:
        end.set()
        torch.set_num_threads(before)
