"""
Questions of a consumer for offsets by time, to the leaders of partitions. A module of its own,
since they need no partitions that are assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.consumer.kafka.fetcher import KafkaFetcher
from pylogbroker.errors import BrokerConnectionError, ClosedError, PylogbrokerError, TimedOutError
from pylogbroker.net.deferreds import asDeferred, gatherAll
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.types import TopicPartition


class OffsetAndTimestamp(NamedTuple):
    """
    The answer to a question for a time.

    @ivar timestamp: of the message at that offset, milliseconds since the epoch.
    @ivar leaderEpoch: of the leader that appended it; -1: unknown.
    """

    offset: int
    timestamp: int
    leaderEpoch: int


class OffsetQuestions:
    """
    Asks until all leaders have answered.

    @ivar isEnded: whether the consumer was closed.
    """

    def __init__(
        self,
        clock: IReactorTime,
        cluster: ClusterClient,
        fetcher: KafkaFetcher,
        timeoutMs: float,
    ) -> None:
        """
        @param timeoutMs: for a question, retries included.
        """
        self.isEnded = False
        self._clock = clock
        self._cluster = cluster
        self._fetcher = fetcher
        self._timeoutMs = timeoutMs

    @asDeferred
    async def ask(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """
        @param times: as of L{KafkaFetcher.listOffsets}.
        @return: as L{pylogbroker.consumer.kafka.consumer.KafkaConsumer.offsetsForTimes}; an offset
            of -1: no message is so young.
        """
        timeoutMs = self._timeoutMs
        deadlineMs = self._clock.seconds() * 1000 + timeoutMs
        left = {TopicPartition(*place): time for place, time in times.items()}
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        failureCount = 0
        while left:
            if self.isEnded:
                raise ClosedError("the consumer was closed")
            reason = await self._askLeaders(left, found, deadlineMs)
            left = {place: time for place, time in left.items() if place not in found}
            if not left:
                break
            failureCount += 1
            waitMs = self._cluster.backoffMs(failureCount)
            if self._clock.seconds() * 1000 + waitMs > deadlineMs:
                raise TimedOutError(f"no offsets within {timeoutMs} ms: {reason}")
            self._cluster.refreshSoon()
            waiting: Deferred[None] = Deferred()
            waiting.addTimeout(waitMs / 1000, self._clock, lambda _result, _seconds: None)
            await waiting
        return {place: found[place] for place in (TopicPartition(*each) for each in times)}

    async def _askLeaders(
        self,
        times: Mapping[TopicPartition, int],
        found: dict[TopicPartition, OffsetAndTimestamp],
        deadlineMs: float,
    ) -> PylogbrokerError | None:
        """Ask each leader once. Returns why some did not answer."""
        reasons: list[PylogbrokerError] = []
        byNode: dict[int, dict[TopicPartition, int]] = {}
        for place, time in times.items():
            leftMs = max(deadlineMs - self._clock.seconds() * 1000, 1)
            await self._cluster.findTopic(place.topic, leftMs)
            leader = self._cluster.metadata.leader(*place)
            if leader is None:
                reasons.append(ResponseError(5, str(place)))
            else:
                byNode.setdefault(leader.node, {})[place] = time

        async def ask(number: int, wanted: Mapping[TopicPartition, int]) -> None:
            try:
                connection = await self._cluster.broker(number).connection()
                answers = await self._fetcher.listOffsets(connection, wanted)
            except BrokerConnectionError as error:
                reasons.append(error)
                return
            for place, (code, offset, timestamp, epoch) in answers.items():
                if not code:
                    found[place] = OffsetAndTimestamp(offset, timestamp, epoch)
                    continue
                refusal = ResponseError(code, str(place))
                if ErrorPolicy.RETRY not in policyOf(code):
                    raise refusal
                reasons.append(refusal)

        await gatherAll([ask(number, wanted) for number, wanted in byNode.items()])
        return reasons[-1] if reasons else None
