"""The one door of the server: sites reach Flower's Fleet interface through it, and nothing else.

Flower's SuperLink serves its Control interface on the same port, and asks nobody there who he is: whoever reached it
could admit keys and start runs. So it listens on this machine only, and the gate passes on what begins with
``/v1/fleet/``. It also refuses what Flower would take: requests without end, more bytes from one key than a round has
need of, and a message whose sender says that it is somebody else.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.primitives.asymmetric import verify_signature
from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedkeel.network.flower_link import raw_key
from fedkeel.network.places import ServerPlace
from fedkeel.runs.atomic import replacing

FLEET = "/v1/fleet/"
CALLS = frozenset(
    {
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "push-object",
        "pull-object",
        "confirm-message-received",
    }
)
"""What sites ask for. Nobody registers himself, and no code is handed out."""
LARGEST_REQUEST = 16 << 20
"""Bytes of one request; Flower cuts arrays into pieces of 5 MB."""
WINDOW = 60.0
KEY, SIGNATURE, TIME = "flwr-public-key", "flwr-signature", "flwr-timestamp"
"""Headers of Flower's, by which a site proves in every request who it is."""
_HOP = {"host", "content-length", "connection", "transfer-encoding", "content-encoding", "keep-alive", "server", "date"}


@dataclass
class Allowance:
    """How many bytes each key has sent within the last minute."""

    most: int
    _sent: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def take(self, who: str, count: int, now: float) -> bool:
        """Whether somebody may send so many bytes more; if so, they are counted."""
        past = self._sent.setdefault(who, deque())
        while past and now - past[0][0] > WINDOW:
            past.popleft()
        if sum(size for _, size in past) + count > self.most:
            return False
        past.append((now, count))
        return True


@dataclass
class Traffic:
    """Bytes of requests and answers that passed the gate, kept in a file for ``fedkeel network status``."""

    path: Path
    up: int = 0
    down: int = 0
    _written: float = 0.0

    def add(self, up: int, down: int, now: float) -> None:
        self.up, self.down = self.up + up, self.down + down
        if now - self._written >= 1:
            self._written = now
            self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps({"up": self.up, "down": self.down}), encoding="utf-8")


def app(place: ServerPlace, largest: int) -> Starlette:
    """The gate in front of a SuperLink; ``largest`` bytes a minute are as many as a site may send."""
    allowance, traffic = Allowance(largest), Traffic(place.traffic)
    known = {raw_key(key): load_ssh_public_key(key) for key in place.public_keys().values()}
    context = ssl.create_default_context(cafile=str(place.authority))

    @asynccontextmanager
    async def lifespan(gate: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=f"https://{place.link}", verify=context, timeout=120) as link:
            gate.state.link = link
            yield
        traffic.write()

    async def passed_on(request: Request) -> Response:
        call = request.path_params["call"]
        if call not in CALLS:
            return Response("not found", 404)
        who = _who(request.headers, known)
        if who is None:
            return Response("unknown key", 401)
        body = await _read(request)
        if body is None or not allowance.take(who, len(body), time.monotonic()):
            return Response("too many bytes", 413)
        if call == "push-messages" and not _speaks_for_itself(body):
            return Response("a message must come from its sender", 403)
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        try:
            found = await request.app.state.link.post(FLEET + call, content=body, headers=headers)
        except httpx.HTTPError:
            return Response("the server is starting", 503)
        traffic.add(_weight(request.headers) + len(body), _weight(found.headers) + len(found.content), time.monotonic())
        kept = {name: value for name, value in found.headers.items() if name.lower() not in _HOP}
        return Response(found.content, found.status_code, kept)

    gate = Starlette(routes=[Route(FLEET + "{call}", passed_on, methods=["POST"])], lifespan=lifespan)
    gate.router.redirect_slashes = False  # a path is one of ours as it stands, or none
    return gate


def _who(headers: Mapping[str, str], known: Mapping[bytes, object]) -> str | None:
    """The key by which a request is signed, if it is one of the network's; Flower looks at how old the signature is."""
    try:
        raw, signature = (base64.b64decode(headers.get(name, "")[:1000], validate=True) for name in (KEY, SIGNATURE))
        key = known.get(raw)
        if isinstance(key, ec.EllipticCurvePublicKey) and verify_signature(
            key, headers.get(TIME, "")[:100].encode("ascii"), signature
        ):
            return headers[KEY]
    except (ValueError, binascii.Error):
        return None
    return None


def _weight(headers: Mapping[str, str]) -> int:
    """Bytes of the lines above a body."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


async def _read(request: Request) -> bytes | None:
    """The body of a request; None if it is longer than any that a site has need of."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_REQUEST:
            return None
        parts.append(part)
    return b"".join(parts)


def _speaks_for_itself(body: bytes) -> bool:
    """Whether every message in a request names the node as its sender that the request is signed by."""
    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return False
    return all(message.metadata.src_node_id == request.node.node_id for message in request.messages_list)


def serve(place: ServerPlace, host: str, largest: int) -> None:
    """Serve the gate until the process is asked to end."""
    import uvicorn

    uvicorn.run(
        app(place, largest),
        host=host,
        port=place.settings.port,
        ssl_certfile=Path(place.certificate),
        ssl_keyfile=str(place.key),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
