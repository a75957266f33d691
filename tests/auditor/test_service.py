"""
Tests for L{pylogbroker.auditor.service}.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection
from random import Random
from socket import SHUT_WR, create_connection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.auditor.auditor import Auditor
from pylogbroker.auditor.service import AuditorService, asPrometheus
from pylogbroker.errors import ConfigurationError
from tests.audit.test_comparisonformats import comparison
from tests.auditor.auditcase import AuditCase, packed
from tests.cli.commands import reactor


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, kind and text. Blocks."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type") or "", response.read().decode()
    finally:
        connection.close()


class ServiceTests(AuditCase):
    """Pass after pass, over HTTP and in the log."""

    async def service(self, start: bool = True, **properties: str) -> AuditorService:
        settings = self.settings(**{"interval_ms": "50", **properties})
        service = AuditorService(reactor, settings, Auditor(reactor, settings))
        self.addCleanup(service.stopService)
        self.events: list[LogEvent] = []
        observer: Any = self.events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        if start:
            service.startService()
        return service

    async def until(self, holds: Any) -> None:
        while not holds():
            await deferLater(reactor, 0.02)

    def said(self, level: LogLevel) -> list[str]:
        ours = [
            event
            for event in self.events
            if event.get("log_namespace", "").startswith("pylogbroker.auditor")
        ]
        return [formatEvent(event) for event in ours if event.get("log_level") is level]

    async def test_pages(self) -> None:
        """
        What was found last, for Prometheus, programs and people; nothing else is there, and nothing
        can be changed.
        """
        await self.fill(10, 8)
        service = await self.service()
        await self.until(lambda: service.comparison is not None)
        port = service.port.getHost().port
        status, kind, text = await deferToThread(ask, port, "/metrics")
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        self.assertIn('pylogbroker_audit_missing_messages{topic="clicks",tier="mirror"} 2', text)
        status, kind, text = await deferToThread(ask, port, "/audit.json")
        self.assertEqual(
            (status, kind, json.loads(text)["isComplete"]), (200, "application/json", False)
        )
        status, kind, text = await deferToThread(ask, port, "/audit.txt?x=1")
        self.assertIn("2 messages are missing in 1 place", text)
        self.assertEqual((await deferToThread(ask, port, "/"))[0], 404)
        self.assertEqual((await deferToThread(ask, port, "/metrics/../../etc/passwd"))[0], 404)
        self.assertEqual((await deferToThread(ask, port, "/metrics", "POST"))[0], 405)
        self.assertEqual((await deferToThread(ask, port, "/metrics", "HEAD"))[::2], (200, ""))

    async def test_mutatedRequests(self) -> None:
        """
        Two thousand broken requests change nothing: what can be read afterwards is what could be
        before, and the log has no traceback.
        """
        await self.fill(10, 8)
        service = await self.service(interval_ms="3600000")
        await self.until(lambda: service.comparison is not None)
        port, random = service.port.getHost().port, Random(4)
        whole = (
            b"GET /audit.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: identity\r\n\r\nhello"
        )

        def attack() -> None:
            for _number in range(2000):
                request = bytearray(whole)
                for _change in range(random.randrange(1, 8)):
                    position = random.randrange(len(request))
                    request[position : position + random.randrange(3)] = random.randbytes(
                        random.randrange(4)
                    )
                with create_connection(("127.0.0.1", port), 30) as connection:
                    try:
                        connection.sendall(request)
                        if random.random() < 0.2:
                            connection.shutdown(SHUT_WR)
                            connection.recv(1 << 16)
                    except OSError:  # it may hang up at any time
                        pass

        before = (await deferToThread(ask, port, "/audit.json"))[2]
        await deferToThread(attack)
        self.assertEqual((await deferToThread(ask, port, "/audit.json"))[2], before)
        self.assertEqual(self.flushLoggedErrors(), [])

    async def test_body(self) -> None:
        """A request with a body is refused, and its connection ended, before the body has come."""
        await self.fill(1, 1)
        port = (await self.service()).port.getHost().port

        def send(more: bytes) -> bytes:
            with create_connection(("127.0.0.1", port), 30) as connection:
                connection.sendall(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n" + more)
                try:
                    return connection.recv(1 << 16)
                except ConnectionResetError:
                    return b""

        sizes = [b"Content-Length: %b\r\n\r\n" % size for size in (b"1000000000000", b"9" * 5000)]
        for more in (*sizes, b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"):
            self.assertTrue((await deferToThread(send, more)).startswith(b"HTTP/1.1 413 "))
        self.assertEqual(self.flushLoggedErrors(), [])

    async def test_beforeTheFirstPass(self) -> None:
        """Before the first pass is over, nobody is told that all is well."""
        service = await self.service(start=False)
        service.privilegedStartService()
        self.assertEqual(
            (await deferToThread(ask, service.port.getHost().port, "/metrics"))[0], 503
        )

    async def test_log(self) -> None:
        """A hole is logged once, however many passes see it, and once more when it has closed."""
        await self.fill(10, 8)
        service = await self.service(listen="")
        self.assertIs(service.port, None)
        await self.until(lambda: self.said(LogLevel.error))
        await deferLater(reactor, 0.3)
        self.assertEqual(len(self.said(LogLevel.error)), 1)
        self.assertIn(
            "2 of 10 messages of clicks are missing in mirror", self.said(LogLevel.error)[0]
        )
        await self.put(self.mirror, "clicks", packed(self.base), packed(self.base))
        await self.until(
            lambda: any(
                "Nothing is missing any more of clicks in mirror" in text
                for text in self.said(LogLevel.info)
            )
        )

    async def test_notes(self) -> None:
        """What limits the audit is a warning, once as long as it is the same."""
        await self.fill()
        await self.mirror.stop()
        service = await self.service(timeout_ms="100")
        await self.until(lambda: service.comparison is not None)
        first = service.comparison
        await self.until(lambda: service.comparison is not first)
        self.assertIn("mirror was not audited", self.said(LogLevel.warn)[0])

    async def test_failedPass(self) -> None:
        """A pass that fails in a way that nobody foresaw is logged, and the next one comes."""
        service = await self.service(start=False)
        failing = True
        audit = service.auditor.audit

        async def fail() -> Any:
            nonlocal failing
            if failing:
                failing = False
                raise ZeroDivisionError
            return await audit()

        self.patch(service.auditor, "audit", fail)
        service.startService()
        await self.until(lambda: service.comparison is not None)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    async def test_stopInAPass(self) -> None:
        """A pass under way does not hold up the end."""
        service = await self.service(start=False)
        self.patch(service.auditor, "audit", lambda: Deferred())
        service.startService()
        await service.stopService()
        self.assertIs(service.port, None)

    async def test_listen(self) -> None:
        """An endpoint that is none, a port that is taken: the start fails, and says which."""
        for listen in ("nonsense:1", f"tcp:{self.live.port}:interface=127.0.0.1"):
            service = await self.service(start=False, listen=listen)
            with self.assertRaisesRegex(ConfigurationError, "listen="):
                service.privilegedStartService()


class PrometheusTests(SynchronousTestCase):
    """For Prometheus."""

    def test_text(self) -> None:
        """Gauges by topic and tier, each with help and type."""
        lines = asPrometheus(comparison()).splitlines()
        for line in (
            'pylogbroker_audit_expected_messages{topic="clicks",tier="live"} 100000',
            'pylogbroker_audit_seen_messages{topic="clicks",tier="live"} 99999',
            'pylogbroker_audit_missing_messages{topic="clicks",tier="live"} 1',
            'pylogbroker_audit_missing_windows{topic="clicks",tier="live"} 1',
            'pylogbroker_audit_more_messages{topic="clicks",tier="live"} 0',
            "pylogbroker_audit_certain 1",
            "# TYPE pylogbroker_audit_missing_messages gauge",
            "pylogbroker_audit_time_seconds 1767225720.0",
        ):
            self.assertIn(line, lines)

    def test_more(self) -> None:
        """What is there twice is a figure as well."""
        self.assertIn(
            'pylogbroker_audit_more_messages{topic="clicks",tier="live"} 2',
            asPrometheus(comparison(seen=100_005)).splitlines(),
        )

    def test_hostileNames(self) -> None:
        """A name cannot end its label or its line."""
        text = asPrometheus(comparison('a"\n\\b'))
        self.assertIn('topic="a\\"\\n\\\\b"', text)
