"""
Waiting for several things at once.

What must be true: all are waited for, also when one fails, so that nothing is under way any more when the answer is here, and no failure is left for nobody;
and who is cancelled cancels what is not done. There are two answers: what came of each (L{gatherSettled}), for who goes on without what has failed, and all results
or the first failure (L{gatherAll}).

How many there may be is the caller's to say; L{gatherInBatches} does it for those that a cluster, or anybody else, has a say in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError
from pylogbroker.retry import Outage

T = TypeVar("T")
A = TypeVar("A")

Work = Deferred[T] | Coroutine[Any, Any, T]

AT_ONCE_COUNT_MAX = 100
"""As many requests as a L{pylogbroker.zookeeper.client.ZookeeperClient} has under way at a time: more of them only wait there."""


async def gatherSettled(works: Iterable[Work[T]]) -> list[T | Failure]:
    """
    Do all at the same time, to their ends.

    @return: what came of each, in order: its result, or the failure.
    """
    waiting = [
        work if isinstance(work, Deferred) else Deferred.fromCoroutine(work) for work in works
    ]
    results: list[tuple[bool, Any]] = await DeferredList(waiting, consumeErrors=True)
    return [result for _succeeded, result in results]


async def gatherAll(works: Iterable[Work[T]]) -> list[T]:
    """
    Do all at the same time, to their ends.

    @return: the result of each, in order.
    @raise Exception: what the first raised, in order, that failed; when all are done.
    """
    found: list[T] = []
    for outcome in await gatherSettled(works):
        if isinstance(outcome, Failure):
            outcome.raiseException()
        found.append(outcome)
    return found


async def gatherInBatches(
    work: Callable[[A], Work[T]], items: Iterable[A], countMax: int = AT_ONCE_COUNT_MAX
) -> list[T]:
    """
    Do the same with each of many, so many at a time.

    @return: the result of each, in order.
    @raise Exception: as L{gatherAll} of those that were begun together; the rest is not begun then.
    """
    return [
        result
        for some in batched(items, countMax)
        for result in await gatherAll([work(item) for item in some])
    ]


def batched(items: Iterable[A], countMax: int) -> Iterator[list[A]]:
    """All, in lists of so many."""
    left = iter(items)
    while some := list(islice(left, countMax)):
        yield some


async def retryForever(clock: Any, work: Callable[[], Awaitable[T]], outage: Outage) -> T:
    """
    Call a function until it succeeds.

    @param outage: gives the delays, and reports.
    @return: its result.
    @raise Exception: what it raises that is no L{PylogbrokerError}.
    """
    while True:
        try:
            result = await work()
        except PylogbrokerError as error:
            await deferLater(clock, outage.failed(error) / 1000)
        else:
            outage.succeeded()
            return result
