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
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.consumer.stream import ConsumedMessage, MessageStream
from pylogbroker.errors import PylogbrokerError
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.mirror.pipeline import Batch, PartitionPipeline
from pylogbroker.mirror.target import TargetCluster
from pylogbroker.types import BrokerPartition, PartitionId

TURN_COUNT_MAX = 2_000
"""Messages taken in one turn of the reactor."""

PAUSE_MS = 1_000
"""The pause after an unexpected error."""

PIPELINE_COUNT_MAX = 1_000
"""Idle pipelines that are kept."""


class _OpenBatch:
    """A batch that still grows."""

    __slots__ = ("ends", "isWhole", "nextOffset", "payloads", "size", "start")

    def __init__(self, nextOffset: int | None) -> None:
        """@param nextOffset: behind the previous message; L{None} if it is not known."""
        self.payloads: list[bytes] = []
        self.ends: list[int] = []
        self.start = nextOffset
        self.size = 0
        self.nextOffset = nextOffset
        self.isWhole = False


class Forwarder:
    """Forwards the messages of one stream."""

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        random: Callable[[], float],
        stream: MessageStream,
        target: TargetCluster,
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
                    self._fault(error)
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

    def _fault(self, error: PylogbrokerError) -> None:
        """Count and log a partition that cannot be read; the others continue."""
        self._counters.faultCount += 1
        self._log.error("{stream}: {error}", stream=self._stream.name, error=error)

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
                full, batch = batch, _OpenBatch(batch.nextOffset)
                openBatches[partitionId] = batch
                self._dispatch(partitionId, full)
            batch.payloads.append(payload)
            batch.ends.append(nextOffset)
            batch.size += size
            batch.isWhole = batch.nextOffset is not None and nextOffset != batch.nextOffset
            batch.nextOffset = nextOffset
            if len(batch.payloads) >= countMax:
                full, batch = batch, _OpenBatch(nextOffset)
                openBatches[partitionId] = batch
                self._dispatch(partitionId, full)
                if not target.inFlight.isReady:
                    return

    def _dispatch(self, partitionId: PartitionId, openBatches: _OpenBatch) -> None:
        count, size = len(openBatches.payloads), openBatches.size
        assert openBatches.nextOffset is not None
        start = (
            self._resumed.pop(partitionId, self._tracker.confirmed(partitionId))
            if openBatches.start is None
            else openBatches.start
        )
        batch_ = self._tracker.register(partitionId, openBatches.nextOffset, openBatches.isWhole)
        self._counters.taken(count, size)
        self._target.inFlight.add(count, size)

        def onConfirmed() -> None:
            self._tracker.confirm(batch_)
            self._counters.confirmed(partitionId.topic, count, size)
            self._target.inFlight.release(count, size)
            self._target.inFlight.notify()
            self._dropIdle(partitionId)

        def onRejected() -> None:
            if self._tracker.discardAfter(partitionId, batch_):
                again = (
                    batch_.nextOffset or 0
                )  # a source that has begun anew meanwhile is read from there on
                self._resumed[partitionId] = again
                self._seek(partitionId, again)

        def onDiscarded() -> None:
            self._counters.givenBack(count, size)
            self._target.inFlight.release(count, size)
            self._target.inFlight.notify()

        self._pipeline(partitionId).add(
            Batch(
                openBatches.payloads,
                start,
                openBatches.ends,
                size,
                onConfirmed,
                onRejected,
                onDiscarded,
            )
        )

    def _pipeline(self, partitionId: PartitionId) -> PartitionPipeline:
        pipeline = self._pipelines.get(partitionId)
        if pipeline is None:
            target = self._target

            def send(payloads: list[bytes]) -> Deferred[None]:
                try:
                    fixedTarget = self._fixedTarget(partitionId)
                except (
                    PylogbrokerError
                ) as error:  # it is tried again, in order; to send it anywhere would scatter it
                    return fail(error)
                return target.send(partitionId.topic, payloads, fixedTarget)

            pipeline = self._pipelines[partitionId] = PartitionPipeline(
                partitionId, self._clock, self._random, send, self._counters, self._origin
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
