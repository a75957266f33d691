"""
Tests for L{pylogbroker.syncclient.simpleconsumer}. What it shares with its sister on Twisted is in
C{tests/contracts}.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import syncclient
from pylogbroker.errors import TimedOutError, WireError
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeOffsets
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.protocol.kafka07.responses import fetchHeader
from tests.syncclient.fakebroker import FakeBrokerCase


class SimpleConsumerTests(FakeBrokerCase):
    """Reading from one broker, with threads."""

    def setUp(self) -> None:
        super().setUp()
        self.consumer = syncclient.SimpleConsumer("127.0.0.1", self.port, timeoutMs=60_000)
        self.addCleanup(self.consumer.close)

    def test_threads(self) -> None:
        """
        Several threads may share one: their calls go one after the other, and each gets its own
        answer.
        """
        fetches = {
            offset: self.start(self.consumer.fetch, "topic", 0, offset, 100)
            for offset in (10, 20, 30)
        }
        far = self.accept()
        questions = {encodeFetch("topic", 0, offset, 100): offset for offset in fetches}
        for _ in fetches:
            offset = questions[far.readFrame()]
            far.write(fetchHeader(offset, 0))
        for offset, fetching in fetches.items():
            error = self.result(fetching).error
            assert error is not None
            self.assertEqual(error.code, offset)

    def test_contextManager(self) -> None:
        """Leaving it closes the connection."""
        with syncclient.SimpleConsumer("127.0.0.1", self.port) as consumer:
            asking = self.start(consumer.getOffsetsBefore, "topic", 0, -1, 1)
            far = self.accept()
            self.assertEqual(far.readFrame(), encodeOffsets("topic", 0, -1, 1))
            far.write(offsetsAnswer([7]))
            self.assertEqual(self.result(asking), [7])
        self.assertTrue(far.isEnded())

    def test_dropsAfterTimeOut(self) -> None:
        """
        After a time-out the connection is dropped, so that the late answer cannot be taken for the
        next one's.
        """
        consumer = syncclient.SimpleConsumer("127.0.0.1", self.port, timeoutMs=50)
        fetching = self.start(consumer.fetch, "topic", 0, 0, 100)
        far = self.accept()
        self.failure(fetching, TimedOutError)
        far.readFrame()
        self.assertTrue(far.isEnded())

    def test_dropsAfterNonsense(self) -> None:
        """Who sends an answer that is none is no broker."""
        fetching = self.start(self.consumer.fetch, "topic", 0, 0, 100)
        far = self.accept()
        far.write(b"\0\0\0\1x")
        self.failure(fetching, WireError)
        far.readFrame()
        self.assertTrue(far.isEnded())

    def test_repr(self) -> None:
        """It names its broker."""
        self.assertEqual(repr(self.consumer), f"<SimpleConsumer of 127.0.0.1:{self.port}>")


class ImportTests(SynchronousTestCase):
    """What comes with it."""

    def test_noTwisted(self) -> None:
        """
        Importing it imports nothing of Twisted, not even by way of another module: Spark's workers
        need not have it.
        """
        script = (
            "import sys, pylogbroker.syncclient; print([name for name in sys.modules if "
            "name.split('.')[0] in ('twisted', 'zope', 'automat', 'kazoo')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        self.assertEqual(done.stdout.strip(), "[]")
