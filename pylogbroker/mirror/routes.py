"""
Batches of one source partition on their way: each is confirmed in the end, in what way soever, and in order as long as that is possible.

When one fails, no new one is sent until all that are under way have come back; then those that failed are sent again, by themselves first, as a probe,
and after it the rest, in the order in which they were taken. So what goes to one target partition over one connection stays in order, also over a
broken connection; a message may then stand there twice, if nobody knows what became of it the first time, and the second time stands behind the first.

Nothing is ever given up. A batch that the target will never take (a message above C{max.message.size}) is sent one half after the other, so that only that
message stays behind; that one is tried again and again, the log says so, and what is behind it in its partition waits: somebody has to decide, and it is not
us. What only the target's broker finds too large, since its limit is smaller than ours, is dropped there and not confirmed. To us it is as unknown as what
was on a connection that broke, so the whole batch stays behind, and waits in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.timer import Timer
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError, UnknownOutcomeError
from pylogbroker.metrics.mirrorcounters import MirrorCounters
from pylogbroker.mirror.waiting import Patience
from pylogbroker.model import Place

log = Logger()


class Batch:
    """
    Messages of one source partition.

    @ivar number: among those of its route, in the order in which they were taken.
    @ivar size: bytes of payload.
    @ivar settled: called once, when all of it is confirmed.
    """

    __slots__ = ("number", "payloads", "settled", "size")

    def __init__(self, payloads: list[bytes], size: int, settled: Callable[[], None]) -> None:
        self.payloads = payloads
        self.size = size
        self.settled = settled
        self.number: tuple[int, ...] = ()

    def halves(self) -> tuple[Batch, Batch]:
        """The same messages in two batches, which settle it together."""
        left: list[None] = [None, None]

        def settled() -> None:
            left.pop()
            if not left:
                self.settled()

        middle = len(self.payloads) // 2
        parts = []
        for index, payloads in enumerate((self.payloads[:middle], self.payloads[middle:])):
            part = Batch(payloads, sum(map(len, payloads)), settled)
            part.number = (*self.number, index)
            parts.append(part)
        return parts[0], parts[1]


class Route:
    """
    From one source partition to the target.
    """

    def __init__(self, place: Place, clock: Any, random: Callable[[], float], send: Callable[[list[bytes]], Deferred[None]], counters: MirrorCounters) -> None:
        """
        @param send: sends payloads in one request.
        """
        self._send = send
        self._counters = counters
        self._patience = Patience(clock, random, f"Messages of {place} cannot be sent")
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
        self._send(batch.payloads).addCallbacks(self._confirmed, self._notConfirmed, callbackArgs=(batch,), errbackArgs=(batch,))

    def _confirmed(self, _result: None, batch: Batch) -> None:
        del self._underWay[batch]
        self._patience.succeeded()
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
        error = failure.value if isinstance(failure.value, PylogbrokerError) else UnknownOutcomeError(repr(failure.value))
        count = len(batch.payloads)
        self._counters.retriedCount += count
        if isinstance(error, UnknownOutcomeError):
            self._counters.repeatedCount += count
        if isinstance(error, MessageTooLargeError) and count > 1:
            self._failed += batch.halves()
        else:
            self._failed.append(batch)
        self._error = error
        self._goOn()

    def _goOn(self) -> None:
        """When all are back, those that failed go again."""
        if self._failed and not self._underWay and not self._timer.isRunning:
            self._waiting.extendleft(sorted(self._failed, key=lambda batch: batch.number, reverse=True))
            self._failed = []
            self._isProbing = True
            self._timer.start(self._patience.failed(self._error), self._probe)

    def _probe(self) -> None:
        self._begin(self._waiting.popleft())

    def stop(self) -> None:
        """Nothing is sent again."""
        self._timer.stop()
