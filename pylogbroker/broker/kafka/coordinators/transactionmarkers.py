"""
L{MarkerWriter}: the end markers of transactions on their way to the partitions' leaders, by
WriteTxnMarkers where another broker leads.

What must be true:

  - A marker counts as written when its leader says that it is appended as an acknowledged write is.
  Whatever else happens, the caller gets its partition back and tries again; the leader is then
  looked up anew. Writing a marker twice does no harm.
  - A partition that the metadata do not have needs no marker. One without a leader waits for one.
  - A leader that refuses a marker because of its epochs has a marker of a later epoch already, from
  this coordinator or from a later one: nothing is left to write there.
  - One request with at most L{PARTITION_COUNT_MAX} partitions is under way to a broker; meanwhile
  markers wait for the next one. The transactions of a coordinator bound their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.interbroker import InterBrokerConnections, Purpose
from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.coordinator.transactions.transactioncoordinator import TransactionMarkers
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import EndMarker
from pylogbroker.net.deferreds import Work, batched, gatherAll, gatherInBatches
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, errorCode
from pylogbroker.replication.elections import NO_LEADER
from pylogbroker.types import TopicPartition

PARTITION_COUNT_MAX = 1_000
"""Markers of a request to another broker."""

_FENCED = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))

Append = Callable[[TopicPartition, TransactionalProducer, EndMarker], Work[None]]
"""Appends a marker to a partition of this broker, acknowledged; fails with why it is refused."""

log = Logger()


class _Markers(NamedTuple):
    """Equal markers for partitions that one broker leads."""

    producer: TransactionalProducer
    marker: EndMarker
    places: list[TopicPartition]
    written: Deferred[list[TopicPartition]]


class MarkerWriter:
    """Writes end markers, here and on other brokers; the module states the rules."""

    def __init__(
        self,
        clock: Any,
        brokerId: int,
        leaderOf: Callable[[TopicPartition], int | None],
        connections: InterBrokerConnections,
        append: Append,
    ) -> None:
        """
        @param leaderOf: gives the broker that leads a partition; L{NO_LEADER}; L{None}: there is no
            such partition.
        @param append: for the partitions that this broker leads.
        """
        self._brokerId = brokerId
        self._leaderOf = leaderOf
        self._connections = connections
        self._append = append
        self._channels: dict[int, _Channel] = {}
        self._log = RateLimitedLogger(clock, log)

    async def write(self, markers: TransactionMarkers) -> list[TopicPartition]:
        """
        Write the markers of a transaction, once.

        @return: the partitions where that must be tried again.
        """
        producer = TransactionalProducer(markers.producerId, markers.producerEpoch)
        marker = EndMarker(markers.isCommit, markers.coordinatorEpoch, markers.transactionVersion)
        places: dict[int, list[TopicPartition]] = {}
        for place in sorted(markers.partitions):
            leader = self._leaderOf(place)
            if leader is not None:
                places.setdefault(leader, []).append(place)
        left = places.pop(NO_LEADER, [])
        here = places.pop(self._brokerId, [])

        async def appendHere() -> list[TopicPartition]:
            codes = await gatherInBatches(
                lambda place: self._appended(place, producer, marker), here
            )
            return self._left(self._brokerId, producer, dict(zip(here, codes, strict=True)))

        works: list[Work[list[TopicPartition]]] = [
            self._send(brokerId, producer, marker, some)
            for brokerId, found in places.items()
            for some in batched(found, PARTITION_COUNT_MAX)
        ]
        for found in await gatherAll([appendHere(), *works]):
            left += found
        return left

    async def _appended(
        self, place: TopicPartition, producer: TransactionalProducer, marker: EndMarker
    ) -> ErrorCode:
        try:
            await self._append(place, producer, marker)
        except PylogbrokerError as error:
            return errorOf(error).code
        return ErrorCode.NONE

    def _send(
        self,
        brokerId: int,
        producer: TransactionalProducer,
        marker: EndMarker,
        places: list[TopicPartition],
    ) -> Deferred[list[TopicPartition]]:
        channel = self._channels.get(brokerId)
        if channel is None:
            channel = self._channels[brokerId] = _Channel(
                brokerId, self._connections, self._left, self._log
            )
            channel.ended = lambda: self._channels.pop(brokerId)
        entry = _Markers(producer, marker, places, Deferred())
        channel.add(entry)
        return entry.written

    def _left(
        self,
        brokerId: int,
        producer: TransactionalProducer,
        codes: dict[TopicPartition, int],
    ) -> list[TopicPartition]:
        """
        The partitions whose marker is not written.

        @param codes: what the leader says.
        """
        left = []
        for place, code in codes.items():
            if code in _FENCED:
                log.warn(
                    "A transaction of producer {producerId} has no end marker in {topic}-{index}:"
                    " {error}",
                    producerId=producer.producerId,
                    topic=place.topic,
                    index=place.partition,
                    error=errorCode(code).name,
                )
            elif code and self._leaderOf(place) is not None:
                left.append(place)
                if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    self._log.warn(
                        "Broker {brokerId} refuses the end markers of transactions: this broker's"
                        " user there needs ClusterAction",
                        brokerId=brokerId,
                    )
        return left


class _Channel:
    """
    The markers for the partitions that another broker leads.

    @ivar ended: called when nothing waits any more.
    """

    def __init__(
        self,
        brokerId: int,
        connections: InterBrokerConnections,
        leftOf: Callable[
            [int, TransactionalProducer, dict[TopicPartition, int]], list[TopicPartition]
        ],
        limitedLog: RateLimitedLogger,
    ) -> None:
        """@param leftOf: gives, of partitions with error codes, those that must be tried again."""
        self._brokerId = brokerId
        self._connections = connections
        self._leftOf = leftOf
        self._log = limitedLog
        self._waiting: deque[_Markers] = deque()
        self._isSending = False
        self.ended: Callable[[], object] = lambda: None

    def add(self, entry: _Markers) -> None:
        """Write markers by one of the next requests."""
        self._waiting.append(entry)
        if not self._isSending:
            self._isSending = True
            Deferred.fromCoroutine(self._sendAll()).addErrback(_bug)

    async def _sendAll(self) -> None:
        while self._waiting:
            some = self._take()
            try:
                response = await self._connections.request(
                    self._brokerId,
                    Purpose.MARKERS,
                    ApiKey.WRITE_TXN_MARKERS,
                    _request(some),
                )
                found = [_codes(each, entry.places) for each, entry in _paired(response, some)]
            except PylogbrokerError as error:
                self._log.warn(
                    "Broker {brokerId} cannot be given the end markers of transactions, trying"
                    " again: {error}",
                    brokerId=self._brokerId,
                    error=error,
                )
                failed = ErrorCode.NETWORK_EXCEPTION
                found = [dict.fromkeys(entry.places, failed) for entry in some]
            for entry, codes in zip(some, found, strict=True):
                entry.written.callback(self._leftOf(self._brokerId, entry.producer, codes))
        self._isSending = False
        self.ended()

    def _take(self) -> list[_Markers]:
        """The markers of the next request; a producer has one entry in it."""
        some = [self._waiting.popleft()]
        count = len(some[0].places)
        producers = {some[0].producer.producerId}
        while self._waiting:
            first = self._waiting[0]
            count += len(first.places)
            if count > PARTITION_COUNT_MAX or first.producer.producerId in producers:
                break
            producers.add(first.producer.producerId)
            some.append(self._waiting.popleft())
        return some


def _request(some: Iterable[_Markers]) -> Any:
    cls = messages.WriteTxnMarkersRequest
    return cls(
        markers=[
            cls.WritableTxnMarker(
                producerId=each.producer.producerId,
                producerEpoch=each.producer.producerEpoch,
                transactionResult=each.marker.isCommit,
                topics=[
                    cls.WritableTxnMarkerTopic(name=name, partitionIndexes=indexes)
                    for name, indexes in byTopic(each.places).items()
                ],
                coordinatorEpoch=each.marker.coordinatorEpoch,
                transactionVersion=each.marker.transactionVersion,
            )
            for each in some
        ]
    )


def _paired(response: Any, some: list[_Markers]) -> list[tuple[Any, _Markers]]:
    """The results of a response, each with what it answers."""
    results = {each.producerId: each for each in response.markers}
    missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response leaves a producer out")
    found = []
    for entry in some:
        result = results.get(entry.producer.producerId)
        if result is None:
            raise missing
        found.append((result, entry))
    return found


def _codes(result: Any, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The error codes of a result; a partition that it leaves out is to be tried again."""
    codes: dict[TopicPartition, int] = dict.fromkeys(places, ErrorCode.UNKNOWN_SERVER_ERROR)
    for topic in result.topics:
        for each in topic.partitions:
            place = TopicPartition(topic.name, each.partitionIndex)
            if place in codes:
                codes[place] = each.errorCode
    return codes


def byTopic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, index in places:
        found.setdefault(topic, []).append(index)
    return found


def _bug(failure: Any) -> None:
    log.failure("Sending end markers failed unexpectedly: this is a bug", failure)
