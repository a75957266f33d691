"""
Every error that pylogbroker raises on purpose, in one tree, and the error codes of the 2011 wire protocol in one table.

Three questions are answered by the class alone: was the *input* wrong (L{FormatError}, L{WireError}, L{InvalidTopicError},
L{ConfigurationError}), did the *machine* fail (L{StorageError}), or did the *other side* say no (L{RemoteError}, L{BrokerConnectionError})?
C{struct.error} and C{OSError} never leave the rooms that meet them.
"""

from __future__ import annotations

import typing

_E = typing.TypeVar("_E", bound=BaseException)


class PylogbrokerError(Exception):
    """The root of the tree."""


class ConfigurationError(PylogbrokerError):
    """A property, option or endpoint string is wrong; the text names it, its value and what would be right."""


def copyForReraise(error: _E) -> _E:
    """
    The same error once more, for whoever tells it again and again: an exception that is raised gathers the frames of each time, and their variables, for ever.
    Where it came from stays with the first.
    """
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made


def describeError(error: BaseException) -> str:
    """What a foreign error says; its kind, if it says nothing."""
    return str(error) or type(error).__name__


# -- bytes that are not what they should be ---------------------------------------------------------------------------


class FormatError(PylogbrokerError):
    """
    Bytes that are not a valid message set.

    @ivar position: where in the set the bad entry begins, in bytes; inside a compressed entry, the position of the outermost one.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (entry at byte {position})")
        self.reason = reason
        self.position = position


class InvalidMessageSizeError(FormatError):
    """An entry's size is negative, too small for its header, or more than the bytes at hand (spec-0.7 wire-protocol §7.2)."""


class InvalidChecksumError(FormatError):
    """The CRC-32 in the header is not that of the payload."""


class UnknownMagicError(FormatError):
    """The magic byte is neither 0 nor 1."""


class UnknownCodecError(FormatError):
    """The codec bits of an entry, or a codec's number or name, stand for nothing we know."""


class CorruptCompressionError(FormatError):
    """A compressed payload cannot be decompressed."""


class MessageTooLargeError(FormatError):
    """A top-level payload is larger than C{max.message.size}."""


class DecompressionLimitError(FormatError):
    """A compressed entry is larger than was allowed, once opened, or nested deeper. Nothing beyond the limit was allocated."""


class WireError(PylogbrokerError):
    """A frame, request or response that breaks the wire protocol; the connection cannot go on. Nothing but this connection suffers."""


class FrameSizeError(WireError):
    """A frame announces a size that is not positive, or over the limit."""


class UnknownRequestError(WireError):
    """A request type that the dialect does not have."""


class InvalidRequestError(PylogbrokerError):
    """A request that was understood and cannot be meant: a negative size or count. The connection cannot go on."""


class InvalidTopicError(PylogbrokerError):
    """A topic name that breaks the rules of spec-0.7 log-storage §12; the text says which."""


class NotAllowedError(InvalidTopicError):
    """A topic that a client may not use; for this client it is as if there were none of that name."""


class InvalidNameError(PylogbrokerError):
    """The name of a group, consumer or topic that cannot be a step of a path in ZooKeeper."""


class InvalidPatternError(PylogbrokerError):
    """A whitelist's or blacklist's pattern that is none, or that Java and Python would read differently."""


class InvalidKeyError(PylogbrokerError):
    """A key that the partitioner cannot make a partition of."""


class ZnodeError(PylogbrokerError):
    """
    A znode has a value that does not belong there.

    @ivar path: of the znode.
    """

    def __init__(self, path: str, value: str, reason: str) -> None:
        super().__init__(f"{path} has the value {value}: {reason}")
        self.path = path
        self.reason = reason


# -- the machine ------------------------------------------------------------------------------------------------------


class StorageError(PylogbrokerError):
    """
    A file operation failed.

    @ivar path: the file or directory.
    @ivar action: what was being done (C{"write"}, C{"fsync"} …).
    @ivar errno: the system's number, or L{None}.
    """

    def __init__(self, path: str, action: str, reason: str, errno: int | None = None) -> None:
        super().__init__(f"cannot {action} {path}: {reason}")
        self.path = path
        self.action = action
        self.reason = reason
        self.errno = errno


class CorruptLogError(StorageError):
    """A partition's files do not fit together (segments with gaps, names that are no offsets); nobody has touched them."""


class DirectoryLockedError(StorageError):
    """Another broker has the log directory."""


class PartitionOfflineError(StorageError):
    """The partition was taken out of service by an earlier failure, which the text repeats. The other partitions serve."""


class TableError(PylogbrokerError):
    """
    The folder of a table, to which topics are loaded, is not what it ought to be. Nobody has touched what is there.

    @ivar path: what is wrong.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class TableBusyError(TableError):
    """Another run writes to the table, or has committed first. Nothing of this one was committed."""


class LoadError(PylogbrokerError):
    """A load came to nothing; the text says why. Nothing of it was committed, and the next run does all of it."""


class PostCommitError(PylogbrokerError):
    """A run of a table was committed, and what was to be done behind it did not work out; the text says which run it was, and what failed."""


# -- what a broker answers --------------------------------------------------------------------------------------------


class OffsetOutOfRangeError(PylogbrokerError):
    """The offset is below the start of the log or beyond what is visible."""


class PartitionOutOfRangeError(PylogbrokerError):
    """The partition number is not one of the topic's."""


class UnknownPartitionError(PylogbrokerError):
    """The topic can have this partition, but the broker has not created it."""


class RemoteError(PylogbrokerError):
    """
    The broker answered with an error code.

    @ivar code: the code, as on the wire (spec-0.7 wire-protocol §8).
    """

    code = -1

    def __init__(self, reason: str = "", code: int | None = None) -> None:
        super().__init__(reason or type(self).__doc__ or "")
        if code is not None:
            self.code = code


class RemoteUnknownError(RemoteError):
    """The broker refused the request (code -1): it does not let this client use the topic, or it failed. Its log says which."""

    code = -1


class RemoteOffsetOutOfRangeError(RemoteError, OffsetOutOfRangeError):
    """The offset is below the start of the log or beyond what is visible (code 1)."""

    code = 1


class RemoteInvalidMessageError(RemoteError):
    """A message's checksum is wrong (code 2)."""

    code = 2


class RemotePartitionError(RemoteError, PartitionOutOfRangeError):
    """The partition number is not one of the topic's (code 3)."""

    code = 3


class RemoteFetchSizeError(RemoteError):
    """The fetch size is invalid (code 4)."""

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
    The error that an error code of a response stands for.

    @param code: any code but 0.
    @param where: what was asked for, for the text.
    """
    cls = ERRORS_BY_CODE.get(code)
    text = (cls.__doc__ if cls is not None else None) or (
        f"The broker answered with error code {code}, which the protocol does not define."
    )
    return (cls or RemoteUnknownError)(f"{text}{' ' + where if where else ''}", code)


# -- the way to a broker ----------------------------------------------------------------------------------------------


class BrokerConnectionError(PylogbrokerError):
    """The connection could not be made, or was lost; the text names the broker and the reason."""


class ConnectionLostError(BrokerConnectionError):
    """There was a connection, and it was lost before the answer came: which is also how a broker refuses a request, whatever else was asked over it."""


class TimedOutError(BrokerConnectionError):
    """An answer, or a connection, did not come in time. The text says how long was waited."""


class ClosedError(BrokerConnectionError):
    """The client was closed by its owner."""


class BackpressureError(PylogbrokerError):
    """So much waits to be sent to a broker that no more is taken. Nothing of the call was sent; wait for the L{Deferred}s of earlier ones."""


# -- producers --------------------------------------------------------------------------------------------------------


class QueueFullError(BackpressureError):
    """The producer's queue is full, and was so for as long as the message was to wait. Nothing of the call was sent."""


class NoBrokersError(PylogbrokerError):
    """There is no broker for a topic. Nothing was sent. The text names topic and key."""


class InvalidPartitionError(PylogbrokerError):
    """A partitioner gave what is no index of a partition. Nothing was sent. The text names key, result and range."""


class EncodingError(PylogbrokerError):
    """A value that the encoder makes no bytes of. Nothing was sent of it."""


class UnknownOutcomeError(BrokerConnectionError):
    """Messages were written, at least in part, and whether the broker took them cannot be known any more. The text says why."""


# -- schemas ----------------------------------------------------------------------------------------------------------


class SchemaError(PylogbrokerError):
    """Something is wrong with a schema, or with what was to be read by one. Never that the registry could not be asked."""


class InvalidSchemaError(SchemaError):
    """A schema that is none, or that cannot be used safely; the text says why."""


class IncompatibleSchemaError(SchemaError):
    """What one schema has written, the other cannot read; the text says where."""


class UnknownSchemaError(SchemaError):
    """The registry, or whoever was asked, knows no schema of that id."""


class InvalidPayloadError(SchemaError):
    """A payload that does not begin with magic byte and schema id, or whose body is not what its schema says."""


class InvalidEntryError(SchemaError):
    """An entry of a registry's topic that cannot be read."""


class InvalidRegistryTopicError(PylogbrokerError):
    """A topic does not hold a registry's entries from the first on: retention has deleted some, or it is something else's. The text says which."""


class RegistryError(PylogbrokerError):
    """
    A schema registry says no.

    @ivar code: its error code, five digits or an HTTP status.
    @ivar status: the HTTP status.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


# -- groups -----------------------------------------------------------------------------------------------------------


class ConsumerTimeoutError(PylogbrokerError):
    """No message came within C{consumer.timeout.ms}. The iterator goes on when it is asked again."""


class ConsumerStateError(PylogbrokerError):
    """
    A consumer was asked for streams a second time, before it was connected, or after it was shut down; or a stream to be read by a second reader while
    another reads it.
    """


class RebalanceFailedError(PylogbrokerError):
    """As many attempts as were allowed came to nothing; the text says why the last did. The consumer goes on trying."""


class CommitFailedError(PylogbrokerError):
    """Positions could not be stored; the text says of which partitions. They are tried again with the next commit."""


class OffsetConflictError(PylogbrokerError):
    """
    A position in the application's own database is not to be changed so: another member has changed it since, or it would go back. What was done with the
    messages up to there is done already, or another's: roll the transaction back, and join the group anew. The text says where.
    """


# -- reading ranges ---------------------------------------------------------------------------------------------------


class DataLossError(PylogbrokerError):
    """What was to be read is not there any more: deleted by retention, or the log was emptied. The text says what was wanted and what is left."""


class UnreadableRangeError(PylogbrokerError):
    """A range of a partition cannot be read: an entry is bad, too large, or crosses the range's end. The text names topic, partition and offset."""


# -- ZooKeeper: the names are those of txzookeeper --------------------------------------------------------------------


class ZookeeperError(PylogbrokerError):
    """ZooKeeper refused something, or could not be asked. The text names the path."""


class NoNodeException(ZookeeperError):
    """There is no such node, or no parent for a new one."""


class NodeExistsException(ZookeeperError):
    """The node is there already."""


class BadVersionException(ZookeeperError):
    """The node has another version."""


class NotEmptyException(ZookeeperError):
    """The node has children."""


class NoChildrenForEphemeralsException(ZookeeperError):
    """The parent is ephemeral."""


class NoAuthException(ZookeeperError):
    """The node's access control list does not allow that."""


class AuthFailedException(ZookeeperError):
    """The credentials were refused."""


class ConnectionLossException(ZookeeperError):
    """The connection to ZooKeeper was lost before the answer came: whether a change was made is not known."""


class ZookeeperTimeoutException(ConnectionLossException):
    """ZooKeeper did not answer in time. Whether a change was made is not known."""


class SessionExpiredException(ZookeeperError):
    """The session is over, and its ephemeral nodes with it."""


class ClosingException(ZookeeperError):
    """The client was closed by its owner."""
