"""
What several commands do with a connection: ask whether a partition is there, and let go of it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredList

from pylogbroker.cli import CommandError
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import PartitionOutOfRangeError


async def requirePartition(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """
    Ask whether the broker has a partition, with a fetch of nothing: to anything else about one that it has not, it answers by closing the connection
    (spec-0.7 wire-protocol §7.1, §9).

    @raise CommandError: it has not.
    """
    answer = await consumer.fetch(topic, partition, 0, 0)
    if isinstance(answer.error, PartitionOutOfRangeError):
        raise CommandError(f"the broker has no partition {partition} of topic {topic}")


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
