"""
All errors that pylogbroker raises on purpose, in one tree, with the error codes of the 2011
protocol in one table.

The class tells whether the input was wrong (L{FormatError}, L{WireError}, L{InvalidTopicError},
L{ConfigurationError}), the machine failed (L{StorageError}), or the other side refused
(L{RemoteError}, L{BrokerConnectionError}). C{struct.error} and C{OSError} never leave the room
where they occur.
"""

from __future__ import annotations

import typing

_E = typing.TypeVar("_E", bound=BaseException)


class PylogbrokerError(Exception):
    """The root of the tree."""


class ConfigurationError(PylogbrokerError):
    """
    A property, option or endpoint string is wrong. The text names it, its value and the remedy.
    """


def copyForReraise(error: _E) -> _E:
    """
    A copy of an error to raise again. A shared exception would collect the frames of each C{raise}.
    """
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made


def describeError(error: BaseException) -> str:
    """The text of a foreign error, or its type if it has none."""
    return str(error) or type(error).__name__


# -- bytes that are not what they should be
# ---------------------------------------------------------------------------


class FormatError(PylogbrokerError):
    """
    The bytes are no valid message set or record batch.

    @ivar position: the byte in the data where the bad top-level entry begins.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (entry at byte {position})")
        self.reason = reason
        self.position = position


class InvalidMessageSizeError(FormatError):
    """
    The size of an entry is negative, too small for its header, or larger than the data (spec-0.7
    wire-protocol §7.2).
    """


class InvalidChecksumError(FormatError):
    """The checksum in the header does not match the bytes."""


class UnknownMagicError(FormatError):
    """The magic byte is none that the format knows."""


class UnsupportedForMessageFormatError(FormatError):
    """The magic byte, 0 or 1, is of an earlier format than record batches."""


class InvalidRecordError(FormatError):
    """
    A record batch, or a record in it, breaks a rule: a count that does not match, a control batch
    from a client, no key in a compacted topic.

    @ivar recordErrors: index in the batch and reason, of the records that are wrong.
    """

    def __init__(
        self, reason: str, position: int = 0, recordErrors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(reason, position)
        self.recordErrors = recordErrors


class InvalidTimestampError(InvalidRecordError):
    """A timestamp is too far from the broker's time, or is the broker's to set."""


class UnknownCodecError(FormatError):
    """The codec is not known."""


class CorruptCompressionError(FormatError):
    """A compressed payload cannot be decompressed."""


class MessageTooLargeError(FormatError):
    """A top-level payload is larger than C{max.message.size}."""


class RecordTooLargeError(PylogbrokerError):
    """What a task sends or stores is larger than C{max.request.size} of its producer."""


class DecompressionLimitError(FormatError):
    """
    A compressed entry is too large or nested too deeply. No memory beyond the limit was allocated.
    """


class WireError(PylogbrokerError):
    """A frame, request or response breaks the protocol. Only its connection is closed."""


class FrameSizeError(WireError):
    """The size of a frame is not positive, or above the limit."""


class UnknownRequestError(WireError):
    """The dialect has no such request type."""


class UnsupportedVersionError(WireError):
    """A request or message does not have this version; the text names both."""


class InvalidRequestValueError(PylogbrokerError):
    """A request has an impossible value, such as a negative size. Its connection is closed."""


class InvalidTopicError(PylogbrokerError):
    """A topic name breaks a rule of spec-0.7 log-storage §12; the text says which."""


class NotAllowedError(InvalidTopicError):
    """The client may not use a topic; to this client the topic does not exist."""


class InvalidNameError(PylogbrokerError):
    """The name of a group, consumer or topic cannot be part of a ZooKeeper path."""


class InvalidPatternError(PylogbrokerError):
    """A topic filter is no pattern, or one that Java would match differently."""


class InvalidKeyError(PylogbrokerError):
    """The partitioner cannot use a key."""


class ZnodeError(PylogbrokerError):
    """
    A znode holds invalid data.

    @ivar path: of the znode.
    """

    def __init__(self, path: str, value: str, reason: str) -> None:
        super().__init__(f"{path} has the value {value}: {reason}")
        self.path = path
        self.reason = reason


# -- the machine
# ------------------------------------------------------------------------------------------------


class StorageError(PylogbrokerError):
    """
    A file operation failed.

    @ivar path: the file or directory.
    @ivar action: the operation (C{"write"}, C{"fsync"} …).
    @ivar errno: the system's number, or L{None}.
    """

    def __init__(self, path: str, action: str, reason: str, errno: int | None = None) -> None:
        super().__init__(f"cannot {action} {path}: {reason}")
        self.path = path
        self.action = action
        self.reason = reason
        self.errno = errno


class CorruptLogError(StorageError):
    """The files of a partition do not fit together. They are unchanged."""


class DirectoryLockedError(StorageError):
    """Another broker uses the log directory; or another engine, in any process, the store's."""


class PartitionOfflineError(StorageError):
    """An earlier failure, named in the text, took the partition offline. The others serve."""


class AppendTruncatedError(StorageError):
    """
    What was appended is no longer in the log: another replica leads, which does not have it.
    """


class LeadershipLostError(StorageError):
    """
    This broker does not lead the partition any more. What was appended may be kept by the next
    leader, or not.
    """


class MetadataError(PylogbrokerError):
    """Metadata records cannot be read, or do not fit to each other."""


class MetadataUnconfirmedError(PylogbrokerError):
    """
    No answer came in time: the change may have been made, or may yet be. Look before it is tried
    again.
    """


class TableError(PylogbrokerError):
    """
    The folder of a table has unexpected content. It is unchanged.

    @ivar path: the unexpected file or folder.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class TableBusyError(TableError):
    """Another run writes to the table, or committed first. This run committed nothing."""


class LoadError(PylogbrokerError):
    """A load failed and committed nothing; the next run repeats it. The text gives the reason."""


class PostCommitError(PylogbrokerError):
    """A run was committed, and a later step failed. The text names both."""


# -- what a broker answers
# ------------------------------------------------------------------------------------------------


class OffsetOutOfRangeError(PylogbrokerError):
    """The offset is below the log start or above the high watermark."""


class PartitionOutOfRangeError(PylogbrokerError):
    """The topic has no such partition."""


class UnknownPartitionError(PylogbrokerError):
    """The broker has not created this partition of the topic."""


class InvalidReplicationFactorError(PylogbrokerError):
    """A partition cannot have this number of replicas. The text is Kafka's."""


class InvalidReplicaAssignmentError(PylogbrokerError):
    """A partition cannot have these replicas. The text is Kafka's."""


class BatchSizeError(PylogbrokerError):
    """A batch is larger than a segment can be."""


class LeaderBatchError(PylogbrokerError):
    """
    The batches of a leader do not follow the end of the follower's log. None of them was appended.
    """


class OutOfOrderSequenceError(PylogbrokerError):
    """
    The sequence of an idempotent producer's batch is not the next one. The text names both.
    """


class InvalidProducerEpochError(PylogbrokerError):
    """A newer producer with the same id has written to the partition."""


class InvalidTransactionStateError(PylogbrokerError):
    """A producer wrote outside of its transaction while one was ongoing."""


class CoordinatorFencedError(PylogbrokerError):
    """A newer transaction coordinator has ended a transaction of the producer."""


class RemoteError(PylogbrokerError):
    """
    The broker answered with an error code.

    @ivar code: as on the wire (spec-0.7 wire-protocol §8).
    """

    code = -1

    def __init__(self, reason: str = "", code: int | None = None) -> None:
        super().__init__(reason or type(self).__doc__ or "")
        if code is not None:
            self.code = code


class RemoteUnknownError(RemoteError):
    """Code -1: the broker does not allow the request, or failed. Its log says which."""

    code = -1


class RemoteOffsetOutOfRangeError(RemoteError, OffsetOutOfRangeError):
    """Code 1: the offset is below the log start or above the high watermark."""

    code = 1


class RemoteInvalidMessageError(RemoteError):
    """Code 2: the checksum of a message is wrong."""

    code = 2


class RemotePartitionError(RemoteError, PartitionOutOfRangeError):
    """Code 3: the topic has no such partition."""

    code = 3


class RemoteFetchSizeError(RemoteError):
    """Code 4: the fetch size is invalid."""

    code = 4


NO_ERROR = 0
ERRORS_BY_CODE: dict[int, type[RemoteError]] = {
    cls.code: cls
    for cls in (
        RemoteUnknownError,
        RemoteOffsetOutOfRangeError,
        RemoteInvalidMessageError,
        RemotePartitionError,
        RemoteFetchSizeError,
    )
}


def errorForCode(code: int, where: str = "") -> RemoteError:
    """
    The error for an error code.

    @param code: any code but 0.
    @param where: the subject of the request, for the text.
    """
    cls = ERRORS_BY_CODE.get(code)
    text = (cls.__doc__ if cls is not None else None) or (
        f"The broker answered with error code {code}, which the protocol does not define."
    )
    return (cls or RemoteUnknownError)(f"{text}{' ' + where if where else ''}", code)


# -- the way to a broker
# ------------------------------------------------------------------------------------------------


class BrokerConnectionError(PylogbrokerError):
    """The connection could not be made, or was lost. The text names broker and reason."""


class ConnectionLostError(BrokerConnectionError):
    """The connection was lost before the response. A broker also refuses requests in this way."""


class TimedOutError(BrokerConnectionError):
    """A connection or a response took too long. The text gives the time."""


class ClosedError(BrokerConnectionError):
    """The owner closed the client."""


class BackpressureError(PylogbrokerError):
    """
    Too much waits to be sent to a broker. Nothing of this call was sent; wait for earlier
    L{Deferred}s.
    """


# -- producers
# ------------------------------------------------------------------------------------------------


class QueueFullError(BackpressureError):
    """The producer's queue stayed full for the allowed time. Nothing of this call was sent."""


class NoBrokersError(PylogbrokerError):
    """A topic has no broker. Nothing was sent. The text names topic and key."""


class InvalidPartitionError(PylogbrokerError):
    """
    The result of a partitioner is out of range. Nothing was sent. The text names key, result and
    range.
    """


class EncodingError(PylogbrokerError):
    """The encoder cannot encode a value. Nothing of it was sent."""


class UnknownOutcomeError(BrokerConnectionError):
    """
    Messages were written at least in part, and it is unknown whether the broker has them. The text
    gives the reason.
    """


class TransactionAbortedError(PylogbrokerError):
    """
    A producer's transaction was aborted, or must be: readers of C{read_committed} see nothing of
    it. The text gives the reason.
    """


class TransactionStateError(PylogbrokerError):
    """A call does not fit the state of the producer's transaction. Nothing was done."""


# -- schemas
# ------------------------------------------------------------------------------------------------


class SchemaError(PylogbrokerError):
    """A schema, or a value for it, is wrong. Never a failed request to the registry."""


class InvalidSchemaError(SchemaError):
    """A text is no schema, or an unsafe one; the text says why."""


class IncompatibleReaderSchemaError(SchemaError):
    """One schema cannot read the other's data; the text says where."""


class SchemaNotFoundError(SchemaError):
    """The registry has no schema with this id."""


class InvalidPayloadError(SchemaError):
    """A payload does not begin with magic byte and schema id, or does not match its schema."""


class InvalidEntryError(SchemaError):
    """An entry of a registry's topic cannot be read."""


class InvalidRegistryTopicError(PylogbrokerError):
    """A topic lacks the first entries of a registry, or holds other data. The text says which."""


class RegistryRefusalError(PylogbrokerError):
    """
    A schema registry refused a request.

    @ivar code: its error code, five digits or an HTTP status.
    @ivar status: the HTTP status.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


class NotLeaderError(RegistryRefusalError):
    """
    A schema registry cannot change anything, since another one leads.

    @ivar url: of the registry that leads; empty: none is known.
    """

    def __init__(self, code: int, reason: str, url: str = "") -> None:
        super().__init__(code, reason)
        self.url = url


# -- groups
# ------------------------------------------------------------------------------------------------


class ConsumerTimeoutError(PylogbrokerError):
    """No message came within C{consumer.timeout.ms}. The iterator can be used again."""


class ConsumerStateError(PylogbrokerError):
    """
    A consumer was used before it was connected or after shutdown, was asked for streams twice, or a
    stream got a second reader.
    """


class LogTruncatedError(PylogbrokerError):
    """
    Messages that were read are not in the log any more: a broker without them was elected leader,
    or the topic was deleted and made again. The text names the partition.

    @ivar offset: where the reader was.
    @ivar divergingOffset: the first offset at which the log differs; L{None}: the broker does not
        know.
    """

    def __init__(self, reason: str, offset: int, divergingOffset: int | None) -> None:
        super().__init__(reason)
        self.offset = offset
        self.divergingOffset = divergingOffset


class RebalanceFailedError(PylogbrokerError):
    """All allowed attempts failed; the text says why the last did. The consumer retries."""


class CommitFailedError(PylogbrokerError):
    """Offsets could not be stored; the text names the partitions. The next commit retries them."""


class OffsetConflictError(PylogbrokerError):
    """
    An offset in the application's database was changed by another member, or would go back. The
    messages are processed already: roll the transaction back and join the group again. The text
    says where.
    """


# -- reading ranges
# ------------------------------------------------------------------------------------------------


class DataLossError(PylogbrokerError):
    """Wanted data was deleted. The text names what was wanted and what is left."""


class UnreadableRangeError(PylogbrokerError):
    """
    A range of a partition has a bad entry, or one that is too large or crosses its end. The text
    names topic, partition and offset.
    """


# -- ZooKeeper: the names are those of txzookeeper
# --------------------------------------------------------------------


class ZookeeperError(PylogbrokerError):
    """ZooKeeper refused a request, or did not answer. The text names the path."""


class NoNodeException(ZookeeperError):
    """The node, or the parent of a new one, does not exist."""


class NodeExistsException(ZookeeperError):
    """The node exists."""


class BadVersionException(ZookeeperError):
    """The node has another version."""


class NotEmptyException(ZookeeperError):
    """The node has children."""


class NoChildrenForEphemeralsException(ZookeeperError):
    """The parent is ephemeral."""


class NoAuthException(ZookeeperError):
    """The access control list of the node does not allow the request."""


class AuthFailedException(ZookeeperError):
    """The credentials were refused."""


class ConnectionLossException(ZookeeperError):
    """The connection was lost before the answer. A change may have been made."""


class ZookeeperTimeoutException(ConnectionLossException):
    """ZooKeeper did not answer in time. A change may have been made."""


class SessionExpiredException(ZookeeperError):
    """The session has expired, with its ephemeral nodes."""


class ClosingException(ZookeeperError):
    """The owner closed the client."""


class MultiFailedException(ZookeeperError):
    """
    An operation of a C{multi} was refused, and nothing was changed.

    @ivar index: of the operation, from 0.
    @ivar reason: why it was refused.
    """

    def __init__(self, index: int, count: int, reason: ZookeeperError) -> None:
        super().__init__(
            f"nothing was changed, since operation {index + 1} of {count} was refused: {reason}"
        )
        self.index = index
        self.reason = reason


class RequestSizeException(ZookeeperError):
    """The request is larger than servers take, and was not sent."""


# -- stream processing
# ---------------------------------------------------------------------------


class TaskFailedError(PylogbrokerError):
    """
    A task could not handle a message.

    @ivar task: its name.
    @ivar reason: what it raised.
    """

    def __init__(self, task: str, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"task {task} failed at offset {offset} of partition {partition} of {topic}: {reason}"
        )
        self.task = task
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class ResultFailedError(PylogbrokerError):
    """
    What comes of a step of a compiled job could not be worked out or encoded. There is no one
    message that has caused it.
    """

    def __init__(self, job: str, step: str, key: bytes, reason: str) -> None:
        """@param key: encoded."""
        super().__init__(f"job {job} failed behind step {step}, for the key {key[:80]!r}: {reason}")


class SparkQueryError(PylogbrokerError):
    """
    The query of a job on Spark failed. What its last micro-batch did is not in its state. The text
    names the job and the reason.
    """


class MissingTimestampError(PylogbrokerError):
    """A message has no timestamp, and reached a step of a job that needs its time."""


class TaskOutputError(PylogbrokerError):
    """A task sent a message to a topic that is no output of its job."""


class TupleError(PylogbrokerError):
    """
    A component of a topology emitted what it cannot emit. Nothing of it was sent. The text names
    the component and the stream.
    """


class ComponentFailedError(PylogbrokerError):
    """
    The code of a component of a topology raised.

    @ivar where: topology, component, task and method.
    @ivar reason: what it raised.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason
