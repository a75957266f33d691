"""
Fetching from one broker as far as the streams have capacity. A module of its own, since it knows
one broker; C{fetchermanager} knows all.

What must be true: one request is under way at a time, a MULTIFETCH of all partitions that can be
fetched now, each at its own offset (spec-0.7 consumer §2). A partition can be fetched while its
stream has capacity, which is reserved until the response arrives. So a full stream blocks no other
one (gotcha 53). A request has a maximum size, and partitions take turns.

No error ends a fetcher (gotcha 52) or affects other partitions:

  - Broken connection or invalid response: try again for ever, with growing delays.
  - Offset out of range: the reset policy chooses the next one, which is stored at once.
  - First message larger than the fetch size: fetch more, up to a limit; then raise an error.
  - No entry begins at a stored offset, because a broker's data were lost and rewritten: log that,
    and treat it as out of range. A too large entry or a wrong checksum is no such case: what
    follows must not be skipped silently.
  - Anything else: raise the error in the stream, once for each offset and reason, and try again
    with growing delays. An error inside a compressed entry is retried once, since each attempt
    repeats the entry's first messages.

The fetcher checks only a response's first entry; the stream checks all when it decodes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.offsetstores import ConsumedOffsets
from pylogbroker.consumer.stream import Chunk, MessageStream, withPosition
from pylogbroker.errors import (
    FormatError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    RemoteOffsetOutOfRangeError,
)
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.net.timer import Timer
from pylogbroker.records.messageset import MessageSet
from pylogbroker.retry import PARTITION_DELAYS, RETRY_INTERVAL_MS, Backoff
from pylogbroker.types import EARLIEST, LATEST, PartitionId

FETCH_COUNT_MAX = 32_767
"""Fetches that a MULTIFETCH request can hold."""

RESET_TIMES = {"smallest": EARLIEST, "largest": LATEST}


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """
    A partition that is fetched into a stream.

    @ivar offset: the next fetch offset; L{None} until known, and when the partition is left alone.
    @ivar sizeMax: bytes to request.
    @ivar isStored: whether nothing was fetched yet at a stored C{offset}.
    @ivar isPositioned: whether its position is known and worth a commit.
    @ivar reported: offset and error of the last log line.
    """

    partition: PartitionId
    stream: MessageStream
    sizeMax: int
    backoff: Backoff
    offset: int | None = None
    notBeforeMs: float = 0
    isStored: bool = False
    isPositioned: bool = False
    seeking: Deferred[None] | None = None
    reported: tuple[int | None, str] | None = None
    readErrorOffset: int | None = None


class Fetcher:
    """Fetches from one broker."""

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        consumer: SimpleConsumer,
        settings: ConsumerSettings,
        offsets: ConsumedOffsets,
        random: Any,
        counters: ConsumerCounters,
    ) -> None:
        """
        @param consumer: of the broker; the fetcher closes it.
        @param offsets: where to begin.
        @param random: a L{random.Random}, for the jitter of delays.
        """
        self._clock = clock
        self._consumer = consumer
        self._settings = settings
        self._counters = counters
        self._offsets = offsets
        self._random = random
        self._states: OrderedDict[PartitionId, PartitionFetchState] = OrderedDict()
        self._fetching: Deferred[Any] | None = None
        self._backoff = Backoff(random.random)
        self._notBeforeMs = 0.0
        self._timer = Timer(clock)
        self._isStopped = False
        self._isFailing = False

    def __repr__(self) -> str:
        return f"<Fetcher {self._consumer}, {len(self._states)} partitions>"

    @property
    def partitions(self) -> Collection[PartitionId]:
        return self._states.keys()

    @property
    def positionedPartitions(self) -> list[PartitionId]:
        return [partition for partition, state in self._states.items() if state.isPositioned]

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    # -- what to fetch

    def add(self, partition: PartitionId, stream: MessageStream) -> None:
        """Fetch a partition from its stored offset. No effect on one that is already fetched."""
        if partition not in self._states and not self._isStopped:
            backoff = Backoff(self._random.random, PARTITION_DELAYS)
            state = PartitionFetchState(partition, stream, self._settings.fetchSize, backoff)
            self._states[partition] = state
            self._seek(state, isLost=False)

    def remove(self, partitions: Collection[PartitionId]) -> None:
        """Stop fetching partitions, discard their queued chunks, and ignore responses for them."""
        for partition in partitions:
            state = self._states.pop(partition, None)
            if state is not None:
                if state.seeking is not None:
                    state.seeking.cancel()
                state.stream.drop((partition,))

    def seek(self, partition: PartitionId, offset: int) -> None:
        """
        Discard a partition's queued chunks and reload its offset; go on at C{offset} if the store
        holds nothing new.
        """
        state = self._states.get(partition)
        if state is not None:
            self.remove((partition,))
            self._offsets.begin(partition, offset)
            self.add(partition, state.stream)

    def moveTo(self, consumer: SimpleConsumer) -> Deferred[None]:
        """
        Use the broker's new address.

        @return: fires when the old connection is closed.
        """
        before, self._consumer = self._consumer, consumer
        self._notBeforeMs = 0
        self._backoff.succeeded()
        closed = before.close()
        self.wake()
        return closed

    def stop(self) -> Deferred[None]:
        self._isStopped = True
        self._timer.stop()
        self.remove(list(self._states))
        if self._fetching is not None:
            self._fetching.cancel()
        return self._consumer.close()

    def _onReadError(
        self, state: PartitionFetchState, offset: int, error: PylogbrokerError
    ) -> None:
        """
        The stream could not decode an entry. Fetch it again later; the second time at one offset,
        abandon the partition.
        """
        if self._states.get(state.partition) is not state:
            return
        if state.readErrorOffset == offset:
            state.offset = None
            self._log.error(
                "{partition} cannot be read at offset {offset}, and is left alone while this "
                "member has it",
                partition=state.partition,
                offset=offset,
            )
            return
        state.offset = state.readErrorOffset = offset
        self._reportOnce(state, error)
        self._delay(state)
        self.wake()

    # -- requests

    def wake(self) -> None:
        if self._fetching is not None or self._isStopped:
            return
        self._timer.stop()
        nowMs = self._nowMs()
        if nowMs < self._notBeforeMs:
            self._timer.start(self._notBeforeMs - nowMs, self.wake)
            return
        chosen = self._choose(nowMs)
        if chosen:
            self._fetch(chosen)
            return
        due = [
            state.notBeforeMs
            for state in self._states.values()
            if state.notBeforeMs > nowMs and state.offset is not None
        ]
        if due:
            self._timer.start(min(due) - nowMs, self.wake)

    def _choose(self, nowMs: float) -> list[tuple[PartitionFetchState, int]]:
        """The partitions to fetch now, each with its size, which is reserved."""
        chosen: list[tuple[PartitionFetchState, int]] = []
        size = 0
        for state in self._states.values():
            if state.offset is None or state.notBeforeMs > nowMs:
                continue
            if not state.stream.hasCapacity:
                state.stream.whenCapacity(self.wake)
                continue
            size += state.sizeMax
            if chosen and (
                size > self._settings.maxResponseBytes or len(chosen) == FETCH_COUNT_MAX
            ):
                break
            state.stream.reserve(state.sizeMax)
            chosen.append((state, state.sizeMax))
        for state, _sizeMax in chosen:
            self._states.move_to_end(state.partition)
        return chosen

    def _fetch(self, reserved: list[tuple[PartitionFetchState, int]]) -> None:
        fetching: Deferred[Any] = self._consumer.multifetch(
            [
                (
                    state.partition.topic,
                    state.partition.partition.partition,
                    state.offset or 0,
                    sizeMax,
                )
                for state, sizeMax in reserved
            ]
        )
        self._fetching = fetching
        fetching.addCallback(self._fetched, reserved, self._clock.seconds())
        fetching.addBoth(self._release, reserved)
        fetching.addErrback(self._failed).addErrback(self._unexpected)
        fetching.addCallback(self._next)

    def _release(self, result: Any, reserved: list[tuple[PartitionFetchState, int]]) -> Any:
        for state, size in reserved:
            state.stream.release(size)
        return result

    def _next(self, _result: None) -> None:
        self._fetching = None
        self.wake()

    def _fetched(
        self,
        sets: list[MessageSet],
        reserved: list[tuple[PartitionFetchState, int]],
        startedAt: float,
    ) -> None:
        self._counters.fetches.fetched(self._clock.seconds() - startedAt)
        self._backoff.succeeded()
        self._isFailing = False
        isUseful = [
            self._take(state, sizeMax, messages)
            for (state, sizeMax), messages in zip(reserved, sets, strict=True)
        ]
        if not any(isUseful):
            idleUntilMs = self._nowMs() + self._settings.fetcherBackoffMs
            for state, _sizeMax in reserved:
                state.notBeforeMs = max(state.notBeforeMs, idleUntilMs)

    def _failed(self, failure: Failure) -> None:
        if self._isStopped:
            return
        failure.trap(PylogbrokerError)
        self._counters.fetches.failedCount += 1
        waitMs = self._backoff.failed()
        if not self._isFailing:
            self._isFailing = True
            self._log.warn(
                "{fetcher} cannot fetch: {reason}. It tries again until that works",
                fetcher=self,
                reason=failure.getErrorMessage(),
            )
        self._notBeforeMs = self._nowMs() + waitMs

    def _unexpected(self, failure: Failure) -> None:
        self._log.failure(
            "{fetcher} failed unexpectedly and goes on: this is a bug", failure, fetcher=self
        )
        self._notBeforeMs = self._nowMs() + RETRY_INTERVAL_MS

    # -- responses

    def _take(self, state: PartitionFetchState, sizeMax: int, messages: MessageSet) -> bool:
        if self._states.get(state.partition) is not state or state.offset != messages.baseOffset:
            return False
        if isinstance(messages.error, RemoteOffsetOutOfRangeError):
            self._seek(state, isLost=True)
            return False
        if messages.error is not None:
            self._fail(state, messages.error)
            return False
        if not messages.data:
            return False
        try:
            complete = messages.complete()
        except FormatError as error:
            return self._takeInvalid(state, messages, sizeMax, error)
        self._counters.topic(state.partition.topic).fetchedSize += complete.size
        state.offset = complete.nextOffset
        state.isStored = False
        state.sizeMax = self._settings.fetchSize
        state.backoff.succeeded()
        # Last of all: a reader that waits reads in this call, and may report a read error or shut
        # the consumer down.
        state.stream.put(
            Chunk(
                state.partition,
                complete.messages,
                len(messages.data),
                complete.nextOffset,
                partial(self._onReadError, state),
            )
        )
        return True

    def _takeInvalid(
        self, state: PartitionFetchState, messages: MessageSet, sizeMax: int, error: FormatError
    ) -> bool:
        neededSize = messages.cutEntrySize if len(messages.data) >= sizeMax else 0
        sizeLimit = self._settings.fetchSizeMax
        if sizeMax < neededSize <= sizeLimit:
            while state.sizeMax < neededSize:
                state.sizeMax = min(2 * state.sizeMax, sizeLimit)
            return True
        if neededSize > sizeLimit:
            text = f"a message of {neededSize} bytes, fetch.size.max allows {sizeLimit}"
            self._fail(state, MessageTooLargeError(text))
        elif state.isStored and not messages.isCorruptEntry:
            self._log.error(
                "The stored offset {offset} of {partition} is not where a message begins "
                "({reason}): the broker has other data than when it was stored. Going on as if it "
                "were out of range (autooffset.reset={policy})",
                offset=state.offset,
                partition=state.partition,
                reason=error.reason,
                policy=self._settings.autoOffsetReset,
            )
            self._seek(state, isLost=True)
        else:
            self._fail(state, error)
        return False

    def _fail(self, state: PartitionFetchState, error: PylogbrokerError) -> None:
        self._delay(state)
        if self._reportOnce(state, error):
            state.stream.fail(
                state.partition, withPosition(error, state.partition, state.offset or 0)
            )

    def _delay(self, state: PartitionFetchState) -> float:
        """Delay a partition's next fetch after an error. Returns the milliseconds."""
        waitMs = state.backoff.failed()
        state.notBeforeMs = self._nowMs() + waitMs
        return waitMs

    def _reportOnce(self, state: PartitionFetchState, error: PylogbrokerError) -> bool:
        """
        Log a partition's error once. The entry's place in the response does not count: it changes
        from fetch to fetch. Returns whether the error is new.
        """
        text = error.reason if isinstance(error, FormatError) else str(error)
        if state.reported == (state.offset, text):
            return False
        state.reported = state.offset, text
        self._log.warn(
            "Fetching {partition} at offset {offset} failed: {error}",
            partition=state.partition,
            offset=state.offset,
            error=error,
        )
        return True

    # -- where to begin

    def _seek(self, state: PartitionFetchState, isLost: bool) -> None:
        """
        Find the offset at which to begin.

        @param isLost: whether the current offset cannot be used; otherwise a stored one is loaded.
        """
        lostOffset = state.offset if isLost else None
        state.offset, state.isStored = None, False
        state.seeking = Deferred.fromCoroutine(self._seekUntilFound(state, lostOffset))
        state.seeking.addErrback(lambda failure: failure.trap(CancelledError))

    async def _seekUntilFound(self, state: PartitionFetchState, lostOffset: int | None) -> None:
        while True:
            try:
                await self._seekOnce(state, lostOffset)
                break
            except CancelledError:
                raise
            except Exception as error:
                waitMs = self._delay(state)
                self._log.warn(
                    "The start offset of {partition} is not known yet: {error}",
                    partition=state.partition,
                    error=error,
                )
            await deferLater(self._clock, waitMs / 1000)
        state.seeking = None
        self.wake()

    async def _seekOnce(self, state: PartitionFetchState, lostOffset: int | None) -> None:
        partition, policy = state.partition, self._settings.autoOffsetReset
        found = await self._offsets.find(partition) if lostOffset is None else None
        if found is not None:
            if found >= 0:
                self._offsets.begin(partition, found)
                state.offset, state.isStored, state.isPositioned = found, True, True
                return
            lostOffset = found  # 0.7.2 stores -1 when it could not ask the broker
        time = RESET_TIMES.get(policy)
        if time is None:
            reason = (
                "there is no stored offset"
                if lostOffset is None
                else f"offset {lostOffset} is out of range, or not where a message begins"
            )
            error = OffsetOutOfRangeError(
                f"{partition}: {reason}, and autooffset.reset={policy} names no other offset"
            )
            state.stream.fail(partition, error)
            return
        offsets = await self._consumer.getOffsetsBefore(
            partition.topic, partition.partition.partition, time, 1
        )
        offset = offsets[0] if offsets else 0
        if lostOffset is not None:
            self._log.warn(
                "{partition}: offset {lost} is out of range, going on at {offset} ({policy})",
                partition=partition,
                lost=lostOffset,
                offset=offset,
                policy=policy,
            )
            await self._offsets.put(partition, offset)
        state.stream.resetPosition(partition, offset)
        state.offset, state.isPositioned = offset, True
