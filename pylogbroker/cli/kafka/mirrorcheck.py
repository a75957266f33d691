"""
C{verify --against}: whether another cluster has the records of this one, as the target of a mirror
has. It is a module of its own, since it reads two clusters in step.

Both are read partition by partition, from their beginnings to the ends that they have at the start,
without records of open and aborted transactions. What must be true: the other partition has each
record of this one, in their order. Two things are allowed:

  - A record comes again, as behind a mirror that was killed. The last L{WINDOW_COUNT} records that
    were found are remembered for that.
  - One of them has deleted its oldest records. Then the one whose first record is older is read up
    to the first record of the other.

Records are compared by a digest of 16 bytes of key, value, headers and timestamp. What the other
partition has behind the last record of this one came later, and is left out.
"""

from __future__ import annotations

from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import NamedTuple

from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.records import readUpTo
from pylogbroker.cli.kafka.topics import wantedTopics
from pylogbroker.cli.output import Progress, asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import PylogbrokerError
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.types import TopicPartition, formatCount

WINDOW_COUNT = 100_000
"""Records of a partition that may come again; about 20 MB."""

_DIGEST_SIZE = 16


@dataclass
class ComparisonVerdict:
    """
    What was found of a partition, with the fields of C{--json}.

    @ivar matchedCount: records that the other cluster has, too.
    @ivar repeatedCount: those that it has once more.
    @ivar deletedCount: the oldest ones, which only one of both has.
    @ivar fault: the first one; L{None} without one.
    """

    topic: str
    partition: int
    matchedCount: int = 0
    repeatedCount: int = 0
    deletedCount: int = 0
    fault: str | None = None


def compareTopics(options: Namespace, streams: Streams) -> int:
    """
    Compare partitions, and print a line for each.

    @return: 1 when a record is missing or differs.
    """
    verdicts: list[ComparisonVerdict] = []
    progress = Progress(streams.errors, monotonic)
    with (
        openCluster(options, streams) as cluster,
        openCluster(options, streams, options.against, options.otherAccess) as other,
    ):
        topics = [
            topic
            for topic in wantedTopics(cluster, options.topics)
            if options.topics or not topic.isInternal
        ]
        known = {
            TopicPartition(topic.name, part.partitionIndex)
            for topic in other.metadata(None).topics
            for part in topic.partitions
        }
        try:
            for topic in topics:
                for number in sorted(part.partitionIndex for part in topic.partitions):
                    verdict = ComparisonVerdict(topic.name, number)
                    verdicts.append(verdict)
                    if (topic.name, number) in known:
                        _Comparison(cluster, other, verdict, options).run(progress, verdicts)
                    else:
                        verdict.fault = "the other cluster has no such partition"
        finally:
            progress.clear()
    if options.json:
        show(streams, asJson({"partitions": [*map(asdict, verdicts)]}))
    else:
        rows = [
            (
                each.topic,
                each.partition,
                each.matchedCount,
                each.repeatedCount,
                each.deletedCount,
                each.fault or "same",
            )
            for each in verdicts
        ]
        headings = ("TOPIC", "PARTITION", "MATCHED", "REPEATED", "DELETED", "VERDICT")
        show(streams, tableOfRows(headings, rows))
    faulty = sum(each.fault is not None for each in verdicts)
    text = f"{faulty:,} of them differ" if faulty else "no record is missing"
    records = formatCount(sum(each.matchedCount for each in verdicts), "record")
    streams.say(f"{formatCount(len(verdicts), 'partition')} with {records} in both: {text}")
    return 1 if faulty else 0


class _Compared(NamedTuple):
    """A record, as it is compared."""

    offset: int
    timestampMs: int
    digest: bytes


class _Side:
    """
    One of both partitions.

    @ivar start: where its log began.
    @ivar current: the record that is looked at; L{None} behind the last.
    """

    def __init__(
        self, cluster: KafkaCluster, where: TopicPartition, name: str, options: Namespace
    ) -> None:
        self._cluster = cluster
        self._where = where
        self._name = name
        self._isTimed: bool = not options.ignoreTimestamps
        self._timeoutMs: int = options.timeoutMs
        self.start = cluster.offsetsAt([where], EARLIEST, True)[where]
        self.end = cluster.offsetsAt([where], LATEST, True)[where]
        self._records = self._read()
        self.current: _Compared | None = next(self._records, None)

    def advance(self) -> None:
        """Look at the next record."""
        self.current = next(self._records, None)

    def _read(self) -> Iterator[_Compared]:
        reader = RecordReader(self._cluster, {self._where: self.start}, isCommitted=True)
        for _where, record in readUpTo(self.end, reader, reader.poll, self._timeoutMs, self._name):
            if record.offset >= self.end:
                return
            yield _Compared(record.offset, record.timestampMs, _digest(record, self._isTimed))


def _digest(record: Record, isTimed: bool) -> bytes:
    made = blake2b(digest_size=_DIGEST_SIZE)
    fields = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode("utf-8", "surrogatepass"), value]
    for field in fields:
        # The length tells where a field ends, and what is null.
        made.update(b"-" if field is None else b"%d:" % len(field))
        made.update(field or b"")
    if isTimed:
        made.update(b"%d" % record.timestampMs)
    return made.digest()


class _Comparison:
    """Compares one partition."""

    def __init__(
        self,
        cluster: KafkaCluster,
        other: KafkaCluster,
        verdict: ComparisonVerdict,
        options: Namespace,
    ) -> None:
        self._cluster, self._other = cluster, other
        self._verdict = verdict
        self._where = TopicPartition(verdict.topic, verdict.partition)
        self._options = options
        self._recent: deque[bytes] = deque()
        self._known: dict[bytes, int] = {}  # of those in the window: how often

    def run(self, progress: Progress, all: list[ComparisonVerdict]) -> None:
        """
        Compare to the end, or to the first fault.

        @param all: the verdicts so far, for the progress.
        """
        try:
            mine, theirs = self._aligned()
            while mine.current is not None and self._verdict.fault is None:
                self._compare(mine.current, theirs)
                if self._verdict.fault is None:
                    mine.advance()
                progress.update(sum(each.matchedCount for each in all), 0)
        except PylogbrokerError as error:
            self._verdict.fault = f"cannot be compared: {error}"

    def _sides(self) -> tuple[_Side, _Side]:
        where = self._where
        # In this order: the other one may have more.
        mine = _Side(self._cluster, where, str(where), self._options)
        theirs = _Side(self._other, where, f"{where} of the other cluster", self._options)
        return mine, theirs

    def _aligned(self) -> tuple[_Side, _Side]:
        """Both, behind the oldest records, which one of both has deleted."""
        mine, theirs = self._sides()
        if mine.current is None or theirs.current is None or not (mine.start or theirs.start):
            return mine, theirs
        # Timestamps may be equal, or the other cluster's own: then both ways are tried.
        isMineOlder = theirs.start > 0 and (
            not mine.start or mine.current.timestampMs < theirs.current.timestampMs
        )
        if not self._skipDeleted(mine, theirs, isMineOlder):
            hasOtherWay = mine.start > 0 and theirs.start > 0
            if hasOtherWay:
                mine, theirs = self._sides()
            if not hasOtherWay or not self._skipDeleted(mine, theirs, not isMineOlder):
                self._verdict.fault = "they have no record in common"
        return mine, theirs

    def _skipDeleted(self, mine: _Side, theirs: _Side, isMineOlder: bool) -> bool:
        """Read the older one up to the first record of the other; whether it has that."""
        older, younger = (mine, theirs) if isMineOlder else (theirs, mine)
        first, count = younger.current, 0
        while older.current is not None and first and older.current.digest != first.digest:
            older.advance()
            count += 1
        self._verdict.deletedCount = count
        return older.current is not None

    def _compare(self, wanted: _Compared, theirs: _Side) -> None:
        """Find a record, behind those that come again."""
        while (found := theirs.current) is not None:
            theirs.advance()
            if found.digest == wanted.digest:
                self._verdict.matchedCount += 1
                self._remember(found.digest)
                return
            if found.digest not in self._known:
                self._verdict.fault = (
                    f"the record at offset {wanted.offset} is another one there, at offset"
                    f" {found.offset}"
                )
                return
            self._verdict.repeatedCount += 1
        self._verdict.fault = f"the records from offset {wanted.offset} on are missing there"

    def _remember(self, digest: bytes) -> None:
        self._recent.append(digest)
        self._known[digest] = self._known.get(digest, 0) + 1
        if len(self._recent) > WINDOW_COUNT:
            oldest = self._recent.popleft()
            self._known[oldest] -= 1
            if not self._known[oldest]:
                del self._known[oldest]
