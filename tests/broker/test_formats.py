"""
The broker's suite for record formats: what a broker does with partitions holds for 2011's format
and for today's, with the same requests.
"""

from __future__ import annotations

import errno
from typing import Any

from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeOffsets, encodeProduce
from tests.broker.manualbroker import LeadBroker, LeadTestCase, waitingCount
from tests.storage.driving import KAFKA, KAFKA07

SIZES = {"log.file.size", "log.retention.size", "max.unflushed.bytes.per.partition"}


class FormatCase(LeadTestCase):
    """
    @ivar records: the format, and its sets.
    """

    records = KAFKA07

    def start(self, properties: dict[str, str] | None = None, **more: Any) -> LeadBroker:
        """A broker whose partitions have the format. Properties that are sizes are in units."""
        properties = {
            name: str(int(value) * self.records.unit) if name in SIZES else value
            for name, value in (properties or {}).items()
        }
        self.lead = self.broker(properties, formats=[self.records.format], **more)
        self.peer = self.lead.connect()
        return self.lead

    def sets(self, count: int) -> list[bytes]:
        """Sets of one message and 12 units each."""
        return [self.records.entry(b"%02d" % number) for number in range(count)]

    def at(self, count: int) -> int:
        """The offset behind C{count} of those sets."""
        return self.records.offsetAt(12 * count)

    def produce(self, *sets: bytes, topic: str = "t") -> None:
        """A request for each set, and everything that follows from it."""
        self.peer.send(*[encodeProduce(topic, 0, data) for data in sets])
        self.lead.settle()

    def fetch(self, offset: int, sizeMax: int = 1 << 20, topic: str = "t") -> tuple[int, bytes]:
        """(code, the sets as they were sent). C{sizeMax} is in units."""
        peer = self.lead.connect()
        peer.send(encodeFetch(topic, 0, offset, sizeMax * self.records.unit))
        self.lead.settle()
        ((code, data),) = peer.fetched()
        return code, self.records.asSent(data)

    def fetchAll(self) -> bytes:
        """Everything, by successive fetches."""
        found = b""
        while data := self.fetch(self.at(int(self.units(len(found))) // 12))[1]:
            found += data
        return found

    def units(self, size: int) -> float:
        """Bytes, in units."""
        return size / self.records.unit

    def offsets(self, time: int, countMax: int = 10) -> list[int]:
        peer = self.lead.connect()
        peer.send(encodeOffsets("t", 0, time, countMax))
        self.lead.settle()
        (found,) = peer.offsets()
        return found


class RequestTests(FormatCase):
    """Requests and their answers."""

    def test_roundTrip(self) -> None:
        """What was produced is fetched, from the start and from each message on."""
        self.start()
        sets = self.sets(9)
        self.produce(*sets[:5])
        self.produce(b"".join(sets[5:]))
        for count in range(9):
            self.assertEqual(self.fetch(self.at(count)), (0, b"".join(sets[count:])))
        self.assertEqual(self.fetch(self.at(9)), (0, b""))
        self.assertEqual(self.fetch(self.at(1), 24), (0, b"".join(sets[1:3])))
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_messagesInABatch(self) -> None:
        """The messages of a batch are counted one by one, and the next offset is behind all."""
        lead = self.start()
        self.produce(self.records.batch(3))
        self.assertEqual(lead.log().appendedCount, 3)
        self.produce(*self.sets(1))
        self.assertEqual(self.fetch(lead.log().logEndOffset), (0, b""))
        self.assertEqual(lead.log().appendedCount, 4)

    def test_outOfRange(self) -> None:
        """An offset beyond the end has code 1, and so has one below the start."""
        self.start()
        self.produce(*self.sets(2))
        self.assertEqual(self.fetch(self.at(2) + 1), (1, b""))
        self.assertEqual(self.fetch(-1), (1, b""))

    def test_offsets(self) -> None:
        """
        The latest offset is behind the last message, the earliest is that of the first segment.
        """
        self.start({"log.file.size": "30"})
        self.assertEqual((self.offsets(-1), self.offsets(-2)), ([0], [0]))
        self.produce(*self.sets(7))
        self.assertEqual(self.offsets(-1), [self.at(7), self.at(6), self.at(3), 0])
        self.assertEqual((self.offsets(-1, 1), self.offsets(-2)), ([self.at(7)], [0]))

    def test_invalid(self) -> None:
        """An invalid set closes its connection; nothing of it is kept, the partition serves on."""
        lead = self.start()
        self.produce(*self.sets(1))
        bad = bytearray(self.sets(1)[0])
        bad[-1] ^= 1
        self.produce(bytes(bad))
        self.assertTrue(self.peer.isClosed)
        self.peer = lead.connect()
        self.produce(*self.sets(2)[1:])
        self.assertEqual(self.fetch(0), (0, b"".join(self.sets(2))))


class LifeTests(FormatCase):
    """Flushes, rolls, retention, restarts."""

    def test_invisibleUntilFlushed(self) -> None:
        """Fetches end at the high watermark, which moves with the flush."""
        lead = self.start({"log.flush.interval": "1000"})
        self.produce(*self.sets(3))
        self.assertEqual((lead.log().logEndOffset, lead.log().highWatermark), (self.at(3), 0))
        self.assertEqual((self.fetch(0), self.fetch(self.at(1))), ((0, b""), (1, b"")))
        lead.advance(4)
        lead.settle()
        self.assertEqual(self.fetch(0), (0, b"".join(self.sets(3))))

    def test_rolls(self) -> None:
        """Many segments are fetched one after the other."""
        lead = self.start({"log.file.size": "100"})
        sets = self.sets(60)
        for data in sets:
            self.produce(data)
        self.assertEqual(len(lead.log().segments), 7)
        self.assertEqual(self.fetchAll(), b"".join(sets))

    def test_largerThanASegment(self) -> None:
        """
        A set of several messages that no segment has room for is appended whole, like one large
        message.
        """
        self.start({"log.file.size": "30"})
        sets = self.sets(6)
        self.produce(sets[0], b"".join(sets[1:5]), sets[5])
        log = self.lead.log()
        self.assertEqual([self.units(each.writtenSize) for each in log.segments], [60, 12])
        self.assertEqual(self.fetchAll(), b"".join(sets))

    def test_retention(self) -> None:
        """Retention by size goes by bytes; the start moves to the oldest segment that is left."""
        lead = self.start({"log.file.size": "100", "log.retention.size": "200"})
        for data in self.sets(60):
            self.produce(data)
        lead.advance(61)
        lead.settle()
        log = lead.log()
        self.assertTrue(200 <= self.units(log.size) < 320, log.size)
        self.assertEqual(self.offsets(-2), [log.logStartOffset])
        self.assertEqual(self.fetch(0), (1, b""))
        self.assertEqual(self.fetch(log.logStartOffset)[0], 0)
        self.assertEqual(lead.pinCounts(), [0] * len(log.segments))

    def test_restart(self) -> None:
        """After an orderly stop everything is there, and offsets go on."""
        lead = self.start()
        self.produce(*self.sets(5))
        self.peer.close()
        lead.stop()
        self.start(fileSystem=lead.fileSystem)
        self.produce(*self.sets(7)[5:])
        self.assertEqual(self.fetchAll(), b"".join(self.sets(7)))

    def test_powerCut(self) -> None:
        """After a power cut what was readable is there, whole, and offsets go on behind it."""
        lead = self.start({"log.flush.interval": "3", "log.file.size": "60"})
        self.produce(*self.sets(8))
        readable = self.fetchAll()
        self.assertTrue(self.units(len(readable)) >= 72)
        lead.fileSystem.cutPower()
        again = self.start(fileSystem=lead.fileSystem)
        kept = self.fetchAll()
        self.assertTrue(kept.startswith(readable) and b"".join(self.sets(8)).startswith(kept))
        self.assertEqual(again.log().logEndOffset, self.at(int(self.units(len(kept))) // 12))


class LimitTests(FormatCase):
    """Limits count bytes, and faults stay in their partition."""

    def test_backPressure(self) -> None:
        """Producers wait while too many bytes are unflushed, and go on after the flush."""
        lead = self.start(
            {"log.flush.interval": "1000", "max.unflushed.bytes.per.partition": "1000"}
        )
        self.produce(self.records.entry(b""))
        log = lead.log()
        large = self.records.entry(b"x" * 600)
        frames = [encodeProduce("t", 0, large)] * 3
        self.peer.send(*frames[:2])
        self.assertEqual((self.units(log.unflushedSize), len(lead.flushWorker.jobs)), (1230, 1))
        self.peer.send(frames[2])
        self.assertEqual((log.appendedCount, waitingCount(lead.logManager)), (3, 1))
        lead.settle()
        self.assertEqual((log.appendedCount, self.units(log.size)), (4, 1230))

    def test_fullDisk(self) -> None:
        """On a full disk the messages wait, and all are there once it has room."""
        lead = self.start({"disk.full.retry.ms": "500"})
        self.produce(*self.sets(1))
        lead.fileSystem.sizeMax = lead.fileSystem.usedSize + 30 * self.records.unit
        self.produce(*self.sets(6)[1:])
        self.assertEqual(self.units(lead.log().pendingSize), 36)
        self.assertEqual(self.fetchAll(), b"".join(self.sets(1)))
        lead.fileSystem.sizeMax = None
        lead.advance(1)
        lead.settle()
        self.assertEqual(self.fetchAll(), b"".join(self.sets(6)))

    def test_failedPartition(self) -> None:
        """A failed sync takes one partition out of service; the others serve."""
        lead = self.start()
        self.produce(*self.sets(1))
        self.produce(*self.sets(1), topic="u")
        lead.fileSystem.fail("fsync", lead.log().segments[0].path, errno.EIO)
        self.produce(*self.sets(1))
        self.flushLoggedErrors()
        self.assertEqual(self.fetch(0), (-1, b""))
        self.assertEqual(self.fetch(0, topic="u"), (0, self.sets(1)[0]))


class KafkaRequestTests(RequestTests):
    """Requests and their answers, with today's format."""

    records = KAFKA

    def test_searchOnAWorker(self) -> None:
        """A fetch whose byte only the file tells waits for a worker; the reactor reads no file."""
        lead = self.start()
        self.produce(*self.sets(9))
        self.peer.close()
        lead.stop()
        lead = self.start(fileSystem=lead.fileSystem)
        peer = lead.connect()
        peer.send(encodeFetch("t", 0, 1, 10_000))
        lead.turn()
        self.assertEqual((len(lead.readWorker.jobs), peer.fetched()), (1, []))
        lead.settle()
        ((code, data),) = peer.fetched()
        self.assertEqual((code, self.records.asSent(data)), (0, b"".join(self.sets(9)[1:])))

    def test_stored(self) -> None:
        """The broker stamps base offsets into what it stores and sends."""
        lead = self.start()
        self.produce(*self.sets(3))
        stored = lead.contents()
        self.assertEqual(
            [int.from_bytes(stored[start : start + 8], "big") for start in (0, 120, 240)],
            [0, 1, 2],
        )


class KafkaLifeTests(LifeTests):
    """Flushes, rolls, retention, restarts, with today's format."""

    records = KAFKA


class KafkaLimitTests(LimitTests):
    """Limits and faults, with today's format."""

    records = KAFKA


class TwoFormatsTests(LeadTestCase):
    """Partitions of two formats beside one another."""

    def test_eachKeepsItsFormat(self) -> None:
        """A partition keeps its format over a restart, whatever new ones get."""
        lead = self.broker(formats=[KAFKA.format])
        lead.connect().send(encodeProduce("new", 0, KAFKA.entry(b"x")))
        lead.settle()
        lead.stop()
        lead = self.broker(formats=[KAFKA07.format, KAFKA.format], fileSystem=lead.fileSystem)
        peer = lead.connect()
        peer.send(
            encodeProduce("new", 0, KAFKA.entry(b"y")),
            encodeProduce("old", 0, KAFKA07.entry(b"z")),
        )
        lead.settle()
        self.assertEqual(
            [(log.format.suffix, log.logEndOffset) for log in lead.directory.logs.values()],
            [(".log", 2), (".kafka", 11)],
        )
