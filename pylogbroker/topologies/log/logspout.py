"""
A spout that reads topics.

What must be true:

  - At least once (C{topology.reliability.mode}), a position is committed only when all records
  before it are acknowledged, or given up as the settings say. What was read behind it is read again
  after the death of the instance.
  - At most once, positions are committed before the records are emitted: none is emitted twice,
  also after a death. A position goes back, to the records that were not emitted, only in C{close}.
  - What is read and not acknowledged is bounded, in records of a partition and in bytes.
  - The instance C{i} of C{n} has the partitions whose number, plus that of the topic in the list of
  topics, is C{i} modulo C{n}. Of the log of 2011 the broker's number is added, too. So a partition
  stays with its instance, also when other partitions come.

A record that fails is emitted again, later each time. It keeps its partition's position back: when
C{max.uncommitted.offsets} records have been read behind it, its partition waits for it. What
C{replay.limit} and C{replay.exhausted} say ends that.

Rejected: to read a failed record again from the log. It is still in memory, and the order of the
others would change.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, ClassVar

from pylogbroker.config.kafka.clientsettings import EARLIEST, NO_RESET
from pylogbroker.config.topologies.logsettings import (
    DEAD_LETTER,
    STOP,
    LogSpoutSettings,
    StartPosition,
)
from pylogbroker.errors import (
    ConfigurationError,
    OffsetOutOfRangeError,
    PylogbrokerError,
)
from pylogbroker.retry import READ_DELAYS, Backoff, RetryDelays
from pylogbroker.topologies.api import Spout, TopologyContext
from pylogbroker.topologies.log.kafka07log import Kafka07LogReader, Kafka07LogWriter
from pylogbroker.topologies.log.kafkalog import KafkaLogReader, KafkaLogWriter
from pylogbroker.topologies.log.logclients import (
    ILogReader,
    ILogWriter,
    LogMessage,
    LogRecord,
    isTransient,
)
from pylogbroker.topologies.log.logproperties import logProperties
from pylogbroker.topologies.log.partitionprogress import InFlightRecord, PartitionProgress
from pylogbroker.topologies.topology import TopologyOptions
from pylogbroker.types import AnyPartition

LAG_INTERVAL_MS = 10_000
DISCOVERY_INTERVAL_MS = 1_000
"""Between attempts to find partitions, when brokers are away or a topic is not there."""

_DEAD_LETTER_HEADER = "pylogbroker.dead-letter."

log = logging.getLogger(__name__)


class LogSpout(Spout):
    """
    Reads topics, at least once or at most once. A subclass changes what is emitted::

        class SshLines(LogSpout):
            outputs = ["line"]

            def translate(self, record):
                return [record.value.decode()]

        builder.setSpout("lines", lambda: SshLines("ssh-log"), 2)

    Counters: C{log.read} records; C{log.replayed}; C{log.given-up}, of C{replay.exhausted};
    C{log.lost}, which were deleted before they were read; C{log.lag.TOPIC-PARTITION}, what is
    behind the committed position.
    """

    outputs: ClassVar[Sequence[str] | Mapping[str, Sequence[str]]] = [
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        "timestamp",
    ]

    def __init__(
        self, topics: str | Sequence[str], properties: Mapping[str, object] | None = None
    ) -> None:
        """
        @param topics: one or several.
        @param properties: of L{LogSpoutSettings}, over those of the component and the topology.
        """
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._properties = dict(properties or {})
        self._progress: dict[AnyPartition, PartitionProgress] = {}
        self._committed: dict[AnyPartition, int] = {}
        self._waiting: deque[InFlightRecord] = deque()
        self._replays: list[tuple[float, int, InFlightRecord]] = []
        self._order = count()
        self._heldSize = 0
        self._lags: dict[AnyPartition, int] = {}
        self._deadLetters: ILogWriter | None = None

    def translate(self, record: LogRecord) -> Sequence[Any] | None:
        """
        What is emitted for a record; L{None}: nothing. What this raises ends the instance.
        """
        number = record.partition.partition
        return [
            record.topic,
            number if isinstance(number, int) else str(number),
            record.offset,
            record.key,
            record.value,
            record.timestampMs,
        ]

    # -- its life

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """
        @raise ConfigurationError: a property is wrong.
        """
        self._settings = settings = LogSpoutSettings.fromProperties(
            logProperties(LogSpoutSettings, config, self._properties), log.warning
        )
        self._context = context
        self._isAtLeastOnce = TopologyOptions.of(config, context.component).isAtLeastOnce
        self._delays = RetryDelays(
            settings.replayBackoffMs, max(settings.replayBackoffMs, settings.replayBackoffMaxMs)
        )
        self._backoff = Backoff(context.random, READ_DELAYS)
        self._troubles: dict[str, float] = {}
        self._isFirst = True
        self._notBefore = self._commitAt = self._discoverAt = self._lagAt = 0.0
        self._reader = self._openReader(settings.groupId or context.topology)

    def _openReader(self, group: str) -> ILogReader:
        settings, topics, context = self._settings, self._topics, self._context
        kind = KafkaLogReader if settings.bootstrapServers else Kafka07LogReader
        return kind(settings, topics, group, context.seconds, context.random)

    def deactivate(self) -> None:
        """Commit what is acknowledged."""
        self._commitHandled()

    def close(self) -> None:
        """
        Commit what is acknowledged, or at most once what is emitted, and close the connections.
        """
        self._carryOut("Positions cannot be committed", self._commit)
        self._reader.close()
        if self._deadLetters is not None:
            self._deadLetters.close()

    # -- tuples

    def nextTuple(self) -> None:
        """
        Emit one record: one that failed and whose time has come, or the next one.

        @raise ConfigurationError: consumers have the group, or the start is C{none} and there is no
            position.
        @raise FormatError: a batch is damaged.
        """
        now = self._context.seconds()
        if self._replays and self._replays[0][0] <= now:
            self._emit(heappop(self._replays)[2])
            return
        if now < self._notBefore:
            return
        self._keepUp(now)
        if not self._waiting:
            if self._carryOut("The log cannot be read", self._read):
                self._backoff.succeeded()
            else:
                self._notBefore = self._context.seconds() + self._backoff.failed() / 1000
        while self._waiting:
            if self._emit(self._waiting.popleft()):
                return

    def _emit(self, found: InFlightRecord) -> bool:
        values = self.translate(found.record)
        if values is None:
            self._done(found)
            return False
        if self._isAtLeastOnce:
            self.emit(values, tupleId=found)
        else:  # its position is committed
            self._done(found)
            self.emit(values)
        return True

    def ack(self, tupleId: Any) -> None:
        """A record is handled: its position may be committed when those before it may be."""
        if isinstance(tupleId, InFlightRecord) and not tupleId.isDone:
            self._done(tupleId)

    def fail(self, tupleId: Any) -> None:
        """
        A record is emitted again later, or given up.

        @raise PylogbrokerError: it has failed too often, and C{replay.exhausted} is C{stop}.
        """
        if not isinstance(tupleId, InFlightRecord) or tupleId.isDone:
            return
        tupleId.failureCount += 1
        limit = self._settings.replayLimit
        if 0 <= limit < tupleId.failureCount:
            self._giveUp(tupleId)
            return
        self._context.counter("log.replayed", 1)
        self._replayLater(tupleId)

    def _replayLater(self, failed: InFlightRecord) -> None:
        if failed.backoff is None:
            failed.backoff = Backoff(self._context.random, self._delays)
        at = self._context.seconds() + failed.backoff.failed() / 1000
        heappush(self._replays, (at, next(self._order), failed))

    def _done(self, found: InFlightRecord) -> None:
        self._heldSize -= found.size
        found.progress.done(found)

    def _giveUp(self, failed: InFlightRecord) -> None:
        record, how = failed.record, self._settings.replayExhausted
        text = (
            f"{record.partition}, offset {record.offset}: the record has failed"
            f" {failed.failureCount} times"
        )
        if how == STOP:
            raise PylogbrokerError(f"{text}, and replay.exhausted is {STOP}")
        if how == DEAD_LETTER and not self._carryOut(
            "Dead letters cannot be written", lambda: self._bury(record, text)
        ):
            self._replayLater(failed)  # until its dead letter is written
            return
        log.warning("%s and is left out", text)
        self._context.counter("log.given-up", 1)
        self._done(failed)

    def _bury(self, record: LogRecord, text: str) -> None:
        settings = self._settings
        if self._deadLetters is None:
            kind = KafkaLogWriter if settings.bootstrapServers else Kafka07LogWriter
            context = self._context
            self._deadLetters = kind(settings, context.seconds, context.random)
        more = {
            "reason": text,
            "topic": record.topic,
            "offset": str(record.offset),
            "partition": str(record.partition.partition),
        }
        headers = [(_DEAD_LETTER_HEADER + name, each.encode()) for name, each in more.items()]
        topic = settings.deadLetterTopic or f"{record.topic}-dead-letters"
        time = record.timestampMs if record.timestampMs >= 0 else None
        letter = LogMessage(topic, record.key, record.value, time, (*record.headers, *headers))
        [failure] = self._deadLetters.write([letter])
        if failure is not None:
            raise failure

    # -- the log

    def _carryOut(self, trouble: str, act: Callable[[], object]) -> bool:
        """
        Do what needs the brokers.

        @param trouble: what is said once when they are away.
        @return: whether it is done.
        """
        try:
            act()
        except PylogbrokerError as error:
            if not isTransient(error):
                raise
            if trouble not in self._troubles:
                self._troubles[trouble] = self._context.seconds()
                log.warning("%s now, and it is tried again: %s", trouble, error)
            return False
        since = self._troubles.pop(trouble, None)
        if since is not None:
            log.warning("%s: over after %.1f s", trouble, self._context.seconds() - since)
        return True

    def _keepUp(self, now: float) -> None:
        """
        What is done by time: new partitions, commits, metrics. What cannot be done now does not
        keep records from being read.
        """
        settings = self._settings
        if now >= self._discoverAt:
            isDone = self._carryOut("Partitions cannot be found", self._discover)
            delayMs = settings.metadataMaxAgeMs if isDone else DISCOVERY_INTERVAL_MS
            self._discoverAt = now + delayMs / 1000
        if now >= self._commitAt:
            self._commitHandled()
            self._commitAt = now + settings.autoCommitIntervalMs / 1000
        if now >= self._lagAt and self._progress:
            self._measureLag()
            self._lagAt = now + LAG_INTERVAL_MS / 1000

    def _discover(self) -> None:
        context, share = self._context, self._reader.share
        new = [
            each
            for each in self._reader.partitions()
            if each not in self._progress and share(each) % context.parallelism == context.taskIndex
        ]
        if not new:
            self._isFirst = False
            return
        found = dict(self._reader.committed(new))
        rest = [each for each in new if each not in found]
        if rest:
            # A partition that comes later has only records of since it came.
            start = self._settings.autoOffsetReset if self._isFirst else StartPosition(EARLIEST)
            starts = self._starts(rest, start)
            # If this instance dies now, the next one begins here, and not at a later end.
            self._reader.commit(starts)
            found |= starts
        for each in new:
            self._progress[each] = PartitionProgress(found[each])
            self._committed[each] = found[each]
            log.info("%s is read from offset %d", each, found[each])
        self._isFirst = False

    def _starts(
        self, partitions: Collection[AnyPartition], start: StartPosition
    ) -> dict[AnyPartition, int]:
        if start.kind == NO_RESET:
            raise ConfigurationError(
                f"auto.offset.reset={NO_RESET}: there is no position in the log for"
                f" {', '.join(sorted(map(str, partitions)))}"
            )
        nowMs = int(self._context.seconds() * 1000)
        return dict(self._reader.starts(partitions, start, nowMs))

    def _commitHandled(self) -> None:
        # At most once, the positions behind what waits are committed, and it will be emitted.
        if self._isAtLeastOnce or not self._waiting:
            self._carryOut("Positions cannot be committed", self._commit)

    def _commit(self) -> None:
        due = {
            where: each.committable
            for where, each in self._progress.items()
            if each.committable != self._committed[where]
        }
        if due:
            self._reader.commit(due)
            self._committed.update(due)

    def _measureLag(self) -> None:
        for where, end in self._reader.ends(list(self._progress)).items():
            lag = max(0, end - self._progress[where].committable)
            self._context.counter(f"log.lag.{where}", lag - self._lags.get(where, 0))
            self._lags[where] = lag

    def _read(self) -> None:
        settings = self._settings
        if self._heldSize >= settings.bufferMemory:
            return
        positions = {
            where: each.position
            for where, each in self._progress.items()
            if each.count < settings.maxUncommittedOffsets
        }
        if not positions:
            return
        try:
            found = self._reader.read(positions, settings.fetchMaxWaitMs)
        except OffsetOutOfRangeError:
            self._moveIntoBounds(positions)
            return
        if not self._isAtLeastOnce:
            self._reader.commit(
                {where: at for where, at in found.positions.items() if at != positions[where]}
            )
        for record in found.records:
            each = self._progress[record.partition].add(record)
            self._heldSize += each.size
            self._waiting.append(each)
        for where, position in found.positions.items():
            self._progress[where].moveTo(position)
            if not self._isAtLeastOnce:
                self._committed[where] = position
        self._context.counter("log.read", len(found.records))

    def _moveIntoBounds(self, positions: Mapping[AnyPartition, int]) -> None:
        """Records were deleted before they were read, or the log was made anew."""
        for where, bounds in self._reader.bounds(list(positions)).items():
            at = positions[where]
            if bounds.start <= at <= bounds.end:
                continue
            reset = self._settings.autoOffsetReset
            if at < bounds.start and reset.kind != NO_RESET:
                start = bounds.start
            else:
                start = self._starts([where], reset)[where]
            log.error(
                "%s has no offset %s any more: its log is from %s to %s; it is read from %s",
                where,
                at,
                bounds.start,
                bounds.end,
                start,
            )
            self._context.counter("log.lost", max(0, start - at))
            self._progress[where].moveTo(start)
