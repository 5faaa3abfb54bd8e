"""Who may ask for what: every request passes here before a page is made.

The page can start and stop processes, so it answers only to a person in front of it. Other sites that the person's
browser visits may send requests, too, and may give this address a name of their own (DNS rebinding). Hence: only known
host names, nothing on behalf of other sites, and forms only with a token that other sites cannot read. Beyond this
machine also a password, ``--token``.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing from elsewhere, no script or style inside a page, in nobody's frame."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
LARGEST_BODY = 4 << 20
"""Bytes of a form: an experiment of 1 MB, of which every byte may be written as three."""
PAUSE = 0.5
"""Seconds that a wrong token costs."""
OPEN = ("/login", "/static/")
"""What is answered before a token was given."""


@dataclass(frozen=True)
class Session:
    """A browser, known by a cookie that only this process could have made."""

    nonce: str
    csrf: str
    """What its forms must carry."""


@dataclass(frozen=True)
class Guard:
    """The rules of one server."""

    names: frozenset[str]
    """Host names by which it may be called, in small letters."""
    addresses: bool = False
    """Also by any address in figures: those cannot be made to mean another machine."""
    token: str | None = None
    port: int = 0
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Of this process; cookies and forms of an earlier one do not count."""

    @classmethod
    def of(cls, host: str, port: int, token: str | None) -> Guard:
        """The rules for an address to listen at."""
        if is_loopback(host):
            return cls(frozenset({"localhost", "127.0.0.1", "::1", host.lower()}), False, token, port)
        here = {socket.gethostname().lower(), socket.getfqdn().lower(), "localhost", host.lower()}
        return cls(frozenset(here), True, token, port)

    @property
    def cookie(self) -> str:
        """Browsers share cookies between the ports of a host, so its name has the port."""
        return f"fedkeel-{self.port}"

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server."""
        name = _without_port(header.strip().lower())
        if name in self.names:
            return True
        return self.addresses and _is_address(name)

    def session(self, cookies: str) -> Session | None:
        """The browser that a Cookie header belongs to; None for one that has none of ours."""
        for one in cookies.split(";"):
            name, _, value = one.strip().partition("=")
            nonce, _, signature = value.partition(".")
            if name == self.cookie and _equal(signature, self._signed("session", nonce)):
                return Session(nonce, self._signed("form", nonce))
        return None

    def new_session(self) -> Session:
        nonce = secrets.token_hex(16)
        return Session(nonce, self._signed("form", nonce))

    def set_cookie(self, session: Session) -> str:
        """A Set-Cookie header: not for scripts, and not sent along when another site links or posts here."""
        value = f"{session.nonce}.{self._signed('session', session.nonce)}"
        return f"{self.cookie}={value}; Path=/; HttpOnly; SameSite=Strict"

    def admits(self, given: str) -> bool:
        """Whether a token is the one that was set."""
        return self.token is not None and _equal(given, self.token)

    def _signed(self, purpose: str, nonce: str) -> str:
        return hmac.new(self.key, f"{purpose}:{nonce}".encode(), "sha256").hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guarded:
    """An application behind its guard; it finds ``session`` in the scope, and ``form`` where something was posted."""

    def __init__(self, app: App, guard: Guard) -> None:
        self.app = app
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope["method"], headers)
        if refused is not None:
            await _refuse(send, *refused)
            return
        session = self.guard.session(headers.get("cookie", ""))
        if session is None and self.guard.token is not None and not scope["path"].startswith(OPEN):
            if scope["method"] == "GET" and headers.get("sec-fetch-dest", "document") == "document":
                await _refuse(send, 303, "", {"location": "/login"})
            else:
                await _refuse(send, 401, "This page needs its token: reload it.")
            return
        if scope["method"] == "POST":
            body = await _body(receive)
            if body is None:
                await _refuse(send, 413, f"A form has at most {LARGEST_BODY:,} bytes.")
                return
            form = _fields(body)
            if scope["path"] == "/login":
                await self._log_in(form.get("token", ""), send)
                return
            if session is None or not _equal(form.get("csrf", ""), session.csrf):
                await _refuse(send, 403, "This form is not of this server, or of an earlier start of it: reload it.")
                return
            scope["form"] = form
        anew = self.guard.new_session() if session is None and self.guard.token is None else None
        scope["session"] = session or anew
        await self.app(scope, receive, self._sending(send, anew))

    async def _log_in(self, given: str, send: Send) -> None:
        """No other token is asked for: whoever knows this one may come in."""
        if self.guard.admits(given):
            cookie = self.guard.set_cookie(self.guard.new_session())
            await _refuse(send, 303, "", {"location": "/", "set-cookie": cookie})
            return
        await asyncio.sleep(PAUSE)
        await _refuse(send, 303, "", {"location": "/login?wrong=1"})

    def _refused(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is not answered, whoever sent it."""
        host = headers.get("host", "")
        if not self.guard.knows_host(host):
            return 421, "This server is not called by that name; open it by the address that it printed."
        if method not in ("GET", "HEAD", "POST"):
            return 405, "Pages are read and forms are posted here, nothing else."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return 403, "Requests from other sites are not answered."
        opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site not in (None, "same-origin", "none") and not (method == "GET" and opened):
            return 403, "Requests from other sites are not answered."
        return None

    def _sending(self, send: Send, anew: Session | None) -> Send:
        """Every answer has the headers of ``HEADERS``, unless it has its own, and is kept nowhere."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _completed(message.get("headers", []))
                if anew is not None:
                    message["headers"].append((b"set-cookie", self.guard.set_cookie(anew).encode()))
            await send(message)

        return sending


def _completed(headers: Any) -> list[tuple[bytes, bytes]]:
    given = {bytes(name).lower() for name, _ in headers}
    more = {**HEADERS, "cache-control": "no-store"}
    return [*headers, *((n.encode(), v.encode()) for n, v in more.items() if n.encode() not in given)]


async def _refuse(send: Send, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
    body = sentence.encode()
    own = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in own.items()]
    await send({"type": "http.response.start", "status": status, "headers": _completed(encoded)})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes | None:
    """What was posted; None if it is too much."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            return None
        more = message.get("more_body", False)
    return b"".join(parts)


def _fields(body: bytes) -> dict[str, str]:
    """The fields of a form by name; none of what is no form."""
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
