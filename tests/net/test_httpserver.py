"""
Tests for L{pylogbroker.net.httpserver}, a site: who is answered, and what.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.httpserver import (
    IDLE_SECONDS,
    BadRequestError,
    HttpResponse,
    HttpSite,
    Query,
    Route,
    isAllowedHost,
    jsonReply,
    textReply,
)
from tests.broker.manualbroker import capture
from tests.console.asking import Answer, parse, request


class Transport(StringTransport):
    """One that is closed at once."""

    def _checkState(self) -> None:
        """A real one may be told to pause when it is about to close."""

    def unregisterProducer(self) -> None:
        """A real one may be told so twice."""
        self.producer = None

    def getPeer(self) -> str:
        return "somebody"


class SiteTestCase(SynchronousTestCase):
    """A site with some routes, and connections to it."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[Query] = []
        self.later: Deferred[HttpResponse] = Deferred()
        routes: dict[str, Route] = {
            "/": self.route,
            "/later": lambda query: self.later,
            "/wrong": self.wrong,
            "/broken": self.broken,
        }
        self.web = HttpSite(self.clock, routes, ("Log1.example",), "--host", 3)

    def route(self, query: Query) -> HttpResponse:
        self.asked.append(query)
        return textReply("hello")

    def wrong(self, query: Query) -> HttpResponse:
        raise BadRequestError("<that> is wrong")

    def broken(self, query: Query) -> HttpResponse:
        raise ZeroDivisionError

    def connect(self) -> tuple[Any, Transport]:
        channel, transport = self.web.buildProtocol(None), Transport()
        channel.makeConnection(transport)
        self.addCleanup(self.lose, channel)
        return channel, transport

    def lose(self, channel: Any) -> None:
        """If it is still there: its timers have to go."""
        if channel in self.web.connections:
            channel.connectionLost(Failure(ConnectionDone()))

    def ask(
        self, path: str = "/", method: str = "GET", host: str = "localhost", more: str = ""
    ) -> Answer:
        channel, transport = self.connect()
        channel.dataReceived(request(path, method, host, more))
        answer, rest = parse(transport.value())
        self.assertEqual(rest, b"")
        channel.connectionLost(Failure(ConnectionDone()))
        return answer


class AnswerTests(SiteTestCase):
    """What is answered."""

    def test_route(self) -> None:
        """
        A path is answered by its route, which gets the query, of a name that comes twice the last.
        """
        answer = self.ask("/?a=1&b=%C3%A4&a=2")
        self.assertEqual(
            (answer.status, answer.body, self.asked), (200, b"hello\n", [{"a": "2", "b": "ä"}])
        )

    def test_headers(self) -> None:
        """
        Every answer, errors included, forbids scripts of elsewhere, guessing of types, frames, and
        keeping a copy; none allows other origins to read it.
        """
        for path in ("/", "/nothing", "/wrong", "/later?x"):
            if path.startswith("/later"):
                self.later.callback(textReply("late"))
            headers = self.ask(path).headers
            self.assertIn(
                "default-src 'none'; script-src 'self';", headers["content-security-policy"]
            )
            self.assertNotIn("unsafe", headers["content-security-policy"])
            self.assertEqual(
                (
                    headers["x-content-type-options"],
                    headers["x-frame-options"],
                    headers["cache-control"],
                ),
                ("nosniff", "DENY", "no-store"),
            )
            self.assertEqual(headers["cross-origin-resource-policy"], "same-origin")
            self.assertFalse([name for name in headers if name.startswith("access-control")])

    def test_later(self) -> None:
        """An answer may take its time; the next request of the connection waits for it."""
        channel, transport = self.connect()
        channel.dataReceived(request("/later") + request("/"))
        self.assertEqual((transport.value(), self.asked), (b"", []))
        self.later.callback(textReply("late"))
        first, rest = parse(transport.value())
        self.assertEqual((first.body, parse(rest)[0].body), (b"late\n", b"hello\n"))

    def test_gone(self) -> None:
        """
        Who has gone before the answer was there is not answered, and nothing is logged as an error.
        """
        channel, transport = self.connect()
        channel.dataReceived(request("/later"))
        channel.connectionLost(Failure(ConnectionDone()))
        self.later.callback(textReply("late"))
        self.assertEqual((transport.value(), self.web.connections), (b"", {}))

    def test_head(self) -> None:
        """HEAD gets the headers of GET and nothing behind them."""
        channel, transport = self.connect()
        channel.dataReceived(request("/", "HEAD"))
        head, _, body = transport.value().partition(b"\r\n\r\n")
        self.assertIn(b"200 OK", head)
        self.assertIn(b"Content-Length: 6", head)
        self.assertEqual(body, b"")

    def test_wrong(self) -> None:
        """A route's refusal is 400 with a sentence, as JSON without a C{<}."""
        answer = self.ask("/wrong")
        self.assertEqual(
            (answer.status, answer.json(), b"<" in answer.body),
            (400, {"error": "<that> is wrong"}, False),
        )
        self.assertEqual(self.ask("/?a=%FF").json(), {"error": "what is asked for is not UTF-8"})

    def test_broken(self) -> None:
        """A bug is 500, and says nothing of itself but in the log."""
        lines = capture(self)
        answer = self.ask("/broken")
        self.assertEqual((answer.status, b"Zero" in answer.body), (500, False))
        self.assertIn("A request for b'/broken' failed", lines()[0])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_json(self) -> None:
        """JSON is ASCII and no markup, whatever is in it."""
        body = b'{"a":"\\u003cscript>\\u2028\\u00e4"}'
        self.assertEqual(jsonReply({"a": "<script>\u2028ä"}), (200, "application/json", body))
        self.assertEqual(
            jsonReply({"a": "<script>\u2028ä"}, 404, "application/own+json"),
            (404, "application/own+json", body),
        )


class RefusalTests(SiteTestCase):
    """What is not answered."""

    def test_onlyGet(self) -> None:
        """Nothing can be changed: there is no other method."""
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
            answer = self.ask(method=method)
            self.assertEqual((answer.status, answer.headers["allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.asked, [])

    def test_onlyPaths(self) -> None:
        """A path that is none of the table's leads nowhere, however it is written."""
        for path in (
            "/nothing",
            "/../etc/passwd",
            "//",
            "/%2e%2e/",
            "http://localhost/",
            "/\xff",
            "*",
        ):
            self.assertIn(self.ask(path).status, (400, 404), path)
        self.assertEqual(self.asked, [])

    def test_host(self) -> None:
        """
        A name that nobody has named is refused, with what to do; addresses, localhost and named
        ones are answered, with any port.
        """
        for host in (
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "[::1",
            "localhost:x",
            "localhost@evil.example",
        ):
            answer = self.ask(host=host)
            self.assertEqual(answer.status, 421, host)
            self.assertIn(b"name it in --host,", answer.body)
        self.assertEqual(self.asked, [])
        for host in (
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:8067",
            "[::1]:8067",
            "192.0.2.1",
            "log1.example:80",
            "LOG1.EXAMPLE",
        ):
            self.assertEqual(self.ask(host=host).status, 200, host)

    def test_hostHeaders(self) -> None:
        """No Host, or two of them, is refused."""
        channel, transport = self.connect()
        channel.dataReceived(b"GET / HTTP/1.0\r\n\r\n")
        self.assertEqual(parse(transport.value())[0].status, 421)
        self.assertGreaterEqual(self.ask(more="Host: evil.example\r\n").status, 400)
        self.assertEqual(self.asked, [])

    def test_names(self) -> None:
        """Names are compared whole."""
        names = frozenset({"a.example"})
        self.assertTrue(isAllowedHost("a.example", names))
        self.assertFalse(isAllowedHost("b.a.example", names))
        self.assertFalse(isAllowedHost("x" * 300, names))

    def test_body(self) -> None:
        """
        A request with a body is refused before its body has come, and nothing of that is kept.
        """
        for more, body in (
            ("Content-Length: 1000000000\r\n", b""),
            (f"Content-Length: {'9' * 5000}\r\n", b"hello"),
            (f"Content-Length: {'9' * 5000}\r\nAccept: */*\r\n", b"hello"),
            ("Content-Length: 5\r\n", b"hello"),
            ("Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        ):
            channel, transport = self.connect()
            channel.dataReceived(request("/", "POST", more=more) + body)
            self.assertEqual(parse(transport.value())[0].status, 413, more)
            self.assertTrue(transport.disconnecting)
            channel.dataReceived(b"x" * 100_000)
        self.assertEqual(self.asked, [])

    def test_nonsense(self) -> None:
        """What is no HTTP, or too much of it, ends its connection."""
        for data in (
            b"\0\0\0\5hello\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
            b"GET /" + b"x" * 40_000,
            request("/", more="A: b\r\n" * 9000),
        ):
            channel, transport = self.connect()
            channel.dataReceived(data)
            self.assertTrue(transport.disconnecting or transport.disconnected, data[:40])
        self.assertEqual(self.asked, [])


class ConnectionTests(SiteTestCase):
    """Who may be connected."""

    def test_idle(self) -> None:
        """Who asks nothing for a while is let go."""
        _, transport = self.connect()
        self.clock.advance(IDLE_SECONDS - 1)
        self.assertFalse(transport.disconnecting)
        self.clock.advance(1)
        self.assertTrue(transport.disconnecting)

    def test_tooMany(self) -> None:
        """
        One more than the limit, and the oldest goes: nobody keeps others out by holding
        connections.
        """
        transports = [self.connect()[1] for _ in range(4)]
        self.assertEqual(
            [transport.disconnected for transport in transports], [True, False, False, False]
        )

    def test_closeAll(self) -> None:
        """At the end everybody goes."""
        transports = [self.connect()[1] for _ in range(2)]
        self.web.closeAll()
        self.assertEqual([transport.disconnected for transport in transports], [True, True])

    def test_noTimers(self) -> None:
        """A site that nobody looks at has no timers running: it costs nothing."""
        self.web.doStart()
        self.addCleanup(self.web.doStop)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class MutationTests(SiteTestCase):
    """Requests that somebody has damaged."""

    SEEDS = (
        request("/?a=1&b=2"),
        request("/later", "HEAD"),
        request("/wrong", more="Accept: */*\r\nConnection: keep-alive\r\nUser-Agent: x\r\n"),
        request("/", "POST", more="Content-Length: 5\r\n") + b"hello",
        request("/", "PUT", more="Transfer-Encoding: chunked\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
        request("/", more="Expect: 100-continue\r\nContent-Length: 1\r\n"),
        request("/", more="Upgrade: websocket\r\nConnection: Upgrade\r\n"),
    )
    COUNT = 3_000

    def mutant(self, random: Random) -> bytes:
        data = bytearray(random.choice(self.SEEDS))
        for _ in range(random.randint(1, 6)):
            at = random.randrange(len(data) + 1)
            act = random.randrange(4)
            if act == 0 and at < len(data):
                data[at] = random.randrange(256)
            elif act == 1:
                data[at:at] = random.choice(
                    (
                        b"\r\n",
                        b"\0",
                        b"%",
                        b"Host: evil\r\n",
                        b" ",
                        b"\xff\xfe",
                        b":" * 50,
                        b"A" * 300,
                    )
                )
            elif act == 2:
                del data[at : at + random.randint(1, 30)]
            else:
                data[at:at] = data[: random.randint(1, 40)]
        return bytes(data)

    def test_mutants(self) -> None:
        """
        Whatever comes, only routes are called, nothing is logged as an error, each answer is a
        whole one, and none says what was not asked.
        """
        random = Random(8067)
        self.web.routes = {**self.web.routes, "/later": lambda query: succeed(textReply("late"))}
        lines = capture(self)
        for number in range(self.COUNT):
            channel, transport = self.connect()
            data = self.mutant(random)
            at = random.randrange(len(data) + 1)
            for part in (data[:at], data[at:]):
                if part and not transport.disconnecting and not transport.disconnected:
                    channel.dataReceived(part)
            answer = transport.value()
            self.assertTrue(
                not answer or answer.startswith(b"HTTP/1."), (number, data, answer[:80])
            )
            self.assertLess(len(answer), 20_000, (number, data))
            self.lose(channel)
        self.assertEqual(lines(), [])
        self.assertEqual(self.web.connections, {})
