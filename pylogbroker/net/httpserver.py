"""
L{HttpSite}: an HTTP server with limits, over a table of paths or one function for all requests; and
L{HttpService}, which serves a site.

What must be true, without passwords: a request to a site that only shows data changes nothing; no
page of another origin can read an answer, or change anything, through a user's browser; no client
can use much memory, or keep others out.

 - A table of paths accepts only C{GET} and C{HEAD}. A body larger than the site accepts (by default
 any) is refused before more is kept.
 - The Host header must be a configured name, C{localhost}, or an address. This stops I{DNS
 rebinding}: a page at C{evil.example}, resolved to 127.0.0.1, sends its own name.
 - No answer allows another origin to read it. Headers let the browser run scripts and styles of
 this origin, connect to it, and nothing else. No content is guessed to be HTML. Untrusted text
 travels as JSON.
 - Lines and headers have Twisted's limits (16 KiB a request). A connection has one request at a
 time, and is closed after L{IDLE_SECONDS} without one. Above the limit of connections the oldest is
 closed, so holding connections keeps no client out.

C{HTTPChannel} has no parameter for its clock: C{buildProtocol} sets the channel's C{callLater}, as
Twisted's C{HTTPFactory} does. A test of idle connections watches that.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http

from pylogbroker.net.listeners import listenerDescription, listenNow, serverEndpoint

CONNECTION_COUNT_MAX = 64
IDLE_SECONDS = 60
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z._-]{1,255})(?::[0-9]{1,5})?")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REFUSAL = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class HttpResponse(NamedTuple):
    """
    An answer.

    @ivar kind: the media type.
    """

    status: int
    kind: str
    body: bytes


class HttpRequest(NamedTuple):
    """
    A request.

    @ivar path: not unquoted.
    @ivar query: values by name; the last of repeated ones.
    @ivar kind: the media type of the body, in lower case, without parameters.
    @ivar isForwarded: whether another server has passed it on, and says so (C{X-Forward}).
    """

    method: str
    path: str
    query: Mapping[str, str]
    kind: str
    body: bytes
    isForwarded: bool = False


class BadRequestError(Exception):
    """A wrong request. The client gets the text."""


Query = Mapping[str, str]
Route = Callable[[Query], "HttpResponse | Awaitable[HttpResponse]"]


def jsonReply(value: object, status: int = 200, kind: str = "application/json") -> HttpResponse:
    """JSON in ASCII, without C{<}, so that no browser can take it for markup."""
    return HttpResponse(
        status,
        kind,
        json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").encode("ascii"),
    )


def textReply(text: str, status: int = 200) -> HttpResponse:
    """Plain text for people."""
    return HttpResponse(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def isAllowedHost(host: str, names: frozenset[str]) -> bool:
    """
    Whether the site accepts a Host header.

    @param names: in lower case.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower()
    try:
        ipaddress.ip_address(name.strip("[]"))
        return True
    except ValueError:
        return name in names or name.rstrip(".") == "localhost"


class _Request(http.Request):
    """One request."""

    _log = Logger()
    _isOver = False
    _leftSize = 0
    channel: Any
    content: Any

    def gotLength(self, length: int | None) -> None:
        super().gotLength(0)  # what is refused is not kept, and what is taken is small
        self._leftSize = self.channel.web.bodySizeMax
        if length is not None and length > self._leftSize:
            self._refuseBody()

    def handleContentChunk(self, data: bytes) -> None:
        self._leftSize -= len(data)
        if self._leftSize < 0:
            self._refuseBody()
        elif not self._isOver:
            super().handleContentChunk(data)

    def _refuseBody(self) -> None:
        if not self._isOver:
            self._isOver = True
            self.channel.transport.write(_REFUSAL)
            self.channel.loseConnection()

    def process(self) -> None:
        if self._isOver:
            return
        web: HttpSite = self.channel.web
        self.notifyFinish().addErrback(self._left)
        maybeDeferred(self._answer, web).addCallbacks(self._reply, self._failed).addErrback(
            self._broken
        )

    def _left(self, _failure: Failure) -> None:
        self._isOver = True

    def _answer(self, web: HttpSite) -> Any:
        hosts = self.requestHeaders.getRawHeaders(b"Host") or []
        if len(hosts) != 1 or not isAllowedHost(hosts[0].decode("latin-1"), web.names):
            return textReply(
                "This site is not known by that name. If it should be, name it in "
                f"{web.namesCalled}, or use its address.",
                421,
            )
        try:
            query = {
                name.decode(): values[-1].decode()
                for name, values in cast("dict[bytes, list[bytes]]", self.args or {}).items()
            }
        except UnicodeDecodeError:
            raise BadRequestError("what is asked for is not UTF-8") from None
        kind = (
            (self.getHeader(b"Content-Type") or b"")
            .decode("latin-1")
            .partition(";")[0]
            .strip()
            .lower()
        )
        return web.answer(
            HttpRequest(
                self.method.decode("latin-1"),
                self.path.decode("latin-1"),
                query,
                kind,
                self.content.read(),
                self.getHeader(b"X-Forward") is not None,
            )
        )

    def _failed(self, failure: Failure) -> None:
        if failure.check(BadRequestError):
            self._reply(jsonReply({"error": str(failure.value)}, 400))
        else:
            self._log.failure(
                "A request for {path} failed unexpectedly", failure, path=self.path[:200]
            )
            self._reply(textReply("This did not work: the log says why.", 500))

    def _broken(self, failure: Failure) -> None:
        self._log.failure("An answer could not be sent: this is a bug", failure)
        self.channel.loseConnection()

    def _reply(self, reply: HttpResponse) -> None:
        if self._isOver:
            return
        self.setResponseCode(reply.status)
        for name, value in _HEADERS.items():
            self.setHeader(name, value)
        if reply.status == 405:
            self.setHeader("Allow", self.channel.web.methods)
        self.setHeader("Content-Type", reply.kind)
        self.setHeader("Content-Length", str(len(reply.body)))
        if self.method != b"HEAD":
            self.write(reply.body)
        self.finish()


class _Channel(http.HTTPChannel):
    """One connection."""

    requestFactory = _Request
    transport: Any
    web: HttpSite

    def connectionMade(self) -> None:
        super().connectionMade()
        self.web.opened(self)

    def headerReceived(self, line: bytes) -> bool:
        """
        Refuse a C{Content-Length} of thousands of digits, which C{int} refuses with L{ValueError}.
        """
        try:
            return bool(super().headerReceived(line))
        except ValueError:
            self.transport.write(_REFUSAL)
            self.loseConnection()
            return False

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override] # Twisted's has no annotation
        self.web.closed(self)
        super().connectionLost(reason)


class HttpSite(Factory):
    """
    A site.

    @ivar routes: functions by path, from the query to a L{HttpResponse}, now or later. They may
        raise L{BadRequestError}.
    @ivar names: accepted in the Host header, in lower case.
    @ivar namesCalled: the setting of these names, for errors.
    @ivar connections: the open ones, the oldest first.
    @cvar bodySizeMax: bytes of a request's body.
    @cvar methods: for the C{Allow} header.
    """

    noisy = False
    bodySizeMax = 0
    methods = "GET, HEAD"

    def __init__(
        self,
        reactor: Any,
        routes: Mapping[str, Route],
        names: tuple[str, ...] = (),
        namesCalled: str = "http.hosts",
        connectionCountMax: int = CONNECTION_COUNT_MAX,
    ) -> None:
        self._reactor = reactor
        self.routes = routes
        self.namesCalled = namesCalled
        self.names = frozenset(name.lower() for name in names)
        self._connectionCountMax = connectionCountMax
        self.connections: dict[Any, None] = {}

    def answer(self, asked: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        """Answer a request, by default from the table. It may raise L{BadRequestError}."""
        if asked.method not in ("GET", "HEAD"):
            return textReply("There is only GET here.", 405)
        route = self.routes.get(asked.path)
        return textReply("There is nothing here.", 404) if route is None else route(asked.query)

    def buildProtocol(self, addr: Any) -> _Channel:
        channel = _Channel()
        channel.web = self
        channel.timeOut = IDLE_SECONDS
        channel.callLater = self._reactor.callLater  # type: ignore[method-assign]
        return channel

    def opened(self, channel: Any) -> None:
        self.connections[channel] = None
        if len(self.connections) > self._connectionCountMax:
            next(iter(self.connections)).transport.abortConnection()

    def closed(self, channel: Any) -> None:
        self.connections.pop(channel, None)

    def closeAll(self) -> None:
        for channel in list(self.connections):
            channel.transport.abortConnection()


class HttpService(Service):
    """
    A site as a Twisted service. It takes its port before the reactor runs, so that a taken port
    fails the start.

    @ivar web: the site.
    @ivar port: the listening port; L{None} before the start and after the end.
    """

    def __init__(self, reactor: Any, web: HttpSite, listener: str, setting: str) -> None:
        """
        @param listener: see L{listenerDescription}.
        @param setting: names the endpoint, for errors.
        """
        self.web = web
        self.port: Any = None
        self._reactor = reactor
        self._description = listenerDescription(listener)
        self._setting = setting

    def privilegedStartService(self) -> None:
        """
        Listen.

        @raise ConfigurationError: the listener is not an endpoint, or cannot be used.
        """
        super().privilegedStartService()
        if self.port is None:
            self.port = listenNow(self.takePort, self._setting)

    def takePort(self) -> Deferred[Any]:
        """
        @return: fires with the listening port; fails as the endpoint does.
        @raise Exception: what L{serverEndpoint} raises.
        """
        return serverEndpoint(self._reactor, self._description).listen(self.web)  # type: ignore[no-any-return]

    def stopService(self) -> Deferred[None]:
        """@return: fires when the port is free and all connections are closed; does not fail."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await maybeDeferred(super().stopService)
        port, self.port = self.port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        self.web.closeAll()
