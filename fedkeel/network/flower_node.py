"""A site as Flower's SuperLink sees it: a SuperNode that pulls messages, and answers each with the client's half.

Flower's own ``flower-supernode`` asks for messages every three seconds, fetches the code of the run, and starts a
process for each message, which imports torch. Here one process does all that a SuperNode does for us through Flower's
client for its Fleet interface; it opens no port, and no code arrives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedkeel.network.client_half import ClientHalf
from fedkeel.network.flower import PART, UNREACHABLE, NetworkError, content, letter_in, message_of
from fedkeel.network.places import SitePlace

HEARTBEAT = 10
"""Seconds between signs of life; Flower takes a node that missed two for gone."""
SOON, LATER = 0.2, 2.0
"""Seconds between two questions for messages: right after one, and when there was none for a while."""
SHARE = 0.1
"""In between, the share of the time without a message that passes until the next question."""
LONGEST_WAIT = 30.0
STILL_THERE = 45.0
"""Seconds for which a server may take a process for alive that was killed, and let no other in with its key."""
TRIES, PATIENCE = 8, 30.0
"""How often, and for how many seconds, a request in the middle of a message is repeated."""
Result = TypeVar("Result")
Say = Callable[[str], None]


def client_app(half: ClientHalf) -> ClientApp:
    """The client's half as an app of Flower's, which any SuperNode could run."""
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        return Message(content(half.reply(letter_in(message, half.largest))), reply_to=message)

    return app


class SuperNode:
    """The connection of one site to its server: it asks for messages, lets the app answer, and shows that it lives."""

    def __init__(self, place: SitePlace, app: ClientApp, say: Say, stop: threading.Event) -> None:
        self._app = app
        self._say = say
        self._stop = stop
        self._server = place.settings.server
        self._lost = threading.Event()
        key = _private_key(place)
        self._public = public_key_to_bytes(key.public_key())

        def client(again: RetryInvoker | None) -> FleetHttpClient:
            return FleetHttpClient.from_server_address(
                self._server,
                insecure=False,
                root_certificates=place.authority.read_bytes(),
                interceptors=[
                    RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                    NodeAuthHttpInterceptor(key, key.public_key()),
                ],
                retry_invoker=again,
            )

        self._client = client(None)
        # In the middle of a message, a connection that breaks is no reason to lose what was computed.
        waits = RetryInvoker(lambda: exponential(max_delay=2), httpx.TransportError, TRIES, PATIENCE)
        self._steady = client(waits)
        self._node = Node()

    def run(self) -> None:
        """Answer messages until asked to stop; while the server cannot be reached, try again and again."""
        try:
            while not self._stop.is_set():
                self._join()
                signs = threading.Thread(target=self._show_life, name="heartbeat", daemon=True)
                signs.start()
                self._work()
                signs.join()
        finally:
            self._leave()
            self._client.close()
            self._steady.close()

    def _join(self) -> None:
        self._lost.clear()
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        until = float("inf")
        while not self._stop.is_set():
            found = self._insisting(lambda: self._client.ActivateNode(request), joining=True)
            if found is not None:
                self._node = Node(node_id=found.node_id)
                self._say(f"joined {self._server}; waiting for work")
                return
            until = min(until, time.monotonic() + STILL_THERE)
            if time.monotonic() > until:
                raise NetworkError(
                    f"{self._server} does not let this site in: another process has joined with its key, or the key "
                    "was taken out of the network."
                )
            self._stop.wait(1)
            self._lost.clear()

    def _work(self) -> None:
        busy = time.monotonic()
        while not (self._stop.is_set() or self._lost.is_set()):
            found = self._insisting(lambda: self._client.PullMessages(PullMessagesRequest(node=self._node)))
            if found is not None and found.messages_list:
                self._answer(message_from_proto(found.messages_list[0]), found.message_object_trees[0])
                busy = time.monotonic()
            else:
                self._stop.wait(min(max(SOON, SHARE * (time.monotonic() - busy)), LATER))

    def _answer(self, bare: Message, tree: ObjectTree) -> None:
        """Fetch the content of a message, answer it, and send the answer; what fails concerns this message alone."""
        try:
            called = time.monotonic()
            message = self._fetched(bare, tree)
            began, run = time.monotonic(), message.metadata.run_id
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, self._node.node_id
            reply = self._app(message, Context(run, self._node.node_id, {}, RecordDict(), {}))
            done = time.monotonic()
            self._send(reply, done - began)
            times = f"{began - called:.2f} s to fetch, {time.monotonic() - done:.2f} s to send"
            self._say(f"answered in {done - began:.2f} s ({times})")
        except Exception as error:  # whatever a server may send, the next message is to be answered
            self._say(f"a message of run {bare.metadata.run_id} came to nothing: {_short(error)}")

    def _fetched(self, bare: Message, tree: ObjectTree) -> Message:
        run, name = bare.metadata.run_id, bare.metadata.message_id
        parts = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            make_pull_object_fn_protobuf(self._steady.PullObject, self._node, run),
            initial_backoff=PART,
        )
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=name)
        self._steady.ConfirmMessageReceived(request)
        message: Message = message_of(name, parts)
        return message

    def _send(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            told = self._steady.PushMessages(request)
            run = reply.metadata.run_id
            push_objects(
                get_all_nested_objects(reply),
                make_push_object_fn_protobuf(self._steady.PushObject, self._node, run, told.session_id),
                object_ids_to_push=set(told.objects_to_push),
            )

    def _show_life(self) -> None:
        """Signs of life beside the work, which may take long; without an answer to them the site joins anew."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not (self._stop.wait(0.8 * HEARTBEAT) or self._lost.is_set()):
            try:
                if not self._client.SendNodeHeartbeat(request).success:
                    self._lost.set()
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in UNREACHABLE:
                    self._lost.set()
            except httpx.HTTPError:
                continue

    def _insisting(self, ask: Callable[[], Result], joining: bool = False) -> Result | None:
        """The answer of the server, however long it takes; None if this site is to stop or to join anew."""
        wait = 0.5
        while not self._stop.is_set():
            try:
                found = ask()
                if wait > 0.5:
                    self._say(f"{self._server} answers again")
                return found
            except httpx.HTTPStatusError as error:
                code = error.response.status_code
                if joining and code in (400, 401, 403, 404):
                    raise NetworkError(
                        f"{self._server} refuses this site (HTTP {code}): its key is not among the server's clients, "
                        "its clock is minutes off, or the address is not that of a fedkeel network."
                    ) from None
                if code not in UNREACHABLE:
                    self._lost.set()
                    self._stop.wait(SOON)
                    return None
                reason = f"HTTP {code}"
            except httpx.TransportError as error:
                reason = _short(error)
                if "CERTIFICATE_VERIFY_FAILED" in reason:
                    raise NetworkError(
                        f"{self._server} is not the server of this network, or not under this name: its certificate is "
                        f"not signed by {self._server}'s authority in ca.crt ({reason})."
                    ) from None
            if wait == 0.5:
                self._say(f"{self._server} cannot be reached ({reason}); trying again until it can")
            self._stop.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        return None

    def _leave(self) -> None:
        if self._node.node_id:
            try:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
            except httpx.HTTPError:
                return  # it will be missed soon enough


def _private_key(place: SitePlace) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(place.key.read_bytes(), None)
    except ValueError as error:
        raise NetworkError(f"{place.key} is no private key in OpenSSH's form: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NetworkError(f"{place.key} must be an EC key, as fedkeel network init makes it.")
    return key


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
