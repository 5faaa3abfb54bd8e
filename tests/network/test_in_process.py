"""A run over sites has the bits of the simulated one: letters, both halves and what goes wrong, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from fedkeel import api
from fedkeel.engine.exchange import Kind
from fedkeel.engine.server import UnansweredError
from fedkeel.engine.sites import Lost
from fedkeel.errors import DataError, InputError
from fedkeel.network.run import KEY, NetworkRun, check_experiment
from fedkeel.runs.store import Store, rounds_done
from tests.network.in_memory import (
    AT_SITES,
    CLIENTS,
    Memory,
    Spoiling,
    apart,
    experiment,
    over_sites,
    shares,
    simulated,
)

QUIET = "ignore::fedkeel.notices.FedkeelWarning"
pytestmark = pytest.mark.filterwarnings(QUIET)


def both(tmp_path: Path, **fields: Any) -> tuple[api.Run, NetworkRun]:
    """The same experiment in simulation and over sites."""
    one = experiment(**fields)
    return simulated(one, tmp_path / "near"), over_sites(one, tmp_path / "far", Memory(shares(one), tmp_path / "sites"))


def after(rounds: int) -> Callable[[], bool]:
    """Asks a run to stop after so many rounds."""
    said: Iterator[bool] = iter([False] * (rounds - 1) + [True])
    return lambda: next(said, True)


def faults(directory: Path) -> list[tuple[int, str, str]]:
    """What a run has on record of what went wrong with clients: round, kind and words."""
    store = Store.reading(directory)
    try:
        return [(e.round, e.kind, e.text) for e in store.events() if e.kind in get_args(Kind)]
    finally:
        store.close()


@pytest.mark.parametrize("name", AT_SITES)
def test_every_algorithm_has_the_bits_of_serial(name: str, tmp_path: Path) -> None:
    assert apart(*both(tmp_path, algorithm=name)) == []


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mifa", "fedveca", "fedgvrgm", "gradma"])
def test_some_clients_a_round(name: str, tmp_path: Path) -> None:
    near, far = both(tmp_path, algorithm=name, training__participation=0.6, training__rounds=3, evaluation__train=True)
    assert [r.clients for r in far.history.rounds] == [3, 3, 3]
    assert apart(near, far) == []


@pytest.mark.parametrize("buffers", ["average", "uniform", "local", "freeze"])
def test_statistics_of_batch_normalisation(buffers: str, tmp_path: Path) -> None:
    """``local`` ones stay at the sites, the others travel: both show in the evaluation by clients."""
    fields = {"model__name": "mlp_gradma", "training__buffers": buffers, "evaluation__clients": True}
    near, far = both(tmp_path, training__rounds=3, **fields)
    assert apart(near, far) == []
    assert far.history.fairness == near.history.fairness


def test_models_of_the_clients_own(tmp_path: Path) -> None:
    """FedBN keeps normalisation at the sites, which score what they use on the common test set."""
    fields = {"algorithm": "fedbn", "model__name": "mlp_gradma", "evaluation__metrics": ["f1"]}
    near, far = both(tmp_path, **fields, evaluation__clients=True, data__client_test=0.3)
    assert {one.model for one in far.history.measured} == {"client_mean", "global"}
    assert apart(near, far) == []
    assert far.history.fairness == near.history.fairness


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_feedback_from_the_server_or_from_sites(validation: float, tmp_path: Path) -> None:
    assert apart(*both(tmp_path, algorithm="fedgvrgm", data__validation=validation, training__rounds=3)) == []


def test_images_and_double_precision(tmp_path: Path) -> None:
    fields = {
        "data": {"name": "mnist5k", "samples": 60},
        "partition": {"clients": CLIENTS, "rule": "iid"},
        "model": {"name": "cnn_gvrgm_mnist_light"},
        "training__dtype": "float64",
        "training__clip": 1.0,
        "evaluation__every": 2,
    }
    assert apart(*both(tmp_path, **fields)) == []


def test_pooling_all_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"pools all samples in one place, which sites do not allow\.$"):
        check_experiment(experiment("centralised"))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"faults": {"dropout": 0.1}}, r"faults\.dropout must be 0 over sites, got 0\.1"),
        ({"faults": {"duplicates": 0.2}}, r"faults\.duplicates must be 0 over sites"),
        ({"faults": {"stragglers": 0.5}}, r"faults\.stragglers must be 0 over sites"),
        ({"measure": {"every": 1}}, r"measure\.every must be 0 over sites, got 1"),
        ({"run": {"executor": "pool"}}, r"run\.executor and run\.workers must be absent over sites"),
        ({"run": {"executor": "serial", "workers": 1}}, r"run\.executor and run\.workers must be absent"),
        ({"run": {"device": "cuda"}}, r"run\.device must be absent over sites"),
    ],
)
def test_what_has_no_effect_over_sites_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_experiment(experiment(**fields))


def test_batches_that_cannot_be_dropped_are_refused_as_in_a_simulation(tmp_path: Path) -> None:
    one = experiment(training__drop_last=True, training__batch_size=20)
    for start in (simulated, lambda e, d: over_sites(e, d, Memory(shares(e), tmp_path / "sites"))):
        with pytest.raises(
            InputError, match=r"training\.drop_last must be false where every client has a single batch"
        ):
            start(one, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize("name", ["feddc", "fedbn", "fedgvrgm"])
def test_stopped_and_resumed_with_new_sites_over_the_same_memory(name: str, tmp_path: Path) -> None:
    one = experiment(name, model__name="mlp_gradma", training__rounds=3)
    near = simulated(one, tmp_path / "near")
    carrier = Memory(shares(one), tmp_path / "sites")
    first = over_sites(one, tmp_path / "far", carrier, stop=after(1))
    assert (first.state.t, first.ended) == (1, "stopped")
    carrier.restart()
    assert apart(near, over_sites(one, tmp_path / "far", carrier, resume=True)) == []


def test_a_run_that_goes_on_keeps_its_name_and_a_new_one_gets_another(tmp_path: Path) -> None:
    """Sites keep what they remember under it: two runs of one experiment must not meet in their memory."""
    one = experiment("scaffold")
    carrier = Memory(shares(one), tmp_path / "sites")

    def name(directory: Path) -> Any:
        store = Store.reading(directory)
        found = store.meta(KEY)
        store.close()
        return found

    over_sites(one, tmp_path / "one", carrier, stop=after(1))
    before = name(tmp_path / "one")
    other = over_sites(one, tmp_path / "two", carrier)
    assert apart(simulated(one, tmp_path / "near"), over_sites(one, tmp_path / "one", carrier, resume=True)) == []
    assert name(tmp_path / "one") == before
    assert name(tmp_path / "two") != before
    assert other.state.t == 2


def test_a_run_over_sites_does_not_go_on_as_a_simulation_nor_the_other_way_round(tmp_path: Path) -> None:
    """What clients remember is elsewhere: going on without it would be another run, without a word."""
    one = experiment("scaffold", training__rounds=3)
    carrier = Memory(shares(one), tmp_path / "sites")
    over_sites(one, tmp_path / "far", carrier, stop=after(1))
    with pytest.raises(DataError, match="does not fit"):
        api.run(one, tmp_path / "far", resume=True)
    api.run(one, tmp_path / "near", stop=after(1))
    with pytest.raises(DataError, match="does not fit"):
        over_sites(one, tmp_path / "near", carrier, resume=True)


def test_statistics_that_stayed_at_sites_are_missed_in_a_simulation(tmp_path: Path) -> None:
    """FedAvg's clients remember nothing else, so that nothing but these rows tells the two kinds of run apart."""
    one = experiment(model__name="mlp_gradma", training__buffers="local", training__rounds=3)
    over_sites(one, tmp_path / "far", Memory(shares(one), tmp_path / "sites"), stop=after(1))
    with pytest.raises(DataError, match="client 0 took part, but the buffers that it keeps to itself"):
        api.run(one, tmp_path / "far", resume=True)


def test_a_damaged_record_of_sites_is_named(tmp_path: Path) -> None:
    one = experiment()
    carrier = Memory(shares(one), tmp_path / "sites")
    over_sites(one, tmp_path / "far", carrier, stop=after(1))
    store = Store.open(tmp_path / "far")
    store.put_meta(KEY, '{"run": "x", "sites": [{"client": 0}]}')
    store.close()
    with pytest.raises(DataError, match=r"the record of its sites in the run in .* is damaged; restore the run"):
        over_sites(one, tmp_path / "far", carrier, resume=True)


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_client_that_is_lost_for_a_round_is_left_out_of_it(tmp_path: Path) -> None:
    """Round 2 is that of the other four, and the client remembers round 1 in round 3: SCAFFOLD would show it."""
    one = experiment("scaffold", training__rounds=3)
    carrier = Memory(shares(one), tmp_path / "sites", lambda client, round: (client, round) == (3, 2))
    far = over_sites(one, tmp_path / "far", carrier)
    near = api.build.make_simulation(one)
    state = near.start()
    for present in ([0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3, 4]):
        call = near.server.open(state.at_server)
        answers = near.residents(state).answers(call.take(present))
        closed, record = near.server.close(state.at_server, call, answers, near.who(state).scores)
        state = state.after(closed, record.cohort, answers, False)
    assert far.state.counted.tolist() == [3, 3, 3, 3, 3]
    assert [r.clients for r in far.history.rounds] == [5, 4, 5]
    assert far.state.server.w.equal(state.server.w)
    assert faults(tmp_path / "far") == [(2, "silent", "client 3: its site is not online")]


def test_a_client_that_answers_when_it_is_called_again_was_not_silent(tmp_path: Path) -> None:
    """The quorum is everybody: the second call brings the missing answer, and the round is that of all."""
    one, heard = experiment("scaffold"), list[int]()

    def lost(client: int, round: int) -> bool:
        if client == 3 and round == 2:
            heard.append(client)
        return client == 3 and round == 2 and len(heard) == 1

    carrier = Memory(shares(one), tmp_path / "sites", lost)
    far = over_sites(one, tmp_path / "far", carrier, quorum=1.0)
    assert apart(simulated(one, tmp_path / "near"), far) == []
    assert carrier.calls.count((0, 2)) == carrier.calls.count((3, 2)) == 1
    assert faults(tmp_path / "far") == []


def test_without_its_quorum_a_round_is_not_closed_and_can_be_resumed(tmp_path: Path) -> None:
    one = experiment("feddc", training__rounds=3)
    carrier = Memory(shares(one), tmp_path / "sites", lambda client, round: client in (1, 3, 4) and round == 2)
    with pytest.raises(UnansweredError) as caught:
        over_sites(one, tmp_path / "far", carrier, quorum=0.5)
    assert str(caught.value) == (
        "round 2 is not closed: 2 of 5 clients answered, 3 are needed (client 1: its site is not online; client 3: its "
        "site is not online; client 4: its site is not online); go on with --resume when the sites are back."
    )
    assert rounds_done(tmp_path / "far") == 1
    carrier.lost = lambda client, round: False
    carrier.restart()
    assert apart(simulated(one, tmp_path / "near"), over_sites(one, tmp_path / "far", carrier, resume=True)) == []


@pytest.mark.parametrize(("quorum", "least"), [(0.0, 0), (0.05, 1), (0.55, 11), (0.56, 12)])
def test_a_quorum_is_counted_in_whole_clients(quorum: float, least: int, tmp_path: Path) -> None:
    """0.55 · 20 is 11.000000000000002 in floating point, and 11 all the same."""
    one = experiment(data__clients=20, data__samples=8, model__name="linear_synth", training__rounds=1)
    carrier = Memory(shares(one), tmp_path / "sites", lambda client, round: client >= least)
    far = over_sites(one, tmp_path / "enough", carrier, quorum, clients=20)
    assert [r.clients for r in far.history.rounds] == [least]
    if least:
        carrier.lost = lambda client, round: client >= least - 1
        with pytest.raises(UnansweredError, match=f"{least - 1} of 20 clients answered, {least} are needed"):
            over_sites(one, tmp_path / "too few", carrier, quorum, clients=20)


def test_an_algorithm_that_needs_everybody_never_goes_without(tmp_path: Path) -> None:
    one = experiment("vrlsgd", training__rounds=3)
    carrier = Memory(shares(one), tmp_path / "sites", lambda client, round: (client, round) == (2, 2))
    with pytest.raises(UnansweredError, match=r"4 of 5 clients answered, 5 are needed \(client 2: its site is not"):
        over_sites(one, tmp_path / "far", carrier, quorum=0.0)
    carrier.lost = lambda client, round: False
    assert apart(simulated(one, tmp_path / "near"), over_sites(one, tmp_path / "far", carrier, resume=True)) == []


def test_letters_that_come_twice_change_nothing(tmp_path: Path) -> None:
    one = experiment("scaffold")
    inner = Memory(shares(one), tmp_path / "sites")
    twice = Spoiling(inner, lambda client, letter, reply: [(client, reply), (client, reply)])
    assert apart(simulated(one, tmp_path / "near"), over_sites(one, tmp_path / "far", twice, quorum=1.0)) == ["rounds"]
    assert {kind for _, kind, _ in faults(tmp_path / "far")} == {"duplicate"}


def test_an_old_reply_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """Client 2 repeats its reply to the first call for ever: it does not have the number of later letters."""
    one, first = experiment("fedavg", training__rounds=2), list[bytes]()

    def spoil(client: int, letter: bytes, reply: bytes) -> Any:
        if client == 2 and len(inner.calls) > 0:
            first.append(reply)
            return [(client, first[0])]
        return [(client, reply)]

    inner = Memory(shares(one), tmp_path / "sites")
    far = over_sites(one, tmp_path / "far", Spoiling(inner, spoil))
    assert [r.clients for r in far.history.rounds] == [5, 4]
    ((round, kind, words),) = faults(tmp_path / "far")
    assert (round, kind) == (2, "refused")
    assert words == "client 2: a reply does not repeat the number of the letter that it should answer."


def test_a_site_whose_data_change_in_the_middle_is_refused_by_name_and_once_a_round(tmp_path: Path) -> None:
    """Every letter says which data the server counts on. For the quorum's sake it is called thrice."""
    one = experiment("fedavg")
    good = shares(one)
    carrier = Memory(good, tmp_path / "sites")

    def swapped(client: int, round: int) -> bool:
        carrier.halves[4].data = good[3]
        return False

    carrier.lost = swapped
    with pytest.raises(UnansweredError, match=r"4 of 5 .* needed .client 4: client 4 holds other data than the run"):
        over_sites(one, tmp_path / "far", carrier, quorum=1.0)
    assert carrier.calls.count((4, 1)) == 3
    with pytest.raises(DataError, match="client 4 holds other data than when the run began; put the old data back"):
        over_sites(one, tmp_path / "far", carrier, resume=True)
    carrier.halves[4].data = good[4]
    assert [r.clients for r in over_sites(one, tmp_path / "far", carrier, resume=True).history.rounds] == [4, 4]
    said = "client 4: client 4 holds other data than the run counts on; put the old data back, or start a new run."
    assert faults(tmp_path / "far") == [(1, "refused", said), (2, "refused", said)]


def test_a_site_with_the_share_of_another_is_refused_before_the_run(tmp_path: Path) -> None:
    one = experiment()
    carrier = Memory(shares(one), tmp_path / "sites")
    carrier.halves[4].data = carrier.halves[3].data
    with pytest.raises(DataError, match="client 4 does not hold its share of synthetic_feddyn"):
        over_sites(one, tmp_path / "far", carrier)


def test_a_site_that_joins_as_somebody_else_is_found_out(tmp_path: Path) -> None:
    one = experiment()
    carrier = Memory(shares(one), tmp_path / "sites")
    carrier.halves[1], carrier.halves[2] = carrier.halves[2], carrier.halves[1]
    with pytest.raises(DataError, match="the site with the key of client 1 says that it is another client"):
        over_sites(one, tmp_path / "far", carrier)


def test_a_run_begins_when_every_site_has_said_what_it_holds(tmp_path: Path) -> None:
    one = experiment()
    inner = Memory(shares(one), tmp_path / "sites")
    away = Spoiling(inner, lambda client, letter, reply: [(client, Lost("away") if client in (0, 3) else reply)])
    with pytest.raises(DataError, match=r"client 0, 3 did not answer within 0 s; .* or wait longer with --wait"):
        over_sites(one, tmp_path / "far", away)
    assert not (tmp_path / "far" / "run.sqlite").exists()


def test_a_run_goes_on_without_a_site_that_is_away(tmp_path: Path) -> None:
    one = experiment("scaffold", training__rounds=2)
    inner = Memory(shares(one), tmp_path / "sites")
    over_sites(one, tmp_path / "far", inner, stop=after(1))
    away = Spoiling(inner, lambda client, letter, reply: [(client, Lost("away") if client == 3 else reply)])
    far = over_sites(one, tmp_path / "far", away, resume=True)
    assert far.state.counted.tolist() == [2, 2, 2, 1, 2]


@pytest.mark.parametrize("number", [4, 6])
def test_as_many_sites_as_there_are_clients(number: int, tmp_path: Path) -> None:
    one = experiment()
    data = [*shares(one), shares(one)[0]][:number]
    with pytest.raises(InputError, match=f"synthetic_feddyn comes with 5 clients, but the network has {number} sites"):
        over_sites(one, tmp_path / "far", Memory(data, tmp_path / "sites"), clients=number)
    dealt = experiment(data={"name": "mnist5k", "samples": 60}, partition={"clients": 5, "rule": "iid"})
    with pytest.raises(InputError, match=f"partition.clients must be the number of sites, {number}, got 5"):
        over_sites(dealt, tmp_path / "far", Memory(data, tmp_path / "sites"), clients=number)
