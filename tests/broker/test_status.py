"""
Tests of taking a picture of a broker: partitions, and who waits and why.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from twisted.logger import capturedLogs

from pylogbroker.broker import status
from pylogbroker.broker.status import residentSize
from pylogbroker.metrics.brokermetrics import BlockedRequest, PartitionSnapshot, ThrottledPartition
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeSet
from pylogbroker.types import RANDOM_PARTITION
from tests.broker.manualbroker import LeadBroker, LeadTestCase
from tests.broker.test_logmanager import NEVER, produce, sized


class PictureTests(LeadTestCase):
    """What is seen."""

    def test_partitions(self) -> None:
        """Partitions are in order, each with its marks, sizes and counts."""
        lead = self.broker({**NEVER, "num.partitions": "2"})
        peer = lead.connect()
        peer.send(
            encodeProduce("u", 1, encodeSet([b"a"])), encodeProduce("t", 0, encodeSet([b"a", b"b"]))
        )
        lead.settle()
        picture = lead.service.picture()
        self.assertEqual(
            picture.partitions,
            (
                PartitionSnapshot("t", 0, 0, 0, 22, 0, 1, 22, 2, ""),
                PartitionSnapshot("u", 1, 0, 0, 11, 0, 1, 11, 1, ""),
            ),
        )
        self.assertEqual(
            (picture.partitionCount, picture.unflushedSize, picture.isRegistered, picture.timeMs),
            (2, 33, None, 1_300_000_000_000),
        )
        self.assertEqual(
            (picture.startedMs, picture.counters["allTopics"]["messageCount"]),
            (1_300_000_000_000, 3),
        )
        self.assertGreater(picture.memorySize, 1 << 20)
        self.assertGreater(picture.cpuSeconds, 0)

    def test_limit(self) -> None:
        """At most PARTITION_COUNT_MAX partitions are listed; all are counted."""
        self.patch(status, "PARTITION_COUNT_MAX", 1)
        lead = self.broker()
        lead.connect().send(produce(b"a"), produce(b"a", topic="u"))
        lead.settle()
        picture = lead.service.picture()
        self.assertEqual((len(picture.partitions), picture.partitionCount), (1, 2))

    def test_failed(self) -> None:
        """A partition out of service says why."""
        lead = self.broker()
        lead.connect().send(produce(b"a"))
        lead.settle()
        lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        lead.connect().send(produce(b"a"))
        lead.settle()
        self.assertIn("Input/output error", lead.service.picture().partitions[0].failure)

    def test_anyTime(self) -> None:
        """A picture can be taken before the start and after the end."""
        lead = LeadBroker()
        self.assertEqual(
            (
                lead.service.picture().partitions,
                lead.service.picture().startedMs,
                lead.service.picture().endpoint,
            ),
            ((), 0, ""),
        )
        lead.start()
        self.assertNotEqual(lead.service.picture().startedMs, 0)
        lead.stop()
        self.assertEqual(
            (lead.service.picture().partitions, lead.service.picture().startedMs), ((), 0)
        )


class WaitingTests(LeadTestCase):
    """Who waits, and why."""

    def found(self, lead: LeadBroker) -> list[tuple[str, str, int, str]]:
        return [each[1:] for each in lead.service.picture().waiting]

    def test_nobody(self) -> None:
        """Idle clients wait for nothing."""
        lead = self.broker()
        lead.connect()
        picture = lead.service.picture()
        self.assertEqual(
            (picture.waiting, picture.holding, sum(picture.waitingCounts.values())), ((), (), 0)
        )

    def test_flush(self) -> None:
        """
        A producer waits for a partition of which too much is unflushed, and goes on; also when the
        broker was to choose the partition.
        """
        lead = self.broker({**NEVER, "max.unflushed.bytes.per.partition": "1000"})
        one, two = lead.connect(), lead.connect()
        one.send(produce(b""))
        lead.settle()
        one.send(produce(sized(1001)))
        one.send(produce(b"b"))
        two.send(encodeProduce("t", RANDOM_PARTITION, encodeSet([b"c"])))
        picture = lead.service.picture()
        self.assertEqual(picture.holding, (ThrottledPartition("t", 0, "flush", 2),))
        self.assertEqual(
            self.found(lead), [("produce", "t", 0, "flush"), ("produce", "t", -1, "flush")]
        )
        self.assertEqual(picture.waitingCounts["flush"], 2)
        self.assertIn(":", picture.waiting[0].peer)
        lead.settle()
        self.assertEqual((self.found(lead), lead.service.picture().holding), ([], ()))

    def test_process(self) -> None:
        """The limit may be that of all partitions together."""
        lead = self.broker({**NEVER, "max.unflushed.bytes": "1000"})
        peer = lead.connect()
        peer.send(produce(b""), produce(b"", topic="u"))
        lead.settle()
        peer.send(produce(sized(1001)))
        peer.send(produce(b"a", topic="u"))
        self.assertEqual(lead.service.picture().holding, (ThrottledPartition("", -1, "flush", 1),))
        self.assertEqual(self.found(lead), [("produce", "u", 0, "flush")])

    def test_disk(self) -> None:
        """The disk may be full."""
        lead = self.broker(NEVER)
        peer = lead.connect()
        peer.send(produce(b""))
        lead.settle()
        lead.fileSystem.fail("write", ".kafka", errno.ENOSPC)
        peer.send(produce(b"a"))
        lead.turn()
        peer.send(produce(b"b"))
        self.assertEqual(lead.service.picture().holding, (ThrottledPartition("t", 0, "disk", 1),))
        self.assertEqual(self.found(lead), [("produce", "t", 0, "disk")])

    def test_roll(self) -> None:
        """A new segment may be in the making."""
        lead = self.broker({"log.file.size": "15"})
        peer = lead.connect()
        peer.send(produce(b""))
        lead.settle()
        peer.send(produce(b"a" * 10))
        lead.settle()
        peer.send(produce(b"b"))
        self.assertEqual(lead.service.picture().holding, (ThrottledPartition("t", 0, "roll", 1),))
        self.assertEqual(self.found(lead), [("produce", "t", 0, "roll")])

    def test_work(self) -> None:
        """
        A worker may be at it: here a new partition; and a fetch that waits for a flush that is due.
        """
        lead = self.broker()
        one, two, three = (lead.connect() for _ in range(3))
        one.send(encodeMultiProduce([("t", 0, encodeSet([b"a"]))]))
        self.assertEqual(self.found(lead), [("produce", "t", 0, "work")])
        lead.settle()
        one.send(produce(b"b"))
        two.send(encodeFetch("t", 0, 11, 100))
        three.send(encodeOffsets("t", 0, -1, 1))
        self.assertEqual(self.found(lead), [("fetch", "t", 0, "work"), ("offsets", "t", 0, "work")])

    def test_reader(self) -> None:
        """A client may not take its answer."""
        lead = self.broker()
        peer = lead.connect()
        peer.send(produce(*[b"x" * 100_000] * 30))
        lead.settle()
        peer.send(encodeFetch("t", 0, 0, 3_000_000))
        self.assertEqual(self.found(lead), [("fetch", "", -1, "reader")])

    def test_memory(self) -> None:
        """Memory for a large request may be out."""
        lead = self.broker(
            {"max.socket.request.bytes": "2000000", "max.request.memory.bytes": "2000000"}
        )
        one, two = lead.connect(), lead.connect()
        for peer in (one, two):
            peer.send(encodeProduce("t", 0, b"x" * 1_999_000)[:300_000])
        self.assertEqual(self.found(lead), [("send", "", -1, "memory")])
        self.assertGreater(lead.service.picture().requestMemorySize, 1_900_000)

    def test_limit(self) -> None:
        """At most WAITING_COUNT_MAX clients are listed; all are counted."""
        self.patch(status, "WAITING_COUNT_MAX", 1)
        lead = self.broker()
        for _ in range(3):
            lead.connect().send(produce(b"a"))
        picture = lead.service.picture()
        self.assertEqual((len(picture.waiting), picture.waitingCounts["work"]), (1, 3))
        self.assertIsInstance(picture.waiting[0], BlockedRequest)


class LogTests(LeadTestCase):
    """Figures in the log."""

    def test_events(self) -> None:
        """As often as was asked, an event with fields; never, if it was not."""
        with capturedLogs() as events:
            lead = self.broker({"metrics.log.interval.ms": "5000"})
            lead.connect().send(produce(b"a"), produce(b"b", b"c"))
            lead.settle()
            for _ in range(3):
                lead.advance(2.5)
        found: list[Any] = [event for event in events if "picture" in event]
        self.assertEqual(
            [
                (
                    event["messageCount"],
                    event["producedSize"],
                    event["produceCount"],
                    event["brokerId"],
                )
                for event in found
            ],
            [(3, 33, 2, 0)],
        )
        self.assertEqual(found[0]["picture"].partitions[0].appendedCount, 3)
        with capturedLogs() as events:
            self.broker().advance(1_000_000)
        self.assertEqual([event for event in events if "picture" in event], [])


class MemoryTests(LeadTestCase):
    """How much memory the process has."""

    def test_read(self) -> None:
        """Linux gives the size in pages; without its file the size is 0."""
        path = self.mktemp()
        self.assertEqual(residentSize(path), 0)
        for text, size in (("100 25 3", 25 * 4096), ("100", 0), ("a b", 0)):
            with open(path, "w") as file:
                file.write(text)
            self.assertEqual(residentSize(path, 4096), size)
        self.assertGreater(residentSize(), os.sysconf("SC_PAGE_SIZE"))
