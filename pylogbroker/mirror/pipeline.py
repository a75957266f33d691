"""
Batches of one source partition on their way: each is confirmed in the end, in what way soever, and in order as long as that is possible.

When one fails, no new one is sent until all that are under way have come back; then those that failed are sent again, by themselves first, as a probe,
and after it the rest, in the order in which they were taken. So what goes to one target partition over one connection stays in order, also over a
broken connection; a message may then stand there twice, if nobody knows what became of it the first time, and the second time stands behind the first.

Nothing is ever given up. A batch that the target will never take (a message above C{max.message.size}) is sent in parts, so that only that message stays
behind; that one is tried again and again, log and figures name it, and what is behind it in its partition waits: somebody has to decide, and it is not us.
It waits in the source: from then on the route keeps the batch with that message and no other, since what waits in memory takes the room of all
partitions.

What only the target's broker finds too large, since its limit is smaller than ours, is dropped there, and the connection ends instead of a confirmation. That
looks like any connection that breaks. But what has come to nothing in company and, as a probe, alone, is worth a look: it is sent in parts, too, which
does no harm if it was only a connection. (One that gives no answer in time is slow, and is sent again as it is.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ConnectionLostError,
    MessageTooLargeError,
    PylogbrokerError,
    UnknownOutcomeError,
)
from pylogbroker.metrics.mirrorcounters import MirrorCounters, StuckMessage
from pylogbroker.mirror.retry import loggedOutage
from pylogbroker.net.timer import Timer
from pylogbroker.types import PartitionId

log = Logger()


class Batch:
    """
    Messages of one source partition.

    @ivar number: among those of its route, in the order in which they were taken.
    @ivar start: where a reader of the source begins that is to get the first of them; for one in a compressed set, where that set begins. L{None} for the first
        that is ever read of a partition.
    @ivar ends: what such a reader goes on with behind each of them.
    @ivar size: bytes of payload.
    @ivar settled: called once, when all of it is confirmed.
    @ivar stuck: called when the target does not take a message of it: what is behind it is to be read again, when this batch is confirmed.
    @ivar forgotten: called, once, instead of C{settled}, when it is one of those behind.
    """

    __slots__ = ("ends", "forgotten", "number", "payloads", "settled", "size", "start", "stuck")

    def __init__(
        self,
        payloads: list[bytes],
        start: int | None,
        ends: Sequence[int],
        size: int,
        settled: Callable[[], None],
        stuck: Callable[[], None],
        forgotten: Callable[[], None],
    ) -> None:
        self.payloads = payloads
        self.start = start
        self.ends = ends
        self.size = size
        self.settled = settled
        self.stuck = stuck
        self.forgotten = forgotten
        self.number: tuple[int, ...] = ()

    def parts(self) -> list[Batch]:
        """The same messages in smaller batches, which settle it together: the largest by itself, if it is a large one among small ones; or halves."""
        count = len(self.payloads)
        largest = max(range(count), key=lambda index: len(self.payloads[index]))
        isOdd = len(self.payloads[largest]) * count > 2 * self.size
        ranges = [
            each
            for each in pairwise(
                (0, largest, largest + 1, count) if isOdd else (0, count // 2, count)
            )
            if each[0] < each[1]
        ]
        left = len(ranges)

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.settled()

        parts = []
        for index, (start, end) in enumerate(ranges):
            payloads = self.payloads[start:end]
            begin = self.ends[start - 1] if start else self.start
            part = Batch(
                payloads,
                begin,
                self.ends[start:end],
                sum(map(len, payloads)),
                settled,
                self.stuck,
                self.forgotten,
            )
            part.number = (*self.number, index)
            parts.append(part)
        return parts


def _isRefused(error: PylogbrokerError) -> bool:
    """Whether it may be for what is in a batch that the target does not take it: it is too large, or the connection ended where the confirmation should be."""
    return isinstance(error, MessageTooLargeError) or (
        isinstance(error, UnknownOutcomeError) and isinstance(error.__cause__, ConnectionLostError)
    )


class PartitionPipeline:
    """
    From one source partition to the target.
    """

    def __init__(
        self,
        place: PartitionId,
        clock: Any,
        random: Callable[[], float],
        send: Callable[[list[bytes]], Deferred[None]],
        counters: MirrorCounters,
        origin: Mapping[str, str],
    ) -> None:
        """
        @param send: sends payloads in one request.
        @param origin: what names the source in figures.
        """
        self._place = place
        self._origin = origin
        self._send = send
        self._counters = counters
        self._outage = loggedOutage(random, f"Messages of {place} cannot be sent")
        self._timer = Timer(clock)
        self._number = 0
        self._underWay: dict[Batch, None] = {}
        self._waiting: deque[Batch] = deque()  # to be sent, in order
        self._failed: list[Batch] = []
        self._isProbing = False
        self._error: PylogbrokerError = UnknownOutcomeError("nothing was sent yet")

    @property
    def isIdle(self) -> bool:
        """Whether nothing is under way, and nothing waits."""
        return not (self._underWay or self._waiting or self._failed)

    def add(self, batch: Batch) -> None:
        """One more."""
        self._number += 1
        batch.number = (self._number,)
        if self._isProbing or self._failed or self._timer.isRunning:
            self._waiting.append(batch)
        else:
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        self._underWay[batch] = None
        self._send(batch.payloads).addCallbacks(
            self._confirmed, self._notConfirmed, callbackArgs=(batch,), errbackArgs=(batch,)
        )

    def _confirmed(self, _result: None, batch: Batch) -> None:
        del self._underWay[batch]
        self._outage.succeeded()
        self._counters.stuck.pop(batch, None)
        batch.settled()
        if self._isProbing and not self._failed:
            self._isProbing = False
            waiting, self._waiting = self._waiting, deque()
            for index, each in enumerate(waiting):
                if self._failed or self._timer.isRunning:  # in the very act of sending
                    self._waiting.extend(list(waiting)[index:])
                    break
                self._begin(each)
        self._goOn()

    def _notConfirmed(self, failure: Failure, batch: Batch) -> None:
        del self._underWay[batch]
        if not failure.check(PylogbrokerError, CancelledError):
            log.failure("Sending failed in a way that nobody foresaw; it is tried again", failure)
        error = (
            failure.value
            if isinstance(failure.value, PylogbrokerError)
            else UnknownOutcomeError(repr(failure.value))
        )
        count = len(batch.payloads)
        self._counters.retriedCount += count
        if isinstance(error, UnknownOutcomeError):
            self._counters.repeatedCount += count
        isAlone = self._isProbing
        if count > 1 and _isRefused(error) and (isAlone or isinstance(error, MessageTooLargeError)):
            self._failed += batch.parts()
        else:
            self._failed.append(batch)
            if isAlone and _isRefused(error):
                self._tell(batch, error)
        self._error = error
        self._goOn()

    def _tell(self, batch: Batch, error: PylogbrokerError) -> None:
        """One message, sent by itself, was not taken: say so, once."""
        if batch in self._counters.stuck:
            return
        topic, partition = self._place
        end, size = batch.ends[0], batch.size
        labels = {
            **self._origin,
            "topic": topic,
            "broker": str(partition.broker),
            "partition": str(partition.partition),
        }
        self._counters.stuck[batch] = StuckMessage(
            labels, end if batch.start is None else batch.start, size
        )
        log.error(
            "{place}: the target does not take the message {where} of the source, of {size} bytes; what is behind it waits: {error}. If it is too "
            "large, raise max.message.size of the target's brokers and of the mirror; docs/mirror.md says how to leave it out",
            place=self._place, where=f"that ends at offset {end}" if batch.start is None else f"at offset {batch.start}", size=size, error=error,
        )  # fmt: skip
        self._forgetBehind(batch)

    def _forgetBehind(self, batch: Batch) -> None:
        """Keep what was one batch with this. Nothing else is under way, and all that waits is behind it."""
        number = batch.number[0]
        behind = {each.number[0]: each for each in self._waiting if each.number[0] != number}
        self._waiting = deque(each for each in self._waiting if each.number[0] == number)
        batch.stuck()  # first: who gets the room must not find any of it in the stream
        for each in behind.values():
            each.forgotten()

    def _goOn(self) -> None:
        """When all are back, those that failed go again."""
        if self._failed and not self._underWay and not self._timer.isRunning:
            self._waiting.extendleft(
                sorted(self._failed, key=lambda batch: batch.number, reverse=True)
            )
            self._failed = []
            self._isProbing = True
            self._timer.start(self._outage.failed(self._error), self._probe)

    def _probe(self) -> None:
        self._begin(self._waiting.popleft())

    def stop(self) -> None:
        """Nothing is sent again."""
        self._timer.stop()
        for batch in self._waiting:
            self._counters.stuck.pop(batch, None)
