"""
Tests of jobs: the power fails before each file operation of a busy life, and nothing that could be
read before is lost.

L{Life} drives a log directory through everything it can do and keeps a journal beside it: all bytes
that were appended, and how far they were ever visible. After each crash the directory must open,
every partition in it must load, and what it holds must be the journal's bytes, in order, once, at
least as far as they were visible.

L{PlantedFaultTests} are tests of these tests: with a sync left out, they must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random

from twisted.trial.unittest import FailTest, SynchronousTestCase

from pylogbroker.storage.partitionlog import HOUR_MS, PartitionLog
from pylogbroker.storage.segments import byAge
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.types import TopicPartition
from tests.storage.driving import (
    KAFKA,
    KAFKA07,
    Site,
    clean,
    flush,
    put,
    readAll,
    retire,
    roll,
    validated,
)


class Kept:
    """
    What is known of a partition.

    @ivar start: everything below may have been deleted.
    @ivar visible: everything below was to be seen.
    @ivar sets: (base offset, offset behind, bytes as stored) of each set.
    """

    def __init__(self) -> None:
        self.start = 0
        self.visible = 0
        self.sets: list[tuple[int, int, bytes]] = []

    def data(self, start: int, end: int) -> bytes:
        """Stored bytes between two offsets."""
        return b"".join(data for base, behind, data in self.sets if base >= start and behind <= end)


class LifeCase(SynchronousTestCase):
    """
    @ivar records: the format.
    """

    records = KAFKA07


class Life:
    """
    A log directory, and the journal of what was done with it.

    @ivar site: the directory.
    @ivar journal: by partition; those are in it whose creation was finished.
    """

    def __init__(
        self, test: LifeCase, files: PowerCutFileSystem | None = None, seed: int = 0
    ) -> None:
        self.test = test
        self.site = Site(
            files,
            records=test.records,
            segmentSizeMax=60,
            flushCountMax=1000,
            retention=byAge(HOUR_MS),
            descriptorCountMax=2,
        )
        self.double.clock = self.site.clock
        self.double.pageSize = 16
        self.journal: dict[TopicPartition, Kept] = {}
        self._random = Random(seed)
        self._count = 0

    @property
    def double(self) -> PowerCutFileSystem:
        return self.site.double

    def look(self) -> None:
        """Note what can be seen now."""
        for topicPartition, log in self.site.directory.logs.items():
            kept = self.journal[topicPartition]
            kept.visible = max(kept.visible, log.highWatermark)
            kept.start = log.logStartOffset

    def create(self, partition: int) -> PartitionLog:
        log = self.site.create("t", partition)
        self.journal[log.topicPartition] = Kept()
        return log

    def append(self, log: PartitionLog, count: int = 1) -> None:
        """
        Append sets of various sizes; they are in the journal first, since a crash may keep what was
        never confirmed.
        """
        kept = self.journal[log.topicPartition]
        for _ in range(count):
            self._count += 1
            payload = b"%d" % self._count + b"." * self._random.randint(0, 20)
            data = self.test.records.entry(payload)
            batches = validated(log, data)
            base = log.logEndOffset
            stored = b"".join(log.format.stamp(batches, base, 0, 0))
            kept.sets.append((base, base + batches.offsetCount, stored))
            put(log, data, nowMs=self.site.clock.nowMs)
            self.look()

    def flush(self, log: PartitionLog) -> None:
        flush(log, self.site.clock.nowMs)
        self.look()

    def clean(self, log: PartitionLog) -> None:
        """Everything that is there now is old, and may go."""
        self.site.clock.nowMs += 2 * HOUR_MS
        self.journal[log.topicPartition].start = log.logEndOffset
        clean(log, self.site.clock.nowMs)
        self.look()

    def retire(self, log: PartitionLog, count: int) -> None:
        """The oldest segments may go, not the last."""
        segments = log.segments
        count = min(count, len(segments) - 1)
        self.journal[log.topicPartition].start = segments[count].baseOffset
        retire(log, segments[:count], self.site.clock.nowMs)
        self.look()

    def check(self) -> None:
        """After a crash: open, compare, and forget what the crash has taken of the unconfirmed."""
        directory = self.site.open()
        self.test.assertEqual(directory.failures, {})
        for topicPartition, kept in self.journal.items():
            log = directory.logs.get(topicPartition)
            self.test.assertIsNotNone(log, f"{topicPartition} is lost")
            assert log is not None
            self.test.assertTrue(
                log.logEndOffset >= kept.visible,
                f"{topicPartition} ends at {log.logEndOffset}, {kept.visible} was visible",
            )
            self.test.assertTrue(
                log.logStartOffset <= kept.start,
                f"{topicPartition} begins at {log.logStartOffset}, nothing beyond"
                f" {kept.start} was deleted",
            )
            self.test.assertEqual(log.highWatermark, log.logEndOffset)
            start = log.logStartOffset
            self.test.assertEqual(
                readAll(log),
                kept.data(start, log.logEndOffset),
                f"{topicPartition} has other bytes",
            )
            kept.sets = [each for each in kept.sets if each[1] <= log.logEndOffset]
        for topicPartition in directory.logs:
            self.journal.setdefault(topicPartition, Kept())
        self.look()

    def crash(self, random: Random | None) -> None:
        """Cut the power, check; the power may fail in the middle of the recovery, too."""
        self.double.cutPower(random)
        if random is not None and random.random() < 0.5:
            self.double.cutAt = self.double.operationCount + random.randint(0, 8)
            try:
                self.check()
                self.double.cutAt = None
                return
            except PowerLostError:
                self.double.cutPower(random)
        self.check()


def busyLife(life: Life) -> None:
    """All that a log directory does, in order: about a hundred file operations."""
    site = life.site
    site.open()
    log = life.create(0)
    life.append(log, 3)
    life.flush(log)
    life.append(log, 4)  # rolls
    other = life.create(1)
    life.append(other)
    life.flush(other)
    life.flush(log)
    # A flush and a roll under way at once, the roll ending first.
    life.append(log)
    flushing = log.beginFlush()
    life.append(log)
    rolling = log.beginRoll()
    assert flushing is not None and rolling is not None
    rolling.run()
    log.finishRoll(rolling, None, site.clock.nowMs)
    life.look()
    flushing.run()
    log.finishFlush(flushing, None, site.clock.nowMs)
    life.append(log, 2)
    life.flush(log)
    # Retention: some, then all.
    life.retire(log, 2)
    life.append(log, 5)
    life.clean(log)
    life.append(log, 2)
    life.flush(log)
    # A full disk, in the middle of a set.
    site.double.sizeMax = site.double.usedSize + 20
    life.append(log)
    life.append(log)
    life.flush(log)
    site.double.sizeMax = None
    life.flush(log)
    # An orderly stop, and a start from the mark.
    life.append(log)
    site.close()
    site.open()
    life.look()
    log = site.log()
    life.append(log, 2)
    life.flush(log)
    life.append(log)
    # Killed with unflushed bytes: they are visible after the start.
    site.kill()
    life.check()
    log = site.log()
    life.append(log, 3)
    life.flush(log)
    life.append(log)


def operationCountOf(act: Callable[[Life], None], test: LifeCase) -> int:
    """How many file operations something takes when nothing goes wrong."""
    life = Life(test)
    act(life)
    return life.double.operationCount


def cutEverywhere(
    test: LifeCase,
    seeds: Iterable[int | None],
    makeFiles: Callable[[], PowerCutFileSystem] | None = None,
    step: int = 1,
) -> int:
    """
    Live, with the power failing before each operation in turn; with and without luck. How many
    crashes there were.
    """
    crashCount = 0
    for seed in seeds:
        for cutAt in range(0, operationCountOf(busyLife, test) + 1, step):
            life = Life(test, None if makeFiles is None else makeFiles())
            life.double.cutAt = cutAt
            try:
                busyLife(life)
            except PowerLostError:
                pass
            life.crash(None if seed is None else Random(f"{seed} {cutAt}"))
            # And it serves on.
            log = life.site.directory.get("t", 0) or life.create(0)
            life.append(log, 3)
            life.flush(log)
            life.append(log)
            life.crash(None if seed is None else Random(f"{seed} {cutAt} again"))
            crashCount += 1
    return crashCount


class PowerCutTests(LifeCase):
    """The power fails at every point."""

    def test_nothingGoesWrong(self) -> None:
        """
        The life that is cut short below does what it says when it is not: rolls, deletes, survives
        a stop and a kill.
        """
        life = Life(self)
        busyLife(life)
        log = life.site.log()
        self.assertTrue(len(log.segments) >= 2 and log.logStartOffset > 0)
        self.assertTrue(operationCountOf(busyLife, self) > 90)
        self.assertEqual(
            readAll(log),
            life.journal[log.topicPartition].data(log.logStartOffset, log.highWatermark),
        )

    def test_everythingUnsyncedIsLost(self) -> None:
        """
        The power fails before each operation, and what was not synced is gone: nothing that was
        visible is.
        """
        self.assertTrue(cutEverywhere(self, [None]) > 90)

    def test_anythingUnsyncedMaySurvive(self) -> None:
        """
        The same, with some of the unsynced bytes and names there and some not, in five ways each.
        """
        self.assertTrue(cutEverywhere(self, range(5)) > 450)

    def test_killedAndThenCut(self) -> None:
        """
        The process dies before each operation; the next shows what it finds in the page cache; then
        the power fails: what was shown stays.
        """
        for cutAt in range(operationCountOf(busyLife, self)):
            life = Life(self)
            life.double.cutAt = cutAt
            try:
                busyLife(life)
            except PowerLostError:
                life.site.kill()
                life.check()
            life.double.cutPower()
            life.check()

    def test_randomLives(self) -> None:
        """Lives that go on over crash after crash, with whatever comes next chosen by chance."""
        for seed in range(40):
            random = Random(seed)
            life = Life(self, seed=seed)
            life.site.open()
            crashCount = 0
            life.double.cutAt = life.double.operationCount + random.randint(0, 60)
            while crashCount < 5:
                try:
                    self.step(life, random)
                except PowerLostError:
                    life.crash(random)
                    life.double.cutAt = life.double.operationCount + random.randint(0, 60)
                    crashCount += 1

    def step(self, life: Life, random: Random) -> None:
        """Something that a broker does."""
        logs = list(life.site.directory.logs.values())
        if not logs or (len(logs) < 3 and random.random() < 0.1):
            life.create(len(logs))
            return
        log = random.choice(logs)
        act = random.choice(
            [
                "append",
                "append",
                "append",
                "flush",
                "flush",
                "roll",
                "clean",
                "retire",
                "stop",
                "kill",
            ]
        )
        if act == "append":
            life.append(log, random.randint(1, 4))
        elif act == "flush":
            life.flush(log)
        elif act == "roll":
            roll(log, life.site.clock.nowMs)
            life.look()
        elif act == "clean":
            life.clean(log)
        elif act == "retire":
            life.retire(log, random.randint(0, 3))
        elif act == "stop":
            self.assertTrue(life.site.close())
            life.check()
        else:
            life.site.kill()
            life.check()


class FileSyncOnly(PowerCutFileSystem):
    """As if the program never synced a directory."""

    def syncDirectory(self, path: str) -> None:
        pass


class DirectorySyncOnly(PowerCutFileSystem):
    """As if the program never synced a file."""

    def syncDirectory(self, path: str) -> None:
        self.syncs = True
        try:
            super().syncDirectory(path)
        finally:
            self.syncs = False


class AllButOneSync(PowerCutFileSystem):
    """
    As if the program had forgotten one sync.

    @ivar syncCount: how many there were.
    @ivar afterWhat: for each sync, the operation before it, and where that was in the count of
        operations.
    """

    def __init__(self, forgotten: int) -> None:
        super().__init__()
        self.forgotten = forgotten
        self.syncCount = 0
        self.afterWhat: list[tuple[str, int]] = []
        self._last = ""

    @contextmanager
    def _operation(
        self, action: str, path: str, changes: bool = True, generation: int | None = None
    ) -> Iterator[None]:
        with super()._operation(action, path, changes, generation):
            if action == "fsync":
                self.syncs = self.syncCount != self.forgotten
                self.syncCount += 1
                self.afterWhat.append((self._last, self.operationCount))
            if changes:
                self._last = action
            yield

    def cutPower(self, random: Random | None = None) -> None:
        super().cutPower(random)
        self.forgotten = -1


class PlantedFaultTests(LifeCase):
    """A log that forgets to sync does not pass the tests above."""

    def fails(self, makeFiles: Callable[[], PowerCutFileSystem]) -> None:
        self.assertRaises(FailTest, cutEverywhere, self, [None, 0, 1], makeFiles)

    def test_noSyncAtAll(self) -> None:
        """Without any sync."""

        def make() -> PowerCutFileSystem:
            files = PowerCutFileSystem()
            files.syncs = False
            return files

        self.fails(make)

    def test_noFileSync(self) -> None:
        """Without syncs of files."""
        self.fails(DirectorySyncOnly)

    def test_noDirectorySync(self) -> None:
        """Without syncs of directories."""
        self.fails(FileSyncOnly)

    def isNoticed(self, forgotten: int, cutAt: int) -> bool:
        """Whether a life that has forgotten one sync, and is cut short soon after, is found out."""
        for seed in (None, 0, 1, 2, 3):
            life = Life(self, AllButOneSync(forgotten))
            life.double.cutAt = cutAt
            try:
                busyLife(life)
            except PowerLostError:
                pass
            try:
                life.crash(None if seed is None else Random(f"{seed} {cutAt}"))
            except FailTest:
                return True
        return False

    def test_oneForgottenSync(self) -> None:
        """
        With a single sync left out, of each kind: after writing (a flush, a roll's of the old
        file), creating (a roll's of the directory, a new partition's), renaming (deletion),
        removing the mark, and in recovery. Some may be left out without harm, where another follows
        at once.
        """
        files = AllButOneSync(-1)
        busyLife(Life(self, files))
        noticed = []
        for i, (after, operationCount) in enumerate(files.afterWhat):
            if any(
                self.isNoticed(i, cutAt) for cutAt in range(operationCount, operationCount + 20)
            ):
                noticed.append(after)
        self.assertEqual(set(noticed), {"write", "create", "rename", "remove", "lock", "fsync"})
        self.assertTrue(len(noticed) >= 28, noticed)


class KafkaPowerCutTests(PowerCutTests):
    """The same with today's format: batches are stamped, and indexes are files, too."""

    records = KAFKA


class KafkaPlantedFaultTests(LifeCase):
    """And those tests fail without syncs, too."""

    records = KAFKA
    fails = PlantedFaultTests.fails
    test_noSyncAtAll = PlantedFaultTests.test_noSyncAtAll
    test_noFileSync = PlantedFaultTests.test_noFileSync
    test_noDirectorySync = PlantedFaultTests.test_noDirectorySync
