"""
Short ways to do with a log what its owner does: begin, run, finish, all on one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import (
    AppendResult,
    CheckLimits,
    IFileSystem,
    IRecordFormat,
    Slice,
    ValidatedBatches,
)
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.messageset import encodeSet
from pylogbroker.storage.events import StorageEvent
from pylogbroker.storage.jobs import FindPositionJob, Job
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.partitionlog import HOUR_MS, PartitionLog, PartitionSettings
from pylogbroker.storage.segments import Segment, both, byAge, bySize
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.storage.countedformat import CountedFormat, encodeBatch, unstamped

START_MS = 1_300_000_000_000
ROOT = "/srv/logs"


class Clock:
    """Milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.nowMs = START_MS

    def __call__(self) -> int:
        return self.nowMs


SETTINGS = {
    "partitionCount": 1,
    "segmentSizeMax": 1 << 30,
    "rollAgeMs": 168 * HOUR_MS,
    "flushCountMax": 500,
    "flushIntervalMs": 3000,
    "retentionAgeMs": 168 * HOUR_MS,
    "retentionSize": -1,
    "retention": None,
    "topicLengthMax": 255,
    "descriptorCountMax": 512,
}


def logSettings(**settings: Any) -> LogSettings:
    """Settings from names as in L{SETTINGS}; C{...ByTopic} is a map that overrides one of them."""
    unknown = {name.removesuffix("ByTopic") for name in settings} - set(SETTINGS)
    assert not unknown, unknown

    def pick(name: str, topic: str) -> int:
        value: int = settings.get(f"{name}ByTopic", {}).get(topic, settings[name])
        return value

    def forTopic(topic: str) -> PartitionSettings:
        age, size = byAge(pick("retentionAgeMs", topic)), bySize(pick("retentionSize", topic))
        return PartitionSettings(
            pick("segmentSizeMax", topic),
            pick("rollAgeMs", topic),
            settings["flushCountMax"],
            pick("flushIntervalMs", topic),
            settings["retention"] or both(age, size),
        )

    return LogSettings(
        forTopic,
        lambda topic: pick("partitionCount", topic),
        settings["topicLengthMax"],
        settings["descriptorCountMax"],
    )


def entry(payload: bytes) -> bytes:
    """A set of one message: 10 bytes and the payload."""
    return encodeSet([payload])


def run(job: Job) -> StorageError | None:
    """What a worker does: run, and hand the error back."""
    try:
        job.run()
    except StorageError as error:
        return error
    return None


def validated(log: PartitionLog, *sets: bytes) -> ValidatedBatches:
    """Sets, validated each, to be appended in one go."""
    found = [log.format.validate(data, CheckLimits()) for data in sets]
    return ValidatedBatches(
        [buffer for each in found for buffer in each.buffers],
        sum(each.size for each in found),
        sum(each.messageCount for each in found),
        sum(each.offsetCount for each in found),
    )


def append(log: PartitionLog, *sets: bytes, nowMs: int = START_MS) -> AppendResult:
    """Append a run of sets."""
    return log.append(validated(log, *sets), nowMs)


def read(log: PartitionLog, offset: int, sizeMax: int) -> Slice:
    """What a broker does: read, and search on a worker where that is needed."""
    found = log.read(offset, sizeMax)
    while isinstance(found, FindPositionJob):
        found.run()
        found = log.read(offset, sizeMax, found)
    return found


def flush(log: PartitionLog, nowMs: int = START_MS) -> bool:
    """Whether there was something to flush."""
    job = log.beginFlush()
    if job is None:
        return False
    log.finishFlush(job, run(job), nowMs)
    return True


def roll(log: PartitionLog, nowMs: int = START_MS) -> bool:
    """Whether a roll was begun."""
    job = log.beginRoll()
    if job is None:
        return False
    log.finishRoll(job, run(job), nowMs)
    return True


def put(log: PartitionLog, *sets: bytes, nowMs: int = START_MS) -> None:
    """Append sets of one message each, rolling where it is due."""
    for data in sets:
        if log.rollDue(nowMs):
            roll(log, nowMs)
        append(log, data, nowMs=nowMs)
    log.write()


def putFlushed(log: PartitionLog, *sets: bytes, nowMs: int = START_MS) -> None:
    """The same, and visible."""
    put(log, *sets, nowMs=nowMs)
    flush(log, nowMs)


def clean(log: PartitionLog, nowMs: int) -> int:
    """Apply retention. How many segments went."""
    segments = log.expired(nowMs)
    if log.needsRoll(segments):
        roll(log, nowMs)
    return retire(log, segments, nowMs)


def retire(log: PartitionLog, segments: Sequence[Segment], nowMs: int = START_MS) -> int:
    """How many files were unlinked."""
    job = log.beginDelete(segments, nowMs)
    if job is None:
        return 0
    log.finishDelete(job, run(job))
    return len(job.unlinked)


def close(log: PartitionLog, nowMs: int = START_MS) -> None:
    """Close in order."""
    job = log.beginClose()
    if job is not None:
        log.finishClose(job, run(job))


def bytesOf(part: Slice) -> bytes:
    """Read a slice as a transfer does, through the descriptor of its file."""
    if part.file is None:
        return b""
    if not part.file.pin():
        part.file.openPinned()
    try:
        return os.pread(part.file.fileno(), part.size, part.position)
    finally:
        part.file.unpin()


def readAll(log: PartitionLog, offset: int | None = None, sizeMax: int = 1 << 20) -> bytes:
    """Everything visible, by successive reads."""
    found = []
    offset = log.logStartOffset if offset is None else offset
    while part := bytesOf(read(log, offset, sizeMax)):
        if log.format.contiguousEnd(0, 0) is None:  # a cut batch is read again
            part = part[: wholeSize(log.format, part)]
            sizeMax = sizeMax if part else 2 * sizeMax
        found.append(part)
        offset = log.format.nextOffset(offset, [part])
    return b"".join(found)


def wholeSize(form: IRecordFormat, data: bytes) -> int:
    """Bytes of whole, valid entries at the start."""
    return form.scan(
        lambda position, size: data[position : position + size], 0, 0, len(data)
    ).skipToEnd()


class Records:
    """
    The sets of a format, for tests that run with more than one.

    @ivar entry: a set of one message: 10 bytes and the payload.
    @ivar batch: a set of some messages in one batch.
    @ivar asSent: stored batches as the producer sent them.
    """

    def __init__(
        self,
        form: IRecordFormat,
        entry: Callable[[bytes], bytes],
        batch: Callable[[int], bytes],
        asSent: Callable[[bytes], bytes],
        offsetsAreBytes: bool,
    ) -> None:
        self.format = form
        self.entry = entry
        self.batch = batch
        self.asSent = asSent
        self._offsetsAreBytes = offsetsAreBytes

    def offsetAt(self, byte: int, size: int = 12) -> int:
        """The offset of a byte in a log of entries of C{size} bytes."""
        return byte if self._offsetsAreBytes else byte // size

    def byteAt(self, offset: int, size: int = 12) -> int:
        """The other way round."""
        return offset if self._offsetsAreBytes else offset * size

    def wholeSize(self, data: bytes) -> int:
        """Bytes of whole, valid entries at the start."""
        return wholeSize(self.format, data)


KAFKA07 = Records(
    Kafka07Format(), entry, lambda count: encodeSet([b"1"] * count, 1), lambda data: data, True
)
COUNTED = Records(
    CountedFormat(), encodeBatch, lambda count: encodeBatch(b"1", count), unstamped, False
)


class Site:
    """
    A log directory on the file system that forgets (or another), opened and opened again.

    @ivar files: the file system.
    @ivar formats: of its partitions; new ones have the first.
    @ivar reports: what the last opening had to say.
    """

    def __init__(
        self,
        files: IFileSystem | None = None,
        root: str = ROOT,
        records: Records = KAFKA07,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.files = PowerCutFileSystem(self.clock) if files is None else files
        self.root = root
        self.settings = {**SETTINGS, **settings}
        self.formats: list[IRecordFormat] = [records.format]
        self.reports: list[StorageEvent] = []
        self.directory = self._new()

    def _new(self) -> LogDirectory:
        settings = logSettings(**self.settings)
        return LogDirectory(self.root, self.formats, self.files, settings, self.clock)

    @property
    def double(self) -> PowerCutFileSystem:
        """The file system, known to be the double."""
        assert isinstance(self.files, PowerCutFileSystem)
        return self.files

    def change(self, **settings: Any) -> None:
        """Other settings from the next opening on."""
        self.settings.update(settings)

    def open(self) -> LogDirectory:
        """A new L{LogDirectory} on the same files."""
        self.reports = []
        self.directory = self._new()
        self.directory.open(self.reports.append)
        return self.directory

    def create(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        """A new partition in the open directory."""
        job = self.directory.beginCreate(topic, partition)
        return self.directory.finishCreate(job, run(job))

    def close(self) -> bool:
        """Stop in order. Whether the mark was written."""
        for log in self.directory.logs.values():
            close(log, self.clock.nowMs)
        marked = self.directory.writeCleanShutdownMarker()
        self.directory.close()
        return marked

    def kill(self) -> None:
        """As C{kill -9}."""
        self.double.kill()

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        """A partition that must be there."""
        found = self.directory.get(topic, partition)
        assert found is not None
        return found

    def path(self, name: str) -> str:
        """Of something in the directory."""
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> None:
        """Create a synced file, with its directory."""
        path = self.path(name)
        parent = path.rpartition("/")[0]
        self.files.makeDirectories(parent)
        file = self.files.open(path, create=True)
        file.writeAt(0, [data])
        file.sync()
        file.close()

    def content(self, name: str) -> bytes:
        """Of a file in the directory."""
        file = self.files.open(self.path(name), write=False)
        try:
            return file.readAt(0, file.size())
        finally:
            file.close()
