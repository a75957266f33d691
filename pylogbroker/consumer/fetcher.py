"""
Fetching from one broker what a member has of it, as far as its streams have room.

What must be true: one request is under way at a time, a MULTIFETCH of all partitions that can be asked for now, each at its own offset (spec-0.7 consumer §2).
A partition can be asked for while its stream has room, which is kept for the answer. So no request is sent while no stream has room, and a full
stream holds up nobody but itself (gotcha 53). Partitions take turns: who was asked for goes to the end of the line, and a request asks for so many
bytes at most.

Nothing that goes wrong ends a fetcher (gotcha 52); what can go wrong with one partition does not touch the others:

  - The connection breaks, or the broker answers nonsense: it is asked again, for ever, a little later each time.
  - The offset is out of range: the reset policy says where to go on, and that is stored at once.
  - The first message is larger than what was asked for: more is asked for, up to a limit, and beyond that an error comes out of the stream.
  - A stored offset is not where an entry begins, which happens when a broker's data were lost and written anew: this is logged by name, and then it is as if
    the offset were out of range. An entry that has a plausible head and is too large is too large, and no such case; nor is one whose checksum alone is
    wrong, and whose size leads to where the next one begins: that went bad on the disk, and what is behind it is not to be skipped unseen.
  - Anything else (a wrong checksum, another error code): an error comes out of the stream, once for each offset and reason, and the partition is tried
    again, later and later. What the reader finds inside a wrapper is tried once more and then left alone, since a retry hands out the wrapper's
    first messages again.

Of what comes, only the first entry is checked, and the others are counted by their sizes: the reader checks them anyway.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.consumedoffsets import Positions
from pylogbroker.consumer.stream import Chunk, MessageStream, withPosition
from pylogbroker.errors import (
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    RemoteOffsetOutOfRangeError,
)
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.net.timer import Timer
from pylogbroker.records.compression import CODEC_NAMES
from pylogbroker.records.messageset import CODEC_MASK, MessageSet, readEntry
from pylogbroker.retry import Backoff
from pylogbroker.types import EARLIEST, LATEST, PartitionId

RETRY_FIRST_MS = 1_000
RETRY_MAX_MS = 60_000
FETCH_COUNT_MAX = 32_767
"""What a MULTIFETCH request can hold."""

RESET_TIMES = {"smallest": EARLIEST, "largest": LATEST}

_SIZE = struct.Struct(">i")
_ENTRY_SIZE_MIN = 9


def wholeSize(data: bytes, position: int) -> tuple[int, bool]:
    """
    How many bytes of a set are whole entries, going by their size fields alone.

    @param position: where to begin, behind an entry.
    @return: (their size; whether what follows is an entry of which the end is missing, or nothing).
    """
    end = len(data)
    last = end - _SIZE.size
    unpack = _SIZE.unpack_from
    while position <= last:
        behind = position + 4 + unpack(data, position)[0]
        if behind > end:
            return position, True
        if behind < position + _ENTRY_SIZE_MIN:
            return position, False
        position = behind
    return position, True


class PartitionFetchState:
    """
    One partition, on its way into a stream.

    @ivar offset: what to fetch next; L{None} while that is not known.
    @ivar sizeMax: bytes to ask for.
    @ivar notBeforeMs: it is not asked for until then.
    @ivar isStored: whether C{offset} is what the store said, and nothing has come from there yet.
    @ivar isBegun: whether its position is known, and worth a commit.
    @ivar isStopped: whether it is not asked for any more.
    """

    __slots__ = (
        "broken",
        "isBegun",
        "isStopped",
        "isStored",
        "notBeforeMs",
        "offset",
        "place",
        "retryMs",
        "seeking",
        "sizeMax",
        "stream",
        "told",
    )

    def __init__(self, place: PartitionId, stream: MessageStream, sizeMax: int) -> None:
        self.place = place
        self.stream = stream
        self.offset: int | None = None
        self.sizeMax = sizeMax
        self.notBeforeMs = 0.0
        self.retryMs: float = RETRY_FIRST_MS
        self.isStored = False
        self.isBegun = False
        self.isStopped = False
        self.seeking: Deferred[None] | None = None
        self.told: tuple[int | None, str] | None = None
        self.broken: int | None = None  # where the reader could not go on

    def retryAt(self, nowMs: float) -> float:
        """It went wrong: leave it alone for a while, longer each time."""
        waitMs = self.retryMs
        self.retryMs = min(2 * waitMs, RETRY_MAX_MS)
        self.notBeforeMs = nowMs + waitMs
        return waitMs


class Fetcher:
    """
    Fetches from one broker.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        consumer: SimpleConsumer,
        settings: ConsumerSettings,
        positions: Positions,
        random: Any,
        counters: ConsumerCounters | None = None,
    ) -> None:
        """
        @param consumer: of the broker; the fetcher closes it.
        @param positions: where to begin.
        @param random: a L{random.Random}, for the jitter of reconnecting.
        """
        self._clock = clock
        self._consumer = consumer
        self._settings = settings
        self._counters = counters or ConsumerCounters()
        self._positions = positions
        self._intakes: OrderedDict[PartitionId, PartitionFetchState] = OrderedDict()
        self._asking: Deferred[Any] | None = None
        self._backoff = Backoff(random.random)
        self._notBeforeMs = 0.0
        self._timer = Timer(clock)
        self._isStopped = False
        self._isBroken = False

    def __repr__(self) -> str:
        return f"<Fetcher {self._consumer}, {len(self._intakes)} partitions>"

    @property
    def places(self) -> Collection[PartitionId]:
        """What it fetches."""
        return self._intakes.keys()

    @property
    def positionedPartitions(self) -> list[PartitionId]:
        """Those whose positions are known."""
        return [place for place, intake in self._intakes.items() if intake.isBegun]

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    # -- what to fetch

    def add(self, place: PartitionId, stream: MessageStream) -> None:
        """Fetch a partition, too, from where it was left. One that is fetched already goes on."""
        if place not in self._intakes and not self._isStopped:
            intake = self._intakes[place] = PartitionFetchState(
                place, stream, self._settings.fetchSize
            )
            self._seek(intake, isLost=False)

    def remove(self, places: Collection[PartitionId]) -> None:
        """Fetch these no more; what was asked of them is forgotten when it comes, and what is queued now."""
        for place in places:
            intake = self._intakes.pop(place, None)
            if intake is not None:
                if intake.seeking is not None:
                    intake.seeking.cancel()
                intake.stream.drop((place,))

    def readAgain(self, place: PartitionId, offset: int) -> None:
        """Forget what is queued of a partition, if it is fetched here, and look anew where to begin; if the store says nothing new, there."""
        intake = self._intakes.get(place)
        if intake is not None:
            self.remove((place,))
            self._positions.begin(place, offset)
            self.add(place, intake.stream)

    def moveTo(self, consumer: SimpleConsumer) -> Deferred[None]:
        """
        The broker has another address.

        @return: fires when the old connection is gone.
        """
        before, self._consumer = self._consumer, consumer
        self._notBeforeMs = 0
        self._backoff.succeeded()
        closed = before.close()
        self.wake()
        return closed

    def stop(self) -> Deferred[None]:
        """
        Fetch nothing any more.

        @return: fires when the connection is gone.
        """
        self._isStopped = True
        self._timer.stop()
        self.remove(list(self._intakes))
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
        return self._consumer.close()

    def _onReadError(
        self, intake: PartitionFetchState, offset: int, error: PylogbrokerError
    ) -> None:
        """
        The stream could not decode what stands at an offset, and has told the application: fetch it again later. The second time at the same offset, leave the
        partition alone.
        """
        place = intake.place
        if self._intakes.get(place) is not intake:
            return
        intake.offset = offset
        if intake.broken == offset:
            intake.isStopped = True
            self._log.error(
                "{place} cannot be read at offset {offset}, and is left alone while this member has it",
                place=place,
                offset=offset,
            )
            return
        intake.broken = offset
        self._note(intake, error)
        intake.retryAt(self._nowMs())
        self.wake()

    # -- asking

    def wake(self) -> None:
        """There may be something to ask for."""
        if self._asking is not None or self._isStopped:
            return
        self._timer.stop()
        nowMs = self._nowMs()
        if nowMs < self._notBeforeMs:
            self._timer.start(self._notBeforeMs - nowMs, self.wake)
            return
        chosen = self._choose(nowMs)
        if chosen:
            self._ask(chosen)
            return
        due = [
            intake.notBeforeMs
            for intake in self._intakes.values()
            if intake.notBeforeMs > nowMs and intake.offset is not None and not intake.isStopped
        ]
        if due:
            self._timer.start(min(due) - nowMs, self.wake)

    def _choose(self, nowMs: float) -> list[PartitionFetchState]:
        """Those whose turn it is, with room for each in its stream."""
        chosen: list[PartitionFetchState] = []
        size = 0
        for intake in self._intakes.values():
            if intake.offset is None or intake.isStopped or intake.notBeforeMs > nowMs:
                continue
            if not intake.stream.hasCapacity:
                intake.stream.whenCapacity(self.wake)
                continue
            size += intake.sizeMax
            if chosen and (size > self._settings.responseSizeMax or len(chosen) == FETCH_COUNT_MAX):
                break
            intake.stream.reserve(intake.sizeMax)
            chosen.append(intake)
        for intake in chosen:
            self._intakes.move_to_end(intake.place)
        return chosen

    def _ask(self, chosen: list[PartitionFetchState]) -> None:
        ranges = [
            (each.place.topic, each.place.partition.partition, each.offset or 0, each.sizeMax)
            for each in chosen
        ]
        asking = self._consumer.multifetch(ranges)
        self._asking = asking
        reserved = [(each, each.sizeMax) for each in chosen]
        answered: Deferred[Any] = asking.addCallback(
            self._answered, reserved, self._clock.seconds()
        )
        answered.addBoth(self._over, reserved).addErrback(self._failed).addErrback(
            self._unforeseen
        ).addCallback(self._next)

    def _over(self, result: Any, reserved: list[tuple[PartitionFetchState, int]]) -> Any:
        """What came has taken its room: the room that was kept for it is free."""
        for intake, size in reserved:
            intake.stream.release(size)
        return result

    def _next(self, _result: None) -> None:
        self._asking = None
        self.wake()

    def _answered(
        self, sets: list[MessageSet], reserved: list[tuple[PartitionFetchState, int]], begun: float
    ) -> None:
        self._counters.fetches.fetched(self._clock.seconds() - begun)
        self._backoff.succeeded()
        self._isBroken = False
        came = [
            self._take(intake, sizeMax, each)
            for (intake, sizeMax), each in zip(reserved, sets, strict=True)
        ]
        if not any(came):
            idleUntilMs = self._nowMs() + self._settings.fetchBackoffMs
            for intake, _sizeMax in reserved:
                intake.notBeforeMs = max(intake.notBeforeMs, idleUntilMs)

    def _failed(self, failure: Failure) -> None:
        if self._isStopped:
            return
        failure.trap(PylogbrokerError)
        self._counters.fetches.failedCount += 1
        waitMs = self._backoff.failed()
        if not self._isBroken:
            self._isBroken = True
            self._log.warn(
                "{fetcher} cannot fetch: {reason}. It is tried again until it works",
                fetcher=self,
                reason=failure.getErrorMessage(),
            )
        self._notBeforeMs = self._nowMs() + waitMs

    def _unforeseen(self, failure: Failure) -> None:
        self._log.failure(
            "{fetcher} failed in a way that nobody foresaw; it goes on", failure, fetcher=self
        )
        self._notBeforeMs = self._nowMs() + RETRY_FIRST_MS

    # -- what came

    def _take(self, intake: PartitionFetchState, sizeMax: int, messages: MessageSet) -> bool:
        """
        What came of one partition.

        @return: whether there is a reason to ask again at once.
        """
        if self._intakes.get(intake.place) is not intake or intake.offset != messages.baseOffset:
            return False
        if isinstance(messages.error, RemoteOffsetOutOfRangeError):
            self._seek(intake, isLost=True)
            return False
        if messages.error is not None:
            self._fail(intake, messages.error)
            return False
        data = messages.data
        if not data:
            return False
        try:
            first = readEntry(data, 0, len(data), True)
            if first is None:
                raise InvalidMessageSizeError(f"{len(data)} bytes, less than a size field")
        except FormatError as error:
            return self._unfit(intake, data, sizeMax, error)
        size, isWhole = wholeSize(data, first[1])
        self._counters.topic(intake.place.topic).fetchedSize += size
        intake.offset = messages.baseOffset + size
        intake.isStored = False
        intake.sizeMax = self._settings.fetchSize
        intake.retryMs = RETRY_FIRST_MS
        # At last: a reader that waits reads in here, and may come back with what it could not read (L{_onReadError}), or shut all down.
        intake.stream.put(
            Chunk(
                intake.place,
                messages if isWhole else MessageSet(data[:size], messages.baseOffset),
                len(data),
                intake.offset,
                partial(self._onReadError, intake),
            )
        )
        return True

    def _unfit(
        self, intake: PartitionFetchState, data: bytes, sizeMax: int, error: FormatError
    ) -> bool:
        """The first entry is not whole, or not good."""
        if (
            isinstance(error, InvalidMessageSizeError)
            and len(data) >= sizeMax
            and _isPlausible(data)
        ):
            size = (
                _SIZE.size + _SIZE.unpack_from(data)[0]
                if len(data) >= _SIZE.size
                else _ENTRY_SIZE_MIN
            )
            sizeLimit = self._settings.fetchSizeMax
            if sizeMax < size <= sizeLimit:
                while intake.sizeMax < size:
                    intake.sizeMax = min(2 * intake.sizeMax, sizeLimit)
                return True
            if size > sizeLimit:
                self._fail(
                    intake,
                    MessageTooLargeError(
                        f"a message of {size} bytes, fetch.size.max allows {sizeLimit}"
                    ),
                )
                return False
        if intake.isStored and not (isinstance(error, InvalidChecksumError) and _leadsOn(data)):
            self._log.error(
                "The stored offset {offset} of {place} is not where a message begins ({reason}): the broker has other data than when it was stored. "
                "Going on as if it were out of range (autooffset.reset={policy})",
                offset=intake.offset, place=intake.place, reason=error.reason, policy=self._settings.autoOffsetReset,
            )  # fmt: skip
            self._seek(intake, isLost=True)
        else:
            self._fail(intake, error)
        return False

    def _fail(self, intake: PartitionFetchState, error: PylogbrokerError) -> None:
        """Tell the application, unless it knows, and try again later."""
        intake.retryAt(self._nowMs())
        if self._note(intake, error):
            intake.stream.fail(intake.place, withPosition(error, intake.place, intake.offset or 0))

    def _note(self, intake: PartitionFetchState, error: PylogbrokerError) -> bool:
        """
        What is wrong with a partition goes into the log once.

        @return: whether it is new. Where in the chunk that came the entry began is no part of it: that changes from one fetch to the next.
        """
        told = intake.offset, error.reason if isinstance(error, FormatError) else str(error)
        if intake.told == told:
            return False
        intake.told = told
        self._log.warn(
            "Fetching {place} at offset {offset} failed: {error}",
            place=intake.place,
            offset=intake.offset,
            error=error,
        )
        return True

    # -- where to begin

    def _seek(self, intake: PartitionFetchState, isLost: bool) -> None:
        """
        Find out where to begin.

        @param isLost: the offset is no good; otherwise look for one first.
        """
        lost = intake.offset if isLost else None
        intake.offset, intake.isStored = None, False
        seeking = intake.seeking = Deferred.fromCoroutine(self._seekPatiently(intake, lost))
        seeking.addCallbacks(self._sought, self._notSought, callbackArgs=(intake,))

    def _sought(self, _result: None, intake: PartitionFetchState) -> None:
        intake.seeking = None
        self.wake()

    def _notSought(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure(
                "Finding out where to begin failed in a way that nobody foresaw", failure
            )

    async def _seekPatiently(self, intake: PartitionFetchState, lost: int | None) -> None:
        place = intake.place
        while True:
            try:
                await self._seekOnce(intake, lost)
                return
            except CancelledError:
                raise
            except Exception as error:
                waitMs = intake.retryAt(self._nowMs())
                self._log.warn(
                    "Where to begin with {place} is not known yet: {error}",
                    place=place,
                    error=error,
                )
            await deferLater(self._clock, waitMs / 1000)

    async def _seekOnce(self, intake: PartitionFetchState, lost: int | None) -> None:
        place, policy = intake.place, self._settings.autoOffsetReset
        found = await self._positions.find(place) if lost is None else None
        if found is not None:
            if found >= 0:
                self._positions.begin(place, found)
                intake.offset, intake.isStored, intake.isBegun = found, True, True
                return
            lost = found  # 0.7.2 stores -1 when it could not ask the broker
        time = RESET_TIMES.get(policy)
        if time is None:
            intake.isStopped = True
            reason = (
                "there is no stored offset"
                if lost is None
                else f"offset {lost} is out of range, or not where a message begins"
            )
            intake.stream.fail(
                place,
                OffsetOutOfRangeError(
                    f"{place}: {reason}, and autooffset.reset={policy} names no other place to begin"
                ),
            )
            return
        offsets = await self._consumer.getOffsetsBefore(
            place.topic, place.partition.partition, time, 1
        )
        offset = offsets[0] if offsets else 0
        if lost is not None:
            self._log.warn(
                "{place}: offset {lost} is out of range, going on at {offset} ({policy})",
                place=place,
                lost=lost,
                offset=offset,
                policy=policy,
            )
            await self._positions.put(place, offset)
        intake.stream.resetPosition(place, offset)
        intake.offset, intake.isBegun = offset, True


def _leadsOn(data: bytes) -> bool:
    """
    Whether the size of a first entry with a wrong checksum leads to where another one begins, over others with wrong ones, or to the end of what came.
    """
    end = len(data)
    position = _SIZE.size + _SIZE.unpack_from(data)[0]
    while True:
        try:
            found = readEntry(data, position, end, False)
            return found is not None or _isPlausible(data[position : position + _ENTRY_SIZE_MIN])
        except InvalidChecksumError:
            position += _SIZE.size + _SIZE.unpack_from(data, position)[0]
        except FormatError:
            return False


def _isPlausible(data: bytes) -> bool:
    """Whether the head of an entry, as far as it is there, can be one."""
    if len(data) >= 4 and _SIZE.unpack_from(data)[0] < _ENTRY_SIZE_MIN - _SIZE.size:
        return False
    magic, attributes = data[4:5], data[5:6]
    return magic in (b"", b"\0") or (
        magic == b"\1" and (not attributes or attributes[0] & CODEC_MASK in CODEC_NAMES)
    )
