"""Changes of the metadata."""

from __future__ import annotations

import errno
from random import Random
from typing import Any
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker import metadatamanager
from pylogbroker.broker.metadata import journal
from pylogbroker.broker.metadata.journal import MetadataJournal
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import MetadataImage, Record, TopicRecord, encodeRecords
from pylogbroker.errors import BackpressureError, ClosedError, MetadataError, StorageError
from pylogbroker.storage.metadatastore import MetadataStore
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker


class ManagerTests(SynchronousTestCase):
    """L{MetadataManager}."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/log")
        self.worker = ManualWorker()
        self.random = Random(1)
        self.manager = self.opened()

    def opened(self) -> MetadataManager:
        journal = MetadataJournal(MetadataStore(self.files, "/log"), self.worker)
        manager = MetadataManager(journal, self.random.randbytes)
        journal.open(manager)
        return manager

    def create(self, name: str, number: int) -> Any:
        def decide(image: MetadataImage) -> tuple[list[Record], int]:
            if name in image.topics:
                raise MetadataError(f"{name} exists")
            return [TopicRecord(name, str(UUID(int=number)), 1)], number

        return self.manager.change(decide)

    def test_durableFirst(self) -> None:
        """The image changes, and the caller is told, when the change is durable."""
        seen: list[list[str]] = []
        self.manager.listen(lambda: seen.append(list(self.manager.image.topics)))
        creating = self.create("a", 1)
        self.assertNoResult(creating)
        self.assertEqual((self.manager.image.topics, self.manager.position), ({}, 1))
        self.assertEqual(list(self.manager.latest.topics), ["a"])
        self.worker.perform()
        self.assertIs(self.manager.latest, self.manager.image)
        self.assertEqual(self.successResultOf(creating), 1)
        self.assertEqual((seen, self.manager.position), ([["a"]], 2))
        self.assertEqual(list(self.opened().image.topics), ["a"])

    def test_inOrder(self) -> None:
        """Changes that wait see those before them, and share a write."""
        results = [self.create("a", 1), self.create("b", 2), self.create("b", 3)]
        self.worker.perform()
        self.assertEqual(self.successResultOf(results[0]), 1)
        self.assertNoResult(results[1])
        self.assertEqual(self.worker.performAll(), 1)
        self.assertEqual(self.successResultOf(results[1]), 2)
        self.assertIn("b exists", str(self.failureResultOf(results[2], MetadataError).value))
        self.assertEqual(list(self.opened().image.topics), ["a", "b"])

    def test_nothingToWrite(self) -> None:
        """A decision without records is answered at once."""
        result = self.manager.change(lambda image: ([], "seen"))
        self.assertEqual(self.successResultOf(result), "seen")
        self.assertEqual(len(self.worker.jobs), 0)

    def test_badDecision(self) -> None:
        """Records that contradict the image fail their caller alone."""
        self.create("a", 1)
        self.worker.perform()
        record = TopicRecord("b", str(UUID(int=1)), 1)
        self.failureResultOf(self.manager.change(lambda image: ([record], None)), MetadataError)
        self.assertEqual(len(self.worker.jobs), 0)

    def test_failedDisk(self) -> None:
        """After a failed write nothing more is written, and every caller learns of it."""
        self.files.fail("fsync", "metadata.journal", errno.EIO)
        first, second = self.create("a", 1), self.create("b", 2)
        self.worker.perform()
        for result in (first, second, self.create("c", 3)):
            self.assertIn("metadata.journal", str(self.failureResultOf(result, StorageError)))
        self.assertEqual(self.manager.image.topics, {})

    def test_fullDisk(self) -> None:
        """A full disk fails the changes that it cannot take; those behind them are made."""
        self.files.fail("write", "metadata.journal", errno.ENOSPC)
        first, second = self.create("a", 1), self.create("b", 2)
        self.worker.perform()
        self.assertIn("metadata.journal", str(self.failureResultOf(first, StorageError)))
        self.worker.perform()
        self.assertEqual(self.successResultOf(second), 2)
        again = self.create("a", 1)
        self.worker.perform()
        self.assertEqual(self.successResultOf(again), 1)
        self.assertEqual(list(self.opened().image.topics), ["b", "a"])

    def test_partlyRefused(self) -> None:
        """Of a change whose second record is refused nothing is seen, nor written."""
        creating = self.create("a", 1)
        records: list[Record] = [TopicRecord(name, str(UUID(int=7)), 1) for name in "bc"]
        waiting = [
            self.create("d", 4),
            self.manager.change(lambda image: (records, None)),
            self.manager.change(lambda image: ([], sorted(image.topics))),
        ]
        self.worker.performAll()
        self.assertEqual(self.successResultOf(creating), 1)
        self.assertEqual(self.successResultOf(waiting[0]), 4)
        self.failureResultOf(waiting[1], MetadataError)
        self.assertEqual(self.successResultOf(waiting[2]), ["a", "d"])
        self.assertEqual(list(self.manager.image.topics), ["a", "d"])
        self.assertEqual(list(self.opened().image.topics), ["a", "d"])

    def test_bug(self) -> None:
        """An unexpected error of the write is logged, and fails the callers."""
        store = MetadataStore(self.files, "/log")
        journal = MetadataJournal(store, self.worker)
        self.manager = MetadataManager(journal, self.random.randbytes)
        journal.open(self.manager)
        store.close()  # so that append fails as only a bug can make it fail
        creating = self.create("a", 1)
        self.worker.perform()
        self.failureResultOf(creating, ClosedError)
        self.assertEqual(len(self.flushLoggedErrors(AssertionError)), 1)

    def test_limit(self) -> None:
        """Not more than a number of changes wait."""
        self.patch(metadatamanager, "WAITING_COUNT_MAX", 2)
        waiting = [self.create(name, at + 1) for at, name in enumerate("abc")]
        self.failureResultOf(self.create("d", 9), BackpressureError)
        self.worker.performAll()
        self.assertEqual([self.successResultOf(each) for each in waiting], [1, 2, 3])

    def test_tooLarge(self) -> None:
        """A change that the journal cannot take fails alone, also together with others."""
        self.patch(journal, "ENTRY_SIZE_MAX", 500)
        self.manager = self.opened()
        self.failureResultOf(self.create("a" * 500, 1), MetadataError)
        unknown: Any = object()
        self.failureResultOf(self.manager.change(lambda image: ([unknown], None)), KeyError)
        waiting = [self.create(name * 200, at + 1) for at, name in enumerate("abc")]
        self.worker.performAll()
        self.assertEqual([self.successResultOf(each) for each in waiting[:2]], [1, 2])
        self.failureResultOf(waiting[2], BackpressureError)
        self.assertEqual(list(self.opened().image.topics), ["a" * 200, "b" * 200])

    def test_received(self) -> None:
        """
        What a log gives changes the image, except what the image has already. A snapshot replaces
        an image of before, and no later one.
        """
        changes = [
            encodeRecords([TopicRecord(name, str(UUID(int=at + 1)), 1)])
            for at, name in enumerate("abcd")
        ]
        manager = self.manager
        seen: list[int] = []
        manager.listen(lambda: seen.append(manager.position))
        manager.receive(2, changes[:2])
        manager.receive(2, changes[:3])
        manager.receive(3, changes[1:3])
        self.assertEqual((list(manager.image.topics), seen), (["a", "b", "c"], [3, 4]))
        manager.restore(4, MetadataImage())
        self.assertEqual((list(manager.image.topics), seen), (["a", "b", "c"], [3, 4]))
        manager.restore(9, MetadataImage())
        self.assertEqual((manager.image.topics, manager.position), ({}, 9))
        self.assertIs(manager.latest, manager.image)
        self.assertRaises(AssertionError, manager.receive, 11, changes)

    def test_closed(self) -> None:
        """After C{close} changes are refused."""
        self.manager.close()
        self.failureResultOf(self.create("a", 1), ClosedError)

    def test_clusterId(self) -> None:
        """A new store gets a cluster id of 22 characters, which stays."""
        clusterId = self.manager.image.clusterId
        self.assertRegex(clusterId, r"\A[A-Za-z0-9_-]{22}\Z")
        self.assertEqual(self.opened().image.clusterId, clusterId)

    def test_topicIds(self) -> None:
        """Topic ids are random, and no text form of one begins with a dash."""
        offers = [b"\xfb\xff" + bytes(14), bytes(range(16))]
        journal = MetadataJournal(MetadataStore(self.files, "/log"), self.worker)
        manager = MetadataManager(journal, lambda count: offers.pop(0))
        found = manager.newTopicId()
        self.assertEqual((found.version, found.bytes[:6]), (4, bytes(range(6))))

    def test_producerIds(self) -> None:
        """
        No producer id is given twice: callers that wait for a block share it, and after a restart
        the next block begins.
        """
        self.patch(metadatamanager, "PRODUCER_ID_BLOCK_COUNT", 3)
        first, second = self.manager.newProducerId(), self.manager.newProducerId()
        self.assertNoResult(first)
        self.worker.performAll()
        found = [self.successResultOf(first), self.successResultOf(second)]
        found.append(self.successResultOf(self.manager.newProducerId()))
        more = self.manager.newProducerId()
        self.worker.performAll()
        found.append(self.successResultOf(more))
        self.manager = self.opened()
        again = self.manager.newProducerId()
        self.worker.performAll()
        found.append(self.successResultOf(again))
        self.assertEqual(len(set(found)), 5)
        self.assertGreater(found[-1], max(found[:-1]))
