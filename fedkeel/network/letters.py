"""What passes between the server and a site, whoever carries it: a letter there, a letter back.

A letter is a message of ``engine/wire.py`` with what the site must know beside it: which run it belongs to, how to make
algorithm and model (a description), and the data that the server counts on. Every letter to a site has a number that
nobody can guess, and the answer must repeat it: only whoever got the letter can answer it.
"""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from fedkeel.engine.wire import LARGEST, WireError, from_bytes, to_bytes
from fedkeel.errors import named, shown

LONGEST_DESCRIPTION = 1 << 20
LARGEST_SAMPLE = 1 << 26
"""Numbers of one sample: the server makes up a few such samples to try a model on."""


class Facts(BaseModel):
    """What a site says of itself when it is greeted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    client: int = Field(ge=0)
    samples: int = Field(ge=1, le=1 << 40)
    input_shape: tuple[int, ...] = Field(min_length=1, max_length=8)
    inputs: str = Field(pattern="^(uint8|float32|int64)$", description="type of the stored inputs")
    target_shape: tuple[int, ...] = Field(max_length=8)
    targets: str = Field(pattern="^(int64|float32)$", description="type of the stored targets")
    classes: int = Field(ge=0, le=1_000_000, description="labels are below this; 0 for real numbers")
    has_test: bool = Field(description="whether it has test samples of its own")
    data: str = Field(pattern="^[0-9a-f]{32}$", description="digest of its samples and how they are prepared")
    fedkeel: str = Field(max_length=50)
    torch: str = Field(max_length=50)

    @field_validator("input_shape", "target_shape")
    @classmethod
    def _is_one_of_arrays(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not all(size >= 1 for size in shape) or math.prod(shape) > LARGEST_SAMPLE:
            raise ValueError(f"must be sizes from 1, at most {LARGEST_SAMPLE:,} numbers together")
        return shape

    @field_validator("classes")
    @classmethod
    def _fit_the_targets(cls, classes: int, before: ValidationInfo) -> int:
        if "targets" in before.data and (before.data["targets"] == "float32") != (classes == 0):
            raise ValueError("must be 0 for real numbers, and for them alone")
        return classes


@dataclass(frozen=True)
class Letter:
    """From the server to one site. Without a request it is a greeting, which is answered with ``Facts``."""

    nonce: str
    description: str = ""
    """The run, as ``engine/description.py`` writes it."""
    data: str = ""
    """Digest of the data that the server counts on at this site."""
    request: bytes = b""

    def to_bytes(self) -> bytes:
        head = {"nonce": self.nonce, "description": self.description, "data": self.data}
        return to_bytes("letter", head, {"request": _as_tensor(self.request)})


@dataclass(frozen=True)
class Reply:
    """From a site to the server: facts, or what the client's half of the round says to a request."""

    nonce: str
    facts: Facts | None = None
    body: bytes = b""

    def to_bytes(self) -> bytes:
        head = {"nonce": self.nonce, "facts": None if self.facts is None else self.facts.model_dump(mode="json")}
        return to_bytes("reply", head, {"body": _as_tensor(self.body)})


def new_nonce() -> str:
    """A number that nobody can guess."""
    return secrets.token_hex(16)


def read_letter(data: bytes, largest: int = LARGEST) -> Letter:
    """A letter as it arrived at a site."""
    kind, head, tensors = from_bytes(data, largest)
    texts = [head.get(name) for name in ("nonce", "description", "data")]
    if kind != "letter" or not all(isinstance(text, str) for text in texts) or set(tensors) != {"request"}:
        raise WireError(f"a site was sent a message of the kind {shown(kind)}; it answers letters.")
    nonce, description, digest = map(str, texts)
    if len(description) > LONGEST_DESCRIPTION:
        raise WireError(f"the description in a letter has {len(description):,} characters, more than are read.")
    return Letter(nonce, description, digest, _as_bytes(tensors["request"]))


def read_reply(data: bytes, nonce: str, largest: int = LARGEST) -> Reply:
    """A reply as it arrived at the server; it must be one to the letter with this number."""
    kind, head, tensors = from_bytes(data, largest)
    if kind != "reply" or set(tensors) != {"body"}:
        raise WireError(f"a site sent a message of the kind {shown(kind)} in place of a reply.")
    said = str(head.get("nonce")).encode(errors="replace")  # JSON may hold what is no text
    if not secrets.compare_digest(said, nonce.encode()):
        raise WireError("a reply does not repeat the number of the letter that it should answer.")
    facts = head.get("facts")
    try:
        known = None if facts is None else Facts.model_validate_json(json.dumps(facts))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = named(".".join(map(str, first["loc"])))
        raise WireError(f"what a site says of itself is not in order: {field}: {first['msg']}.") from None
    return Reply(nonce, known, _as_bytes(tensors["body"]))


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _as_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise WireError("the content of a letter is not a row of bytes.")
    return tensor.numpy().tobytes()
