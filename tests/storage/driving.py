"""
Short ways to do with a log what its owner does: begin, run, finish, all on one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
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
from pylogbroker.records.kafkaformat import KafkaFormat, RecordRules
from pylogbroker.records.messageset import encodeSet
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.records.segmentindex import IndexSettings
from pylogbroker.storage.events import StorageEvent
from pylogbroker.storage.jobs import DiskJob, FindPositionJob
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.partitionlog import HOUR_MS, PartitionLog, PartitionSettings
from pylogbroker.storage.segments import Segment, both, byAge, bySize
from pylogbroker.testing.powercut import PowerCutFileSystem

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


def run(job: DiskJob) -> StorageError | None:
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
        max((each.timestampMaxMs for each in found), default=-1),
        [header for each in found for header in each.headers],
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

    The tests count in units: one byte of 2011's format, ten of today's, whose batches are larger.

    @ivar unit: bytes.
    @ivar entry: a set of one message: 10 units, and one for each byte of the payload.
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
        unit: int,
    ) -> None:
        self.unit = unit
        self.format = form
        self.entry = entry
        self.batch = batch
        self.asSent = asSent
        self._offsetsAreBytes = offsetsAreBytes

    def offsetAt(self, byte: int, size: int = 12) -> int:
        """The offset of a place in a log of entries of C{size} units."""
        return byte if self._offsetsAreBytes else byte // size

    def byteAt(self, offset: int, size: int = 12) -> int:
        """The other way round."""
        return offset if self._offsetsAreBytes else offset * size

    def wholeSize(self, data: bytes) -> int:
        """Bytes of whole, valid entries at the start."""
        return wholeSize(self.format, data)


def kafkaEntry(payload: bytes) -> bytes:
    """A batch of one record, filled up to the size that the tests expect."""
    size = 10 * (10 + len(payload))
    for key in (b"", b"\0"):
        for fillCount in range(size):
            record = Record(0, START_MS, key, payload + bytes(fillCount))
            data = encodeBatch([record])
            if len(data) == size:
                return data
            if len(data) > size:
                break
    raise AssertionError("no batch of this size")


def unstamped(data: bytes) -> bytes:
    """Batches as the producer sent them, even a cut one."""
    found = bytearray(data)
    position = 0
    while position < len(found):
        found[position : position + 8] = bytes(len(found[position : position + 8]))
        left = len(found[position + 12 : position + 16])
        found[position + 12 : position + 12 + left] = b"\xff" * left
        if position + 12 > len(found):
            break
        position += 12 + int.from_bytes(found[position + 8 : position + 12], "big")
    return bytes(found)


def kafkaBatch(count: int) -> bytes:
    """A batch of some records."""
    return encodeBatch([Record(index, START_MS, None, b"1") for index in range(count)])


KAFKA07 = Records(
    Kafka07Format(), entry, lambda count: encodeSet([b"1"] * count, 1), lambda data: data, True, 1
)
KAFKA = Records(
    KafkaFormat(RecordRules(isFromClient=False, index=IndexSettings(200))),
    cache(kafkaEntry),
    kafkaBatch,
    unstamped,
    False,
    10,
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
        self.unit = records.unit
        self.settings = {**SETTINGS, **settings}
        self.formats: list[IRecordFormat] = [records.format]
        self.reports: list[StorageEvent] = []
        self.directory = self._new()

    def _new(self) -> LogDirectory:
        settings = logSettings(
            **{
                name: value * self.unit if "Size" in name and isinstance(value, int) else value
                for name, value in self.settings.items()
            }
        )
        return LogDirectory(self.root, self.formats, self.files, settings, self.clock)

    @property
    def double(self) -> PowerCutFileSystem:
        """The file system, known to be the double."""
        assert isinstance(self.files, PowerCutFileSystem)
        return self.files

    def change(self, **settings: Any) -> None:
        """Other settings from the next opening on."""
        self.settings.update(settings)

    def open(self, keepsLosses: bool = False) -> LogDirectory:
        """A new L{LogDirectory} on the same files."""
        self.reports = []
        self.directory = self._new()
        self.directory.open(self.reports.append, keepsLosses=keepsLosses)
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
