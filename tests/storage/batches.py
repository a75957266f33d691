"""
Record batches for the tests of the log: headers without bytes, batches with, a log directory.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.interfaces import (
    BatchHeader,
    CheckLimits,
    IRecordFormat,
    ScannedEntry,
    ValidatedBatches,
)
from pylogbroker.records.kafkaformat import LOG_RULES, KafkaFormat, RecordRules
from pylogbroker.records.recordbatch import Record, controlBatch, encodeBatch, iterateRecords
from pylogbroker.records.segmentindex import IndexSettings
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.segments import both, byRecordTime, bySize
from tests.storage.driving import START_MS, Site, bytesOf, read, run

TRANSACTIONAL = 0x10
CONTROL = 0x20
HOUR_MS = 3_600_000
NEVER = 1 << 62


def header(
    producerId: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    timestampMs: int = 0,
    *,
    isTransactional: bool = False,
    isControl: bool = False,
) -> BatchHeader:
    """The header of a batch of C{count} records, before it is stamped."""
    attributes = TRANSACTIONAL * isTransactional | CONTROL * isControl
    if isControl:
        sequence = -1
    return BatchHeader(
        0, 61, -1, 2, 0, attributes, count - 1, timestampMs, timestampMs,
        producerId, epoch, sequence, count,
    )  # fmt: skip


def batch(
    *values: bytes,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestampMs: int = START_MS,
) -> bytes:
    """A batch, as a client sends it."""
    return encodeBatch(
        [Record(delta, timestampMs, None, value) for delta, value in enumerate(values)],
        producerId=producer,
        producerEpoch=epoch if producer < 0 else max(epoch, 0),
        baseSequence=sequence,
        isTransactional=transactional,
    )


def validated(data: bytes, format: IRecordFormat | None = None) -> ValidatedBatches:
    """Batches for C{append}: of a client, or of a log with L{LOG_RULES}."""
    return (format or KafkaFormat(LOG_RULES)).validate(data, CheckLimits())


def marker(
    isCommit: bool, producer: int, epoch: int = 0, coordinatorEpoch: int = 0
) -> ValidatedBatches:
    """The end of a transaction."""
    return validated(controlBatch(isCommit, producer, epoch, coordinatorEpoch, START_MS))


def scan(data: bytes) -> list[ScannedEntry]:
    """The whole, valid batches at the start of some bytes."""
    return list(KafkaFormat().scan(lambda at, size: data[at : at + size], 0, 0, len(data)))


def values(data: bytes) -> list[tuple[int, bytes | None]]:
    """(offset, value) of the records in whole batches."""
    found = []
    for entry in scan(data):
        assert entry.header is not None
        if not entry.header.isControl:
            records = iterateRecords(data, entry.position, entry.header)
            found += [(record.offset, record.value) for record in records]
    return found


def readRecords(log: BatchLog) -> list[tuple[int, bytes | None]]:
    """All visible records from the log start on, by successive reads."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.logStartOffset
    while data := bytesOf(read(log, offset, 500)):
        found += [each for each in values(data) if each[0] >= offset]
        offset = scan(data)[-1].nextOffset
    return found


class BatchSite(Site):
    """A log directory whose partitions have record batches."""

    def __init__(self, **settings: Any) -> None:
        self.batchSettings: dict[str, Any] = {
            "segmentSizeMax": 1 << 30,
            "segmentMs": 168 * HOUR_MS,
            "retentionMs": 168 * HOUR_MS,
            "retentionSize": -1,
            "isReadWhenFlushed": True,
            "batchSizeMax": 1_048_588,
            "indexInterval": 4096,
            "timeType": False,
            "compaction": None,
            "isReplicated": False,
            **settings,
        }
        super().__init__()
        self.formats = [KafkaFormat()]
        self.directory = self._new()

    def _new(self) -> LogDirectory:
        settings = LogSettings(
            lambda topic: self.forBatches(topic),
            lambda topic: 1,
            255,
            512,
            self.forBatches,
            lambda topicPartition: bool(self.batchSettings["isReplicated"]),
        )
        return LogDirectory(self.root, self.formats, self.files, settings, self.clock)

    def forBatches(self, topic: str) -> BatchLogSettings:
        """The settings as they are now."""
        found = self.batchSettings
        rules = RecordRules(
            index=IndexSettings(found["indexInterval"]), isLogAppendTime=found["timeType"]
        )
        return BatchLogSettings(
            found["segmentSizeMax"],
            found["segmentMs"],
            NEVER,
            NEVER,
            both(byRecordTime(found["retentionMs"]), bySize(found["retentionSize"])),
            found["batchSizeMax"],
            24 * HOUR_MS,
            found["isReadWhenFlushed"],
            KafkaFormat(rules),
            found["compaction"],
        )

    def make(self, topic: str = "t") -> BatchLog:
        """A new partition in an open directory, opened if need be."""
        if not self.directory.isOpen:
            self.open()
        log = self.create(topic)
        assert isinstance(log, BatchLog)
        return log

    def batchLog(self, topic: str = "t") -> BatchLog:
        """A partition that must be there."""
        log = self.log(topic)
        assert isinstance(log, BatchLog)
        return log

    def reopen(self, topic: str = "t") -> BatchLog:
        """Open what is there, and its partition."""
        self.open()
        assert not self.directory.failures, self.directory.failures
        return self.batchLog(topic)

    def checkpoint(self) -> None:
        """Write the checkpoints."""
        job = self.directory.beginCheckpoint()
        if job is not None:
            self.directory.finishCheckpoint(job, run(job))

    def names(self, topic: str = "t") -> list[str]:
        """The files of a partition."""
        return sorted(self.files.list(self.path(f"{topic}-0")))
