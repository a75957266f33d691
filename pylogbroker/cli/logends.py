"""
Where the logs of a cluster end, and how long ago something stood at an offset: asked of brokers that are found in ZooKeeper.

Messages of 0.7 carry no time, and a broker knows only when each segment file was last written to, and tells even that in a roundabout way: asked for
the offsets before a time, it answers where the segments start that were last written to before then (spec-0.7 wire-protocol §10). So a time is found by
asking again and again, and it bounds what it is the time of: a message was written no later than its own segment was last, and no earlier than the segment
before it was. A partition that has no earlier segment gives no upper bound for the age of its messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from twisted.internet.defer import DeferredList

from pylogbroker.cli import CommandError
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.cluster import paths
from pylogbroker.cluster.znodes import decodeBroker
from pylogbroker.errors import NoNodeException
from pylogbroker.interfaces import IZookeeper
from pylogbroker.model import EARLIEST, LATEST, BrokerPartition

OFFSET_COUNT_MAX = 100_000
"""Of segments that a partition is asked for."""

PRECISION_MS = 1_000
PRECISION_PARTS = 16
"""A time is looked for until it is known to a second, or to a sixteenth of its age."""

AGE_MS_MAX = 40 * 365 * 86_400_000

OffsetsBefore = Callable[[int, int], Awaitable[list[int]]]
"""Called with a time and a count, as L{SimpleConsumer.getOffsetsBefore} of one partition."""


class Ages(NamedTuple):
    """
    How long ago the message at an offset was written, milliseconds.

    @ivar least: at least; L{None} when nobody can tell.
    @ivar most: at most.
    """

    least: int | None = None
    most: int | None = None


UNKNOWN = Ages()


class LogEnds:
    """Connections to the brokers of a cluster, one to each, made when it is asked."""

    def __init__(self, reactor: Any, zookeeper: IZookeeper, timeoutMs: int) -> None:
        """
        @param zookeeper: connected.
        @param timeoutMs: for each answer, connecting included.
        """
        self._reactor = reactor
        self._zookeeper = zookeeper
        self._timeoutMs = timeoutMs
        self._consumers: dict[int, SimpleConsumer] = {}

    async def before(self, topic: str, partition: BrokerPartition, time: int, countMax: int) -> list[int]:
        """
        As L{SimpleConsumer.getOffsetsBefore}.

        @raise CommandError: the broker is not registered.
        @raise PylogbrokerError: it cannot be asked.
        """
        consumer = await self.consumer(partition.broker)
        return await consumer.getOffsetsBefore(topic, partition.partition, time, countMax)

    async def consumer(self, broker: int) -> SimpleConsumer:
        """
        The connection to a broker.

        @raise CommandError: it is not registered.
        @raise PylogbrokerError: ZooKeeper cannot be asked.
        """
        found = self._consumers.get(broker)
        if found is None:
            path = paths.brokerId(broker)
            try:
                data, _stat = await self._zookeeper.get(path)
            except NoNodeException as error:
                raise CommandError(f"broker {broker} is not registered") from error
            place = decodeBroker(path, data)
            found = SimpleConsumer(self._reactor, f"{place.host}:{place.port}", timeoutMs=self._timeoutMs, connectTimeoutMs=self._timeoutMs)
            found = self._consumers.setdefault(broker, found)
        return found

    async def end(self, topic: str, partition: BrokerPartition) -> int:
        """Behind the last message that consumers see. Raises as C{before}."""
        return (await self.before(topic, partition, LATEST, 1))[0]

    async def start(self, topic: str, partition: BrokerPartition) -> int:
        """The oldest message that there is. Raises as C{before}."""
        return (await self.before(topic, partition, EARLIEST, 1))[0]

    async def ages(self, topic: str, partition: BrokerPartition, offset: int) -> Ages:
        """How long ago the message at an offset was written. Raises as C{before}."""
        return await ages(lambda time, countMax: self.before(topic, partition, time, countMax), offset, int(self._reactor.seconds() * 1000))

    async def close(self) -> None:
        """Let go of the connections. Does not fail."""
        await DeferredList([consumer.close() for consumer in self._consumers.values()], consumeErrors=True)


async def ages(ask: OffsetsBefore, offset: int, nowMs: int) -> Ages:
    """
    How long ago the message at an offset was written.

    @param ask: asks the broker about the partition.
    @param offset: at which a message stands.
    @param nowMs: milliseconds since the epoch. When it is not the same to the broker, the ages are wrong by as much.
    """
    starts = sorted(each for each in await ask(LATEST, OFFSET_COUNT_MAX) if each <= offset)
    if not starts:
        return UNKNOWN
    least = await _age(ask, starts[-1], nowMs)
    most = await _age(ask, starts[-2], nowMs) if len(starts) > 1 else None
    return Ages(None if least is None else least[0], None if most is None else most[1])


async def _age(ask: OffsetsBefore, start: int, nowMs: int) -> tuple[int, int] | None:
    """How long ago a segment was last written to: at least and at most; L{None} when that cannot be found out."""

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
