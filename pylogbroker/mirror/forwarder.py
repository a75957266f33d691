"""
Forwards one stream to the target. A module of its own, since it does not know the group to which
its stream belongs.

It takes the messages of the stream in batches, each from one source partition, while the target's
L{InFlightMessageLimiter} has room. Otherwise it takes nothing: the stream fills up, its consumer
stops fetching, and memory stays flat. A batch never waits for more messages.

What must be true: taking messages and registering them with the L{OffsetTracker} happen in one turn
of the reactor, so that a commit sees both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.consumer.stream import ConsumedMessage
from pylogbroker.errors import PylogbrokerError
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.mirror.pipeline import Batch, PartitionPipeline
from pylogbroker.mirror.target import MirrorOutlet
from pylogbroker.types import BrokerPartition, PartitionId

TURN_COUNT_MAX = 2_000
"""Messages taken in one turn of the reactor."""

PAUSE_MS = 1_000
"""The pause after an unexpected error."""

PIPELINE_COUNT_MAX = 1_000
"""Idle pipelines that are kept."""


class IMirrorStream(Protocol):
    """Messages of a source, whatever protocol it speaks; their values are the payloads."""

    @property
    def name(self) -> str:
        """For the log."""

    def take(self) -> ConsumedMessage | None:
        """
        The next message, if there is one.

        @raise PylogbrokerError: a partition cannot be read; the next call goes on with the others.
        """

    async def __anext__(self) -> ConsumedMessage:
        """
        Wait for the next message.

        @raise StopAsyncIteration: there will be none.
        @raise PylogbrokerError: as L{take}.
        """


@dataclass(eq=False, slots=True)
class _OpenBatch:
    """
    A batch that still grows.

    @ivar start: behind the previous message; L{None} if it is not known.
    @ivar ends: the next offset of each message.
    """

    start: int | None
    payloads: list[Any] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    size: int = 0


class Forwarder:
    """Forwards the messages of one stream."""

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        random: Callable[[], float],
        stream: IMirrorStream,
        target: MirrorOutlet,
        tracker: OffsetTracker,
        counters: MirrorCounters,
        fixedTarget: Callable[[PartitionId], BrokerPartition | None],
        origin: Mapping[str, str],
        seek: Callable[[PartitionId, int], None],
    ) -> None:
        """
        @param random: returns numbers in [0, 1).
        @param tracker: of the stream's source.
        @param fixedTarget: returns the fixed target partition of a source partition, or L{None} for
            any; raises L{PylogbrokerError} while it is not known.
        @param origin: labels of the source in metrics.
        @param seek: drops the stream's messages of a partition, and fetches it again from an offset
            when all its registered messages are confirmed.
        """
        self._clock = clock
        self._random = random
        self._stream = stream
        self._target = target
        self._tracker = tracker
        self._counters = counters
        self._fixedTarget = fixedTarget
        self._origin = origin
        self._seek = seek
        self._resumed: dict[PartitionId, int] = {}  # where those go on that were stuck
        self._pipelines: dict[PartitionId, PartitionPipeline] = {}
        self._isStopped = False

    def __repr__(self) -> str:
        return f"<Forwarder of {self._stream}>"

    async def run(self) -> None:
        """
        Forward until the stream ends or C{stop}. Can be cancelled; batches in flight then stay in
        flight.
        """
        stream, inFlight = self._stream, self._target.inFlight
        try:
            while not self._isStopped:
                if not inFlight.isReady:
                    await inFlight.whenReady()
                    continue
                pauseMs = 0
                try:
                    self._takeAvailable(await stream.__anext__())
                except StopAsyncIteration:
                    return
                except PylogbrokerError as error:
                    # A partition that cannot be read; the others continue.
                    self._counters.faultCount += 1
                    self._log.error("{stream}: {error}", stream=stream.name, error=error)
                except CancelledError:
                    raise
                except Exception:
                    self._log.failure(
                        "{stream} failed unexpectedly; it continues",
                        stream=stream.name,
                    )
                    pauseMs = PAUSE_MS
                await deferLater(self._clock, pauseMs / 1000)
        except CancelledError:
            if not self._isStopped:
                raise

    def _takeAvailable(self, first: ConsumedMessage) -> None:
        """
        Take the available messages in this turn, and dispatch all of them even if an error
        interrupts.
        """
        openBatches: dict[PartitionId, _OpenBatch] = {}
        try:
            self._fill(openBatches, first)
        finally:
            for partitionId, batch in openBatches.items():
                if batch.payloads:
                    self._dispatch(partitionId, batch)

    def _fill(
        self, openBatches: dict[PartitionId, _OpenBatch], message: ConsumedMessage | None
    ) -> None:
        """Add messages to batches, and dispatch the full ones."""
        stream, target = self._stream, self._target
        countMax, sizeMax = target.batchCountMax, target.batchSizeMax
        partitionId: PartitionId | None = None
        batch = _OpenBatch(None)
        for count in range(TURN_COUNT_MAX):
            if count:
                message = stream.take()
            if message is None:
                return
            payload, topic, partition, nextOffset = message
            if (
                partitionId is None
                or partition != partitionId.partition
                or topic != partitionId.topic
            ):
                partitionId = PartitionId(topic, partition)
                found = openBatches.get(partitionId)
                if found is None:
                    found = openBatches[partitionId] = _OpenBatch(self._tracker.handed(partitionId))
                batch = found
            size = len(payload)
            if batch.payloads and batch.size + size > sizeMax:
                full, batch = batch, _OpenBatch(batch.ends[-1])
                openBatches[partitionId] = batch
                self._dispatch(partitionId, full)
            batch.payloads.append(payload)
            batch.ends.append(nextOffset)
            batch.size += size
            if len(batch.payloads) >= countMax:
                full, batch = batch, _OpenBatch(nextOffset)
                openBatches[partitionId] = batch
                self._dispatch(partitionId, full)
                if not target.inFlight.isReady:
                    return

    def _dispatch(self, partitionId: PartitionId, openBatch: _OpenBatch) -> None:
        payloads, ends, size = openBatch.payloads, openBatch.ends, openBatch.size
        count, inFlight = len(payloads), self._target.inFlight
        start = openBatch.start
        before = ends[-2] if count > 1 else start
        if start is None:
            start = self._resumed.pop(partitionId, self._tracker.confirmed(partitionId))
        isWhole = before is not None and ends[-1] != before
        registered = self._tracker.register(partitionId, ends[-1], isWhole)
        self._counters.taken(count, size)
        inFlight.add(count, size)

        def release() -> None:
            inFlight.release(count, size)
            inFlight.notify()

        def onConfirmed() -> None:
            self._tracker.confirm(registered)
            self._counters.confirmed(partitionId.topic, count, size)
            release()
            self._dropIdle(partitionId)

        def onRejected() -> None:
            if self._tracker.discardAfter(partitionId, registered):
                # A source that has begun anew meanwhile is read from its start.
                again = self._resumed[partitionId] = registered.nextOffset or 0
                self._seek(partitionId, again)

        def onDiscarded() -> None:
            self._counters.givenBack(count, size)
            release()

        self._pipeline(partitionId).add(
            Batch(payloads, start, ends, size, onConfirmed, onRejected, onDiscarded)
        )

    def _pipeline(self, partitionId: PartitionId) -> PartitionPipeline:
        pipeline = self._pipelines.get(partitionId)
        if pipeline is None:

            def send(payloads: list[Any]) -> Deferred[Any]:
                return self._target.send(
                    partitionId.topic, payloads, self._fixedTarget(partitionId)
                )

            pipeline = self._pipelines[partitionId] = PartitionPipeline(
                partitionId,
                self._clock,
                self._random,
                partial(maybeDeferred, send),
                self._counters,
                self._origin,
            )
        return pipeline

    def _dropIdle(self, partitionId: PartitionId) -> None:
        if len(self._pipelines) > PIPELINE_COUNT_MAX and self._pipelines[partitionId].isIdle:
            del self._pipelines[partitionId]

    def stop(self) -> None:
        """Take no more messages."""
        self._isStopped = True

    def abort(self) -> None:
        """Stop the retries."""
        for pipeline in self._pipelines.values():
            pipeline.stop()
