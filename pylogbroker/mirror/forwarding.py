"""
From one stream to the target.

What there is in the stream is taken, in batches of one source partition each, as long as the target has room (L{pylogbroker.mirror.target.Target.room});
when it has none, nothing is taken, the stream fills up, and the source is not asked for more: so memory stays flat. Batches do not wait for company: as many
messages go together as were there.

Taking messages and entering them in the books happens without anything in between; so a commit sees both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.consumer.stream import ConsumedMessage, MessageStream
from pylogbroker.errors import PylogbrokerError
from pylogbroker.metrics.mirrorcounters import MirrorCounters
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.mirror.pipeline import Batch, PartitionPipeline
from pylogbroker.mirror.target import Target
from pylogbroker.types import BrokerPartition, PartitionId

TURN_COUNT_MAX = 2_000
"""Messages that are taken in one turn of the reactor."""

PAUSE_MS = 1_000
"""After what nobody foresaw."""

ROUTE_COUNT_MAX = 1_000
"""Routes that are kept without need."""


class _OpenBatch:
    """A batch that is being filled."""

    __slots__ = ("ends", "isWhole", "nextOffset", "payloads", "size", "start")

    def __init__(self, nextOffset: int | None) -> None:
        """
        @param nextOffset: behind the message before; L{None} if there is none that we know of.
        """
        self.payloads: list[bytes] = []
        self.ends: list[int] = []
        self.start = nextOffset
        self.size = 0
        self.nextOffset = nextOffset
        self.isWhole = False


class Forwarder:
    """
    Carries what comes out of one stream.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        random: Callable[[], float],
        stream: MessageStream,
        target: Target,
        ledger: OffsetTracker,
        counters: MirrorCounters,
        home: Callable[[PartitionId], BrokerPartition | None],
        origin: Mapping[str, str],
        readAgain: Callable[[PartitionId, int], None],
    ) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        @param ledger: of the stream's source.
        @param home: the target partition that a source partition always goes to; L{None} for any; a L{PylogbrokerError} for not known now.
        @param origin: what names the source in figures.
        @param readAgain: forgets what is in the stream of a partition, and has it read again from an offset on when all that was handed on of it is confirmed.
        """
        self._clock = clock
        self._random = random
        self._stream = stream
        self._target = target
        self._ledger = ledger
        self._counters = counters
        self._home = home
        self._origin = origin
        self._readAgain = readAgain
        self._resumed: dict[PartitionId, int] = {}  # where those go on that were stuck
        self._routes: dict[PartitionId, PartitionPipeline] = {}
        self._isStopped = False

    def __repr__(self) -> str:
        return f"<Forwarder of {self._stream}>"

    async def run(self) -> None:
        """Carry on, until the stream ends, or C{stop}. May be cancelled: what was taken is under way then, or waits to be sent again."""
        stream, room = self._stream, self._target.room
        try:
            while not self._isStopped:
                if not room.isReady:
                    await room.whenReady()
                    continue
                pauseMs = 0
                try:
                    self._takeTurn(await stream.__anext__())
                except StopAsyncIteration:
                    return
                except PylogbrokerError as error:
                    self._fault(error)
                except CancelledError:
                    raise
                except Exception:
                    self._log.failure(
                        "{stream} failed in a way that nobody foresaw; it goes on",
                        stream=stream.name,
                    )
                    pauseMs = PAUSE_MS
                await deferLater(self._clock, pauseMs / 1000)
        except CancelledError:
            if not self._isStopped:
                raise

    def _fault(self, error: PylogbrokerError) -> None:
        """A partition cannot be read on; the others are."""
        self._counters.faultCount += 1
        self._log.error("{stream}: {error}", stream=self._stream.name, error=error)

    def _takeTurn(self, first: ConsumedMessage) -> None:
        """Take what there is. Nothing may come in between, and what was taken is handed on, whatever happens."""
        growing: dict[PartitionId, _OpenBatch] = {}
        try:
            self._fill(growing, first)
        finally:
            for place, batch in growing.items():
                if batch.payloads:
                    self._handOn(place, batch)

    def _fill(
        self, growing: dict[PartitionId, _OpenBatch], message: ConsumedMessage | None
    ) -> None:
        """Take messages into batches; those that are full are handed on."""
        stream, target = self._stream, self._target
        countMax, sizeMax = target.batchCountMax, target.batchSizeMax
        place: PartitionId | None = None
        batch = _OpenBatch(None)
        for count in range(TURN_COUNT_MAX):
            if count:
                message = stream.take()
            if message is None:
                return
            payload, topic, partition, nextOffset = message
            if place is None or partition != place.partition or topic != place.topic:
                place = PartitionId(topic, partition)
                found = growing.get(place)
                if found is None:
                    found = growing[place] = _OpenBatch(self._ledger.handed(place))
                batch = found
            size = len(payload)
            if batch.payloads and batch.size + size > sizeMax:
                full, batch = batch, _OpenBatch(batch.nextOffset)
                growing[place] = batch
                self._handOn(place, full)
            batch.payloads.append(payload)
            batch.ends.append(nextOffset)
            batch.size += size
            batch.isWhole = batch.nextOffset is not None and nextOffset != batch.nextOffset
            batch.nextOffset = nextOffset
            if len(batch.payloads) >= countMax:
                full, batch = batch, _OpenBatch(nextOffset)
                growing[place] = batch
                self._handOn(place, full)
                if not target.room.isReady:
                    return

    def _handOn(self, place: PartitionId, growing: _OpenBatch) -> None:
        count, size = len(growing.payloads), growing.size
        assert growing.nextOffset is not None
        start = (
            self._resumed.pop(place, self._ledger.confirmed(place))
            if growing.start is None
            else growing.start
        )
        entry = self._ledger.hand(place, growing.nextOffset, growing.isWhole)
        self._counters.taken(count, size)
        self._target.room.add(count, size)

        def settled() -> None:
            self._ledger.done(entry)
            self._counters.confirmed(place.topic, count, size)
            self._target.room.release(count, size)
            self._target.room.notify()
            self._tidy(place)

        def stuck() -> None:
            if self._ledger.discardAfter(place, entry):
                again = (
                    entry.nextOffset or 0
                )  # a source that has begun anew meanwhile is read from there on
                self._resumed[place] = again
                self._readAgain(place, again)

        def forgotten() -> None:
            self._counters.givenBack(count, size)
            self._target.room.release(count, size)
            self._target.room.notify()

        self._route(place).add(
            Batch(growing.payloads, start, growing.ends, size, settled, stuck, forgotten)
        )

    def _route(self, place: PartitionId) -> PartitionPipeline:
        route = self._routes.get(place)
        if route is None:
            target = self._target

            def send(payloads: list[bytes]) -> Deferred[None]:
                try:
                    home = self._home(place)
                except (
                    PylogbrokerError
                ) as error:  # it is tried again, in order; to send it anywhere would scatter it
                    return fail(error)
                return target.send(place.topic, payloads, home)

            route = self._routes[place] = PartitionPipeline(
                place, self._clock, self._random, send, self._counters, self._origin
            )
        return route

    def _tidy(self, place: PartitionId) -> None:
        if len(self._routes) > ROUTE_COUNT_MAX and self._routes[place].isIdle:
            del self._routes[place]

    def stop(self) -> None:
        """Take nothing more."""
        self._isStopped = True

    def abort(self) -> None:
        """Send nothing again."""
        for route in self._routes.values():
            route.stop()
