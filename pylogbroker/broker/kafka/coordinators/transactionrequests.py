"""
The handlers of requests to the coordinator of transactions. A module of its own, since it alone
knows their versions.

Whether partitions exist is decided here, before the coordinator is asked: if one does not, nothing
is added, and the others are answered with OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.grouprequests import GroupRequests
from pylogbroker.broker.kafka.coordinators.transactionservice import TransactionService
from pylogbroker.broker.kafka.errors import errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, RepeatLimit
from pylogbroker.broker.kafka.topics import INTERNAL_TOPICS, TopicManager
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.coordinator.transactions.transactioncoordinator import EPOCH_BUMP_VERSION
from pylogbroker.coordinator.transactions.transactionmessages import (
    InitProducerId,
    ProducerIdAnswer,
)
from pylogbroker.errors import InvalidPatternError, PylogbrokerError
from pylogbroker.interfaces import EndMarker
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.types import TopicPartition

_NO_PRODUCER_ID, _NO_PRODUCER_EPOCH = -1, -1

_FENCED_VERSION = 2
"""From here on clients know PRODUCER_FENCED; those of InitProducerId from version 4."""
_INIT_FENCED_VERSION = 4
_BATCHED_ADD_VERSION = 4
_BUMPING_END_VERSION = 5
_ABORTABLE_COMMIT_VERSION = 4
_ADDING_COMMIT_VERSION = 5

_RETRIED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
)
"""What a client that commits offsets would take for an error of the group's coordinator."""


class TransactionRequests:
    """The handlers of the requests of producers with transactions, and of those about them."""

    def __init__(
        self, transactions: TransactionService, groups: GroupRequests, topics: TopicManager
    ) -> None:
        """@param groups: commits the offsets."""
        self._transactions = transactions
        self._groups = groups
        self._topics = topics

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.initProducerId,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.addPartitionsToTxn,
            ApiKey.ADD_OFFSETS_TO_TXN: self.addOffsetsToTxn,
            ApiKey.END_TXN: self.endTxn,
            ApiKey.WRITE_TXN_MARKERS: self.writeTxnMarkers,
            ApiKey.TXN_OFFSET_COMMIT: self.txnOffsetCommit,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describeTransactions,
            ApiKey.LIST_TRANSACTIONS: self.listTransactions,
        }

    def _asked(self, ask: Callable[[Callable[[Any], object]], object]) -> Deferred[Any]:
        waiting: Deferred[Any] = Deferred()
        ask(waiting.callback)
        self._transactions.schedule()
        return waiting

    # -- InitProducerId

    def initProducerId(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """
        Handle InitProducerId; as L{Handler}. A producer without transactions gets a new id, even if
        it has one: only a transactional id keeps the producer's.
        """
        return Deferred.fromCoroutine(self._initProducerId(header, request))

    async def _initProducerId(self, header: RequestHeader, request: Any) -> Any:
        response = messages.InitProducerIdResponse
        hasId = request.producerId != _NO_PRODUCER_ID
        hasEpoch = request.producerEpoch != _NO_PRODUCER_EPOCH
        if hasId != hasEpoch:
            answer = ProducerIdAnswer(ErrorCode.INVALID_REQUEST)
        elif request.transactionalId is None:
            try:
                answer = ProducerIdAnswer(0, await self._topics.metadata.newProducerId(), 0)
            except PylogbrokerError as error:
                answer = ProducerIdAnswer(errorOf(error).code)
        else:
            asked = InitProducerId(
                request.transactionalId,
                request.transactionTimeoutMs,
                request.producerId,
                request.producerEpoch,
            )
            answer = await self._asked(
                lambda reply: self._transactions.coordinator.initProducerId(asked, reply)
            )
        code = _known(answer.errorCode, header.apiVersion >= _INIT_FENCED_VERSION)
        return response(**answer._replace(errorCode=code)._asdict())

    # -- AddPartitionsToTxn, AddOffsetsToTxn

    def addPartitionsToTxn(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle AddPartitionsToTxn; as L{Handler}."""
        return Deferred.fromCoroutine(self._addPartitionsToTxn(header, request))

    async def _addPartitionsToTxn(self, header: RequestHeader, request: Any) -> Any:
        response = messages.AddPartitionsToTxnResponse
        if header.apiVersion < _BATCHED_ADD_VERSION:
            found = await self._added(
                header,
                request.v3AndBelowTransactionalId,
                request.v3AndBelowProducerId,
                request.v3AndBelowProducerEpoch,
                request.v3AndBelowTopics,
            )
            return response(resultsByTopicV3AndBelow=found)
        limit = RepeatLimit()
        results = []
        for each in request.transactions:
            if limit.admits(each.transactionalId):
                found = await self._added(
                    header,
                    each.transactionalId,
                    each.producerId,
                    each.producerEpoch,
                    each.topics,
                    each.verifyOnly,
                )
                results.append(
                    response.AddPartitionsToTxnResult(
                        transactionalId=each.transactionalId, topicResults=found
                    )
                )
        return response(resultsByTransaction=results)

    async def _added(
        self,
        header: RequestHeader,
        transactionalId: str,
        producerId: int,
        producerEpoch: int,
        topics: Sequence[Any],
        isVerification: bool = False,
    ) -> list[Any]:
        """The results by topic."""
        version = header.apiVersion
        places = dict.fromkeys(
            TopicPartition(topic.name, index) for topic in topics for index in topic.partitions
        )
        coordinator = self._transactions.coordinator
        codes: dict[TopicPartition, int] = {}
        for place in places:
            isInternal = place.topic in INTERNAL_TOPICS
            if isInternal and version < _BATCHED_ADD_VERSION:
                codes[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif self._topics.leaderAt(*place) is None:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if codes:
            skipped = ErrorCode.OPERATION_NOT_ATTEMPTED
            codes.update((place, skipped) for place in places if place not in codes)
        elif isVerification:
            found = coordinator.verify(transactionalId, producerId, producerEpoch, places)
            codes.update(zip(places, found, strict=True))
        else:
            clientVersion = EPOCH_BUMP_VERSION if version >= _BATCHED_ADD_VERSION else 0
            error = await self._asked(
                lambda reply: coordinator.addPartitions(
                    transactionalId, producerId, producerEpoch, list(places), clientVersion, reply
                )
            )
            codes = dict.fromkeys(places, _known(error, version >= _FENCED_VERSION))
        return _results(codes)

    def addOffsetsToTxn(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle AddOffsetsToTxn; as L{Handler}."""
        return Deferred.fromCoroutine(self._addOffsetsToTxn(header, request))

    async def _addOffsetsToTxn(self, header: RequestHeader, request: Any) -> Any:
        response = messages.AddOffsetsToTxnResponse
        place = await self._groups.offsetsPartition(request.groupId)
        if place is None:
            return response(errorCode=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        error = await self._asked(
            lambda reply: self._transactions.coordinator.addPartitions(
                request.transactionalId,
                request.producerId,
                request.producerEpoch,
                [place],
                0,
                reply,
            )
        )
        return response(errorCode=_known(error, header.apiVersion >= _FENCED_VERSION))

    # -- EndTxn

    def endTxn(self, header: RequestHeader, request: Any, state: ConnectionState) -> Deferred[Any]:
        """Handle EndTxn; as L{Handler}."""
        version = header.apiVersion
        clientVersion = EPOCH_BUMP_VERSION if version >= _BUMPING_END_VERSION else 0

        def answered(answer: ProducerIdAnswer) -> Any:
            code = _known(answer.errorCode, version >= _FENCED_VERSION)
            if version < _BUMPING_END_VERSION:
                return messages.EndTxnResponse(errorCode=code)
            return messages.EndTxnResponse(**answer._asdict())

        return self._asked(
            lambda reply: self._transactions.coordinator.endTransaction(
                request, clientVersion, reply
            )
        ).addCallback(answered)

    # -- WriteTxnMarkers

    def writeTxnMarkers(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """
        Handle WriteTxnMarkers; as L{Handler}. A coordinator elsewhere sends it, and an operator
        that ends a transaction that hangs.
        """
        return Deferred.fromCoroutine(self._writeTxnMarkers(request))

    async def _writeTxnMarkers(self, request: Any) -> Any:
        response = messages.WriteTxnMarkersResponse
        results = []
        for each in request.markers:
            producer = TransactionalProducer(each.producerId, each.producerEpoch)
            marker = EndMarker(
                each.transactionResult, each.coordinatorEpoch, each.transactionVersion
            )
            places = dict.fromkeys(
                TopicPartition(topic.name, index)
                for topic in each.topics
                for index in topic.partitionIndexes
            )

            async def write(place: TopicPartition) -> ErrorCode:
                return await self._marked(place, producer, marker)  # noqa: B023

            codes = dict(zip(places, await gatherInBatches(write, places), strict=True))
            topics: dict[str, list[Any]] = {}
            for place, code in codes.items():
                topics.setdefault(place.topic, []).append(
                    response.WritableTxnMarkerPartitionResult(
                        partitionIndex=place.partition, errorCode=code
                    )
                )
            results.append(
                response.WritableTxnMarkerResult(
                    producerId=each.producerId,
                    topics=[
                        response.WritableTxnMarkerTopicResult(name=name, partitions=found)
                        for name, found in topics.items()
                    ],
                )
            )
        return response(markers=results)

    async def _marked(
        self, place: TopicPartition, producer: TransactionalProducer, marker: EndMarker
    ) -> ErrorCode:
        if self._topics.leaderAt(*place) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if producer.producerId < 0 or producer.producerEpoch < 0:
            return ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka, which fails to make the batch
        try:
            await self._transactions.writeMarker(place, producer, marker)
        except PylogbrokerError as error:
            return errorOf(error).code
        return ErrorCode.NONE

    # -- TxnOffsetCommit

    def txnOffsetCommit(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle TxnOffsetCommit; as L{Handler}."""

        async def admit(place: TopicPartition) -> ErrorCode:
            producer = TransactionalProducer(request.producerId, request.producerEpoch)
            name, version = request.transactionalId, header.apiVersion
            isAdding = version >= _ADDING_COMMIT_VERSION
            transactions = self._transactions
            admission = transactions.newAdmission()
            try:
                await transactions.admit(admission, name, producer, [place], isAdding)
                # The caller appends before anything else can happen.
                error = transactions.verify(name, producer, place, admission)
            finally:
                admission.close()
            if isAdding and error is ErrorCode.CONCURRENT_TRANSACTIONS:
                return error
            if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_COMMIT_VERSION:
                return ErrorCode.INVALID_TXN_STATE
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error in _RETRIED else error

        return self._groups.txnOffsetCommit(header, request, state, admit)

    # -- administration

    def describeTransactions(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """Handle DescribeTransactions; as L{Handler}."""
        limit = RepeatLimit()
        names = [each for each in request.transactionalIds if limit.admits(each)]
        found = self._transactions.coordinator.describeTransactions(names)
        return messages.DescribeTransactionsResponse(transactionStates=found)

    def listTransactions(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle ListTransactions; as L{Handler}."""
        response = messages.ListTransactionsResponse
        matches: Callable[[str], bool] = _isAny
        if request.transactionalIdPattern:
            from pylogbroker.cluster.javaregex import TopicPattern  # with RE2, for this alone

            try:
                matches = TopicPattern(request.transactionalIdPattern).matches
            except InvalidPatternError:
                return response(errorCode=ErrorCode.INVALID_REGULAR_EXPRESSION)
        answer = self._transactions.coordinator.listTransactions(
            frozenset(request.producerIdFilters),
            request.stateFilters,
            request.durationFilter,
            matches,
        )
        return response(**answer._asdict())


def _isAny(transactionalId: str) -> bool:
    return True


def _known(error: int, isFencedKnown: bool) -> int:
    """Older clients know only the error of partitions for a producer that was replaced."""
    if error == ErrorCode.PRODUCER_FENCED and not isFencedKnown:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _results(codes: Mapping[TopicPartition, int]) -> list[Any]:
    cls = messages.AddPartitionsToTxnResponse
    topics: dict[str, list[Any]] = {}
    for place, code in codes.items():
        topics.setdefault(place.topic, []).append(
            cls.AddPartitionsToTxnPartitionResult(
                partitionIndex=place.partition, partitionErrorCode=code
            )
        )
    return [
        cls.AddPartitionsToTxnTopicResult(name=name, resultsByPartition=found)
        for name, found in topics.items()
    ]
