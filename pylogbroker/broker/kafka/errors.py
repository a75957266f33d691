"""
Refusals with Kafka's codes, and the code of each error that the rooms below raise.
"""

from __future__ import annotations

from pylogbroker.errors import (
    AppendTruncatedError,
    BackpressureError,
    BatchSizeError,
    CoordinatorFencedError,
    CorruptCompressionError,
    DecompressionLimitError,
    FormatError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTimestampError,
    InvalidTransactionStateError,
    LeadershipLostError,
    MessageTooLargeError,
    MetadataUnconfirmedError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PylogbrokerError,
    StorageError,
    UnknownCodecError,
    UnknownPartitionError,
    UnsupportedForMessageFormatError,
    ZookeeperError,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode


class KafkaError(PylogbrokerError):
    """
    A refusal with a code of the protocol.

    @ivar code: the L{ErrorCode}.
    @ivar text: for the client; Kafka's own text without one.
    """

    def __init__(self, code: ErrorCode, text: str | None = None) -> None:
        self.code = code
        self.text = text or code.message
        super().__init__(f"{code.name}: {self.text}")


_CODES: tuple[tuple[type[PylogbrokerError], ErrorCode], ...] = (
    (UnsupportedForMessageFormatError, ErrorCode.INVALID_RECORD),
    (InvalidTimestampError, ErrorCode.INVALID_TIMESTAMP),
    (InvalidRecordError, ErrorCode.INVALID_RECORD),
    (MessageTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (DecompressionLimitError, ErrorCode.MESSAGE_TOO_LARGE),
    (CorruptCompressionError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (UnknownCodecError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (FormatError, ErrorCode.CORRUPT_MESSAGE),
    (BatchSizeError, ErrorCode.RECORD_LIST_TOO_LARGE),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (InvalidProducerEpochError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (CoordinatorFencedError, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (InvalidTransactionStateError, ErrorCode.INVALID_TXN_STATE),
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (InvalidReplicationFactorError, ErrorCode.INVALID_REPLICATION_FACTOR),
    (InvalidReplicaAssignmentError, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (UnknownPartitionError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (AppendTruncatedError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (LeadershipLostError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (BackpressureError, ErrorCode.REQUEST_TIMED_OUT),
    (MetadataUnconfirmedError, ErrorCode.REQUEST_TIMED_OUT),
    (ZookeeperError, ErrorCode.REQUEST_TIMED_OUT),
)


def errorOf(error: PylogbrokerError) -> KafkaError:
    """
    The refusal that a client gets for an error. The text of an error that is the client's fault is
    told; that of a failed disk is for the log.
    """
    if isinstance(error, KafkaError):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            reason = str(getattr(error, "reason", error))
            return KafkaError(code, None if kind is StorageError else reason)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
