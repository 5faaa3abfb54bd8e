"""Robust rules in rounds: hostile clients in a simulation and at sites, who may have one, and what is refused."""

from __future__ import annotations

import math
import re
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from pydantic import Field
from torch import Tensor

import fedkeel as fk
from fedkeel import config
from fedkeel.algorithms.contract import Local, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.feddyn import FedDyn
from fedkeel.algorithms.mifa import Mifa
from fedkeel.algorithms.registry import ALGORITHMS, make_algorithm
from fedkeel.algorithms.robust import RULES
from fedkeel.algorithms.scaffold import Scaffold
from fedkeel.algorithms.state import Message, State
from fedkeel.check import rounds, run_checks, tiny_simulation
from fedkeel.data import Federation
from fedkeel.engine.exchange import Outcome
from fedkeel.engine.executors import Job, Serial
from fedkeel.engine.robust import takes_any_mean
from fedkeel.engine.server import UnansweredError
from fedkeel.engine.settings import Faults, Robust, RuleName
from fedkeel.engine.sites import SiteRounds
from fedkeel.engine.wire import Answer, reply_from_bytes, reply_to_bytes
from fedkeel.errors import InputError
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.runner import Evaluation, execute
from fedkeel.runs.store import Store
from tests.engine.far_side import CASES, FarSide, differences, near_and_far

SKIP = Faults(bad_update="skip-client")
BAD = (1, 4, 7)
"""The hostile ones of ten clients."""


class Hostile(FedAvg):
    """FedAvg with clients that send something else than what they have trained."""

    name = "hostile"
    any_mean = True
    params: Params

    class Params(FedAvg.Params):
        attack: Literal["none", "far", "opposite", "largest", "nan"] = Field(
            "far", description="what the hostile ones send"
        )

    def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
        kind = self.params.attack
        if kind != "none":
            sent = {
                "far": torch.full_like(y, 1e6),
                "opposite": local.w - 8 * (y - local.w),
                "largest": torch.full_like(y, torch.finfo(y.dtype).max),
                "nan": torch.full_like(y, math.nan),
            }[kind]
            bad = torch.tensor([client in BAD for client in local.clients.ids])
            y = torch.where(bad.unsqueeze(1), sent, y)
        return Message(y=y), local.client


@pytest.fixture(scope="module")
def ten() -> Federation:
    dealt = fk.data.load("mnist5k").partition("iid", clients=10)
    assert isinstance(dealt, Federation)
    return dealt


def trained(ten: Federation, attack: str, robust: dict[str, Any] | None = None, **more: Any) -> fk.Run:
    work = {"model": "logistic", "rounds": 4, "steps": 20, "lr": 0.05, "executor": "serial"} | more
    faults = {"bad_update": "skip-client"}
    return fk.train(Hostile, params={"attack": attack}, data=ten, robust=robust, faults=faults, **work)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def clean(ten: Federation) -> float:
    """The accuracy without hostile clients."""
    accuracy = trained(ten, "none").accuracy
    assert accuracy > 0.8
    return accuracy


@pytest.mark.parametrize("attack", ["far", "opposite"])
def test_three_hostile_clients_of_ten_spoil_the_mean(attack: str, ten: Federation, clean: float) -> None:
    assert trained(ten, attack).accuracy < clean - 0.2


@pytest.mark.parametrize("attack", ["far", "opposite", "largest", "nan"])
@pytest.mark.parametrize("rule", RULES)
def test_with_a_robust_rule_they_do_not(rule: str, attack: str, ten: Federation, clean: float) -> None:
    """Whoever sends what is not finite is left out before, and Krum has only seven uploads: f = 2 then. What Krum takes
    is the model of a single client, which has a tenth of the samples."""
    f = 2 if attack == "nan" else 3
    assert trained(ten, attack, {"rule": rule, "f": f}).accuracy > clean - 0.05


def test_more_of_them_than_f_do(ten: Federation, clean: float) -> None:
    assert trained(ten, "far", {"rule": "trimmed-mean", "f": 2}).accuracy < clean - 0.2


@pytest.mark.parametrize("executor", ["pool", "stacked"])
def test_every_executor_has_the_same_rule(executor: str, ten: Federation, clean: float) -> None:
    robust = {"rule": "trimmed-mean", "f": 3}
    serial = trained(ten, "far", robust)
    other = trained(ten, "far", robust, executor=executor, workers=2)
    if executor == "pool":
        assert torch.equal(serial.state.server.w, other.state.server.w)
    assert other.accuracy == pytest.approx(serial.accuracy, abs=0.01)


def test_a_run_with_numbers_beyond_measure_is_kept_and_read(ten: Federation, tmp_path: Path) -> None:
    """The distances of such uploads from the model are no float32."""
    trained(ten, "largest", {"rule": "median", "f": 3}, directory=tmp_path)
    with closing(Store.reading(tmp_path)) as store:
        assert [math.isinf(one.drift) for one in store.history().rounds] == [True] * 4


def test_a_resumed_run_has_the_bits_of_one_that_was_not(ten: Federation, tmp_path: Path) -> None:
    """Buckets are drawn anew in every round, by seed and round alone."""
    robust = {"rule": "geometric-median", "f": 2, "bucket": 2}
    whole = trained(ten, "none", robust)
    trained(ten, "none", robust, rounds=2, directory=tmp_path)
    resumed = trained(ten, "none", robust, directory=tmp_path, resume=True)
    assert torch.equal(whole.state.server.w, resumed.state.server.w)
    other = trained(ten, "none", robust, seed=1)
    assert not torch.equal(whole.state.server.w, other.state.server.w)
    with pytest.raises(InputError, match=r"robust\.f was 2, asked 1"):
        trained(ten, "none", robust | {"f": 1}, directory=tmp_path, resume=True)


def test_buckets_differ_from_round_to_round() -> None:
    """Uploads 1, 2, 4, 8, 16 in every round: the median of buckets of two depends on who is in them."""

    class Still(FedAvg):
        name = "still"
        any_mean = True

        def finish(self, local: Local, y: Tensor) -> tuple[Message, State]:
            powers = torch.tensor([2.0**client for client in local.clients.ids], dtype=y.dtype)
            return Message(y=powers.unsqueeze(1).expand_as(y)), local.client

    simulation = tiny_simulation(Still(), faults=SKIP, robust=Robust(rule="median", f=1, bucket=2))
    state, found = simulation.start(), set()
    for _ in range(12):
        state, _ = simulation.step(state)
        found.add(float(state.server.w[0]))
    assert len(found) > 2


# Who may have a robust rule.

ALLOWED = {
    *("fedavg", "fedprox", "fedreg", "fedmlb", "moon", "fedpmvr", "fedbn", "gradma_w", "fedinit"),  # a mean of models
    *("fedsam", "fedlc", "fedrs", "fedntd"),  # of models trained in another way
    "fedswa",  # of which w goes part of the way, or beyond
    *("fedavgm", "fedproxm", "fedmlbm", "moonm", "slowmo", "fedgm", "fedacg"),  # whose step is averaged over rounds
    *("fedadam", "fedyogi", "fedadagrad"),  # and scaled
    "mimelite",  # a mean of models, and one of gradients that is averaged over rounds
}


def test_who_allows_it() -> None:
    assert {name for name, cls in ALGORITHMS.items() if takes_any_mean(cls)} == ALLOWED


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_others_are_refused_in_one_sentence(name: str) -> None:
    table: dict[str, Any] = {"algorithm": {"name": name}, "robust": {"rule": "median", "f": 1}}
    if name in ALLOWED:
        table["faults"] = {"bad_update": "skip-client"}
        assert config.expand(table, [])[0].robust == Robust(rule="median", f=1)
        return
    with pytest.raises(InputError, match=rf"^robust\.rule must be absent with {name}, .* These allow it: fedavg, "):
        config.expand(table, [])


def test_a_class_of_ones_own_says_it_for_itself() -> None:
    class Silent(FedAvg):
        name = "silent"

    with pytest.raises(InputError, match=r"robust\.rule must be absent with silent"):
        tiny_simulation(Silent(), faults=SKIP, robust=Robust(rule="median", f=1))


class SaysSo(Scaffold):
    name = "says_so"
    any_mean = True


class Remembers(Mifa):
    name = "remembers"
    any_mean = True


@pytest.mark.parametrize(("cls", "detail"), [(SaysSo, "w differs by"), (Remembers, "U keeps what single clients sent")])
def test_the_contract_finds_who_says_it_wrongly(cls: type[fk.Algorithm], detail: str) -> None:
    """SCAFFOLD divides each upload by that client's steps; MIFA keeps them."""
    (failed,) = [result for result in run_checks(cls) if result.check.startswith("if it says any_mean")]
    assert not failed.passed
    assert detail in failed.detail


class SumsOfModels(FedDyn):
    name = "sums_of_models"
    any_mean = True


class Subtle(Serial):
    """Two clients know what the others send, and send their mean and a standard deviation more."""

    def run(self, job: Job) -> Outcome:
        outcome = super().run(job)
        message = {name: value.clone() for name, value in outcome.message.items()}
        for value in message.values():
            value[3:] = value[:3].mean(dim=0) + value[:3].std(dim=0)
        return replace(outcome, message=Message(**message))


@pytest.mark.parametrize(("cls", "name", "params"), [(SumsOfModels, "h", {}), (SaysSo, "c", {"traffic": "paper"})])
def test_a_sum_over_rounds_keeps_the_error_of_every_round(
    cls: type[fk.Algorithm], name: str, params: dict[str, Any]
) -> None:
    """Why SCAFFOLD, FedDyn and their kin are refused, although their servers can do with means: c is to be the mean of
    all c_i. With another mean in every round it is not, and what hostile clients add within the spread of honest ones
    stays in it: after 40 rounds it is off by more than twice as much as after 5. With the mean it is exact."""

    def gap(robust: Robust, executor: Serial, count: int) -> float:
        run = tiny_simulation(cls(**params), (10,) * 5, executor=executor, faults=SKIP, robust=robust)
        state = rounds(run, count)
        mean = torch.stack([state.clients[name][client] for client in range(5)]).mean(dim=0)
        return float(torch.linalg.vector_norm(state.server[name] - mean))

    rule = Robust(rule="trimmed-mean", f=2)
    assert gap(Robust(), Serial(), 20) < 1e-12
    assert gap(rule, Subtle(), 40) > 2 * gap(rule, Subtle(), 5) > 0.1


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_every_value_that_clients_send_is_robust(name: str) -> None:
    """Two hostile clients of five put 1e6 into everything that they send; the server state stays near that of the
    same rule without them."""

    class Spoiling(Serial):
        def run(self, job: Job) -> Outcome:
            outcome = super().run(job)
            rows = [row for row, client in enumerate(job.clients.ids) if client in (0, 3)]
            message = {}
            for key, value in outcome.message.items():
                message[key] = value.clone()
                message[key][rows] = 1e6
            buffers = outcome.buffers.clone()
            buffers[rows] = -1e6
            return replace(outcome, message=Message(**message), buffers=buffers)

    given = {"P": 1} if name == "fedreg" else {}
    robust, sizes = Robust(rule="median", f=2), (12, 7, 20, 10, 16)
    simulation = tiny_simulation(
        make_algorithm(name, **given), sizes, norm=True, executor=Spoiling(), faults=SKIP, robust=robust, drop_last=True
    )
    state = rounds(simulation, 3)
    for key, value in state.server.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert float(value.abs().max()) < 100, key
    assert float(state.b.min()) > -100
    variances = [entry for entry in simulation.task.buffer_layout if entry.name.endswith("running_var")]
    assert variances
    assert all(bool((state.b[one.start : one.stop] > 0).all()) for one in variances)


def test_every_client_counts_equally() -> None:
    """FedAvg weighs by samples, of which hostile clients may claim any number; a robust rule does not."""
    equal = tiny_simulation(make_algorithm("fedavg", weights="uniform"))
    rule = tiny_simulation(make_algorithm("fedavg"), faults=SKIP, robust=Robust(rule="trimmed-mean", f=0))
    assert torch.allclose(rounds(equal, 3).server.w, rounds(rule, 3).server.w, atol=1e-12)
    by_size = rounds(tiny_simulation(make_algorithm("fedavg")), 3).server.w
    assert not torch.allclose(by_size, rounds(rule, 3).server.w, atol=1e-4)


def test_that_samples_do_not_count_is_told(tmp_path: Path) -> None:
    call: dict[str, Any] = {
        "model": "logistic",
        "rounds": 1,
        "executor": "serial",
        "faults": SKIP,
        "robust": Robust(rule="median", f=1),
    }
    unequal = fk.data.load("mnist5k").partition("quantity", clients=5)
    with pytest.warns(FedkeelWarning, match="every client counts equally, although they have"):
        fk.train("fedavg", data=unequal, directory=tmp_path, **call)


class Lying(Serial):
    """Three clients report losses that are no losses, and note what is no number."""

    def run(self, job: Job) -> Outcome:
        outcome = super().run(job)
        loss, noted = outcome.loss.clone(), torch.zeros(len(outcome.loss), dtype=torch.float64)
        loss[[0, 1, 3]] = torch.tensor([math.nan, math.inf, -1e300], dtype=loss.dtype)
        noted[[0, 1, 3]] = torch.tensor([math.nan, math.inf, -1e300], dtype=noted.dtype)
        return replace(outcome, loss=loss, noted={"said": noted})


def test_losses_and_notes_of_hostile_clients_break_nothing(tmp_path: Path) -> None:
    """They are only shown: the model is that of the run whose clients report the truth, and the run can be read."""
    robust = Robust(rule="median", f=2)
    lied, true = (
        tiny_simulation(make_algorithm("fedavg"), executor=executor, faults=SKIP, robust=robust)
        for executor in (Lying(), Serial())
    )
    with closing(Store.create(tmp_path)) as store:
        state, _ = execute(lied, Evaluation(), store)
    assert torch.equal(state.server.w, rounds(true, 4).server.w)
    with closing(Store.reading(tmp_path)) as store:
        assert [one.round for one in store.history().rounds] == [1, 2, 3, 4]


# Too few uploads.


@pytest.mark.parametrize(
    ("robust", "training", "sentence"),
    [
        ({"rule": "median", "f": 5}, {}, "at least 11 uploads for median with f = 5 in a round, got 10 clients"),
        ({"rule": "krum", "f": 4}, {}, "at least 11 uploads for krum with f = 4 in a round, got 10 clients"),
        (
            {"rule": "median", "f": 2, "bucket": 3},
            {},
            "at least 13 uploads for median with f = 2 in buckets of 3 in a round, got 10 clients; take a smaller f or",
        ),
        (
            {"rule": "median", "f": 2},
            {"participation": 0.4},
            "at least 5 uploads for median with f = 2 in a round, got 4 of 10 clients",
        ),
    ],
)
def test_too_few_clients_are_refused_before_the_first_round(
    robust: dict[str, Any], training: dict[str, Any], sentence: str, ten: Federation
) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(ten, "none", robust, **training)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bucket", [None, 3])
def test_the_fewest_uploads_are_just_enough_buckets(rule: str, bucket: int | None) -> None:
    """⌈n/s⌉ buckets, of which f may be spoilt: one upload less would be one bucket less."""
    robust, s = Robust(rule=rule, f=2, bucket=bucket), bucket or 1  # type: ignore[arg-type]
    assert -(-robust.least // s) == RULES[rule].least(2) == -(-(robust.least - 1) // s) + 1


def test_a_round_that_too_few_answer_is_not_closed(ten: Federation, tmp_path: Path) -> None:
    """Half of the clients drop out: some round has fewer than 2·3 + 1 = 7 of 10, and no mean takes the rule's place."""
    call: dict[str, Any] = {"model": "logistic", "steps": 1, "rounds": 50, "executor": "serial", "data": ten}
    faults = {"bad_update": "skip-client", "dropout": 0.3}
    said = r"^round (\d+) has (\d) sound uploads of 10 called clients, but needs 7 uploads for median with f = 3"
    with pytest.raises(UnansweredError, match=said) as caught:
        fk.train("fedavg", robust={"rule": "median", "f": 3}, faults=faults, directory=tmp_path, **call)
    found = re.match(said, str(caught.value))
    assert found
    assert int(found[2]) < 7
    with closing(Store.reading(tmp_path)) as store:
        assert store.rounds_done() == int(found[1]) - 1
        assert all(one.clients >= 7 for one in store.history().rounds)


# Settings.


def test_the_setting_names_every_rule() -> None:
    assert get_args(RuleName) == tuple(RULES)


@pytest.mark.parametrize(
    ("robust", "sentence"),
    [
        ({"rule": "mean", "f": 1}, r"robust\.rule must be one of 'median', 'trimmed-mean'"),
        ({"rule": "median"}, r"robust must be given f, the hostile uploads that a round must bear"),
        ({"rule": "median", "f": -1}, r"robust\.f must be a number of at least 0"),
        ({"f": 1}, r"robust must be given without f, which has no effect without a rule"),
        ({"bucket": 2}, r"robust must be given without bucket, which has no effect without a rule"),
        ({"rule": "krum", "f": 1, "radius": 2.0}, r"robust must be given without radius, .* rule = 'krum'"),
    ],
)
def test_settings_without_sense_are_refused(robust: dict[str, Any], sentence: str, ten: Federation) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(ten, "none", robust)


def test_without_a_rule_the_settings_of_a_run_have_no_new_field() -> None:
    """Runs of before are compared with runs of now field by field, as written."""
    assert tomllib.loads(config.dump(config.Experiment()))["robust"] == {}


def test_a_number_that_is_not_finite_must_not_stop_the_run(ten: Federation) -> None:
    with pytest.raises(
        InputError, match=r"faults\.bad_update must be 'skip-client' or 'clip' with robust\.rule, got 'stop'"
    ):
        fk.train("fedavg", data=ten, robust={"rule": "median", "f": 1})


class Asks(FedAvg):
    name = "asks"
    any_mean = True

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        uploads.losses_at(server.w)
        return super().aggregate(server, uploads, round)


class Watches(FedAvg):
    name = "watches"
    any_mean = True
    observes = True


def test_what_clients_say_of_losses_and_scores_is_not_used(tmp_path: Path) -> None:
    robust = Robust(rule="median", f=1)
    with pytest.raises(InputError, match="must not say any_mean = True: no robust rule checks these"):
        rounds(tiny_simulation(Asks(), faults=SKIP, robust=robust), 1)
    with pytest.raises(InputError, match=r"with robust\.rule let the server hold samples out \(data\.validation\)"):
        rounds(robust_sites(tmp_path, robust, Watches())[1], 1)


# Sites.


def robust_sites(directory: Path, robust: Robust, algorithm: fk.Algorithm) -> tuple[Any, SiteRounds, FarSide]:
    near, far, far_side = near_and_far(algorithm, CASES["nothing"], directory, participation=1.0)
    for one in (near, far):
        one.server = replace(one.server, policy=SKIP, robust=robust)
    return near, far, far_side


@pytest.mark.parametrize("rule", RULES)
def test_sites_have_the_bits_of_the_simulation(rule: str, tmp_path: Path) -> None:
    robust = Robust(rule=rule, f=1)  # type: ignore[arg-type]
    near, far, far_side = robust_sites(tmp_path, robust, make_algorithm("fedavgm"))
    assert differences(near, rounds(near, 3), rounds(far, 3), far_side) == []


class Spoilt(FarSide):
    """Site 2 sends 1e6 in every value and in its statistics, and lies about its loss."""

    def exchange(self, requests):  # type: ignore[no-untyped-def]
        for client, data in super().exchange(requests):
            reply = reply_from_bytes(data)
            if client == 2 and isinstance(reply, Answer):
                outcome = reply.outcome
                message = Message(**{key: torch.full_like(value, 1e6) for key, value in outcome.message.items()})
                worse = replace(outcome, message=message, buffers=outcome.buffers + 1e6, loss=outcome.loss * math.nan)
                data = reply_to_bytes(replace(reply, outcome=worse))
            yield client, data


def test_a_hostile_site_spoils_the_mean_and_not_a_robust_rule(tmp_path: Path) -> None:
    near, far, calm = robust_sites(tmp_path / "robust", Robust(rule="median", f=1), make_algorithm("fedavg"))
    far.sites.transport = Spoilt(near, calm._description, tmp_path / "robust", CASES["nothing"])
    state = rounds(far, 3)
    assert float(state.server.w.abs().max()) < 10
    near, far, calm = robust_sites(tmp_path / "mean", Robust(), make_algorithm("fedavg"))
    far.sites.transport = Spoilt(near, calm._description, tmp_path / "mean", CASES["nothing"])
    assert float(rounds(far, 3).server.w.abs().max()) > 1e4
