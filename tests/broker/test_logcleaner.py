"""
What drives compaction: which partition, when, and what happens when it fails.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.compaction.logcleaner import CompactionProcess
from pylogbroker.errors import StorageError
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.checkpoints import readOffsets
from pylogbroker.storage.kafka.compaction import CompactionRequest
from pylogbroker.types import TopicPartition
from tests.broker.kafka.requestbench import ROOT, START_MS, RequestBench
from tests.storage.batches import readRecords

CHECKPOINT = f"{ROOT}/cleaner-offset-checkpoint"


class CleanerCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.bench = RequestBench()

    def create(self, name: str = "t", **configs: str) -> BatchLog:
        """A compacted topic."""
        self.bench.create(name, 1, **{"cleanup_policy": "compact", **configs})
        return self.log(name)

    def log(self, name: str = "t") -> BatchLog:
        log = self.bench.partition(name).log
        assert isinstance(log, BatchLog)
        return log

    def segment(self, *keys: bytes, name: str = "t", timestampMs: int = START_MS) -> None:
        """A closed segment with a record for each key."""
        partition = self.bench.partition(name)
        records = [Record(i, timestampMs, key, b"v") for i, key in enumerate(keys)]
        data = encodeBatch(records)
        self.bench.do(Deferred.fromCoroutine(self.bench.broker.append(partition, data)))
        self.bench.do(self.bench.logManager.roll(partition))

    def wait(self, seconds: float = 15) -> None:
        """Time passes, and all is done that is due."""
        self.bench.clock.advance(seconds)
        self.bench.settle()

    def offsets(self, name: str = "t") -> list[int]:
        return [offset for offset, _ in readRecords(self.log(name))]


class CleanerTests(CleanerCase):
    """L{LogCleaner}."""

    def test_compacts(self) -> None:
        """By the clock, without anybody's asking; the checkpoint is written; it goes on."""
        self.create()
        self.segment(b"a", b"b")
        self.segment(b"a")
        self.assertEqual(self.offsets(), [0, 1, 2])
        self.wait()
        self.assertEqual(self.offsets(), [1, 2])
        place = TopicPartition("t", 0)
        self.assertEqual(readOffsets(self.bench.files, CHECKPOINT), {place: 3})
        self.segment(b"b", b"c", b"d")
        self.segment(b"c", b"d", b"e", b"f")
        self.wait()
        self.assertEqual(self.offsets(), [2, 3, 6, 7, 8, 9])

    def test_ratio(self) -> None:
        """Below min.cleanable.dirty.ratio nothing is compacted, until max.compaction.lag.ms."""
        self.create(min_cleanable_dirty_ratio="0.9", max_compaction_lag_ms="100000")
        self.segment(b"a", b"b", b"c")
        self.wait()
        self.segment(b"a", timestampMs=START_MS + 15_000)
        self.wait()
        self.assertEqual(len(self.offsets()), 4)
        self.wait(100)
        self.assertEqual(self.offsets(), [1, 2, 3])

    def test_others(self) -> None:
        """Topics that are not compacted are left alone, until they are."""
        self.create(cleanup_policy="delete")
        self.segment(b"a")
        self.segment(b"a")
        self.wait()
        self.assertEqual(len(self.offsets()), 2)

    def test_worstFirst(self) -> None:
        """The partition with the largest dirty part comes first; all get their turn."""
        for name in ("t", "u"):
            self.create(name, min_cleanable_dirty_ratio="0.1")
            self.segment(b"a", name=name)
        self.wait()
        self.segment(b"a", name="t")
        self.segment(b"a", b"b", name="u")
        self.segment(b"a", name="u")
        seen: list[str] = []
        cleaner = self.bench.kafka.cleaner
        compactor = cleaner._compactor

        def watched(request: CompactionRequest) -> Any:
            seen.append(request.directory.rpartition("/")[2])
            return compactor(request)

        self.patch(cleaner, "_compactor", watched)
        self.wait()
        self.assertEqual(seen, ["u-0", "t-0"])
        self.assertEqual((self.offsets("t"), self.offsets("u")), ([1], [2, 3]))

    def test_unreadable(self) -> None:
        """A partition with a damaged segment is reported once, and others go on."""
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        file = self.bench.files.open(self.log().segments[0].path)
        file.writeAt(65, [b"\xff"])
        self.wait()
        self.wait()
        self.create("u")
        self.segment(b"a", name="u")
        self.segment(b"a", name="u")
        self.wait()
        self.assertEqual(self.offsets("u"), [1])
        self.assertEqual(len(self.log().segments), 3)
        counters = self.bench.kafka.cleaner.counters
        self.assertEqual((counters.count, counters.failedCount), (1, 1))
        self.assertEqual((counters.recordCount, counters.keptCount), (2, 1))

    def test_fullDisk(self) -> None:
        """A failed run changes nothing, and is tried again by the clock."""
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        self.bench.files.fail("write", ".cleaned", 28)
        self.wait()
        self.assertEqual(self.offsets(), [0, 1])
        self.bench.files.mend()
        self.wait()
        self.assertEqual(self.offsets(), [1])

    def test_failedExchange(self) -> None:
        """A failure in the middle of the exchange takes the partition out of service."""
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        self.bench.files.fail("rename", ".log.swap", 5)
        self.wait()
        self.assertIsNotNone(self.log().failure)
        self.wait()

    def test_overdueUnreadable(self) -> None:
        """If the age cannot be read, the run says why."""
        self.create(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="100")
        self.segment(b"a")
        self.bench.files.fail("open", "0.log", 5, 2)
        self.wait()
        self.bench.files.mend()
        self.assertEqual(self.log().cleanedOffset, 0)
        self.wait()
        self.assertEqual(self.log().cleanedOffset, 1)

    def test_stopped(self) -> None:
        """Behind the stop nothing is exchanged."""
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        self.bench.clock.advance(15)
        self.assertEqual(len(self.bench.worker.jobs), 1)
        self.bench.kafka.cleaner.stop()
        self.bench.settle()
        self.assertEqual(self.offsets(), [0, 1])
        self.wait()
        self.assertEqual(self.offsets(), [0, 1])

    def test_removed(self) -> None:
        """A topic may be removed while it is compacted."""
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        self.bench.clock.advance(15)
        partition = self.bench.partition()
        removing = self.bench.logManager.remove(partition.topicPartition)
        self.bench.do(Deferred.fromCoroutine(removing))
        self.wait()
        self.assertNotIn(TopicPartition("t", 0), self.bench.directory.logs)

    def test_nothingLeft(self) -> None:
        """
        A run that fails behind its writing leaves no file, in whatever partition has the name now.
        """
        self.create()
        self.segment(b"a")
        self.segment(b"a")
        cleaner = self.bench.kafka.cleaner
        compactor = cleaner._compactor
        written: list[str] = []

        def late(request: CompactionRequest) -> Any:
            compactor(request)
            written.extend(self.bench.files.list(request.directory))
            raise StorageError(request.directory, "compact", "the process ended")

        self.patch(cleaner, "_compactor", late)
        self.wait()
        self.assertTrue([name for name in written if name.endswith(".cleaned")])
        names = self.bench.files.list(f"{ROOT}/t-0")
        self.assertFalse([name for name in names if name.endswith(".cleaned")])


class ProcessTests(SynchronousTestCase):
    """L{CompactionProcess}."""

    def request(self) -> CompactionRequest:
        directory = os.path.abspath(self.mktemp())
        os.makedirs(directory)
        data = encodeBatch([Record(i, START_MS, b"a", b"v") for i in range(2)])
        with open(f"{directory}/{0:020d}.log", "wb") as file:
            file.write(data)
        return CompactionRequest(
            directory, [(0, len(data), START_MS)], 2, 0, START_MS, 0, 1 << 20, 1 << 20
        )

    def test_run(self) -> None:
        """A run in a process of its own; a second one finds the first one's file, and fails."""
        process, request = CompactionProcess(), self.request()
        result = process(request)
        self.assertEqual((result.keptCount, len(result.groups)), (1, 1))
        size = os.stat(f"{request.directory}/{0:020d}.log.cleaned").st_size
        self.assertEqual(size, result.groups[0].size)
        self.assertRaises(StorageError, process, request)

    def test_session(self) -> None:
        """The process has a session of its own, and so a share of the processor of its own."""
        sessions = []

        class Started(subprocess.Popen[str]):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                super().__init__(*arguments, **more)
                sessions.append((os.getsid(self.pid), self.pid))

        self.patch(subprocess, "Popen", Started)
        CompactionProcess()(self.request())
        self.assertEqual(sessions[0][0], sessions[0][1])

    def test_stop(self) -> None:
        """Behind the stop no run succeeds."""
        process = CompactionProcess()
        process.stop()
        error = self.assertRaises(StorageError, process, self.request())
        self.assertIn("the process ended", str(error))
