"""
Whether batches belong to an ongoing transaction, when another broker coordinates it (KIP-890).

A partition's leader asks the coordinator once for each transaction and partition: to verify that
the partition is in the transaction, or to add it, for clients that leave that to brokers. The batch
waits for the answer.

What must be true: no batch is appended behind the end marker of its transaction, since it would
begin one that never ends. Between the coordinator's answer and the append, the transaction may end.
So a L{Guard} is set before the coordinator is asked. A marker of the producer in the partition
breaks it, and the batch is appended only with a whole guard, in the leader epoch in which it was
set: in another one, the client tries again. A marker can come only before the answer, when it
breaks the guard, or behind the append, which it ends.

Where this broker is the coordinator, its state is asked at the moment of the append, and no guard
is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from pylogbroker.broker.interbroker import InterBrokerConnections, Purpose
from pylogbroker.broker.kafka.coordinators.transactionmarkers import byTopic
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, errorCode
from pylogbroker.types import TopicPartition

WAITING_SIZE_MAX = 64 << 20
"""
Bytes of batches that wait for coordinators elsewhere. A client whose batch is beyond it tries
again; a single batch may be larger.
"""

_Key = tuple[TopicPartition, int]


class Guard:
    """
    What was true of a partition when its batch was taken to the coordinator.

    @ivar epoch: of the partition's leader; L{None}: this broker was not it.
    @ivar isWhole: no marker of the producer has been appended since.
    @ivar code: what the coordinator says.
    """

    __slots__ = ("code", "epoch", "isWhole", "key")

    def __init__(self, key: _Key, epoch: int | None) -> None:
        self.key = key
        self.epoch = epoch
        self.isWhole = True
        self.code = ErrorCode.UNKNOWN_SERVER_ERROR


class Admission:
    """
    What a request may append in transactions, until it has done so. L{close} must be called then.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._guards: dict[tuple[TransactionalProducer, TopicPartition], Guard] = {}
        self._refused: dict[tuple[TransactionalProducer, TopicPartition], ErrorCode] = {}

    def refuse(
        self, producer: TransactionalProducer, places: Iterable[TopicPartition], code: ErrorCode
    ) -> None:
        """Append nothing of a producer to partitions."""
        self._refused.update(((producer, place), code) for place in places)

    def guard(self, producer: TransactionalProducer, place: TopicPartition) -> Guard:
        """Guard a partition from now on."""
        made = self._verifier.begin((place, producer.producerId))
        self._guards[producer, place] = made
        return made

    def refusal(self, producer: TransactionalProducer, place: TopicPartition) -> ErrorCode:
        """Why a partition could not be added to the transaction; NONE: it was, or need not be."""
        return self._refused.get((producer, place), ErrorCode.NONE)

    def verdict(self, producer: TransactionalProducer, place: TopicPartition) -> ErrorCode:
        """
        Whether a batch may be appended now, though another broker is the coordinator.
        NOT_COORDINATOR: it must be asked (again), since this broker was the coordinator then, or
        the partition has a new leader epoch. The transaction may go on: the client tries again.
        """
        found = self._guards.get((producer, place))
        if found is None:
            return self.refusal(producer, place) or ErrorCode.NOT_COORDINATOR
        if found.code:
            return found.code
        if not found.isWhole:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE if self._verifier.isCurrent(found) else ErrorCode.NOT_COORDINATOR

    def close(self) -> None:
        """Nothing more will be appended."""
        for guard in self._guards.values():
            self._verifier.end(guard)
        self._guards.clear()


class Verifier:
    """
    Asks coordinators on other brokers; the module states the rules.

    @ivar waitingSize: bytes of the batches that wait for an answer.
    """

    def __init__(
        self,
        connections: InterBrokerConnections,
        epochOf: Callable[[TopicPartition], int | None],
        log: RateLimitedLogger,
    ) -> None:
        """
        @param epochOf: gives the leader epoch of a partition that this broker leads; L{None}: it
            does not lead it.
        """
        self._connections = connections
        self._epochOf = epochOf
        self._log = log
        self._guards: dict[_Key, set[Guard]] = {}
        self.waitingSize = 0

    # -- guards

    def begin(self, key: _Key) -> Guard:
        guard = Guard(key, self._epochOf(key[0]))
        self._guards.setdefault(key, set()).add(guard)
        return guard

    def end(self, guard: Guard) -> None:
        """Forget a guard."""
        found = self._guards.get(guard.key)
        if found is not None:
            found.discard(guard)
            if not found:
                del self._guards[guard.key]

    def isCurrent(self, guard: Guard) -> bool:
        return guard.epoch == self._epochOf(guard.key[0])

    def markerAppended(self, place: TopicPartition, producerId: int) -> None:
        """An end marker has been appended."""
        for guard in self._guards.pop((place, producerId), ()):
            guard.isWhole = False

    # -- the coordinator

    async def ask(
        self,
        brokerId: int,
        transactionalId: str,
        producer: TransactionalProducer,
        places: Sequence[TopicPartition],
        isAdding: bool,
        admission: Admission,
        size: int,
    ) -> None:
        """
        Ask a coordinator about partitions.

        @param isAdding: whether to add them, if they are not in the transaction.
        @param size: bytes of the batches that wait for it.
        """
        if self.waitingSize and self.waitingSize + size > WAITING_SIZE_MAX:
            admission.refuse(producer, places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        guards = {place: admission.guard(producer, place) for place in places}
        self.waitingSize += size
        try:
            response = await self._connections.request(
                brokerId,
                Purpose.VERIFICATION,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                _request(transactionalId, producer, places, isAdding),
            )
        except PylogbrokerError as error:
            self._log.warn(
                "Broker {brokerId} cannot be asked about transactions: {error}",
                brokerId=brokerId,
                error=error,
            )
            codes = dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)
        else:
            codes = self._codes(brokerId, response, places)
        finally:
            self.waitingSize -= size
        for place, guard in guards.items():
            guard.code = codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _codes(
        self, brokerId: int, response: Any, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        code = response.errorCode
        if code:
            if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                self._log.warn(
                    "Broker {brokerId} does not verify transactions: this broker's user there"
                    " needs ClusterAction",
                    brokerId=brokerId,
                )
                code = ErrorCode.INVALID_TXN_STATE  # the other one is not the client's business
            return dict.fromkeys(places, errorCode(code))
        return {
            TopicPartition(topic.name, each.partitionIndex): asToProducer(
                errorCode(each.partitionErrorCode)
            )
            for result in response.resultsByTransaction
            for topic in result.topicResults
            for each in topic.resultsByPartition
        }


def _request(
    transactionalId: str,
    producer: TransactionalProducer,
    places: Iterable[TopicPartition],
    isAdding: bool,
) -> Any:
    cls = messages.AddPartitionsToTxnRequest
    return cls(
        transactions=[
            cls.AddPartitionsToTxnTransaction(
                transactionalId=transactionalId,
                producerId=producer.producerId,
                producerEpoch=producer.producerEpoch,
                verifyOnly=not isAdding,
                topics=[
                    cls.AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in byTopic(places).items()
                ],
            )
        ]
    )


def asToProducer(error: ErrorCode) -> ErrorCode:
    """The producer that is told is that of the records, whose epoch is wrong."""
    isFenced = error is ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if isFenced else error
