"""
Helpers for Deferreds: waiting for several at once, and several callers that wait for one event.

What must be true: the C{gather} functions wait for every Deferred even when one fails, so nothing
is left running and no failure goes unhandled. Cancelling the result cancels the pending ones. The
caller bounds the number; L{gatherInBatches} does it where a cluster determines the number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from itertools import islice
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.python.failure import Failure

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")

Work = Deferred[T] | Coroutine[Any, Any, T]

BATCH_COUNT_MAX = 100
"""
The requests that a L{pylogbroker.zookeeper.client.ZookeeperClient} has in flight; more only wait.
"""


def asDeferred(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Deferred[T]]:
    """
    A decorator of coroutine functions: a call starts the coroutine and returns its Deferred.
    """

    @wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(function(*args, **kwargs))

    return start


async def gatherSettled(works: Iterable[Work[T]]) -> list[T | Failure]:
    """
    Wait for all.

    @return: for each, in order, its result or its L{Failure}.
    """
    waiting = [
        work if isinstance(work, Deferred) else Deferred.fromCoroutine(work) for work in works
    ]
    results: list[tuple[bool, Any]] = await DeferredList(waiting, consumeErrors=True)
    return [result for _succeeded, result in results]


async def gatherAll(works: Iterable[Work[T]]) -> list[T]:
    """
    Wait for all.

    @return: the result of each, in order.
    @raise Exception: of the first in order that failed, when all are done.
    """
    found: list[T] = []
    for outcome in await gatherSettled(works):
        if isinstance(outcome, Failure):
            outcome.raiseException()
        found.append(outcome)
    return found


async def gatherInBatches(
    work: Callable[[A], Work[T]], items: Iterable[A], countMax: int = BATCH_COUNT_MAX
) -> list[T]:
    """
    Call a function for each item, C{countMax} at a time.

    @return: the result of each, in order.
    @raise Exception: as L{gatherAll}; later batches are not started.
    """
    return [
        result
        for some in batched(items, countMax)
        for result in await gatherAll([work(item) for item in some])
    ]


def batched(items: Iterable[A], countMax: int) -> Iterator[list[A]]:
    """The items in lists of C{countMax}; the last may be shorter."""
    left = iter(items)
    while some := list(islice(left, countMax)):
        yield some


class Waiters(Generic[T]):
    """
    Callers that wait for one event. Their Deferreds can be cancelled.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Deferred[T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self) -> Deferred[T]:
        """
        @return: fires with the value that the next C{fire} gives, or fails with its failure.
        """
        waiting: Deferred[T] = Deferred(self._cancelled)
        self._waiting.append(waiting)
        return waiting

    def fire(self, value: T | Failure) -> None:
        """Fire all Deferreds in the order of C{wait}. Those of later calls stay."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:  # an earlier one may have cancelled it
                each.callback(value)

    def _cancelled(self, waiting: Deferred[T]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)


async def untilEnded(work: Deferred[T], stop: Callable[[], object] = lambda: None) -> T:
    """
    Wait for work that a cancellation does not cut off: the wait goes on until it has ended.

    @param stop: called at each cancellation, to end the work.
    @return: its result.
    @raise CancelledError: the wait was cancelled, and the work has ended without a failure.
    @raise Exception: the work has failed.
    """
    waiters: Waiters[None] = Waiters()
    outcomes: list[T | Failure] = []

    def settled(outcome: T | Failure) -> None:
        outcomes.append(outcome)
        waiters.fire(None)

    work.addBoth(settled)
    cancelled: CancelledError | None = None
    while not outcomes:
        try:
            await waiters.wait()
        except CancelledError as error:
            cancelled = error
            stop()
    [outcome] = outcomes
    if isinstance(outcome, Failure):
        outcome.raiseException()
    if cancelled is not None:
        raise cancelled
    return outcome


async def closeAll(*closings: Work[Any]) -> None:
    """
    Wait until all connections are closed, whether that succeeds or fails.

    Cancelling does not end the wait: L{CancelledError} is raised at its end. (A cancelled C{close}
    would succeed, and its caller would go on.)
    """
    await untilEnded(Deferred.fromCoroutine(gatherSettled(closings)))


class Closeable(Protocol):
    """A connection, or several."""

    def close(self) -> Work[Any]:
        """Close it; fires when that is done."""


@asynccontextmanager
async def closing(connection: Closeable) -> AsyncIterator[None]:
    """Close a connection at the end of a block, as L{closeAll} does."""
    try:
        yield
    finally:
        await closeAll(connection.close())
