"""
Tests that are a blocking client of a broker in the test's own reactor: the test runs in a thread,
the broker where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from twisted.internet import reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import blockingCallFromThread, deferToThread
from twisted.trial.unittest import TestCase

from pylogbroker.testing.localbroker import LocalBroker
from tests.integration.rawclient import RawClient

Case = TypeVar("Case", bound=TestCase)


def inThread(test: Callable[[Case], None]) -> Callable[[Case], Deferred[None]]:
    """Run a test in a thread, where it may block."""

    @wraps(test)
    def run(case: Case) -> Deferred[None]:
        return deferToThread(test, case)

    return run


class BrokerCase(TestCase):
    """
    Has brokers and connections, which go when the test is over. Everything but C{inReactor} is for
    the test's thread.

    @ivar broker: the one that was started last.
    """

    timeout = 60
    broker: LocalBroker

    def inReactor(self, function: Callable[..., Any], *args: Any) -> Any:
        """
        Call a function on the reactor's thread, and wait for the Deferred or coroutine that it may
        return.
        """
        return blockingCallFromThread(reactor, maybeDeferred, function, *args)  # type: ignore[arg-type]

    def serve(
        self, properties: Mapping[str, str] | None = None, directory: str | None = None
    ) -> LocalBroker:
        """Start a broker."""
        self.broker = self.inReactor(LocalBroker, reactor, properties, directory)
        self.inReactor(self.broker.start)
        self.addCleanup(self.broker.stop)
        return self.broker

    def client(self) -> RawClient:
        """A new connection to it."""
        client = RawClient(self.broker.port)
        self.addCleanup(client.close)
        return client
