"""
Real log files go in and come out the same, byte for byte, whatever way they are packed on the way.

Each line is a message. The messages of a file go to one partition, from the public client, and are
read back by it with fetches of a size that cuts sets anywhere; then the lines are put together and
compared with the file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer as TwistedSimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer as TwistedSyncProducer
from pylogbroker.records.compression import CODEC_NAMES, GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.testing.localbroker import LocalBroker
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.logfiles import LogFile, generatedFile, logFiles, loghubFiles, machineFiles

BATCH_COUNTS = (1, 50, 1000)
FETCH_SIZE = 200_001


def batches(lines: list[bytes], count: int) -> Iterator[list[bytes]]:
    """So many at a time."""
    for start in range(0, len(lines), count):
        yield lines[start : start + count]


class LogFileTests(SynchronousTestCase):
    """C{twistd pylogbroker}, and the client for threads."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.broker = BrokerProcess(folder + "/logs")
        self.addCleanup(self.broker.kill)
        self.broker.start()
        self.producer = SyncProducer("127.0.0.1", self.broker.port)
        self.addCleanup(self.producer.close)
        self.consumer = SimpleConsumer("127.0.0.1", self.broker.port)
        self.addCleanup(self.consumer.close)

    def readBack(self, topic: str, end: int) -> Iterator[MessageSet]:
        offset = 0
        while offset < end:
            found = self.consumer.fetch(topic, 0, offset, FETCH_SIZE)
            self.assertGreater(found.validSize, 0)
            yield found
            offset = found.nextOffset

    def roundTrips(self, files: list[LogFile], codec: int, magic: int) -> None:
        for number, file in enumerate(files):
            for batchCount in BATCH_COUNTS:
                topic = f"{number}-{batchCount}"
                for batch in batches(file.lines, batchCount):
                    self.producer.send(topic, 0, encodeSet(batch, codec, magic))
                end = self.producer.confirm(topic, 0)
                messages = [each.message for each in chain.from_iterable(self.readBack(topic, end))]
                where = f"{file.name} ({file.source}), batches of {batchCount}"
                self.assertTrue(
                    b"\n".join(message.payload for message in messages) == file.data, where
                )
                self.assertEqual(
                    {(message.magic, message.codec) for message in messages}, {(magic, NONE)}, where
                )
                wrappers = {
                    each.message.codec
                    for found in self.readBack(topic, end)
                    for each in found.shallow()
                }
                self.assertEqual(wrappers, {codec}, where)
        names = ", ".join(f"{file.name} ({file.source})" for file in files)
        sys.stdout.write(
            f"[{CODEC_NAMES[codec]}, magic {magic}, batches of {BATCH_COUNTS}: {names}] "
        )

    def test_plain(self) -> None:
        """Uncompressed, as 0.7 writes messages."""
        self.roundTrips(logFiles(), NONE, 1)

    def test_plainOld(self) -> None:
        """Uncompressed, with magic 0, as 0.6 wrote them."""
        self.roundTrips(logFiles(), NONE, 0)

    def test_gzip(self) -> None:
        """In gzip wrappers."""
        self.roundTrips(logFiles(), GZIP, 1)

    def test_gzipOld(self) -> None:
        """In gzip wrappers around messages of magic 0."""
        self.roundTrips(logFiles(), GZIP, 0)

    def test_snappy(self) -> None:
        """In snappy wrappers."""
        self.roundTrips(logFiles(), SNAPPY, 1)

    def test_snappyOld(self) -> None:
        """In snappy wrappers around messages of magic 0."""
        self.roundTrips(logFiles(), SNAPPY, 0)

    def test_otherFiles(self) -> None:
        """
        What a machine without loghub would test with goes the same way, so that it is known to work
        there.
        """
        self.roundTrips([generatedFile(1), *list(machineFiles())[:1]], NONE, 1)


class SourceTests(SynchronousTestCase):
    """Where the files come from."""

    def test_enough(self) -> None:
        """
        There are at least five files, each of some thousand lines, whatever the machine has; all of
        loghub's where they are.
        """
        files = logFiles()
        self.assertGreaterEqual(len(files), 5)
        self.assertEqual(
            {file.source for file in files} & {"loghub"}, {file.source for file in loghubFiles()}
        )
        for file in files:
            self.assertEqual(b"\n".join(file.lines), file.data)
            self.assertGreater(len(file.lines), 100, file.name)


class TwistedClientTests(TestCase):
    """The client for Twisted, and a broker in the same reactor."""

    timeout = 60

    def setUp(self) -> Deferred[None]:  # type: ignore[override] # trial waits for it
        self.broker = LocalBroker(reactor, {"log.file.size": "50000"})
        self.addCleanup(self.broker.stop)
        return self.broker.start()

    async def _roundTrip(self, file: LogFile, topic: str, codec: int) -> None:
        producer: Any = TwistedSyncProducer(reactor, self.broker.endpoint)
        self.addCleanup(producer.close)
        for batch in batches(file.lines, 50):
            await producer.send(topic, 0, batch, codec=codec)
        end = await producer.confirm(topic, 0)
        consumer: Any = TwistedSimpleConsumer(reactor, self.broker.endpoint)
        self.addCleanup(consumer.close)
        payloads: list[bytes] = []
        offset = 0
        while offset < end:
            found = await consumer.fetch(topic, 0, offset, FETCH_SIZE)
            self.assertGreater(found.validSize, 0)
            payloads += [payload for payload, _next in found.payloads()]
            offset = found.nextOffset
        self.assertTrue(b"\n".join(payloads) == file.data, f"{file.name} ({file.source})")

    async def test_allFiles(self) -> None:
        """Every file, with each codec, over many segments."""
        for file in logFiles():
            for codec in CODEC_NAMES:
                await self._roundTrip(file, f"{file.name}.{codec}", codec)
