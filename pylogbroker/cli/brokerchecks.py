"""
Requests and waits that several commands share: does a partition exist, has it a log, and what does a command wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList

from pylogbroker.cli import CommandError
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import PartitionOutOfRangeError

T = TypeVar("T")

NOTICE_SECONDS = 1.5
"""A wait that lasts longer than this is announced."""

_END_OF_TIME_MS = 2**63 - 1


async def announced(
    reactor: Any, say: Callable[[str], None], waiting: Deferred[T], what: str, timeoutMs: float
) -> T:
    """
    Wait for a Deferred. After L{NOTICE_SECONDS} one line on standard error says what the command waits for, and when it gives up.

    @param say: shows a line to people.
    @param what: what the command waits for, for people.
    @param timeoutMs: when the command gives up.
    """
    notice = reactor.callLater(
        NOTICE_SECONDS,
        say,
        f"pylogbroker: waiting for {what}; gives up after {timeoutMs / 1000:g} s",
    )
    try:
        return await waiting
    finally:
        if notice.active():
            notice.cancel()


async def requirePartition(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """
    Ask whether the broker has a partition, with a fetch of nothing: to anything else about one that it has not, it answers by closing the connection
    (spec-0.7 wire-protocol §7.1, §9).

    @raise CommandError: it has not.
    """
    if await _isOutOfRange(consumer, topic, partition):
        raise CommandError(f"the broker has no partition {partition} of topic {topic}")


async def _isOutOfRange(consumer: SimpleConsumer, topic: str, partition: int) -> bool:
    error: Exception | None = (await consumer.fetch(topic, partition, 0, 0)).error
    return isinstance(error, PartitionOutOfRangeError)


async def hasTopic(consumer: SimpleConsumer, topic: str, partition: int) -> bool:
    """
    Whether the broker has a log of a topic: it has none before the first message.

    Asked for the end or the beginning of a missing log, a 0.7 broker answers 0, as for an empty one. Asked for the offsets before a time in
    the far future, it answers at least one for every log, and none for a missing one (spec-0.7 wire-protocol §10).

    @param partition: is asked first. The others are asked only when it has no log.
    @raise CommandError: the broker has no such partition.
    """
    await requirePartition(consumer, topic, partition)
    for following in count():
        if await consumer.getOffsetsBefore(topic, partition, _END_OF_TIME_MS, 1):
            return True
        if await _isOutOfRange(consumer, topic, following):
            return False
        partition = following
    raise AssertionError("count ends never")


def missingTopic(topic: str) -> str:
    """What to say then."""
    return f"the broker has no topic {topic}: nothing was ever published to it"


async def requireTopic(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """
    @raise CommandError: the broker has no such topic or partition.
    """
    if not await hasTopic(consumer, topic, partition):
        raise CommandError(missingTopic(topic))


async def closeAll(*closings: Deferred[Any]) -> None:
    """
    Wait until all of it is closed. How that went is not told: what has arrived has been asked before.

    Cancelling this ends neither the closing nor the waiting; but at the end of it who waits learns that they were cancelled. (The C{close} of a consumer,
    cancelled, would succeed, and a command go on as if nobody had asked it to end.)
    """
    cancelled: CancelledError | None = None
    over: Deferred[None] = Deferred()
    isOver = False

    def end(_results: object) -> None:
        nonlocal isOver
        isOver = True
        over.callback(None)

    DeferredList(closings, consumeErrors=True).addCallback(end)
    while not isOver:
        try:
            await over
        except CancelledError as error:
            cancelled, over = error, Deferred()
    if cancelled is not None:
        raise cancelled
