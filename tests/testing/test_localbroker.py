"""
Tests of the broker for people's tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.client import connect

SET = encodeSet([b"hello"])
ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import os, signal
from twisted.internet import reactor
from pylogbroker.testing import LocalBroker

signal.alarm(50)  # which nothing here survives
broker = LocalBroker(reactor, {"http.listener": "0"})
end = lambda _: os.kill(os.getpid(), signal.SIGTERM)
reactor.callWhenRunning(lambda: broker.start().addCallback(end))
reactor.run()
print("ended", os.path.exists(broker.directory))
"""


class ThreeLinesTests(TestCase):
    """As its documentation shows it."""

    def setUp(self) -> Deferred[Any]:  # type: ignore[override] # trial waits for it
        self.broker = LocalBroker(reactor)
        self.addCleanup(self.broker.stop)
        return self.broker.start()

    async def test_visibleAtOnce(self) -> None:
        """What is produced is visible to the next request."""
        client = await connect(self, self.broker.endpoint)
        client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 0, 100))
        self.assertEqual(decodeFetch(await client.answer()), (0, SET))

    def test_where(self) -> None:
        """It listens on the loopback interface, on a port of its own."""
        self.assertEqual(
            (self.broker.host, self.broker.endpoint),
            ("127.0.0.1", f"tcp:127.0.0.1:{self.broker.port}"),
        )
        self.assertGreater(self.broker.port, 0)
        self.assertTrue(os.path.isdir(self.broker.directory))


class LocalBrokerTests(TestCase):
    """Its life."""

    async def test_traceless(self) -> None:
        """When it has stopped, its directory is gone; stopping twice is as once."""
        broker = LocalBroker(reactor)
        await broker.start()
        await broker.stop()
        self.assertFalse(os.path.exists(broker.directory))
        await broker.stop()

    async def test_endOfTheReactor(self) -> None:
        """
        A program that does not stop it ends all the same when it is asked to, and leaves no
        directory behind.
        """
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        output, errors, status = await getProcessOutputAndValue(
            sys.executable, ["-c", PROGRAM], environment, reactor=reactor
        )
        self.assertEqual((output, status), (b"ended False\n", 0), errors)

    async def test_keptDirectory(self) -> None:
        """A directory that was given stays, and another broker goes on with it."""
        directory = os.path.abspath(self.mktemp())
        for number in range(2):
            broker = LocalBroker(reactor, directory=directory)
            await broker.start()
            client = await connect(self, broker.endpoint)
            client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 15 * number, 100))
            self.assertEqual(decodeFetch(await client.answer()), (0, SET))
            await broker.stop()
        self.assertEqual(os.path.getsize(f"{directory}/t-0/00000000000000000000.kafka"), 30)

    async def test_properties(self) -> None:
        """
        Properties, with Kafka's names, override what it would do; counters and partitions can be
        looked at.
        """
        broker = LocalBroker(reactor, {"num.partitions": "3", "log.flush.interval": "1000"})
        self.addCleanup(broker.stop)
        await broker.start()
        client = await connect(self, broker.endpoint)
        client.send(
            encodeProduce("t", 2, SET), encodeFetch("t", 2, 0, 100), encodeFetch("t", 3, 0, 100)
        )
        self.assertEqual(decodeFetch(await client.answer()), (0, b""))
        self.assertEqual(decodeFetch(await client.answer()), (3, b""))
        service = broker.broker.service
        self.assertEqual(service.counters.topic("t").messageCount, 1)
        self.assertEqual([str(each) for each in service.directory.logs], ["t-2"])

    async def test_cannotStart(self) -> None:
        """One that cannot start says why, and leaves nothing behind when it is stopped."""
        broker = LocalBroker(reactor, {"listeners": "tcp:0:interface=192.0.2.1"})
        with self.assertRaises(ConfigurationError):
            await broker.start()
        await broker.stop()
        self.assertFalse(os.path.exists(broker.directory))
