"""One form for everything that crosses to another process or machine: named tensors, and a head of plain values.

Worker processes find the tensors in shared memory (``engine/arena.py``) and get the head through a pipe. Over a network
both go as bytes:

    "FKW1" · length of the head (4 bytes) · head (JSON: kind, values, and name, type and shape of every tensor) ·
    the tensors, one behind the other · BLAKE2b-128 of all that

Nothing that is read is executed or unpickled. Whatever arrives is checked before anybody uses it: size, digest, types,
shapes, and that every value is of the kind and in the range that it must be.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Clients, Round
from fedkeel.algorithms.state import PerClient, State
from fedkeel.engine.exchange import Call, Outcome, Question
from fedkeel.engine.randomness import Purpose
from fedkeel.errors import FedkeelError, shown
from fedkeel.learning.task import Score
from fedkeel.state.rows import Rows

MAGIC = b"FKW1"
LARGEST = 1 << 30
"""Bytes of the longest message that is read, unless the reader says otherwise."""
LARGEST_HEAD = 1 << 22
MOST_TENSORS = 10_000
MOST_AXES = 8
LONGEST_TEXT = 2_000
DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
}
_DIGEST = 16


class WireError(FedkeelError):
    """A message is not what it should be."""


@dataclass(frozen=True)
class Parcel:
    """Values as they travel: named tensors (or rows that become one), and what JSON can say."""

    head: dict[str, Any]
    tensors: dict[str, Tensor | list[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What one client says to a call."""

    client: int
    t: int
    """The round that it answers, from 0."""
    steps: int
    """Local steps that it took."""
    outcome: Outcome
    """Without what the client keeps to itself."""
    complaint: str = ""
    """What is not finite in that; empty if nothing is."""


@dataclass(frozen=True)
class Refusal:
    """What one client says to a call or a question that it cannot answer."""

    client: int
    t: int
    reason: str


@dataclass(frozen=True)
class Scored:
    """What one client says to a question."""

    client: int
    t: int
    purpose: Purpose
    score: Score


# ------------------------------------------------------------------------------------------------- values as parcels


def packed_call(call: Call) -> Parcel:
    """A call as it travels."""
    tensors: dict[str, Tensor | list[Tensor]] = {
        "steps": call.steps,
        "sizes": call.clients.sizes,
        "counted": call.counted,
        "b": call.b,
    }
    numbers = {}
    for name, value in call.message.items():
        if isinstance(value, PerClient):
            tensors[f"each/{name}"] = value.rows
        elif isinstance(value, Tensor):
            tensors[f"down/{name}"] = value
        else:
            numbers[name] = value
    clients, round = call.clients, call.round
    head = {
        "round": [round.t, round.lr, round.lr0],
        "ids": list(clients.ids),
        "cohort": [clients.N, clients.n, clients.S, clients.cohort_n],
        "dtype": str(clients.dtype).removeprefix("torch."),
        "common_steps": call.common_steps,
        "message": list(call.message),
        "numbers": numbers,
    }
    return Parcel(head, tensors)


def unpacked_call(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Call:
    """The call that was packed, as this process has packed it: nothing is checked."""
    values: dict[str, Any] = dict(head["numbers"])
    values |= under(tensors, "down/")
    values |= {name: PerClient(rows) for name, rows in under(tensors, "each/").items()}
    N, n, S, cohort_n = head["cohort"]
    clients = Clients(tuple(head["ids"]), tensors["sizes"], N, n, S, cohort_n, DTYPES[head["dtype"]])
    return Call(
        Round(*head["round"]),
        clients,
        State(**{name: values[name] for name in head["message"]}),
        tensors["steps"],
        tensors["b"],
        head["common_steps"],
        tensors["counted"],
    )


def packed_outcome(outcome: Outcome) -> dict[str, Tensor]:
    """What clients return as it travels; the scores of an exam do not."""
    tensors = {f"message/{name}": value for name, value in outcome.message.items()}
    tensors |= {f"state/{name}": value for name, value in outcome.states.items()}
    tensors |= {f"norms/{number}": value for number, value in enumerate(outcome.norms)}
    tensors |= {f"noted/{name}": value for name, value in outcome.noted.items()}
    return tensors | {"buffers": outcome.buffers, "loss": outcome.loss, "moved": outcome.moved}


def unpacked_outcome(tensors: Mapping[str, Tensor]) -> Outcome:
    """The outcome that was packed."""
    norms = under(tensors, "norms/")
    return Outcome(
        State(**under(tensors, "message/")),
        State(**under(tensors, "state/")),
        tensors["buffers"],
        tensors["loss"],
        [norms[str(number)] for number in range(len(norms))],
        tensors["moved"],
        noted=under(tensors, "noted/"),
    )


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose name begins so, by the rest of their name."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


# --------------------------------------------------------------------------------------------------- messages as bytes


def call_to_bytes(call: Call) -> bytes:
    """A call, for a client elsewhere."""
    parcel = packed_call(call)
    return to_bytes("call", parcel.head, parcel.tensors)


def question_to_bytes(question: Question) -> bytes:
    """A question, for a client elsewhere. Of the server's state it has what is no table over clients."""
    tensors: dict[str, Tensor | list[Tensor]] = {"w": question.w, "b": question.b, "counted": question.counted}
    numbers: dict[str, Any] | None = None if question.server is None else {}
    for name, value in (question.server or State()).items():
        if isinstance(value, Tensor):
            tensors[f"server/{name}"] = value
        elif not isinstance(value, Rows) and numbers is not None:
            numbers[name] = value
    for number, rows in enumerate(question.positions or ()):
        tensors[f"positions/{number}"] = rows
    head = {
        "t": question.t,
        "problem": [question.N, question.common_steps],
        "ids": list(question.ids),
        "on": question.on,
        "purpose": int(question.purpose),
        "own_buffers": question.own_buffers,
        "server": numbers,
    }
    return to_bytes("question", head, tensors)


def request_from_bytes(data: bytes, largest: int = LARGEST) -> Call | Question:
    """A call or a question that arrived at a client."""
    kind, head, tensors = from_bytes(data, largest)
    if kind == "call":
        return _call(head, tensors)
    if kind == "question":
        return _question(head, tensors)
    raise WireError(f"a client was sent a message of the kind {shown(kind)}; it answers calls and questions.")


def reply_to_bytes(reply: Answer | Scored | Refusal) -> bytes:
    """What a client says, for the server."""
    head: dict[str, Any] = {"client": reply.client, "t": reply.t}
    if isinstance(reply, Answer):
        head |= {"steps": reply.steps, "complaint": reply.complaint[:LONGEST_TEXT]}
        return to_bytes("answer", head, packed_outcome(reply.outcome))
    if isinstance(reply, Scored):
        score = reply.score
        exact = [score.accuracy.hex(), score.loss.hex()]  # a loss may be anything, also what JSON has no word for
        sums = {f"sums/{name}": torch.tensor(found, dtype=torch.float64) for name, found in score.sums.items()}
        told = head | {"purpose": int(reply.purpose), "score": exact, "samples": score.samples}
        return to_bytes("score", told, sums)
    return to_bytes("refusal", head | {"reason": reply.reason[:LONGEST_TEXT]})


def reply_from_bytes(data: bytes, largest: int = LARGEST) -> Answer | Scored | Refusal:
    """What a client said, as it arrived at the server; whether it fits what was asked, ``engine/sites.py`` checks."""
    kind, head, tensors = from_bytes(data, largest)
    client, t = _whole(head, "client"), _whole(head, "t")
    if kind == "answer":
        for name in ("buffers", "loss", "moved"):
            _tensor(tensors, name)
        numbers = under(tensors, "norms/")
        if set(numbers) != {str(number) for number in range(len(numbers))}:
            raise WireError("an answer's norms are not numbered one by one.")
        return Answer(client, t, _whole(head, "steps"), unpacked_outcome(tensors), _text(head, "complaint"))
    if kind == "score":
        accuracy, loss = (_hex(part) for part in _list(head, "score", 2))
        sums = {name: tuple(found.double().flatten().tolist()) for name, found in under(tensors, "sums/").items()}
        return Scored(client, t, _purpose(head), Score(accuracy, loss, _whole(head, "samples"), sums=sums))
    if kind == "refusal":
        return Refusal(client, t, _text(head, "reason"))
    raise WireError(f"the server was sent a message of the kind {shown(kind)}; it takes answers, scores and refusals.")


def to_bytes(kind: str, head: Mapping[str, Any], tensors: Mapping[str, Tensor | list[Tensor]] | None = None) -> bytes:
    """A message."""
    whole = {
        name: value if isinstance(value, Tensor) else torch.stack(value) for name, value in (tensors or {}).items()
    }
    described = [[name, str(v.dtype).removeprefix("torch."), list(v.shape)] for name, v in whole.items()]
    text = json.dumps({"kind": kind, "head": head, "tensors": described}, allow_nan=False).encode()
    parts = [MAGIC, struct.pack("<I", len(text)), text]
    parts += [v.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).tobytes() for v in whole.values()]
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for one in parts:
        digest.update(one)
    return b"".join([*parts, digest.digest()])


def from_bytes(data: bytes, largest: int = LARGEST) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Kind, head and tensors of a message; ``WireError`` says what is wrong with it."""
    first = len(MAGIC) + 4
    if len(data) > largest:
        raise WireError(f"a message has {len(data):,} bytes, more than the {largest:,} that are read.")
    if len(data) < first + _DIGEST or data[: len(MAGIC)] != MAGIC:
        raise WireError("a message is none of ours, or of another version.")
    if hashlib.blake2b(memoryview(data)[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise WireError("a message was damaged on its way: its digest does not fit.")
    (length,) = struct.unpack("<I", data[len(MAGIC) : first])
    if length > min(LARGEST_HEAD, len(data) - first - _DIGEST):
        raise WireError("the head of a message is longer than it may be.")
    try:
        whole = json.loads(data[first : first + length], parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise WireError("the head of a message is not readable.") from None
    if not (isinstance(whole, dict) and isinstance(whole.get("kind"), str) and isinstance(whole.get("head"), dict)):
        raise WireError("the head of a message lacks its kind or its values.")
    tensors = _tensors(whole.get("tensors"), memoryview(data)[first + length : -_DIGEST])
    return whole["kind"], whole["head"], tensors


def _tensors(described: Any, body: memoryview) -> dict[str, Tensor]:
    """The tensors of a message, each in memory of its own, where its bits do not depend on its neighbours."""
    if not isinstance(described, list) or len(described) > MOST_TENSORS:
        raise WireError("a message does not say which tensors it has.")
    found: dict[str, Tensor] = {}
    start = 0
    for one in described:
        if not (isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) and isinstance(one[2], list)):
            raise WireError("a message does not say which tensors it has.")
        name, dtype, shape = one
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise WireError(f"a message has a tensor of the type {shown(dtype)}; known are {', '.join(DTYPES)}.")
        if len(shape) > MOST_AXES or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
            raise WireError(f"a message has a tensor of the shape {shown(shape)}.")
        kind = np.dtype(dtype)
        stop = start + math.prod(shape) * kind.itemsize
        if stop > len(body) or name in found:
            raise WireError(f"a message has too few bytes for its tensor {shown(name)}, or has it twice.")
        tensor = torch.empty(shape, dtype=DTYPES[dtype])
        if tensor.numel():
            raw = np.frombuffer(body[start:stop], dtype=np.uint8)
            if dtype == "bool" and raw.max() > 1:
                raise WireError(f"a message has a tensor {shown(name)} of truth values that are neither 0 nor 1.")
            tensor.view(-1).copy_(torch.from_numpy(raw.view(kind).copy()))
        found[name], start = tensor, stop
    if start != len(body):
        raise WireError(f"a message has {len(body) - start} bytes too many.")
    return found


# ------------------------------------------------------------------------------------------- what arrived, looked over


def _call(head: dict[str, Any], tensors: dict[str, Tensor]) -> Call:
    ids = _ids(head)
    t, *rates = _list(head, "round", 3)
    if type(t) is not int or t < 0 or not all(isinstance(rate, float | int) and rate >= 0 for rate in rates):
        raise WireError(f"the round of a call is {shown(head['round'])}.")
    cohort = _list(head, "cohort", 4)
    if not all(type(count) is int and count >= 0 for count in cohort):
        raise WireError(f"the cohort of a call is {shown(cohort)}.")
    if head.get("dtype") not in ("float32", "float64"):
        raise WireError(f"the precision of a call is {shown(head.get('dtype'))}.")
    _whole(head, "common_steps")
    numbers, names = head.get("numbers"), head.get("message")
    if not (isinstance(numbers, dict) and isinstance(names, list)):
        raise WireError("a call does not say what its message holds.")
    if not all(isinstance(value, int | float) for value in numbers.values()):
        raise WireError("a call has a value that is no number.")
    if sorted([*numbers, *under(tensors, "down/"), *under(tensors, "each/")]) != sorted(map(str, names)):
        raise WireError("a call has other values than it says.")
    for name in ("sizes", "steps", "counted"):
        _tensor(tensors, name, (len(ids),), whole=True)
    _tensor(tensors, "b")
    for name, rows in under(tensors, "each/").items():
        if rows.dim() == 0 or len(rows) != len(ids):
            raise WireError(f"a call to {len(ids)} clients has {list(rows.shape)} for each of them in {shown(name)}.")
    return unpacked_call(head, tensors)


def _question(head: dict[str, Any], tensors: dict[str, Tensor]) -> Question:
    ids = _ids(head)
    on, own, numbers = head.get("on"), head.get("own_buffers"), head.get("server")
    if on not in ("train", "own", "test") or type(own) is not bool or not isinstance(numbers, dict | None):
        raise WireError("a question does not say what it is about.")
    positions = under(tensors, "positions/")
    if positions and set(positions) != {str(number) for number in range(len(ids))}:
        raise WireError("a question does not name samples for each of its clients.")
    for rows in positions.values():
        if rows.dim() != 1 or rows.dtype != torch.int64:
            raise WireError("a question names samples by something that is no list of positions.")
    _tensor(tensors, "counted", (len(ids),), whole=True)
    N, common_steps = _list(head, "problem", 2)
    if not all(type(count) is int and count >= 0 for count in (N, common_steps)):
        raise WireError(f"a question comes from a run of {shown(N)} clients and {shown(common_steps)} steps.")
    return Question(
        _whole(head, "t"),
        ids,
        on,
        _tensor(tensors, "w"),
        _tensor(tensors, "b"),
        tensors["counted"],
        N,
        common_steps,
        _purpose(head),
        own,
        tuple(positions[str(number)] for number in range(len(ids))) if positions else None,
        None if numbers is None else State(**numbers, **under(tensors, "server/")),
    )


def _ids(head: Mapping[str, Any]) -> tuple[int, ...]:
    ids = head.get("ids")
    if not (
        isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids) and len(set(ids)) == len(ids)
    ):
        raise WireError("a message does not say for which clients it is.")
    return tuple(ids)


def _tensor(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...] | None = None, whole: bool = False
) -> Tensor:
    value = tensors.get(name)
    if value is None:
        raise WireError(f"a message lacks {name!r}.")
    if shape is not None and tuple(value.shape) != shape:
        raise WireError(f"{name!r} in a message has the shape {list(value.shape)}, not {list(shape)}.")
    if whole and (value.is_floating_point() or value.dtype == torch.bool or bool((value < 0).any())):
        raise WireError(f"{name!r} in a message does not hold whole numbers from 0.")
    return value


def _whole(head: Mapping[str, Any], name: str) -> int:
    value = head.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise WireError(f"{name!r} in a message is no whole number from 0.")
    return value


def _text(head: Mapping[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise WireError(f"{name!r} in a message is no text, or a very long one.")
    return "".join(c if c.isprintable() else "?" for c in value)


def _list(head: Mapping[str, Any], name: str, length: int) -> list[Any]:
    value = head.get(name)
    if not isinstance(value, list) or len(value) != length:
        raise WireError(f"{name!r} in a message is no list of {length}.")
    return value


def _purpose(head: Mapping[str, Any]) -> Purpose:
    try:
        return Purpose(_whole(head, "purpose"))
    except ValueError:
        raise WireError("a message has a purpose that nobody knows.") from None


def _hex(value: Any) -> float:
    try:
        return float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        raise WireError("a message has a number that cannot be read.") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
