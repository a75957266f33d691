"""
What a coordinator asks of its caller: records to append, answers to give, and to be woken in time.
A module of its own because the transaction coordinator asks for the same.

A state machine must not be entered again while it is in the middle of a step. So answers and
appends of a step are queued, and L{Effects.deliver} performs them when the step is done; whatever
calls back into the coordinator meanwhile queues behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol, TypeVar

from pylogbroker.protocol.kafka.errorcodes import ErrorCode

Record = tuple[bytes, bytes | None]
"""Key and value; no value deletes what the key names."""

Appended = Callable[[ErrorCode], None]
"""Called once: with no error when the records are appended as acknowledged writes are."""


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction records are appended."""

    producerId: int
    producerEpoch: int


class Append(Protocol):
    """
    Called with a partition of the coordinator's topic, records, and what to call back, now or
    later. For one partition the calls back come in the order of the appends. The records are one
    batch if they fit into one. With a producer, they count when its transaction is committed.
    """

    def __call__(
        self,
        partition: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
        /,
    ) -> None: ...


_ANSWERS_TO_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def appendError(error: ErrorCode) -> ErrorCode:
    """What a client is told when an append fails; other errors as they are."""
    return _ANSWERS_TO_APPEND_ERRORS.get(error, error)


STALE_COUNT_MAX = 64
"""Entries of the queue of deadlines that may be out of date, beyond as many as are not."""

_A = TypeVar("_A")


class PendingAppend:
    """
    An append that was asked for.

    @ivar isDone: whether the outcome is known.
    """

    def __init__(self, done: Appended) -> None:
        self.isDone = False
        self._waiting: list[Appended] = [done]

    def then(self, callback: Appended) -> None:
        """Call back with the outcome, behind those that asked before."""
        self._waiting.append(callback)

    def completed(self, error: ErrorCode) -> None:
        """The outcome is known."""
        waiting, self._waiting = self._waiting, []
        self.isDone = True
        for callback in waiting:
            callback(error)


class Effects:
    """The effects of a step, queued."""

    def __init__(self, append: Append) -> None:
        self._append = append
        self._queue: deque[Callable[[], None]] = deque()
        self._isDelivering = False

    def reply(self, callback: Callable[[_A], object], answer: _A) -> None:
        """Give an answer."""
        self._queue.append(lambda: _discard(callback(answer)))

    def append(
        self,
        partition: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> PendingAppend:
        """
        Append records.

        @param done: called with the outcome; what it queues is delivered.
        @param producer: the records count when its transaction is committed.
        """
        pending = PendingAppend(done)

        def appended(error: ErrorCode) -> None:
            pending.completed(error)
            self.deliver()

        if producer is None:
            self._queue.append(lambda: self._append(partition, records, appended))
        else:
            self._queue.append(lambda: self._append(partition, records, appended, producer))
        return pending

    def deliver(self) -> None:
        """Perform what is queued, in order. Does nothing if this is going on already."""
        if self._isDelivering:
            return
        self._isDelivering = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._isDelivering = False


def _discard(_: object) -> None:
    """Drop what a callback returns."""


class _Deadline:
    __slots__ = ("callback", "dueMs", "key", "queuedMs")

    def __init__(self, key: Hashable, dueMs: int, callback: Callable[[], object]) -> None:
        self.key = key
        self.dueMs = self.queuedMs = dueMs
        self.callback: Callable[[], object] | None = callback


class Deadlines:
    """
    What is due when. A deadline that is put off, as each heartbeat does, costs no entry in the
    queue: the entry is looked at when its first time comes, and put back.
    """

    def __init__(self) -> None:
        self._byKey: dict[Hashable, _Deadline] = {}
        self._queue: list[tuple[int, int, _Deadline]] = []
        self._number = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._byKey

    def __len__(self) -> int:
        return len(self._byKey)

    def set(self, key: Hashable, dueMs: int, callback: Callable[[], object]) -> None:
        """Call back once at a time; replaces the deadline with the same key."""
        found = self._byKey.get(key)
        if found is not None and found.queuedMs <= dueMs:
            found.dueMs, found.callback = dueMs, callback
            return
        self.cancel(key)
        self._byKey[key] = made = _Deadline(key, dueMs, callback)
        self._push(made)

    def cancel(self, key: Hashable) -> None:
        """Forget a deadline, if there is one with this key."""
        found = self._byKey.pop(key, None)
        if found is not None:
            found.callback = None

    def nextMs(self) -> int | None:
        """When L{takeDue} has something to do at the latest; perhaps there is nothing then."""
        return self._queue[0][0] if self._queue else None

    def takeDue(self, nowMs: int) -> Callable[[], object] | None:
        """What is due first, which is then forgotten; L{None} if nothing is due."""
        while self._queue and self._queue[0][0] <= nowMs:
            _, _, first = heappop(self._queue)
            if first.callback is None:
                continue
            if first.dueMs > nowMs:
                first.queuedMs = first.dueMs
                self._push(first)
                continue
            del self._byKey[first.key]
            return first.callback
        return None

    def _push(self, deadline: _Deadline) -> None:
        if len(self._queue) > 2 * len(self._byKey) + STALE_COUNT_MAX:
            self._queue = [each for each in self._queue if each[2].callback is not None]
            heapify(self._queue)
        self._number += 1
        heappush(self._queue, (deadline.queuedMs, self._number, deadline))
