"""Letters: what goes in comes out, only whoever got a letter can answer it, and nothing that arrives does harm."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.engine.wire import WireError, from_bytes, to_bytes
from fedkeel.network.greeting import Letters, greet
from fedkeel.network.letters import Facts, Letter, Reply, new_nonce, read_letter, read_reply
from tests.network.in_memory import own_data

GOOD = own_data(3).facts(3)
NONCE = "a698588c21db7ddb4844b4c91f799a92"


def reply(facts: Any = None, nonce: Any = NONCE, body: Any = None, **more: Any) -> bytes:
    """A reply with a fitting digest, whatever it says."""
    empty = torch.zeros(0, dtype=torch.uint8)
    return to_bytes("reply", {"nonce": nonce, "facts": facts, **more}, {"body": empty if body is None else body})


def raw(whole: Any, body: bytes = b"") -> bytes:
    """A message of which somebody has written the head by hand."""
    text = whole if isinstance(whole, bytes) else json.dumps(whole).encode()
    made = b"FKW1" + struct.pack("<I", len(text)) + text + body
    return made + hashlib.blake2b(made, digest_size=16).digest()


def facts(**changed: Any) -> dict[str, Any]:
    return {**GOOD.model_dump(mode="json"), **changed}


@given(st.binary(max_size=300), st.text(max_size=50), st.text(max_size=50))
def test_a_letter_comes_back(request: bytes, description: str, digest: str) -> None:
    letter = Letter(new_nonce(), description, digest, request)
    assert read_letter(letter.to_bytes()) == letter


@given(st.binary(max_size=300))
def test_a_reply_comes_back(body: bytes) -> None:
    for one in (Reply(NONCE, GOOD, body), Reply(NONCE, None, body)):
        assert read_reply(one.to_bytes(), NONCE) == one


def test_numbers_of_letters_are_long_and_never_the_same() -> None:
    made = {new_nonce() for _ in range(1000)}
    assert len(made) == 1000
    assert {len(bytes.fromhex(one)) for one in made} == {16}


@pytest.mark.parametrize("nonce", ["", NONCE[:-1], NONCE.upper() + "x", "0" * 32, None, 7, [NONCE], "\ud800", "ü"])
def test_a_reply_to_another_letter_is_none(nonce: Any) -> None:
    with pytest.raises(WireError, match="does not repeat the number of the letter"):
        read_reply(reply(nonce=nonce), NONCE)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"client": -1}, "client"),
        ({"client": True}, "client"),
        ({"client": "3"}, "client"),
        ({"samples": 0}, "samples"),
        ({"samples": -5}, "samples"),
        ({"samples": 1 << 41}, "samples"),
        ({"samples": 1.5}, "samples"),
        ({"samples": None}, "samples"),
        ({"input_shape": []}, "input_shape"),
        ({"input_shape": [1] * 9}, "input_shape"),
        ({"input_shape": [-1]}, "input_shape"),
        ({"input_shape": [0]}, "input_shape"),
        ({"input_shape": [1 << 40]}, "input_shape"),
        ({"input_shape": [1 << 20, 1 << 20]}, "input_shape"),
        ({"input_shape": "28"}, "input_shape"),
        ({"target_shape": [-3]}, "target_shape"),
        ({"target_shape": [1 << 31, 1 << 31]}, "target_shape"),
        ({"inputs": "complex128"}, "inputs"),
        ({"inputs": "object"}, "inputs"),
        ({"targets": "uint8"}, "targets"),
        ({"classes": -1}, "classes"),
        ({"classes": 10**9}, "classes"),
        ({"classes": 0}, "classes"),
        ({"targets": "float32", "classes": 3}, "classes"),
        ({"has_test": 1}, "has_test"),
        ({"data": "x"}, "data"),
        ({"data": "z" * 32}, "data"),
        ({"fedkeel": "1" * 51}, "fedkeel"),
        ({"more": 1}, "more"),
        ({"x" * 100_000: 1}, ""),
    ],
)
def test_facts_that_are_nonsense_are_refused_in_a_short_sentence(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError, match="what a site says of itself is not in order") as caught:
        read_reply(reply(facts(**changed)), NONCE)
    assert field in str(caught.value)
    assert len(str(caught.value)) < 400


def test_facts_with_numbers_that_are_none_are_refused() -> None:
    """JSON has no NaN; Python's reads one all the same, unless told not to."""
    head = {"nonce": NONCE, "facts": facts(samples=float("nan"))}
    told = {"kind": "reply", "head": head, "tensors": [["body", "uint8", [0]]]}
    with pytest.raises(WireError):
        read_reply(raw(told), NONCE)


@pytest.mark.parametrize("nothing", [5, "facts", [], [1], True, {}])
def test_facts_that_are_none_at_all_are_refused(nothing: Any) -> None:
    with pytest.raises(WireError, match="what a site says of itself is not in order"):
        read_reply(reply(nothing), NONCE)


def test_facts_are_what_the_site_holds() -> None:
    assert (GOOD.client, GOOD.samples, GOOD.input_shape, GOOD.classes) == (3, 12, (4,), 3)
    assert (GOOD.inputs, GOOD.targets, GOOD.target_shape, GOOD.has_test) == ("float32", "int64", (), False)
    assert read_reply(Reply(NONCE, GOOD).to_bytes(), NONCE).facts == GOOD


@pytest.mark.parametrize(
    "body", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8), torch.zeros((), dtype=torch.uint8)]
)
def test_a_body_that_is_no_row_of_bytes_is_refused(body: torch.Tensor) -> None:
    with pytest.raises(WireError, match="not a row of bytes"):
        read_reply(reply(body=body), NONCE)
    letter = to_bytes("letter", {"nonce": "", "description": "", "data": ""}, {"request": body})
    with pytest.raises(WireError, match="not a row of bytes"):
        read_letter(letter)


def test_one_kind_is_not_taken_for_the_other() -> None:
    letter, answer = Letter(NONCE, "d", "e", b"f").to_bytes(), Reply(NONCE, GOOD).to_bytes()
    with pytest.raises(WireError, match="of the kind 'reply'; it answers letters"):
        read_letter(answer)
    with pytest.raises(WireError, match="of the kind 'letter' in place of a reply"):
        read_reply(letter, NONCE)
    with pytest.raises(WireError, match="of the kind"):
        read_reply(to_bytes("reply", {"nonce": NONCE, "facts": None}), NONCE)
    with pytest.raises(WireError) as caught:
        read_reply(to_bytes("\x1b[2J" + "k" * 100_000, {}), NONCE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("missing", ["nonce", "description", "data"])
def test_a_letter_without_what_it_needs_is_refused(missing: str) -> None:
    head: dict[str, Any] = {"nonce": "", "description": "", "data": ""}
    empty = {"request": torch.zeros(0, dtype=torch.uint8)}
    for wrong in (None, 5, ["x"]):
        with pytest.raises(WireError):
            read_letter(to_bytes("letter", head | {missing: wrong}, empty))
    del head[missing]
    with pytest.raises(WireError):
        read_letter(to_bytes("letter", head, empty))


def test_lengths_are_bounded() -> None:
    long = Letter(NONCE, "x" * ((1 << 20) + 1)).to_bytes()
    with pytest.raises(WireError, match="1,048,577 characters, more than are read"):
        read_letter(long)
    with pytest.raises(WireError, match="more than the 1,000 that are read"):
        read_letter(Letter(NONCE, request=bytes(1000)).to_bytes(), 1000)
    with pytest.raises(WireError, match="more than the 1,000 that are read"):
        read_reply(Reply(NONCE, body=bytes(1000)).to_bytes(), NONCE, 1000)


@pytest.mark.parametrize("data", [Letter(NONCE, "d", "e", b"request").to_bytes(), Reply(NONCE, GOOD, b"b").to_bytes()])
def test_every_damage_on_the_way_is_noticed(data: bytes) -> None:
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        for read in (read_letter, lambda one: read_reply(one, NONCE)):
            with pytest.raises(WireError):
                read(bytes(damaged))
            with pytest.raises(WireError):
                read(data[:at])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
HEADS = st.dictionaries(st.sampled_from(["nonce", "facts", "description", "data", "other"]), VALUES)
FACTS = st.dictionaries(st.sampled_from([*Facts.model_fields, "other"]), VALUES, max_size=4)


@given(st.sampled_from(["letter", "reply", "call"]), HEADS, st.sampled_from(["body", "request", "x"]))
def test_a_head_made_by_an_enemy_is_refused_or_is_one(kind: str, head: dict[str, Any], name: str) -> None:
    data = raw({"kind": kind, "head": head, "tensors": [[name, "uint8", [2]]]}, b"ab")
    for read in (read_letter, lambda one: read_reply(one, str(head.get("nonce")))):
        try:
            found = read(data)
        except WireError:
            continue
        assert isinstance(found, Letter | Reply)


@given(FACTS)
def test_facts_made_by_an_enemy_are_refused_or_are_facts(changed: dict[str, Any]) -> None:
    """What is taken can be used: shapes are those of arrays that fit into memory."""
    try:
        found = read_reply(reply(facts(**changed)), NONCE).facts
    except WireError:
        return
    assert found is not None
    assert found.samples >= 1
    assert all(size >= 1 for size in found.input_shape)


@given(st.binary(max_size=200))
def test_noise_is_no_letter(data: bytes) -> None:
    for one in (data, raw(data), b"FKW1" + data):
        for read in (read_letter, lambda got: read_reply(got, NONCE)):
            with pytest.raises(WireError):
                read(one)


@pytest.mark.parametrize("depth", [50, 500, 900, 950, 980, 990, 1000, 5000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_values_in_values_in_values_do_no_harm(depth: int, opening: str) -> None:
    deep = opening * depth + "1" + ("]" if opening == "[" else "}") * depth
    text = f'{{"kind": "reply", "head": {{"nonce": "{NONCE}", "facts": {deep}}}, "tensors": [["body", "uint8", [0]]]}}'
    with pytest.raises(WireError):
        read_reply(raw(text.encode()), NONCE)


class Fixed:
    """A carrier that brings whatever it was given."""

    def __init__(self, *replies: tuple[int, bytes]) -> None:
        self.replies = replies
        self.letters: list[dict[int, bytes]] = []

    def exchange(self, letters: Any, within: float | None = None) -> Any:
        self.letters.append(dict(letters))
        return self.replies


def test_somebody_who_was_not_written_to_is_not_heard() -> None:
    """A carrier may bring replies of others; whoever has no letter has no number to repeat."""
    found = greet(Fixed((7, Reply("", GOOD).to_bytes())), [3], 0.0)
    assert found == {}
    letters = Letters(Fixed((7, Reply("", None, b"x").to_bytes())), "d", {3: "e"})
    ((client, lost),) = letters.exchange({3: b"request"})
    assert client == 7
    assert not isinstance(lost, bytes)
    assert lost.refused


def test_every_letter_of_a_round_has_a_number_of_its_own() -> None:
    carrier = Fixed()
    assert list(Letters(carrier, "d", {0: "a", 1: "b"}).exchange({0: b"x", 1: b"y"})) == []
    ((first, second),) = ([read_letter(data) for data in sent.values()] for sent in carrier.letters)
    assert first.nonce != second.nonce
    assert (first.data, first.request, second.data, second.request) == ("a", b"x", "b", b"y")
    assert from_bytes(carrier.letters[0][0])[0] == "letter"
