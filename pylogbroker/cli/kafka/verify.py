"""
C{verify} for today's Kafka: whether what brokers serve is valid and complete; with C{--against},
L{pylogbroker.cli.kafka.mirrorcheck}. It is a module of its own, since C{verify} itself is about
files.

A partition is read from its beginning to the end that it has at the start. What must be true of it:
each batch has its checksum, and as many records as it says, at ascending offsets within its bounds;
batches do not overlap; the leader epoch does not go back; the last batch reaches the end. In a
topic that is not compacted, no offset is missing.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.mirrorcheck import compareTopics
from pylogbroker.cli.kafka.records import readUpTo
from pylogbroker.cli.kafka.topics import effectiveConfigs, wantedTopics
from pylogbroker.cli.output import Progress, asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import (
    FormatError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    UnknownPartitionError,
)
from pylogbroker.interfaces import BatchHeader
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.records.recordbatch import iterateRecords
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.types import TopicPartition, formatCount

_POLICY = "cleanup.policy"
_COMPACT = "compact"


@dataclass
class PartitionVerdict:
    """
    What was found in a partition, with the fields of C{--json}.

    @ivar start: where its log began; L{None} if that is not known.
    @ivar size: bytes of the batches.
    @ivar missingCount: offsets between the batches that no batch has.
    @ivar fault: the first one; L{None} without one.
    """

    topic: str
    partition: int
    start: int | None = None
    end: int | None = None
    size: int = 0
    batchCount: int = 0
    recordCount: int = 0
    missingCount: int = 0
    fault: str | None = None


def verifyTopics(options: Namespace, streams: Streams) -> int:
    """
    Verify partitions, and print a line for each.

    @return: 1 when something is wrong.
    """
    if options.against is not None:
        return compareTopics(options, streams)
    verdicts: list[PartitionVerdict] = []
    problems: list[str] = []
    progress = Progress(streams.errors, monotonic)
    with openCluster(options, streams) as cluster:
        topics = wantedTopics(cluster, options.topics)
        compacted = _compacted(cluster, [topic.name for topic in topics], problems)
        try:
            for topic in topics:
                for number in sorted(part.partitionIndex for part in topic.partitions):
                    verdict = PartitionVerdict(topic.name, number)
                    verdicts.append(verdict)
                    check = _PartitionCheck(cluster, verdict, topic.name in compacted, options)
                    check.run(progress, verdicts)
        finally:
            progress.clear()
    if options.json:
        document = {"partitions": [*map(asdict, verdicts)], "problems": problems}
        show(streams, asJson(document))
    else:
        rows = [
            (
                each.topic,
                each.partition,
                each.start,
                each.end,
                each.batchCount,
                each.recordCount,
                each.missingCount,
                each.fault or "good",
            )
            for each in verdicts
        ]
        headings = (
            *("TOPIC", "PARTITION", "START", "END"),
            *("BATCHES", "RECORDS", "MISSING", "VERDICT"),
        )
        show(streams, tableOfRows(headings, rows))
        for problem in problems:
            streams.warn(problem)
    faulty = sum(each.fault is not None for each in verdicts)
    verdictText = (
        f"{faulty:,} of them not good"
        if faulty
        else "all good"
        if verdicts
        else "nothing was looked at"
    )
    records = formatCount(sum(each.recordCount for each in verdicts), "record")
    streams.say(f"{formatCount(len(verdicts), 'partition')} with {records}: {verdictText}")
    return 1 if faulty else 0


def _compacted(cluster: KafkaCluster, topics: list[str], problems: list[str]) -> set[str]:
    """The topics that may miss offsets; all, if their settings are not known."""
    try:
        found = effectiveConfigs(cluster, topics, _POLICY)
    except PylogbrokerError as error:
        problems.append(f"settings are not known, so missing offsets are no fault: {error}")
        return set(topics)
    return {name for name, value in found.items() if value is None or _COMPACT in value}


class _PartitionCheck:
    """Reads one partition."""

    def __init__(
        self,
        cluster: KafkaCluster,
        verdict: PartitionVerdict,
        isCompacted: bool,
        options: Namespace,
    ) -> None:
        self._cluster = cluster
        self._verdict = verdict
        self._isCompacted = isCompacted
        self._timeoutMs: int = options.timeoutMs
        self._where = TopicPartition(verdict.topic, verdict.partition)
        self._leaderEpoch = -1
        self._nextOffset = 0

    def run(self, progress: Progress, all: list[PartitionVerdict]) -> None:
        """
        Check it to its end, or to the first fault.

        @param all: the verdicts so far, for the progress.
        """
        verdict, where = self._verdict, self._where
        try:
            verdict.start = self._cluster.offsetsAt([where], EARLIEST)[where]
            verdict.end = self._cluster.offsetsAt([where], LATEST)[where]
            self._nextOffset = verdict.start
            for data, at, header in self._batches(verdict.start, verdict.end):
                self._checkBatch(data, at, header)
                progress.update(
                    sum(each.recordCount for each in all), sum(each.size for each in all)
                )
            verdict.missingCount += max(verdict.end - self._nextOffset, 0)
        except FormatError as error:
            verdict.fault = str(error)
        except (
            CommandError,
            ResponseError,
            MessageTooLargeError,
            OffsetOutOfRangeError,
            UnknownPartitionError,
        ) as error:
            verdict.fault = f"cannot be read: {error}"
        if verdict.fault is None and verdict.missingCount and not self._isCompacted:
            verdict.fault = f"missing: {formatCount(verdict.missingCount, 'offset')}"

    def _batches(self, start: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
        reader = RecordReader(self._cluster, {self._where: start})
        for where, data, _aborted in readUpTo(end, reader, reader.fetch, self._timeoutMs):
            for at, header in reader.checkedBatches(where, data):
                if header.baseOffset >= end:
                    return
                yield data, at, header

    def _checkBatch(self, data: bytes, at: int, header: BatchHeader) -> None:
        """@raise FormatError: it is wrong in itself, or does not follow the one before it."""
        verdict, nextOffset = self._verdict, self._nextOffset
        isFirst = not verdict.batchCount
        # The first one may begin before the start, which deletion can put into its middle.
        if header.baseOffset < nextOffset and not (isFirst and header.lastOffset >= nextOffset):
            raise self._fault(header, f"it comes behind offset {nextOffset}")
        if header.leaderEpoch < self._leaderEpoch:
            raise self._fault(
                header, f"its leader epoch {header.leaderEpoch} comes behind {self._leaderEpoch}"
            )
        last = header.baseOffset - 1
        try:
            for record in iterateRecords(data, at, header):
                if not last < record.offset <= header.lastOffset:
                    raise self._fault(header, f"it has a record at offset {record.offset}")
                last = record.offset
        except FormatError as error:
            raise self._fault(header, error.reason) from error
        verdict.missingCount += max(header.baseOffset - nextOffset, 0)
        verdict.batchCount += 1
        verdict.size += header.size
        verdict.recordCount += header.recordCount
        self._leaderEpoch, self._nextOffset = header.leaderEpoch, header.nextOffset

    @staticmethod
    def _fault(header: BatchHeader, reason: str) -> FormatError:
        return FormatError(f"batch at offset {header.baseOffset}: {reason}", 0)
