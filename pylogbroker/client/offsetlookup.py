"""
The first and last offsets of a cluster's logs, and the age of the message at an offset.

Messages of 0.7 carry no time. A broker answers a time with the starts of the segments last written
before it (spec-0.7 wire-protocol §10). So bisection finds the age of a segment, which bounds that
of its messages. A message is no newer than the last write of its segment, and no older than that of
the segment before, if there is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from pylogbroker.client.discovery import BrokerNode
from pylogbroker.client.simpleconsumer import ConsumerPool, SimpleConsumer
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import ConnectionLostError, PylogbrokerError, RemoteError
from pylogbroker.net.deferreds import BATCH_COUNT_MAX, batched, gatherAll
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition, OffsetBounds, PartitionId

OFFSET_COUNT_MAX = 100_000
"""Segments of a partition that are asked for."""

REFUSED_COUNT_MAX = 10
"""
Partitions that a broker may refuse when each is asked for alone, since each costs a connection.
"""

PRECISION_MS = 1_000
PRECISION_PARTS = 16
"""A time is known to one second, or to a sixteenth of the age."""

AGE_MS_MAX = 40 * 365 * 86_400_000

OffsetsBefore = Callable[[int, int], Awaitable[list[int]]]
"""Called with a time and a count, as L{SimpleConsumer.getOffsetsBefore} of one partition."""


class MessageAgeBounds(NamedTuple):
    """
    How long ago the message at an offset was written, milliseconds.

    @ivar least: at least; L{None} when unknown.
    @ivar most: at most.
    """

    least: int | None = None
    most: int | None = None


UNKNOWN = MessageAgeBounds()


Find = Callable[[int], Awaitable[BrokerRegistration | BrokerNode]]
"""Gives a broker's address; fails with a L{PylogbrokerError} when it is unknown."""


class OffsetLookup:
    """
    Asks the brokers of a cluster, each over one connection, made for the first question.

    All coroutines fail with a L{PylogbrokerError} when the broker is unknown or does not answer.
    """

    def __init__(
        self,
        reactor: Any,
        find: Find,
        timeoutMs: float,
        connectTimeoutMs: float | None = None,
        template: str = "",
    ) -> None:
        """
        @param find: called for each question, so that a broker may move.
        @param timeoutMs: for each answer; see L{ConsumerPool}.
        """
        self._reactor = reactor
        self._find = find
        self._consumers = ConsumerPool(reactor, timeoutMs, connectTimeoutMs, template)

    async def consumer(self, broker: int) -> SimpleConsumer:
        return self._consumers.get((await self._find(broker)).address)

    async def before(
        self, topic: str, partition: BrokerPartition, time: int, countMax: int
    ) -> list[int]:
        consumer = await self.consumer(partition.broker)
        return await consumer.getOffsetsBefore(topic, partition.partition, time, countMax)

    async def end(self, topic: str, partition: BrokerPartition) -> int:
        """The offset behind the last visible message."""
        return singleOffset(await self.before(topic, partition, LATEST, 1))

    async def start(self, topic: str, partition: BrokerPartition) -> int:
        return singleOffset(await self.before(topic, partition, EARLIEST, 1))

    async def bounds(
        self, places: Iterable[PartitionId]
    ) -> dict[PartitionId, OffsetBounds | PylogbrokerError]:
        """
        The bounds of partitions. All brokers are asked concurrently, each for BATCH_COUNT_MAX
        partitions at a time. A broker that does not answer is not asked again.

        A 0.7 broker closes the connection when it lacks a partition, and leaves later questions
        unanswered. So those partitions are asked for once more, one at a time, until
        L{REFUSED_COUNT_MAX} are refused.

        @return: for each partition, in order, its bounds, or why they are unknown. Does not fail.
        """
        found: dict[PartitionId, OffsetBounds | PylogbrokerError] = dict.fromkeys(places, _UNASKED)
        byBroker: dict[int, list[PartitionId]] = {}
        for place in found:
            byBroker.setdefault(place[1].broker, []).append(place)
        for answers in await gatherAll(
            [self._boundsAt(number, wanted) for number, wanted in byBroker.items()]
        ):
            found.update(answers)
        return found

    async def _boundsAt(
        self, number: int, wanted: list[PartitionId]
    ) -> dict[PartitionId, OffsetBounds | PylogbrokerError]:
        found: dict[PartitionId, OffsetBounds | PylogbrokerError] = {}
        try:
            consumer = await self.consumer(number)
        except PylogbrokerError as error:
            return dict.fromkeys(wanted, error)
        refusedCount = 0
        for some in batched(wanted, BATCH_COUNT_MAX):
            answers = dict(
                zip(
                    some,
                    await gatherAll([_boundsOrError(consumer, place) for place in some]),
                    strict=True,
                )
            )
            refusedCount += await _askAlone(consumer, answers, REFUSED_COUNT_MAX - refusedCount)
            found.update(answers)
            last = answers[some[-1]]
            isAlive = (
                isinstance(last, ConnectionLostError | RemoteError)
                and refusedCount < REFUSED_COUNT_MAX
            )
            if (
                isinstance(last, PylogbrokerError)
                and not isAlive
                and not any(isinstance(answer, OffsetBounds) for answer in answers.values())
            ):
                return {**dict.fromkeys(wanted, last), **found}
        return found

    async def ages(self, topic: str, partition: BrokerPartition, offset: int) -> MessageAgeBounds:
        return await ages(
            lambda time, countMax: self.before(topic, partition, time, countMax),
            offset,
            int(self._reactor.seconds() * 1000),
        )

    async def close(self) -> None:
        """Close the connections. Does not fail."""
        await self._consumers.close()


async def bounds(consumer: SimpleConsumer, topic: str, partition: int) -> OffsetBounds:
    """
    The bounds of a partition. An empty partition whose broker knows no offsets has 0 for both.

    @raise PylogbrokerError: it does not answer.
    """
    starts, ends = await gatherAll(
        [consumer.getOffsetsBefore(topic, partition, time, 1) for time in (EARLIEST, LATEST)]
    )
    return OffsetBounds(singleOffset(starts), singleOffset(ends))


def singleOffset(offsets: list[int]) -> int:
    """The only offset of an answer; 0 when the broker knows none yet."""
    return offsets[0] if offsets else 0


async def _boundsOrError(
    consumer: SimpleConsumer, place: PartitionId
) -> OffsetBounds | PylogbrokerError:
    topic, partition = place
    try:
        return await bounds(consumer, topic, partition.partition)
    except PylogbrokerError as error:
        return error


async def _askAlone(
    consumer: SimpleConsumer,
    answers: dict[PartitionId, OffsetBounds | PylogbrokerError],
    refusedCountMax: int,
) -> int:
    """
    Ask again for partitions whose connection was lost, while the broker answers or refuses.

    @param answers: is changed.
    @return: how many it refused.
    """
    refusedCount = 0
    for place in [
        place for place, answer in answers.items() if isinstance(answer, ConnectionLostError)
    ]:
        if refusedCount == refusedCountMax:
            break
        answers[place] = answer = await _boundsOrError(consumer, place)
        if isinstance(answer, ConnectionLostError):
            refusedCount += 1
        elif not isinstance(answer, OffsetBounds | RemoteError):
            break
    return refusedCount


_UNASKED = PylogbrokerError("it was not asked for")


async def ages(ask: OffsetsBefore, offset: int, nowMs: int) -> MessageAgeBounds:
    """
    The age of the message at an offset.

    @param ask: asks the broker about the partition.
    @param nowMs: milliseconds since the epoch; ages are wrong by the difference to the broker's
        clock.
    """
    starts = sorted(each for each in await ask(LATEST, OFFSET_COUNT_MAX) if each <= offset)
    if not starts:
        return UNKNOWN
    least = await _age(ask, starts[-1], nowMs)
    most = await _age(ask, starts[-2], nowMs) if len(starts) > 1 else None
    return MessageAgeBounds(None if least is None else least[0], None if most is None else most[1])


async def _age(ask: OffsetsBefore, start: int, nowMs: int) -> tuple[int, int] | None:

    async def wasWritten(ageMs: int) -> bool:
        found = await ask(nowMs - ageMs, 1)
        return bool(found) and found[0] >= start

    if not await wasWritten(0):
        return None  # the broker's clock, or the file's time, is ahead of ours
    least, most = 0, PRECISION_MS
    while await wasWritten(most):
        least, most = most, 2 * most
        if most > min(AGE_MS_MAX, nowMs):
            return None
    while most - least > max(PRECISION_MS, most // PRECISION_PARTS):
        middle = (least + most) // 2
        if await wasWritten(middle):
            least = middle
        else:
            most = middle
    return least, most
