"""
Requests to the transaction coordinator and its answers, with Kafka's names for their fields. A
module of its own, since those who only ask need no coordinator.

A request as C{protocol.kafka} decodes it serves as well as one of these classes. Times are
milliseconds, error codes are those of L{pylogbroker.protocol.kafka.errorcodes.ErrorCode}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pylogbroker.coordinator.transactions.transactionstopic import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class InitProducerId(NamedTuple):
    """
    Become the producer of a transactional id; the one before is fenced.

    @ivar producerId: that the producer has already, with its epoch; -1: none.
    """

    transactionalId: str
    transactionTimeoutMs: int
    producerId: int = NO_PRODUCER_ID
    producerEpoch: int = NO_PRODUCER_EPOCH


class ProducerIdAnswer(NamedTuple):
    """The id and epoch with which the producer writes from now on."""

    errorCode: int = 0
    producerId: int = NO_PRODUCER_ID
    producerEpoch: int = NO_PRODUCER_EPOCH
    throttleTimeMs: int = 0


class EndTxn(NamedTuple):
    """
    Commit or abort.

    @ivar committed: otherwise abort.
    """

    transactionalId: str
    producerId: int
    producerEpoch: int
    committed: bool


class PartitionData(NamedTuple):
    """Partitions of a topic in a transaction."""

    topic: str
    partitions: Sequence[int]


class DescribedTransaction(NamedTuple):
    """A transaction, for people."""

    transactionalId: str
    errorCode: int = 0
    transactionState: str = ""
    transactionTimeoutMs: int = 0
    transactionStartTimeMs: int = 0
    producerId: int = 0
    producerEpoch: int = 0
    topics: Sequence[PartitionData] = ()


class ListedTransaction(NamedTuple):
    """A transaction in a list."""

    transactionalId: str
    producerId: int
    transactionState: str


class ListTransactionsAnswer(NamedTuple):
    """Transactions; and the names of states in the request that are none."""

    errorCode: int = 0
    unknownStateFilters: Sequence[str] = ()
    transactionStates: Sequence[ListedTransaction] = ()
    throttleTimeMs: int = 0
