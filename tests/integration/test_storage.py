"""
Flushing, visibility, segments, retention and restarts as clients and operators see them (rows 25 to
49 of the feature checklist), against a whole broker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.task import deferLater

from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet
from pylogbroker.types import EARLIEST, LATEST, TopicPartition
from tests.integration.rawclient import ClosedByBrokerError, RawClient
from tests.integration.threaded import BrokerCase, inThread

TWELVE = encodeMessage(b"12")
NEVER = {"log.flush.interval": "1000000", "log.default.flush.scheduler.interval.ms": "3600000"}
"""Nothing is flushed but by a roll or a stop."""
DAY = 86_400


class StorageCase(BrokerCase):
    """Looks at the files of a broker."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp())

    def start(self, properties: Mapping[str, str] | None = None) -> None:
        """A broker on the test's directory."""
        self.serve(properties, str(self.directory))

    def written(self, client: RawClient) -> None:
        """
        What C{client} has sent is in the files: they are written at the end of the turn in which it
        came.
        """
        client.processed()
        client.processed()

    def stop(self) -> None:
        """Stop it in order."""
        self.inReactor(self.broker.stop)

    def segments(self, topic: str = "t", partition: int = 0) -> list[int]:
        """Base offsets, by the names of the files."""
        return sorted(
            int(path.stem) for path in (self.directory / f"{topic}-{partition}").glob("*.kafka")
        )

    def size(self, topic: str = "t", partition: int = 0) -> int:
        """Bytes in all segments."""
        return sum(
            path.stat().st_size
            for path in (self.directory / f"{topic}-{partition}").glob("*.kafka")
        )

    def makeOld(self, topic: str, days: int) -> None:
        """All segments were last written to so many days ago."""
        for path in (self.directory / f"{topic}-0").glob("*.kafka"):
            written = path.stat().st_mtime - days * DAY
            os.utime(path, (written, written))

    def retain(self) -> None:
        """Run the cleaner, and wait until it is done."""
        service = self.broker.broker.service
        self.inReactor(service.logManager.applyRetention)
        self.inReactor(service.logManager.drain)
        for log in service.directory.logs.values():
            while self.inReactor(log.expired, service.logManager.nowMs()):
                self.inReactor(deferLater, reactor, 0)


class VisibilityTests(StorageCase):
    """What is flushed is visible, and nothing else."""

    @inThread
    def test_byCount(self) -> None:
        """
        Messages are invisible until C{log.flush.interval} of them are there; those inside a wrapper
        count one by one.
        """
        self.start({**NEVER, "log.flush.interval": "5"})
        client = self.client()
        for _ in range(4):
            client.produce("t", 0, TWELVE)
        self.assertEqual(client.end("t"), 0)
        self.assertEqual(client.fetch("t", 0, 0), (0, b""))
        client.produce("t", 0, TWELVE)
        self.assertEqual(client.end("t"), 60)
        wrapper = encodeSet([b"a", b"b", b"c", b"d", b"e"], codec=1)
        client.produce("t", 0, wrapper)
        self.assertEqual(client.fetch("t", 0, 60), (0, wrapper))

    @inThread
    def test_beyondTheMark(self) -> None:
        """
        Before the flush a fetch at the visible end is empty, and one beyond it is out of range
        though the bytes are there.
        """
        self.start({**NEVER, "log.flush.interval": "2"})
        client = self.client()
        client.produce("t", 0, TWELVE + TWELVE)
        self.assertEqual(client.end("t"), 24)
        client.produce("t", 0, TWELVE)
        self.written(client)
        self.assertEqual(self.size(), 36)
        self.assertEqual(client.fetch("t", 0, 24), (0, b""))
        self.assertEqual(client.fetch("t", 0, 36), (1, b""))
        self.assertEqual(client.fetch("t", 0, 12, 1000), (0, TWELVE))

    @inThread
    def test_byTime(self) -> None:
        """A single message becomes visible by the clock."""
        self.start({**NEVER, "log.default.flush.scheduler.interval.ms": "20"})
        client = self.client()
        client.produce("t", 0, TWELVE)
        while not client.end("t"):
            pass
        self.assertEqual(client.fetch("t", 0, 0), (0, TWELVE))

    @inThread
    def test_byTimePerTopic(self) -> None:
        """
        C{topic.flush.intervals.ms} makes one topic visible, while another, with the default of a
        day, is not.
        """
        properties = {
            "log.default.flush.scheduler.interval.ms": "20",
            "log.default.flush.interval.ms": "86400000",
            "topic.flush.intervals.ms": "quick:40",
        }
        self.start({**NEVER, **properties})
        client = self.client()
        client.produce("slow", 0, TWELVE)
        client.produce("quick", 0, TWELVE)
        while not client.end("quick"):
            pass
        self.assertEqual(client.end("slow"), 0)

    @inThread
    def test_stopFlushes(self) -> None:
        """What was accepted and not flushed is there after an orderly stop."""
        self.start(NEVER)
        client = self.client()
        client.produce("t", 0, TWELVE)
        client.processed()
        self.assertEqual(client.end("t"), 0)
        self.stop()
        self.start(NEVER)
        self.assertEqual(self.client().fetch("t", 0, 0), (0, TWELVE))


class SegmentTests(StorageCase):
    """How a partition lies on the disk."""

    @inThread
    def test_names(self) -> None:
        """
        A directory for each partition that was produced to, its segments named by the offset of
        their first byte, in twenty digits.
        """
        self.start({"num.partitions": "3", "log.file.size": "100"})
        client = self.client()
        for _ in range(20):
            client.produce("a-topic", 1, TWELVE)
        client.processed()
        self.assertEqual(
            sorted(path.name for path in self.directory.iterdir() if path.is_dir()), ["a-topic-1"]
        )
        names = sorted(path.name for path in (self.directory / "a-topic-1").iterdir())
        self.assertEqual(
            names,
            [
                "00000000000000000000.kafka",
                "00000000000000000108.kafka",
                "00000000000000000216.kafka",
            ],
        )

    @inThread
    def test_offsets(self) -> None:
        """
        Offsets are byte positions: each message's next one is where the next message begins, across
        segments.
        """
        self.start({"log.file.size": "50"})
        client = self.client()
        payloads = [b"x" * number for number in range(30)]
        offsets = [0]
        for payload in payloads:
            client.produce("t", 0, encodeMessage(payload))
            offsets.append(offsets[-1] + 10 + len(payload))
        self.assertEqual(client.end("t"), offsets[-1])
        self.assertGreater(len(self.segments()), 3)
        found = []
        for offset in offsets[:-1]:
            [first, *_] = MessageSet(client.fetch("t", 0, offset)[1], offset).payloads()
            found.append(first)
        self.assertEqual(found, list(zip(payloads, offsets[1:], strict=True)))
        self.assertEqual(client.end("t"), offsets[-1])

    @inThread
    def test_neverOverTheEnd(self) -> None:
        """A fetch stops at the end of a segment, however much it asks for."""
        self.start({"log.file.size": "100"})
        client = self.client()
        for _ in range(20):
            client.produce("t", 0, TWELVE)
        self.assertEqual(
            [client.fetch("t", 0, offset)[1] for offset in (0, 108, 216)],
            [TWELVE * 9, TWELVE * 9, TWELVE * 2],
        )

    @inThread
    def test_perTopicSize(self) -> None:
        """C{topic.log.file.size} rolls one topic sooner than C{log.file.size} does the others."""
        self.start({"log.file.size": "1000", "topic.log.file.size": "small:20"})
        client = self.client()
        for _ in range(6):
            client.produce("small", 0, TWELVE)
            client.produce("large", 0, TWELVE)
        self.written(client)
        self.assertEqual((self.segments("small"), self.segments("large")), ([0, 24, 48], [0]))

    @inThread
    def test_partitionCounts(self) -> None:
        """
        C{num.partitions} for all topics, C{topic.partition.count.map} for some; the partition
        beyond is error 3.
        """
        self.start({"num.partitions": "3", "topic.partition.count.map": "testPartition:2"})
        client = self.client()
        for topic, count in (("testPartition", 2), ("other", 3)):
            for partition in range(count):
                client.produce(topic, partition, TWELVE)
                self.assertEqual(client.fetch(topic, partition, 0), (0, TWELVE))
            self.assertEqual(client.fetch(topic, count, 0)[0], 3)
            closed = self.client()
            closed.produce(topic, count, TWELVE)
            self.assertTrue(closed.isClosed())

    @inThread
    def test_creation(self) -> None:
        """Producing creates the topic's partition, that one only; asking creates nothing."""
        self.start({"num.partitions": "2"})
        client = self.client()
        client.fetch("new", 0, 0)
        client.offsets("new", 0)
        self.assertFalse((self.directory / "new-0").exists())
        client.produce("new", 0, TWELVE)
        self.assertEqual(client.end("new"), 12)
        self.assertTrue((self.directory / "new-0").is_dir())
        self.assertFalse((self.directory / "new-1").exists())

    @inThread
    def test_topicNames(self) -> None:
        """
        Illegal names are refused by each request in its way and leave nothing behind; odd but legal
        ones work.
        """
        self.start()
        for name in (
            "",
            ".",
            "..",
            "x" * 256,
            "a/b",
            "a\0b",
            "a\x01b",
            "a\x18b",
            "a\x1fb",
            "a\x8fb",
            "a\ufffab",
        ):
            client = self.client()
            self.assertEqual(client.fetch(name, 0, 0), (-1, b""), repr(name))
            client.produce(name, 0, TWELVE)
            self.assertTrue(client.isClosed(), repr(name))
        for name in ("a b", "a-1", "...", "ünï", "\U0001f4dc", "a:b,c*'\"\\", "x" * 253):
            client = self.client()
            client.produce(name, 0, TWELVE)
            self.assertEqual(client.end(name), 12, repr(name))
        self.assertEqual(len([path for path in self.directory.iterdir() if path.is_dir()]), 7)


class RetentionTests(StorageCase):
    """What goes, and what stays."""

    def fill(self, topic: str, count: int = 20) -> None:
        """Twelve bytes at a time."""
        client = self.client()
        for _ in range(count):
            client.produce(topic, 0, TWELVE)
        self.assertEqual(client.end(topic), 12 * count)

    @inThread
    def test_byAge(self) -> None:
        """
        Segments not written to for C{log.retention.hours} go, those of a topic with more of
        C{topic.log.retention.hours} stay.
        """
        self.start(
            {
                "log.file.size": "100",
                "log.retention.hours": "48",
                "topic.log.retention.hours": "kept:96,gone:1",
            }
        )
        for topic in ("t", "kept", "gone"):
            self.fill(topic)
        self.makeOld("t", 3)
        self.makeOld("kept", 3)
        self.makeOld("gone", 1)
        self.retain()
        self.assertEqual(
            (self.segments("t"), self.segments("kept"), self.segments("gone")),
            ([240], [0, 108, 216], [240]),
        )

    @inThread
    def test_bySize(self) -> None:
        """
        The oldest go while the rest is still as large as C{log.retention.size}, or
        C{topic.log.retention.size} for its topics.
        """
        self.start(
            {
                "log.file.size": "100",
                "log.retention.size": "130",
                "topic.log.retention.size": "more:200",
            }
        )
        for topic in ("t", "more"):
            self.fill(topic)
        self.retain()
        self.assertEqual((self.segments("t"), self.segments("more")), ([108, 216], [0, 108, 216]))

    @inThread
    def test_offsetsGoOn(self) -> None:
        """
        When all has gone, an empty segment at the old end stays: reading there is empty, below is
        out of range, and appending goes on.
        """
        self.start({"log.file.size": "100", "log.retention.hours": "1"})
        self.fill("t")
        self.makeOld("t", 1)
        self.retain()
        client = self.client()
        self.assertEqual((self.segments(), self.size()), ([240], 0))
        self.assertEqual(client.fetch("t", 0, 240), (0, b""))
        self.assertEqual(client.fetch("t", 0, 0), (1, b""))
        self.assertEqual(client.fetch("t", 0, 239), (1, b""))
        self.assertEqual(
            (client.offsets("t", 0, EARLIEST, 5), client.offsets("t", 0, LATEST, 5)), ([240], [240])
        )
        client.produce("t", 0, TWELVE)
        self.assertEqual(client.fetch("t", 0, 240), (0, TWELVE))

    @inThread
    def test_readingWhileWriting(self) -> None:
        """
        Consumers read whole messages in order while a producer appends, segments roll, and the
        oldest are deleted.
        """
        self.start(
            {"log.file.size": "2000", "log.retention.size": "6000", "log.flush.interval": "7"}
        )
        total = 3000
        produced = threading.Event()

        def produce() -> None:
            client = self.client()
            for start in range(0, total, 10):
                client.produce(
                    "t", 0, encodeSet([b"%06d" % number for number in range(start, start + 10)])
                )
            client.processed()
            produced.set()

        def consume(found: list[int]) -> None:
            client = self.client()
            offset = 0
            while not (found and found[-1] == total - 1):
                code, data = client.fetch("t", 0, offset, 500)
                if code == 1:
                    [offset] = client.offsets("t", 0, EARLIEST, 1)  # deleted before we came to it
                else:
                    whole = MessageSet(data, offset)
                    found += [int(payload) for payload, _ in whole.payloads()]
                    offset = whole.nextOffset

        outcomes: list[list[int]] = [[], [], []]
        threads = [
            threading.Thread(target=produce),
            *(threading.Thread(target=consume, args=(found,)) for found in outcomes),
        ]
        for thread in threads:
            thread.start()
        while not produced.is_set():
            self.inReactor(self.broker.broker.service.logManager.applyRetention)
        # The last messages may be fewer than a flush by count takes.
        self.client().produce("t", 0, encodeSet([b"%06d" % (total - 1)] * 7))
        for thread in threads:
            thread.join()
        self.retain()
        self.assertLess(self.size(), 10_000)
        for found in outcomes:
            self.assertEqual(found, sorted(found))
            self.assertLessEqual(set(found), set(range(total)))


class RestartTests(StorageCase):
    """Stops, crashes, and what is found afterwards."""

    MARK = ".kafka_cleanshutdown"

    @inThread
    def test_cleanShutdown(self) -> None:
        """
        ServerShutdownTest.testCleanShutdown: produce two, stop: the mark is there. Restart: the
        same two; two more follow them.
        """
        self.start()
        client = self.client()
        client.produce("t", 0, TWELVE * 2)
        self.assertEqual(client.end("t"), 24)
        self.assertFalse((self.directory / self.MARK).exists())
        self.stop()
        self.assertTrue((self.directory / self.MARK).exists())
        self.start()
        self.assertFalse((self.directory / self.MARK).exists())
        client = self.client()
        found = MessageSet(client.fetch("t", 0, 0)[1])
        self.assertEqual([message.payload for message, _ in found], [b"12"] * 2)
        client.produce("t", 0, TWELVE * 2)
        self.assertEqual(client.fetch("t", 0, found.validSize), (0, TWELVE * 2))

    @inThread
    def test_recovery(self) -> None:
        """
        Without the mark the last segment is cut at the first entry that is not whole and valid, and
        appending goes on there.
        """
        for junk in (
            b"\0",
            TWELVE[:-1],
            b"\0\0\0\x08\7" + bytes(7),
            TWELVE[:-1] + b"x",
            bytes(100),
        ):
            self.start()
            client = self.client()
            client.produce("t", 0, TWELVE)
            before = client.end("t")
            self.stop()
            (self.directory / self.MARK).unlink()
            [*_, last] = sorted((self.directory / "t-0").glob("*.kafka"))
            with last.open("ab") as file:
                file.write(junk + TWELVE)
            self.start()
            self.assertEqual(self.client().end("t"), before, junk)
            self.assertEqual(self.size(), before)
            self.stop()

    @inThread
    def test_mark(self) -> None:
        """With the mark nothing is checked: what lies in the last segment is taken as it is."""
        self.start()
        client = self.client()
        client.produce("t", 0, TWELVE)
        self.assertEqual(client.end("t"), 12)
        self.stop()
        with (self.directory / "t-0" / ("0" * 20 + ".kafka")).open("ab") as file:
            file.write(b"\0")
        self.start()
        self.assertEqual(self.client().end("t"), 13)

    @inThread
    def test_badPartition(self) -> None:
        """
        A partition whose segments have a gap is left out, untouched; its fetches answer -1, and the
        others serve.
        """
        for name in ("0" * 20, f"{15:020}"):
            path = self.directory / "bad-0" / f"{name}.kafka"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.start()
        client = self.client()
        self.assertEqual(client.fetch("bad", 0, 0), (-1, b""))
        client.produce("good", 0, TWELVE)
        self.assertEqual(client.fetch("good", 0, 0), (0, TWELVE))
        self.assertEqual(self.segments("bad"), [0, 15])
        self.assertIn(TopicPartition("bad", 0), self.broker.broker.service.directory.failures)

    @inThread
    def test_badDisk(self) -> None:
        """
        An I/O error takes its partition out of service: a question behind what was lost gets no
        answer, producers are cut off, fetches answer -1, other topics go on.
        """
        self.start(NEVER)
        client = self.client()
        for topic in ("bad", "good"):
            client.produce(topic, 0, TWELVE)
        self.written(client)
        log = self.broker.broker.service.directory.logs[TopicPartition("bad", 0)]
        descriptor = self.inReactor(lambda: log.segments[-1].file.fileno())
        broken = os.open(self.directory / "bad-0" / ("0" * 20 + ".kafka"), os.O_RDONLY)
        os.dup2(broken, descriptor)  # from now on every write fails
        os.close(broken)
        client.produce("bad", 0, TWELVE)
        self.assertRaises(ClosedByBrokerError, client.processed)
        other = self.client()
        self.assertEqual(other.fetch("bad", 0, 0), (-1, b""))
        other.produce("bad", 0, TWELVE)
        self.assertTrue(other.isClosed())
        third = self.client()
        third.produce("good", 0, TWELVE)
        self.written(third)
        self.assertEqual(self.size("good"), 24)
        self.flushLoggedErrors()
