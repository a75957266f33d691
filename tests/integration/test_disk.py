"""
Disks that are full or refuse, and too few descriptors: what was accepted is kept, who can be served
is.

The full disk is a small tmpfs that the test mounts, where it may; elsewhere the broker in memory,
on a file system double that is full. The latter is tested in any case.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeOffsets, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeOffsets
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import LATEST, TopicPartition
from tests.integration.brokerprocess import BrokerProcess, until
from tests.integration.memorybroker import DIRECTORY, MemoryBroker, MemoryClient
from tests.integration.rawclient import ClosedByBrokerError, RawClient

MIB = 1 << 20
TMPFS_SIZE = 8 * MIB
FILLER_SIZE = 5 * MIB
TOPICS = ("a", "b", "c")
RETRY = {"disk.full.retry.ms": "50"}


def batch(topic: str, number: int) -> bytes:
    """About 50 KB."""
    return encodeSet([b"%s %d " % (topic.encode(), number) + bytes(1000)] * 50)


def content(path: Path) -> bytes:
    """The segments of a partition, put together."""
    return b"".join(segment.read_bytes() for segment in sorted(path.glob("*.kafka")))


class FullDiskTests(SynchronousTestCase):
    """A disk that fills up, and has room again."""

    def mount(self) -> Path | None:
        """A small file system; L{None} if that is not allowed here."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        disk = folder / "disk"
        disk.mkdir()
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={TMPFS_SIZE}",
            "pylogbroker-test",
            str(disk),
        ]
        try:
            mounted = subprocess.run(command, capture_output=True, timeout=20, check=False)
        except OSError:
            return None
        if mounted.returncode:
            return None
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(disk)], check=False, timeout=20)
        return disk

    def test_fullDisk(self) -> None:
        """
        A full disk holds producers up, consumers go on; with room again all that was sent is there,
        in order, once.
        """
        disk = self.mount()
        sys.stdout.write(
            f"[{'tmpfs' if disk else 'no tmpfs may be mounted here: the file system double'}] "
        )
        if disk is None:
            self.fullDouble(4)
            return
        filler = disk / "filler"
        filler.write_bytes(bytes(FILLER_SIZE))
        broker = BrokerProcess(str(disk / "logs"), {**RETRY, "log.file.size": "1000000"})
        self.addCleanup(broker.kill)
        broker.start()
        with broker.client() as client:
            for topic in TOPICS:
                client.produce(topic, 0, batch(topic, 0))
            client.processed()
        # A fresh thread and connection for each topic: a producer that waits blocks its connection
        # only.
        perTopicCount = (TMPFS_SIZE - FILLER_SIZE + 2 * MIB) // len(batch("a", 0)) // len(TOPICS)
        threads = [
            threading.Thread(
                target=self.produceAll, args=(broker, topic, perTopicCount), daemon=True
            )
            for topic in TOPICS
        ]
        for thread in threads:
            thread.start()
        broker.waitForLine("waits for room on the disk: .* Its producers wait, nothing is lost")
        with broker.client() as client:
            seen = {topic: client.readAll(topic) for topic in TOPICS}
            self.assertTrue(any(thread.is_alive() for thread in threads))
        filler.unlink()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive(), "a producer still waits")
        expected = {
            topic: b"".join(batch(topic, number) for number in range(perTopicCount))
            for topic in TOPICS
        }
        with broker.client() as client:
            for topic in TOPICS:
                until(
                    lambda topic=topic: client.end(topic) == len(expected[topic]),  # type: ignore[misc]
                    f"{topic} is whole",
                )
                self.assertTrue(client.readAll(topic) == expected[topic], topic)
                self.assertTrue(expected[topic].startswith(seen[topic]), topic)
        self.assertIn("is tried again", broker.log)
        self.assertEqual(broker.stop(), 0)
        for topic in TOPICS:
            self.assertTrue(content(disk / "logs" / f"{topic}-0") == expected[topic], topic)

    def produceAll(self, broker: BrokerProcess, topic: str, count: int) -> None:
        with broker.client() as client:
            for number in range(1, count):
                client.produce(topic, 0, batch(topic, number))
            client.processed()

    def fullDouble(self, seed: int) -> None:
        """The same in memory, step by step."""
        random = Random(seed)
        fileSystem = PowerCutFileSystem()
        broker = MemoryBroker(
            fileSystem,
            {"log.flush.interval": "1", "log.file.size": "3000", **RETRY},
            1_700_000_000,
            random,
        )
        producers = {topic: MemoryClient(broker) for topic in TOPICS}
        sent = dict.fromkeys(TOPICS, b"")
        consumer = MemoryClient(broker)
        fileSystem.sizeMax = 20_000
        for number in range(300):
            topic = random.choice(TOPICS)
            data = encodeSet([b"%s %d " % (topic.encode(), number) + bytes(random.randrange(200))])
            producers[topic].send(encodeProduce(topic, 0, data))
            sent[topic] += data
            broker.advance(0)
            broker.perform(random)
            for client in producers.values():
                client.pump()
        self.assertTrue(all(log.blocked for log in broker.service.directory.logs.values()))
        ends = {}
        for topic in TOPICS:
            [ends[topic]] = decodeOffsets(consumer.ask(encodeOffsets(topic, 0, LATEST, 1)))[1]
            self.assertLess(ends[topic], len(sent[topic]))
        self.assertLessEqual(fileSystem.usedSize, 20_000)
        for _try in range(5):
            broker.advance(0.06)  # it tries again, in vain
        self.assertEqual(broker.failures, [])
        fileSystem.sizeMax = None

        def whole() -> bool:
            broker.advance(0.06)
            for client in producers.values():
                client.pump()
            return all(
                log.highWatermark == len(sent[log.topicPartition.topic])
                for log in broker.service.directory.logs.values()
            )

        broker.settle(whole)
        for topic in TOPICS:
            found = b""
            while len(found) < len(sent[topic]):
                code, data = decodeFetch(consumer.ask(encodeFetch(topic, 0, len(found), MIB)))
                self.assertEqual(code, 0)
                found += data
            self.assertEqual(found, sent[topic])

    def test_fullDouble(self) -> None:
        """So it is where no file system may be mounted: with the double, some seeds."""
        for seed in range(20):
            self.fullDouble(seed)


class BadDiskTests(SynchronousTestCase):
    """Writes and flushes that fail for good."""

    def test_writeFails(self) -> None:
        """
        A write that fails on a real file system (EFBIG) takes its partition out of service, the
        others go on; a restart has all that was visible.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        broker = BrokerProcess(folder + "/logs")
        data = batch("bad", 0)
        # A limit between two sets, so that a write fails as a whole; one that is cut short looks
        # like a full disk.
        broker.fileSizeMax = 20 * len(data)
        self.addCleanup(broker.kill)
        broker.start()
        with broker.client() as client:
            client.produce("good", 0, batch("good", 0))
            for number in range(20):
                client.produce("bad", 0, data)
                self.assertEqual(client.end("bad"), (number + 1) * len(data))
            with self.assertRaises((ClosedByBrokerError, ConnectionError)):
                for _time in range(100):
                    client.produce("bad", 0, data)
                    client.processed()
        broker.waitForLine("bad-0 is out of service: cannot write")
        with broker.client() as client:
            self.assertEqual(client.fetch("bad", 0, 0)[0], -1)
            client.produce("good", 0, batch("good", 1))
            self.assertEqual(client.end("good"), len(batch("good", 0) + batch("good", 1)))
        self.assertEqual(broker.stop(), 0)
        self.assertFalse(
            (Path(folder) / "logs" / ".kafka_cleanshutdown").exists(), "the next start must check"
        )
        broker.fileSizeMax = 0
        broker.start()
        with broker.client() as client:
            self.assertTrue(client.readAll("bad") == 20 * data)
            client.produce("bad", 0, data)
            self.assertEqual(client.end("bad"), 21 * len(data))

    def test_flushFails(self) -> None:
        """
        A flush that fails is not tried again: its partition is out of service, nothing of it
        becomes visible, the others go on, a restart serves it.
        """
        for action in ("write", "fsync"):
            fileSystem = PowerCutFileSystem()
            broker = MemoryBroker(fileSystem, {"log.flush.interval": "1"}, 1_700_000_000, Random(1))
            client = MemoryClient(broker)
            entry = encodeSet([b"x" * 100])
            for topic in ("good", "bad"):
                client.send(encodeProduce(topic, 0, entry))
                self.assertEqual(
                    decodeOffsets(client.ask(encodeOffsets(topic, 0, LATEST, 1)))[1], [len(entry)]
                )
            fileSystem.fail(action, f"bad-0/{0:020}.kafka", errno.EIO, 1)
            client.send(encodeProduce("bad", 0, entry))
            broker.settle(lambda broker=broker: bool(broker.failures))  # type: ignore[misc]
            self.assertEqual([error.errno for error in broker.failures], [errno.EIO])
            self.assertEqual(
                broker.service.directory.logs[TopicPartition("bad", 0)].highWatermark, len(entry)
            )
            other = MemoryClient(broker)
            self.assertEqual(decodeFetch(other.ask(encodeFetch("bad", 0, 0, 1000)))[0], -1)
            other.send(encodeProduce("good", 0, entry))
            self.assertEqual(
                decodeOffsets(other.ask(encodeOffsets("good", 0, LATEST, 1)))[1], [2 * len(entry)]
            )
            refused = MemoryClient(broker)
            refused.send(encodeProduce("bad", 0, entry))
            broker.settle(lambda refused=refused: refused.isClosed)  # type: ignore[misc]
            broker.stop()
            self.assertIsNone(fileSystem.status(f"{DIRECTORY}/.kafka_cleanshutdown"))
            fileSystem.cutPower()
            again = MemoryClient(MemoryBroker(fileSystem, {}, 1_700_001_000, Random(2)))
            self.assertEqual(decodeFetch(again.ask(encodeFetch("bad", 0, 0, 1000))), (0, entry))


class DescriptorTests(SynchronousTestCase):
    """A process that may open few files."""

    DESCRIPTOR_COUNT = 64

    def serve(self, properties: dict[str, str]) -> BrokerProcess:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        broker = BrokerProcess(
            folder + "/logs", {**RETRY, **properties}, descriptorCounts=(32, self.DESCRIPTOR_COUNT)
        )
        self.addCleanup(broker.kill)
        broker.start()
        self.assertEqual(broker.descriptorLimit(), self.DESCRIPTOR_COUNT)
        return broker

    def test_tooManyClients(self) -> None:
        """
        A crowd of clients leaves descriptors for the log: those that are there are served, more are
        turned away until some have gone.
        """
        broker = self.serve({"log.file.size": "300"})
        old = broker.client()
        self.addCleanup(old.close)
        old.roundTrip("served", b"before")
        crowd: list[RawClient] = []
        for _each in range(self.DESCRIPTOR_COUNT + 20):
            crowd.append(broker.client())
            self.addCleanup(crowd[-1].close)
        broker.waitForLine("There are 32 connections already: .* was turned away")
        self.assertTrue(crowd[-1].isClosed())
        sent = encodeSet([b"before"])
        for number in range(100):
            data = encodeSet([b"%d" % number])
            crowd[number % 20].produce("served", 0, data)
            crowd[number % 20].processed()
            sent += data
        self.assertEqual(old.readAll("served"), sent)
        self.assertGreater(broker.log.count("Rolled"), 2)
        for each in crowd[20:]:
            each.close()

        def served() -> bool:
            try:
                with broker.client() as client:
                    client.roundTrip("new", b"after")
            except (ClosedByBrokerError, ConnectionError):
                return False
            return True

        until(served, "a new client is served")
        # One line for all who were turned away in a moment.
        self.assertLessEqual(broker.log.count("turned away"), 2)
        self.assertNotIn("EMFILE", broker.log)
        self.assertEqual(broker.stop(), 0)

    def test_tooManyPartitions(self) -> None:
        """
        More partitions with something to flush than there are descriptors: what is produced waits
        for one, and is there in the end.
        """
        broker = self.serve(
            {
                "log.flush.interval": "1000000",
                "log.default.flush.scheduler.interval.ms": "300",
                "num.partitions": "200",
            }
        )
        data = encodeSet([b"some message"])
        with broker.client() as client:
            for number in range(3 * self.DESCRIPTOR_COUNT):
                client.produce("many", number, data)
                # A partition that cannot be made is refused, and its client told so; let them be
                # made.
                if number % 20 == 19:
                    until(
                        lambda number=number: client.end("many", number) == len(data),  # type: ignore[misc]
                        f"partition {number} is visible",
                    )
            self.assertNotIn("Too many open files", broker.log)
            client.send(
                b"".join(
                    encodeProduce("many", number, data)
                    for number in range(3 * self.DESCRIPTOR_COUNT)
                )
            )
            client.processed()
            # A fetch that finds no descriptor is answered -1, for the time being.
            for number in range(3 * self.DESCRIPTOR_COUNT):
                until(
                    lambda number=number: client.fetch("many", number, 0) == (0, 2 * data),  # type: ignore[misc]
                    f"partition {number} is whole",
                )
        self.assertIn("Too many open files", broker.log)
        self.assertNotIn("out of service", broker.log)
        self.assertEqual(broker.stop(), 0)
