"""A site answers whatever arrives with a reply or an error of ours, and goes on."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.engine.wire import Answer, Refusal, WireError, reply_from_bytes
from fedkeel.errors import FedkeelError
from fedkeel.network.client_half import ClientHalf
from fedkeel.network.greeting import Carrier
from fedkeel.network.letters import Letter, read_letter, read_reply
from tests.network.in_memory import Memory, experiment, over_sites, shares
from tests.network.test_in_process import after


def first_call(tmp_path: Path, algorithm: str = "scaffold") -> tuple[Memory, Letter]:
    """Sites of a run, and the letter with which client 2 was called in its first round."""
    one = experiment(algorithm, training__rounds=3)
    seen: list[Letter] = []

    class Kept(Memory):
        def exchange(self, letters: Any, within: float | None = None) -> Any:
            seen.append(read_letter(letters[2]))
            return super().exchange(letters)

    carrier = Kept(shares(one), tmp_path / "sites")
    over_sites(one, tmp_path / "far", carrier, stop=after(1))
    return carrier, next(letter for letter in seen if letter.request)


def said(half: ClientHalf, letter: Letter) -> Any:
    return reply_from_bytes(read_reply(half.reply(letter.to_bytes()), letter.nonce).body)


def changed(letter: Letter, **fields: Any) -> Letter:
    return Letter(**{**vars(letter), **fields})


def test_a_greeting_is_answered_whatever_else_is_in_it(tmp_path: Path) -> None:
    half = ClientHalf(3, shares(experiment())[3], tmp_path)
    for letter in (Letter("n"), Letter("n", "no description", "no digest")):
        reply = read_reply(half.reply(letter.to_bytes()), "n")
        assert reply.facts == half.data.facts(3)
        assert reply.body == b""
    assert not list(tmp_path.iterdir())


def test_the_same_call_gets_the_same_answer(tmp_path: Path) -> None:
    carrier, letter = first_call(tmp_path)
    half = ClientHalf(2, carrier.halves[2].data, tmp_path / "new")
    one, two = half.reply(letter.to_bytes()), half.reply(letter.to_bytes())
    assert one == two
    assert isinstance(said(half, letter), Answer)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"data": "0" * 32}, "client 2 holds other data than the run counts on"),
        ({"data": ""}, "client 2 holds other data than the run counts on"),
        ({"description": ""}, "description"),
        ({"description": "{}"}, "description"),
        ({"description": "[" * 100_000}, "description"),
        ({"description": "nonsense"}, "description"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_round(
    fields: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    carrier, letter = first_call(tmp_path)
    found = said(carrier.halves[2], changed(letter, **fields))
    assert isinstance(found, Refusal)
    assert (found.client, found.t) == (2, 0)
    assert sentence in found.reason


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"algorithm":"scaffold"', '"algorithm":"nonsense"', "there is no algorithm named 'nonsense'"),
        ('"algorithm":"scaffold"', '"algorithm":"os:system"', "is code outside fedkeel"),
        ('"name":"emnist_nn"', '"name":"mlp_2nn"', "the initial weights of mlp_2nn are not those of the run"),
        ('"name":"emnist_nn"', '"name":"nonsense"', "there is no model named"),
        ('"name":"emnist_nn"', '"name":null', "uses a model of its own; give its module here"),
        ('"input_shape":[30]', '"input_shape":[0]', "input_shape"),
        ('"input_shape":[30]', '"input_shape":[-5]', "input_shape"),
        ('"classes":5', '"classes":0', "classes"),
    ],
)
def test_a_description_of_something_else_is_refused(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    carrier, letter = first_call(tmp_path)
    assert old in letter.description
    found = said(carrier.halves[2], changed(letter, description=letter.description.replace(old, new)))
    assert isinstance(found, Refusal)
    assert sentence in found.reason
    assert isinstance(said(carrier.halves[2], letter), Answer)


def test_a_plugin_that_breaks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was allowed here, but its import ends in an error that nobody foresaw."""
    (tmp_path / "breaks_at_import.py").write_text("raise ZeroDivisionError('no such luck')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "breaks_at_import", raising=False)
    carrier, letter = first_call(tmp_path)
    half = carrier.halves[2]
    half.allow_plugins = True
    described = letter.description.replace('"algorithm":"scaffold"', '"algorithm":"breaks_at_import:Mine"')
    found = said(half, changed(letter, description=described))
    assert isinstance(found, Refusal)
    assert "ZeroDivisionError: no such luck" in found.reason


def test_the_call_of_another_client_is_refused(tmp_path: Path) -> None:
    carrier, letter = first_call(tmp_path)
    found = said(carrier.halves[3], changed(letter, data=carrier.halves[3].data.digest))
    assert isinstance(found, Refusal)
    assert "this is client 3; a message for client 2 is not its" in found.reason


def test_a_request_that_is_none_is_an_error_of_ours(tmp_path: Path) -> None:
    carrier, letter = first_call(tmp_path)
    half = carrier.halves[2]
    for wrong in ({"request": b"noise"}, {"request": half.reply(letter.to_bytes())}, {"request": b"x", "data": ""}):
        with pytest.raises(WireError):
            half.reply(changed(letter, **wrong).to_bytes())
    assert isinstance(said(half, letter), Answer)


@given(st.binary(max_size=100))
def test_noise_is_an_error_of_ours(data: bytes) -> None:
    half = ClientHalf(0, shares_once()[0], Path("never made"))
    with pytest.raises(FedkeelError):
        half.reply(data)


_SHARES: list[Any] = []


def shares_once() -> list[Any]:
    _SHARES[:] = _SHARES or shares(experiment())
    return _SHARES


def test_a_carrier_is_one(tmp_path: Path) -> None:
    carrier: Carrier = Memory([], tmp_path)
    assert list(carrier.exchange({})) == []


def test_a_node_outlives_whatever_a_message_holds(tmp_path: Path) -> None:
    """Messages of another kind, without a letter, or with noise in it: each is told of, none ends the process."""
    pytest.importorskip("flwr")
    from flwr.app import Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fedkeel.network import flower, places
    from fedkeel.network.flower_node import SuperNode, client_app
    from fedkeel.network.places import SitePlace

    places.make(tmp_path / "network", 1, ["localhost"], 9443, 8000, 1)
    half = ClientHalf(0, shares(experiment())[0], tmp_path / "memory")
    lines: list[str] = []
    sent: list[bytes] = []

    class Brought(SuperNode):
        """Without a server: messages are as they are given."""

        def _fetched(self, bare: Any, tree: Any) -> Any:
            return bare

        def _send(self, reply: Any, seconds: float) -> None:
            sent.append(flower.letter_in(reply))

    place = SitePlace.at(tmp_path / "network" / "sites" / "client-0")
    node = Brought(place, client_app(half), lines.append, threading.Event())

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def message(content: Any, kind: str = flower.KIND) -> Any:
        made = Message(content, 1, kind, ttl=60.0, group_id="")
        made.metadata.__dict__["_message_id"] = "m"
        return made

    good = flower.content(Letter("number").to_bytes())
    wrong = [message(RecordDict()), message(flower.content(b"noise")), message(good, "train"), message(good, "query.x")]
    tree: Any = None
    for one in wrong:
        node._answer(one, tree)
    assert len(lines) == 4
    assert not sent
    node._answer(message(good), tree)
    assert read_reply(sent[0], "number").facts == half.data.facts(0)
