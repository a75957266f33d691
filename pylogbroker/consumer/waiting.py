"""
Waiting for several things at once.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList

T = TypeVar("T")


async def allOf(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """
    Do all at the same time, to their ends.

    @return: what came of each, in order.
    @raise Exception: what the first raised that failed, when all are done.
    """
    outcomes: list[tuple[bool, Any]] = await DeferredList([Deferred.fromCoroutine(work) for work in works], consumeErrors=True)
    for succeeded, outcome in outcomes:
        if not succeeded:
            outcome.raiseException()
    return [outcome for _, outcome in outcomes]
