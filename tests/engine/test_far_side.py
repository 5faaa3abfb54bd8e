"""A run whose clients are behind a wire has the bits of the simulated one, whatever happens to its messages."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.state import Message
from fedkeel.check import rounds
from fedkeel.engine.exchange import Fault
from fedkeel.engine.server import UnansweredError
from fedkeel.engine.settings import Faults
from fedkeel.engine.wire import Answer, Scored, reply_from_bytes, reply_to_bytes
from fedkeel.learning.metrics import as_metrics
from fedkeel.notices import FedkeelWarning, heard_by
from fedkeel.runs.fit import check_fits
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from tests.engine.far_side import CASES, FarSide, compared, differences, made, near_and_far


@pytest.mark.parametrize("name", ALGORITHMS)
def test_whatever_happens_on_the_way_the_bits_are_those_of_serial(name: str, tmp_path: Path) -> None:
    near, far, far_side = near_and_far(made(name), CASES["everything"], tmp_path)
    assert differences(near, rounds(near, 3), rounds(far, 3), far_side) == []


@pytest.mark.parametrize(
    ("name", "case"),
    [("feddc", case) for case in CASES] + [(name, "restarted") for name in ("fedbn", "fedveca", "fedgvrgm")],
)
def test_evaluation_at_the_sites_gives_the_same_scores(name: str, case: str, tmp_path: Path) -> None:
    """FedDC remembers, FedBN keeps buffers and part of the model, FedVeca asks for losses, FedGVRGM for a score."""
    assert compared(name, CASES[case], tmp_path, 2) == []


def test_a_run_over_sites_is_a_run(tmp_path: Path) -> None:
    """Same store, history and resume: stopped after two rounds, it goes on with new sites from their files."""
    weather, evaluation = CASES["lost, late, twice"], Evaluation(train=True, clients=True)
    near, _, _ = near_and_far(made("feddc"), weather, tmp_path / "sites")
    whole, history = execute(near, evaluation)
    _, far, _ = near_and_far(made("feddc"), weather, tmp_path / "sites")
    (tmp_path / "run").mkdir()
    store = Store.create(tmp_path / "run")
    stops = iter([False, True])
    execute(far, evaluation, store, stop=lambda: next(stops))
    store.close()
    store = Store.open(tmp_path / "run")
    state, found = store.read_state(), store.history()
    assert state is not None
    assert state.t == 2
    check_fits(far, state, found, "the run")
    _, far, far_side = near_and_far(made("feddc"), weather, tmp_path / "sites")
    after, found = execute(far, evaluation, store, None, state, found)
    store.close()
    assert differences(near, whole, after, far_side) == []
    assert found.measured == history.measured
    assert [r.clients for r in found.rounds] == [r.clients for r in history.rounds]


class Hostile(FarSide):
    """Client 2 answers what ``spoilt`` makes of its answer, in the name of ``name``."""

    name = 2

    def spoilt(self, answer: Answer) -> Answer:
        return answer

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        for client, data in super().exchange(requests):
            reply = reply_from_bytes(data)
            if client == 2 and isinstance(reply, Answer):
                data = reply_to_bytes(replace(self.spoilt(reply), client=self.name))
            yield client, data


def nan(answer: Answer) -> Answer:
    y = answer.outcome.message.y.clone()
    y[0, 3] = torch.nan
    return replace(answer, outcome=replace(answer.outcome, message=Message(y=y)))


def message(**values: torch.Tensor) -> Any:
    return lambda answer: replace(answer, outcome=replace(answer.outcome, message=Message(**values)))


@pytest.mark.parametrize(
    ("spoil", "name", "detail"),
    [
        (lambda a: a, 1, "it speaks for client 1"),
        (lambda a: replace(a, t=7), 2, "its answer is to round 8"),
        (lambda a: replace(a, steps=0), 2, "it says that it took 0 of 8 steps"),
        (lambda a: replace(a, steps=10**9), 2, "it says that it took 1000000000 of 8 steps"),
        (message(y=torch.zeros(1, 7, dtype=torch.float64)), 2, r"its y is float64 \[1, 7\] in place of"),
        (message(y=torch.zeros(1, 1, dtype=torch.float32)), 2, "its y is float32"),
        (message(z=torch.zeros(1, 1)), 2, "it sends z, buffers, loss, moved in place of y, buffers, loss, moved"),
        (nan, 2, "a number that is not finite in value y of its upload"),
    ],
    ids=["forged", "round", "no steps", "many steps", "shape", "type", "names", "nan"],
)
def test_a_hostile_answer_is_refused_and_named(spoil: Any, name: int, detail: str, tmp_path: Path) -> None:
    """The round is that of a cohort without that client."""
    near, far, calm = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path, participation=1.0)
    hostile = Hostile(near, calm._description, tmp_path, CASES["nothing"])
    hostile.spoilt, hostile.name = spoil, name  # type: ignore[method-assign]
    far.sites.transport = hostile
    far.server = replace(far.server, policy=Faults(bad_update="skip-client"))
    state, record = far.step(far.start())
    (fault,) = record.faults
    assert (fault.client, record.cohort) == (2, (0, 1, 3, 4))
    assert fault.kind in ("refused", "skipped")
    assert re.search(detail, fault.detail)
    assert torch.equal(state.server.w, _without(near, 2))


def _without(near: Any, client: int) -> torch.Tensor:
    call = near.server.open(near.start().at_server)
    rest = [row for row, one in enumerate(call.clients.ids) if one != client]
    answers = near.residents(near.start()).answers(call.take(rest))
    return near.server.close(near.start().at_server, call, answers, near.who(near.start()).scores)[0].server.w


def test_an_update_longer_than_allowed_is_refused_though_the_client_says_otherwise(tmp_path: Path) -> None:
    _, far, _ = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path, participation=1.0)
    far.sites.equipment = replace(far.sites.equipment, max_update_norm=1e-6)
    _, record = far.step(far.start())
    assert record.cohort == ()
    assert {fault.kind for fault in record.faults} == {"refused"}
    assert "above the 1e-06 that it was told to keep" in record.faults[0].detail


def test_a_site_that_lost_its_memory_says_so_and_is_left_out(tmp_path: Path) -> None:
    _, far, _ = near_and_far(make_algorithm("scaffold"), CASES["restarted"], tmp_path, participation=1.0)
    state = rounds(far, 2)
    for path in tmp_path.glob("client-3.sqlite*"):
        path.unlink()
    after, record = far.step(state)
    assert record.cohort == (0, 1, 2, 4)
    assert record.faults == (
        Fault(
            3,
            "refused",
            "client 3 does not hold the state that the server counts on: that of round 2; it holds none. It takes "
            "part again in a run that starts anew.",
        ),
    )
    assert after.counted.tolist() == [3, 3, 3, 2, 3]


class Mute(FarSide):
    """Some clients answer calls, but no questions."""

    mute: tuple[int, ...] = ()

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        return [(client, reply) for client, reply in super().exchange(requests) if client not in self.mute]


def test_an_evaluation_without_some_clients_says_so_and_one_without_all_is_none(tmp_path: Path) -> None:
    near, far, calm = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path)
    far.sites.transport = mute = Mute(near, calm._description, tmp_path, CASES["nothing"])
    told: list[str] = []
    mute.mute = (1, 3)
    with heard_by(lambda kind, text: told.append(text)), pytest.warns(FedkeelWarning):
        scores = far.evaluate_clients(far.start())
    assert sorted(scores) == [0, 2, 4]
    assert told == ["the evaluation by clients after round 0 is without 2 of 5: client 1, 3 gave no score."]
    mute.mute = (0, 1, 2, 3, 4)
    with pytest.raises(UnansweredError, match="no client gave a score"):
        far.evaluate(far.start(), "train")


class Lying(FarSide):
    """Client 2 sends other sums than its metric has."""

    sums: tuple[float, ...] = (1.0,)

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        for client, reply in super().exchange(requests):
            said = reply_from_bytes(reply)
            if client == 2 and isinstance(said, Scored):
                said = replace(said, score=replace(said.score, sums={"f1": self.sums}))
            yield client, reply_to_bytes(said)


def test_metrics_travel_as_sums_that_are_looked_at(tmp_path: Path) -> None:
    near, far, calm = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path)
    here, there = (one.evaluate(one.start(), "train")["global"] for one in (near, far))
    assert there == here
    assert set(there.metrics) == {"f1"}
    far.sites.transport = lying = Lying(near, calm._description, tmp_path, CASES["nothing"])
    C = len(here.sums["f1"]) // 3
    none = (0.0,) * (C - 1)
    for sums in (
        (1.0,),
        (9.0, *none, 1.0, *none, 1.0, *none),  # right nine times in one answer: an F1 of 9
        (0.0, *none, 2.0, *none, 1.0, *none),  # two answers to one label
        (0.0, *none, 0.5, *none, 1.0, *none),
        (0.0, *none, -1.0, *none, 1.0, *none),
        (math.nan, *none, 1.0, *none, 1.0, *none),
    ):
        lying.sums = sums
        with pytest.warns(FedkeelWarning, match="is without 1 of 5: client 2"):
            scores = far.evaluate_clients(far.start())
        assert sorted(scores) == [0, 1, 3, 4]
    lying.sums = (1.0, *none, 1.0, *none, 2.0, *none)
    assert far.evaluate_clients(far.start())[2].metrics == {"f1": 2 / 3}


def test_a_metric_that_only_the_server_knows_is_missed_once(tmp_path: Path) -> None:
    near, far, _ = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path)
    near.task.metrics |= as_metrics({"own": lambda outputs, targets: outputs[:, 0]})
    told: list[str] = []
    with heard_by(lambda kind, text: told.append(text)), pytest.warns(FedkeelWarning):
        found = [far.evaluate(far.start(), "train")["global"] for _ in range(2)]
    assert [list(score.metrics) for score in found] == [["f1"], ["f1"]]
    assert told == ["what clients score is without own: a metric of one's own is not known elsewhere."]


def test_a_task_without_right_answers_is_scored_at_its_sites(tmp_path: Path) -> None:
    """Accuracy is not known there: NaN is what is expected, and a share would be made up."""
    near, far, far_side = near_and_far(make_algorithm("fedavg"), CASES["nothing"], tmp_path)
    silent = replace(near.task.loss, correct=None)
    near.task.loss = silent
    for client in range(near.N):
        far_side.site(client).equipment.task.loss = silent
    scores = far.evaluate_clients(far.start())
    assert sorted(scores) == list(range(near.N))
    assert all(math.isnan(score.accuracy) and score.loss > 0 for score in scores.values())
