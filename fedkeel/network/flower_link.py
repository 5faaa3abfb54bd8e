"""The server's end of Flower: who has joined, a run of its own, and letters to sites and back over its Grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_key
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedkeel import __version__
from fedkeel.engine.sites import Lost
from fedkeel.network.flower import KIND, NetworkError, content, letter_in
from fedkeel.network.places import ServerPlace

POLL, SELDOM = 0.1, 1.0
"""Seconds between two looks for answers, at first and when it takes long."""
SHARE = 0.05
"""In between, the share of the time waited so far."""
PATIENCE = 120.0
"""Seconds for which a SuperLink that does not answer is waited for: it may be starting anew."""
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_APP = f"""[project]
name = "fedkeel-network"
version = "{__version__.partition("+")[0]}"
description = "Names the run; server and sites use the fedkeel that is installed with them."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedkeel"

[tool.flwr.app.components]
serverapp = "fedkeel.network.run:unused"
clientapp = "fedkeel.network.flower_node:unused"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Joined:
    """A registered site."""

    client: int
    node: int
    """Flower's number for it."""
    status: str
    """registered, online or offline."""
    seen: str
    """When it last came online, as ISO 8601; empty if never."""


class Link:
    """Flower's SuperLink, as whoever may steer it sees it; it listens on this machine only."""

    def __init__(self, place: ServerPlace) -> None:
        self.place = place
        self._keys = {_raw(key): client for client, key in place.public_keys().items()}
        self._control = ControlHttpClient.from_server_address(
            place.link,
            insecure=False,
            root_certificates=place.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def close(self) -> None:
        self._control.close()

    def is_up(self, patience: float = 0.0) -> bool:
        """Whether it answers, now or within so many seconds."""
        until = time.monotonic() + patience
        while True:
            try:
                self._control.ListNodes(ListNodesRequest())
            except httpx.HTTPError:
                if time.monotonic() > until:
                    return False
                time.sleep(POLL)
            else:
                return True

    def sites(self) -> dict[int, Joined]:
        """Every site that is registered under its client's key, by client."""
        found = {}
        for node in self._control.ListNodes(ListNodesRequest()).nodes_info:
            client = self._keys.get(bytes(node.public_key))
            if client is not None and node.status != "unregistered":
                found[client] = Joined(client, node.node_id, node.status, node.online_until or "")
        return found

    def register_all(self) -> None:
        """Let in exactly the keys of ``clients/``: new ones are registered, others can join no more."""
        known = {bytes(node.public_key): node for node in self._control.ListNodes(ListNodesRequest()).nodes_info}
        for key, node in known.items():
            if key not in self._keys and node.status != "unregistered":
                self._control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for key, client in self._keys.items():
            if key not in known:
                self._control.RegisterNode(RegisterNodeRequest(public_key=key, name=f"client-{client}"))
            elif known[key].status == "unregistered":
                raise NetworkError(
                    f"the key of client {client} was taken out of this network before, and Flower lets no such key in "
                    "again; make a new one."
                )

    def runs(self) -> list[tuple[int, str]]:
        """Number and state of every run that Flower knows."""
        found = self._control.ListRuns(ListRunsRequest()).run_dict
        return [(number, run.status.status) for number, run in found.items()]

    @contextmanager
    def run(self) -> Iterator[HttpGrid]:
        """A run of Flower's, over whose Grid this process sends messages; whatever ran before is stopped."""
        for number, status in self.runs():
            if status != "finished":
                self._control.StopRun(StopRunRequest(run_id=number))
        fab, _ = build_fab_from_files({"pyproject.toml": _APP.encode(), "README.md": b"See fedkeel's documentation.\n"})
        started = self._control.StartRun(StartRunRequest(fab=Fab(content=fab)))
        if not started.HasField("run_id"):
            raise NetworkError("Flower's SuperLink would not start a run; see its log.")
        grid = HttpGrid(self.place.link, False, self.place.authority.read_bytes(), token=self._acquired(started.run_id))
        grid._retry_invoker.max_time = PATIENCE
        sub_status, signs = SubStatus.FAILED, HeartbeatSender(make_task_heartbeat_fn_http(grid._runtime_client))
        try:
            signs.start()
            told = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = told.task_id, told.run.run_id
            TaskIdentity.node_id = told.context.node_id
            grid.set_run(run_from_proto(told.run))
            yield grid
            sub_status = SubStatus.COMPLETED
        finally:
            grid._retry_invoker.max_tries = 1
            with suppress(httpx.HTTPError):  # if it fails, Flower finds out when the signs of life end
                grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=sub_status, details=""))
            if signs.is_running:
                signs.stop()
            grid.close()

    def _acquired(self, run: int) -> str:
        """The token with which this process speaks for a run."""
        secret = self.place.secret.read_bytes()
        client = RuntimeHttpClient.from_server_address(
            self.place.link,
            insecure=False,
            root_certificates=self.place.authority.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({_ACQUIRE})),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        try:
            request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            for _ in range(100):
                found = client.AcquireTask(request)
                if found.HasField("task") and found.task.run_id == run:
                    return str(found.token)
                time.sleep(0.05)
        finally:
            client.close()
        raise NetworkError(f"Flower's SuperLink does not hand out run {run}; is another process taking its runs?")


class GridTransport:
    """Carries letters to sites over Flower's Grid, and what they say back."""

    def __init__(self, link: Link, grid: HttpGrid, deadline: float) -> None:
        self.deadline = deadline
        """Seconds for which answers are waited for."""
        self.sent = self.received = 0
        """Bytes of letters, as they were handed to Flower."""
        self._link = link
        self._grid = grid

    def exchange(self, letters: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
        """Bring each client its letter, and give what comes back, each under the client whose key it came with."""
        began = time.monotonic()
        nodes = {client: site.node for client, site in self._link.sites().items() if site.status == "online"}
        for client in letters:
            if client not in nodes:
                yield client, Lost("its site is not online")
        there = [client for client in letters if client in nodes]
        messages = [
            Message(content(letters[client]), nodes[client], KIND, ttl=self.deadline, group_id="") for client in there
        ]
        waiting = dict(zip(self._pushed(messages), there, strict=True))
        self.sent += sum(len(letters[client]) for client in there)
        while waiting and time.monotonic() - began < self.deadline:
            found = list(self._grid.pull_messages(list(waiting)))
            for reply in found:
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    client = waiting.pop(name)
                    yield client, self._opened(reply, nodes[client])
            if waiting and not found:
                time.sleep(min(max(POLL, SHARE * (time.monotonic() - began)), SELDOM))
        for client in waiting.values():
            yield client, Lost(f"no answer within {self.deadline:g} s")

    def _pushed(self, messages: list[Message]) -> list[str]:
        names = list(self._grid.push_messages(messages)) if messages else []
        if len(names) != len(messages) or not all(names):
            raise NetworkError("Flower's SuperLink did not take all messages of a round; go on with --resume.")
        return names

    def _opened(self, reply: Any, node: int) -> bytes | Lost:
        if reply.has_error():
            return Lost(f"Flower says: {reply.error.reason or reply.error.code}")
        if reply.metadata.src_node_id != node:
            return Lost("the answer came from another site")
        try:
            found = letter_in(reply)
        except NetworkError as error:
            return Lost(str(error))
        self.received += len(found)
        return found


def _raw(key: bytes) -> bytes:
    """A public key in OpenSSH's form as Flower compares it."""
    return public_key_to_bytes(load_ssh_public_key(key))  # type: ignore[arg-type]


def command(place: ServerPlace, python: str) -> list[str]:
    """The command that starts Flower's SuperLink for a server: on this machine only, with TLS and known keys."""
    return [
        python,
        "-m",
        "fedkeel.network.superlink",
        *("--host", "127.0.0.1", "--port", str(place.settings.link_port)),
        *("--ssl-ca-certfile", str(place.authority), "--ssl-certfile", str(place.certificate)),
        *("--ssl-keyfile", str(place.key), "--enable-supernode-auth", "--isolation", "process"),
        *("--superexec-auth-secret-file", str(place.secret)),
        *("--database", str(Path(place.flower) / "link.sqlite"), "--disable-runtime-dependency-installation"),
    ]
