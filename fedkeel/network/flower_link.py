"""The server's end of Flower: who has joined, a run of its own, and letters to sites and back over its Grid."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
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
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, exponential, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedkeel import __version__
from fedkeel.engine.sites import Lost
from fedkeel.network.flower import KIND, PART, NetworkError, content, letter_in, message_of
from fedkeel.network.places import ServerPlace

POLL, SELDOM = 0.1, 1.0
"""Seconds between two looks for answers, at first and when it takes long."""
SHARE = 0.05
"""In between, the share of the time waited so far."""
PATIENCE = 120.0
"""Seconds for which a SuperLink that does not answer is waited for: it may be starting anew."""
PARTS = 30.0
"""Seconds that the parts of an answer have to arrive, once it was announced."""
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_APP = f"""[project]
name = "fedkeel-network"
version = "{__version__.partition("+")[0]}"
description = "Names the run; server and sites use the fedkeel that is installed with them."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedkeel"

[tool.flwr.app.components]
serverapp = "fedkeel.network.run:run"
clientapp = "fedkeel.network.flower_node:client_app"

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


class Link:
    """Flower's SuperLink, as whoever may steer it sees it; it listens on this machine only."""

    def __init__(self, place: ServerPlace) -> None:
        self.place = place
        self._keys = {raw_key(key): client for client, key in place.public_keys().items()}

        def client(again: RetryInvoker | None) -> ControlHttpClient:
            return ControlHttpClient.from_server_address(
                place.link,
                insecure=False,
                root_certificates=place.authority.read_bytes(),
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
                retry_invoker=again,
            )

        self._probe = client(None)
        self._control = client(RetryInvoker(lambda: exponential(max_delay=2), httpx.TransportError, None, PATIENCE))

    def close(self) -> None:
        self._probe.close()
        self._control.close()

    def is_up(self, patience: float = 0.0) -> bool:
        """Whether it answers, now or within so many seconds."""
        until = time.monotonic() + patience
        while True:
            try:
                self._probe.ListNodes(ListNodesRequest())
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
                found[client] = Joined(client, node.node_id, node.status)
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

    def __init__(self, link: Link, grid: HttpGrid, deadline: float, largest: int) -> None:
        self.deadline = deadline
        """Seconds for which answers are waited for."""
        self.largest = largest
        """Bytes of the longest reply that is fetched."""
        self._link = link
        self._grid = grid

    def exchange(self, letters: Mapping[int, bytes], within: float | None = None) -> Iterator[tuple[int, bytes | Lost]]:
        """Bring each client its letter, and give what comes back, each under the client whose key it came with."""
        began, deadline = time.monotonic(), self.deadline if within is None else min(within, self.deadline)
        nodes = self._online(letters, began + deadline)
        for client in letters:
            if client not in nodes:
                yield client, Lost("its site is not online")
        there = [client for client in letters if client in nodes]
        messages = [
            Message(content(letters[client]), nodes[client], KIND, ttl=deadline, group_id="") for client in there
        ]
        waiting = dict(zip(self._pushed(messages), there, strict=True))
        while waiting and time.monotonic() - began < deadline:
            found = self._pulled(list(waiting))
            for reply, tree in found:
                client = waiting.pop(reply.metadata.reply_to_message_id, -1)
                if client >= 0:
                    yield client, self._opened(reply, tree, nodes[client])
            if waiting and not found:
                time.sleep(min(max(POLL, SHARE * (time.monotonic() - began)), SELDOM))
        for client in waiting.values():
            yield client, Lost(f"no answer within {deadline:g} s")

    def _online(self, wanted: Collection[int], until: float) -> dict[int, int]:
        """Flower's numbers for the sites that are there. Where none of those wanted is, one is waited for."""
        while True:
            found = {client: site.node for client, site in self._link.sites().items() if site.status == "online"}
            if any(client in found for client in wanted) or time.monotonic() > until:
                return found
            time.sleep(SELDOM)

    def _pulled(self, names: list[str]) -> list[tuple[Any, Any]]:
        """What has arrived in reply to messages: who it is from, as the SuperLink knows it, and what it consists of."""
        found = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=names))
        return list(zip(found.messages_list, found.message_object_trees, strict=True))

    def _pushed(self, messages: list[Message]) -> list[str]:
        names = list(self._grid.push_messages(messages)) if messages else []
        if len(names) != len(messages) or not all(names):
            raise NetworkError("Flower's SuperLink did not take all messages of a round; go on with --resume.")
        return names

    def _opened(self, reply: Any, tree: Any, node: int) -> bytes | Lost:
        """The letter that a reply brings. Whatever its parts turn out to be concerns this reply alone."""
        if reply.HasField("error"):
            return Lost(f"Flower says: {reply.error.reason or reply.error.code}")
        if reply.metadata.src_node_id != node:
            return Lost("the answer came from another site", refused=True)
        name, run = reply.metadata.message_id, self._grid.run.run_id
        fetch, taken = make_pull_object_fn_protobuf(self._grid._runtime_client.PullObject, self._grid.node, run), 0

        def part(of: str) -> bytes:
            nonlocal taken
            found: bytes = fetch(of)
            taken += len(found)
            if taken > self.largest:
                raise NetworkError(f"its answer has more than the {self.largest:,} bytes that are read")
            return found

        try:
            parts = pull_objects(
                [one.object_id for one in iterate_object_tree(tree)], part, max_time=PARTS, initial_backoff=PART
            )
            found = letter_in(message_of(name, parts), self.largest)
        except (httpx.TransportError, httpx.HTTPStatusError):
            raise
        except ObjectPullError as error:
            return Lost(f"its answer did not arrive whole: {error}")
        except Exception as error:  # a site may send anything, and Flower's reader fail on it in any way
            return Lost(f"its answer cannot be read: {str(error)[:200] or type(error).__name__}", refused=True)
        finally:
            with suppress(httpx.HTTPError):  # what is kept there longer than needed does no harm
                confirmed = ConfirmMessageReceivedRequest(node=self._grid.node, run_id=run, message_object_id=name)
                self._grid._runtime_client.ConfirmMessageReceived(confirmed)
        return found


def raw_key(key: bytes) -> bytes:
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
