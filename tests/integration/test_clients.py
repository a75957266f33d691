"""
The scenarios of C{clientscenarios}, with the client for Twisted and with the one for threads: they
promise the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import syncclient
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.records.messageset import encodeMessage, encodeSet
from tests.integration import clientscenarios


class Blocking:
    """
    Calls the client for Twisted as if it blocked: each method waits for the Deferred in the
    reactor's thread.
    """

    def __init__(self, case: clientscenarios.ClientScenarios, client: Any) -> None:
        self._case = case
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **options: self._case.inReactor(lambda: method(*args, **options))


class TwistedClientTests(clientscenarios.ClientScenarios):
    """The clients of L{pylogbroker.client}."""

    def consumer(self, timeoutMs: float = 20_000) -> Any:
        client = SimpleConsumer(reactor, self.broker.endpoint, timeoutMs=timeoutMs)
        self.addCleanup(client.close)
        return Blocking(self, client)

    def producer(self, **options: Any) -> Any:
        client = SyncProducer(reactor, self.broker.endpoint, **options)
        self.addCleanup(client.close)
        return Blocking(self, client)


class BlockingClientTests(clientscenarios.ClientScenarios):
    """The clients of L{pylogbroker.syncclient}."""

    def consumer(self, timeoutMs: float = 20_000) -> Any:
        client = syncclient.SimpleConsumer(self.broker.host, self.broker.port, timeoutMs=timeoutMs)
        self.addCleanup(deferToThread, client.close)
        return client

    def producer(self, **options: Any) -> Any:
        client = syncclient.SyncProducer(self.broker.host, self.broker.port, **options)
        self.addCleanup(deferToThread, client.close)
        return client


class VectorTests(SynchronousTestCase):
    """What the clients' sets are made of."""

    def test_entry(self) -> None:
        """The entries that clients write are those of spec-0.7 wire-protocol §12."""
        self.assertEqual(encodeSet([b"hello"]), bytes.fromhex("0000000b 01 00 3610a686 68656c6c6f"))
        self.assertEqual(
            encodeMessage(b"hello", magic=0), bytes.fromhex("0000000a 00 3610a686 68656c6c6f")
        )
