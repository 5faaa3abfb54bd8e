"""The contract, run on the whole registry and on algorithms that break it."""

import inspect

import pytest
import torch

from fedkeel import check
from fedkeel.algorithms.contract import Algorithm, Local, Paper, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.state import Message, State
from fedkeel.check import CHECKS, ContractError, check_algorithm, check_law, run_checks

LAWS = [(name, law) for name, algorithm in ALGORITHMS.items() for law in algorithm.laws]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.__name__.strip("_"))
def test_registry_keeps_the_contract(name: str, rule: object) -> None:
    rule(ALGORITHMS[name])  # type: ignore[operator]


@pytest.mark.parametrize(("name", "law"), LAWS, ids=lambda value: getattr(value, "statement", value))
def test_law(name: str, law: check.Law) -> None:
    check_law(ALGORITHMS[name], law)


class Remembers(FedAvg):
    """Keeps a hidden attribute between rounds: it cannot be resumed."""

    name = "remembers"
    drift = 0.0

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        type(self).drift += 0.1
        after = super().aggregate(server, uploads, round)
        return after.replace(w=after.w + type(self).drift)


class WritesInPlace(FedAvg):
    name = "writes_in_place"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        server.w.add_(1.0)
        return super().aggregate(server, uploads, round)


class MixesClients(FedAvg):
    """Averages over the clients inside the local round, which is right for one client only."""

    name = "mixes_clients"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        return Message(y=y.mean(dim=0, keepdim=True).expand_as(y)), local.client


class NeverMoves(Algorithm):
    name, title, idea = "never_moves", "NeverMoves", "Ignores every upload."
    paper = Paper("none", "nobody", "nowhere", 2026)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (Remembers, "the same state gives the same bits again"),
        (WritesInPlace, "changes nothing that it was given"),
        (MixesClients, "several clients computed as one"),
        (NeverMoves, "learns an easy problem"),
    ],
)
def test_a_broken_algorithm_is_caught(broken: type[Algorithm], complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        check_algorithm(broken)


class ForgetsTheClientAxis(FedAvg):
    name = "forgets_the_client_axis"

    def finish(self, local: Local, y: torch.Tensor) -> tuple[Message, State]:
        return Message(y=y[0].sum()), local.client


class RenamesItsState(FedAvg):
    name = "renames_its_state"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return State(w=super().aggregate(server, uploads, round).w, momentum=0.0)


class Misspells(FedAvg):
    name = "misspells"

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return server.replace(w=uploads.clients.weigths("n") @ uploads.y)


@pytest.mark.parametrize(
    ("broken", "method", "complaint"),
    [
        (ForgetsTheClientAxis, "finish", "y in the upload must have a row for each"),
        (RenamesItsState, "aggregate", "names in the server's state changed"),
        (Misspells, "aggregate", "AttributeError"),
    ],
)
def test_one_mistake_is_reported_once_and_where_it_stands(broken: type[Algorithm], method: str, complaint: str) -> None:
    """Each of these breaks nearly every check; the report is one line that names the method's file and a line in it."""
    results = run_checks(broken)
    (failed,) = [result for result in results if result.ran and not result.passed]
    assert complaint in failed.detail
    file, _, line = failed.where.rpartition(":")
    source, first = inspect.getsourcelines(vars(broken)[method])
    assert file == __file__
    assert first <= int(line) < first + len(source)
    assert sum(not result.ran for result in results) >= 8


def test_a_false_law_is_caught() -> None:
    law = check.Law("FedProx(μ = 1) is FedAvg", {"mu": 1.0}, "fedavg")
    with pytest.raises(AssertionError, match="the two sides differ"):
        check_law(ALGORITHMS["fedprox"], law)


def test_results_name_every_check() -> None:
    results = run_checks("fedprox")
    assert len(results) == len(CHECKS) + 1
    assert all(result.passed for result in results)
