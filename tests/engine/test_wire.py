"""Messages as bytes: what goes in comes out to the bit, and nothing that arrives does harm."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch

from fedkeel.algorithms.registry import make_algorithm
from fedkeel.check import tiny_simulation
from fedkeel.engine import wire
from fedkeel.engine.randomness import Purpose
from fedkeel.engine.wire import Answer, Refusal, Scored, WireError, from_bytes, to_bytes
from fedkeel.learning.task import Score


def a_tensor(rng: np.random.Generator) -> torch.Tensor:
    shape = tuple(rng.integers(0, 4, size=rng.integers(0, 4)).tolist())
    name = rng.choice(list(wire.DTYPES))
    raw = rng.integers(0, 256, size=(*shape, np.dtype(name).itemsize), dtype=np.uint8)  # NaN with payloads, too
    if name == "bool":
        return torch.from_numpy(np.asarray(raw[..., 0] > 100))
    return torch.from_numpy(raw.reshape(-1).view(name).copy().reshape(shape))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())


@pytest.mark.parametrize("seed", range(100))
def test_tensors_of_any_kind_come_back_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = {f"{i}/ü": a_tensor(rng) for i in range(rng.integers(0, 6))}
    head = {"a": int(rng.integers(1 << 60)), "b": [float(rng.normal())], "c": None}
    kind, got, found = from_bytes(to_bytes("some", head, tensors))
    assert (kind, got, list(found)) == ("some", head, list(tensors))
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert all(value.data_ptr() % 16 == 0 for value in found.values() if value.numel())


def messages() -> dict[str, bytes]:
    simulation = tiny_simulation(make_algorithm("fedveca"), norm=True, sizes=(12, 7, 20, 10, 16), drop_last=True)
    state = simulation.start()
    call = simulation.server.open(state.at_server)
    outcome = simulation.executor.run(simulation.job(state).take([1]))
    question = simulation.server.question(state.at_server, (1,), "train")
    return {
        "call": wire.call_to_bytes(call.take([1])),
        "question": wire.question_to_bytes(question),
        "answer": wire.reply_to_bytes(Answer(1, 0, 4, outcome, "")),
        "score": wire.reply_to_bytes(
            Scored(1, 0, Purpose.LOSSES, Score(0.5, float("nan"), 7, sums={"f1": (1.0, float("inf"))}))
        ),
        "refusal": wire.reply_to_bytes(Refusal(1, 0, "no \x1b[2J")),
    }


MESSAGES = messages()


def read(name: str, data: bytes) -> Any:
    return (wire.request_from_bytes if name in ("call", "question") else wire.reply_from_bytes)(data)


def test_a_call_comes_back_whole() -> None:
    simulation = tiny_simulation(make_algorithm("fedveca"))
    call = simulation.server.open(simulation.start().at_server).take([3])
    got = wire.request_from_bytes(wire.call_to_bytes(call))
    assert (got.round, got.clients.ids, got.common_steps) == (call.round, (3,), call.common_steps)
    assert list(got.message) == list(call.message)
    assert same_bits(got.message.tau.rows, call.message.tau.rows)
    assert same_bits(got.message.w, call.message.w)
    assert (got.clients.N, got.clients.n, got.clients.S) == (5, 56, 5)


def test_scores_come_back_whatever_they_are() -> None:
    score = read("score", MESSAGES["score"]).score
    assert (score.accuracy, str(score.loss), score.samples) == (0.5, "nan", 7)
    assert score.sums == {"f1": (1.0, float("inf"))}


def test_what_a_site_says_cannot_write_to_a_screen() -> None:
    assert read("refusal", MESSAGES["refusal"]).reason == "no ?[2J"


@pytest.mark.parametrize("name", MESSAGES)
def test_every_damage_on_the_way_is_noticed(name: str) -> None:
    """Every bit of a sample of bytes, and every length."""
    data, rng = MESSAGES[name], random.Random(name)
    for at in sorted(rng.sample(range(len(data)), min(len(data), 150))):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        with pytest.raises(WireError):
            read(name, bytes(damaged))
    for length in rng.sample(range(len(data)), min(len(data), 50)):
        with pytest.raises(WireError):
            read(name, data[:length])
    with pytest.raises(WireError):
        read(name, data + b"\0")


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    "",
    "x" * 5000,
    [],
    [[]],
    {},
    {"a": []},
    ["\0"],
    [-1],
    [0, 0],
    1e308,
]


def changed(value: Any, rng: random.Random) -> Any:
    """The same JSON with one part exchanged, left out or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.15:
            return value[:at] + value[at + 1 :]
        return [*value[:at], changed(value[at], rng), *value[at + (how < 0.9) :]]
    return rng.choice(VALUES)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_made_by_an_enemy_is_refused_or_is_one(name: str) -> None:
    """Heads changed at random under a fitting digest: an error of ours, or a value of the right type."""
    data, rng = MESSAGES[name], random.Random(f"enemy {name}")
    (length,) = struct.unpack("<I", data[4:8])
    head, body = json.loads(data[8 : 8 + length]), data[8 + length : -16]
    refused = 0
    for _ in range(1500):
        other = head
        for _ in range(rng.choice([1, 1, 2, 3])):
            other = changed(other, rng)
        text = json.dumps(other).encode()
        made = b"FKW1" + struct.pack("<I", len(text)) + text + body
        try:
            read(name, made + hashlib.blake2b(made, digest_size=16).digest())
        except WireError:
            refused += 1
    assert refused > 1000


def test_sizes_are_bounded() -> None:
    data = to_bytes("some", {}, {"x": torch.zeros(1000)})
    with pytest.raises(WireError, match="more than the 1,000 that are read"):
        from_bytes(data, largest=1000)
    claims = {"kind": "some", "head": {}, "tensors": [["x", "float32", [1 << 40, 1 << 40]]]}
    text = json.dumps(claims).encode()
    made = b"FKW1" + struct.pack("<I", len(text)) + text
    with pytest.raises(WireError, match="too few bytes"):
        from_bytes(made + hashlib.blake2b(made, digest_size=16).digest())


def test_what_an_enemy_writes_makes_no_long_sentence() -> None:
    """What is refused is kept in the diary of a run, for as long as the run is kept."""
    long = "\x1b[2J" * 50_000
    for tensors in ([[long, "float32", [5]]], [["x", long, [5]]], [["x", "float32", [long]]]):
        text = json.dumps({"kind": "answer", "head": {}, "tensors": tensors}).encode()
        made = b"FKW1" + struct.pack("<I", len(text)) + text
        with pytest.raises(WireError) as caught:
            from_bytes(made + hashlib.blake2b(made, digest_size=16).digest())
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400
