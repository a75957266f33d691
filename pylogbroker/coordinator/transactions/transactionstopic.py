"""
The records of C{__transaction_state}, as Apache Kafka writes and reads them: bytes in, values out.
A module of its own, since tools and tests read them without a coordinator.

The key is the transactional id; the value is where its transaction stands. A record with a key and
no value deletes the transactional id. Values of versions 0 and 1 are read, 1 is written, as by
Kafka with C{transaction.version} 2.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.coordinatorrecords import (
    RECORDS,
    decodeRecord,
    encodeRecord,
    recordVersion,
)
from pylogbroker.types import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

TRANSACTIONAL_ID_SIZE_MAX = 0x7FFF
"""Bytes of a transactional id that a key can hold."""

_KEY_VERSION = 0
_VALUE_VERSION = 1


class TransactionState(Enum):
    """The state of a transaction; the values are Kafka's names, in the order of its numbers."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


_STATES = tuple(TransactionState)


class StoredTransaction(NamedTuple):
    """
    Where the transaction of a transactional id stands.

    @ivar previousProducerId: before the last change of the producer id; -1: none.
    @ivar nextProducerId: the producer id from the end of the transaction on; -1: the same.
    @ivar timeoutMs: how long the transaction may be ongoing.
    @ivar partitions: that the transaction has written to, or will.
    @ivar lastUpdateMs: of the record, since 1970.
    @ivar startMs: of the transaction, since 1970; -1: there was none.
    @ivar clientVersion: C{transaction.version} of the client: from 2 on each transaction has an
        epoch of its own.
    """

    producerId: int
    producerEpoch: int
    timeoutMs: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    lastUpdateMs: int = -1
    startMs: int = -1
    previousProducerId: int = NO_PRODUCER_ID
    nextProducerId: int = NO_PRODUCER_ID
    clientVersion: int = 0


def transactionPartition(transactionalId: str, partitionCount: int) -> int:
    """The partition of C{__transaction_state} that holds an id: by Java's hash of it."""
    return defaultPartitioner(transactionalId, partitionCount)


def encodeTransactionKey(transactionalId: str) -> bytes:
    """
    @raise FormatError: the id has more than L{TRANSACTIONAL_ID_SIZE_MAX} bytes.
    """
    return encodeRecord(RECORDS["TransactionLogKey"](transactionalId=transactionalId), _KEY_VERSION)


def encodeTransaction(stored: StoredTransaction) -> bytes:
    """The value of a transaction."""
    cls: Any = RECORDS["TransactionLogValue"]
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(stored.partitions):
        topics.setdefault(topic, []).append(index)
    partitions = [
        cls.PartitionsSchema(topic=topic, partitionIds=indexes) for topic, indexes in topics.items()
    ]
    made = cls(
        producerId=stored.producerId,
        previousProducerId=stored.previousProducerId,
        nextProducerId=stored.nextProducerId,
        producerEpoch=stored.producerEpoch,
        transactionTimeoutMs=stored.timeoutMs,
        transactionStatus=_STATES.index(stored.state),
        transactionPartitions=None if stored.state is TransactionState.EMPTY else partitions,
        transactionLastUpdateTimestampMs=stored.lastUpdateMs,
        transactionStartTimestampMs=stored.startMs,
        clientTransactionVersion=stored.clientVersion,
    )
    return encodeRecord(made, _VALUE_VERSION)


def decodeTransactionKey(data: bytes) -> str | None:
    """
    @return: the transactional id; L{None} for a key of a later version.
    @raise FormatError: the key is cut, or has bytes left over.
    """
    if recordVersion(data) != _KEY_VERSION:
        return None
    transactionalId: str = decodeRecord("TransactionLogKey", data).transactionalId
    return transactionalId


def decodeTransaction(data: bytes) -> StoredTransaction:
    """
    @raise FormatError: the value is cut, or of an unknown version or state.
    """
    found = decodeRecord("TransactionLogValue", data)
    number = found.transactionStatus
    if not 0 <= number < len(_STATES):
        raise FormatError(f"a transaction in the unknown state {number}")
    return StoredTransaction(
        found.producerId,
        found.producerEpoch,
        found.transactionTimeoutMs,
        _STATES[number],
        frozenset(
            TopicPartition(each.topic, index)
            for each in found.transactionPartitions or ()
            for index in each.partitionIds
        ),
        found.transactionLastUpdateTimestampMs,
        found.transactionStartTimestampMs,
        found.previousProducerId,
        found.nextProducerId,
        found.clientTransactionVersion,
    )
