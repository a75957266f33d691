"""
Requests and responses of ZooKeeper's protocol.

A request is decoded whole, and strictly, before anything of it is done: foreign bytes raise
L{WireError} and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.zookeeper.server.jute import (
    Acl,
    JuteReader,
    encodeBool,
    encodeBuffer,
    encodeInt,
    encodeString,
)


class OpCode(IntEnum):
    """The types of requests that this server knows."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11


class KeeperCode(IntEnum):
    """The error codes of C{KeeperException} that this server answers with."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    QUOTA_EXCEEDED = -125


NOTIFICATION_XID = -1
PING_XID = -2

EPHEMERAL_FLAG = 1
SEQUENCE_FLAG = 2
CONTAINER_FLAGS = 4

PASSWORD_SIZE = 16
NO_RESULT = -1
ANY_VERSION = -1


class ConnectRequest(NamedTuple):
    """
    The first frame of a connection.

    @ivar lastZxid: the youngest transaction that the client has seen.
    @ivar timeoutMs: of the session, as the client wants it.
    @ivar sessionId: of the session to go on with; 0: a new one.
    @ivar knowsReadOnly: whether it is of ZooKeeper 3.4 or later, whose response has one field more.
    """

    lastZxid: int
    timeoutMs: int
    sessionId: int
    password: bytes
    knowsReadOnly: bool


class CreateRequest(NamedTuple):
    """
    Create a node.

    @ivar returnsStat: whether the response has the stat of the new node, too.
    """

    path: str
    data: bytes | None
    acls: tuple[Acl, ...]
    flags: int
    returnsStat: bool


class DeleteRequest(NamedTuple):
    """Delete a node with this version."""

    path: str
    version: int


class SetDataRequest(NamedTuple):
    """Set a node's data, if it has this version."""

    path: str
    data: bytes | None
    version: int


class SetAclRequest(NamedTuple):
    """Set a node's access control list, if that has this version."""

    path: str
    acls: tuple[Acl, ...]
    version: int


class CheckRequest(NamedTuple):
    """Require a node's version."""

    path: str
    version: int


class ReadRequest(NamedTuple):
    """A request with a path, and whether to watch it."""

    path: str
    isWatched: bool = False


class MultiRequest(NamedTuple):
    """Several requests that are carried out together: changes, or reads."""

    operations: tuple[tuple[OpCode, Request], ...]


class AuthRequest(NamedTuple):
    """Show credentials."""

    scheme: str
    credentials: bytes


class SetWatchesRequest(NamedTuple):
    """
    The watches that a client had on its last connection, by their paths.

    @ivar lastZxid: watches of what has changed since then fire at once.
    """

    lastZxid: int
    data: list[str]
    existence: list[str]
    children: list[str]
    persistent: list[str]
    recursive: list[str]


class WatchRequest(NamedTuple):
    """
    Add, remove or look for watches of a path.

    @ivar number: the mode of a watch to add, or the kind of those to remove.
    """

    path: str
    number: int


class EmptyRequest(NamedTuple):
    """A request without fields."""


Request = (
    CreateRequest
    | DeleteRequest
    | SetDataRequest
    | SetAclRequest
    | CheckRequest
    | ReadRequest
    | MultiRequest
    | AuthRequest
    | SetWatchesRequest
    | WatchRequest
    | EmptyRequest
)


def decodeConnect(data: bytes) -> ConnectRequest:
    """@raise WireError: it is none."""
    reader = JuteReader(data)
    version = reader.readInt()
    if version != 0:
        raise WireError(f"protocol version {version}; this server knows 0")
    lastZxid, timeoutMs, sessionId = reader.readLong(), reader.readInt(), reader.readLong()
    password = reader.readBuffer() or b""
    knowsReadOnly = not reader.isAtEnd
    if knowsReadOnly:
        reader.readBool()
    reader.readEnd()
    return ConnectRequest(lastZxid, timeoutMs, sessionId, password, knowsReadOnly)


def _readCreate(reader: JuteReader) -> CreateRequest:
    return CreateRequest(
        reader.readString(), reader.readBuffer(), reader.readAcls(), reader.readInt(), False
    )


def _readCreate2(reader: JuteReader) -> CreateRequest:
    return _readCreate(reader)._replace(returnsStat=True)


def _readCreateTtl(reader: JuteReader) -> CreateRequest:
    request = _readCreate2(reader)
    reader.readLong()  # its flags already say that it cannot be
    return request


def _readDelete(reader: JuteReader) -> DeleteRequest:
    return DeleteRequest(reader.readString(), reader.readInt())


def _readSetData(reader: JuteReader) -> SetDataRequest:
    return SetDataRequest(reader.readString(), reader.readBuffer(), reader.readInt())


def _readSetAcl(reader: JuteReader) -> SetAclRequest:
    return SetAclRequest(reader.readString(), reader.readAcls(), reader.readInt())


def _readCheck(reader: JuteReader) -> CheckRequest:
    return CheckRequest(reader.readString(), reader.readInt())


def _readWatched(reader: JuteReader) -> ReadRequest:
    return ReadRequest(reader.readString(), reader.readBool())


def _readPath(reader: JuteReader) -> ReadRequest:
    return ReadRequest(reader.readString())


def _readEmpty(reader: JuteReader) -> EmptyRequest:
    return EmptyRequest()


def _readAuth(reader: JuteReader) -> AuthRequest:
    reader.readInt()  # a type, which nothing uses
    return AuthRequest(reader.readString(), reader.readBuffer() or b"")


def _readSetWatches(reader: JuteReader) -> SetWatchesRequest:
    return SetWatchesRequest(
        reader.readLong(), reader.readStrings(), reader.readStrings(), reader.readStrings(), [], []
    )


def _readSetWatches2(reader: JuteReader) -> SetWatchesRequest:
    return _readSetWatches(reader)._replace(
        persistent=reader.readStrings(), recursive=reader.readStrings()
    )


def _readWatch(reader: JuteReader) -> WatchRequest:
    return WatchRequest(reader.readString(), reader.readInt())


_WRITES: dict[OpCode, Callable[[JuteReader], Request]] = {
    OpCode.CREATE: _readCreate,
    OpCode.CREATE2: _readCreate2,
    OpCode.CREATE_CONTAINER: _readCreate2,
    OpCode.CREATE_TTL: _readCreateTtl,
    OpCode.DELETE: _readDelete,
    OpCode.SET_DATA: _readSetData,
    OpCode.CHECK: _readCheck,
}
_READS: dict[OpCode, Callable[[JuteReader], Request]] = {
    OpCode.GET_DATA: _readWatched,
    OpCode.GET_CHILDREN: _readWatched,
}


def _readOperations(
    reader: JuteReader, allowed: dict[OpCode, Callable[[JuteReader], Request]]
) -> MultiRequest:
    operations: list[tuple[OpCode, Request]] = []
    while True:
        number, isDone = reader.readInt(), reader.readBool()
        reader.readInt()
        if isDone:
            return MultiRequest(tuple(operations))
        opCode = _opCode(number)
        read = allowed.get(opCode)
        if read is None:
            raise WireError(f"an operation of type {opCode.name} in a transaction")
        operations.append((opCode, read(reader)))


def _readMulti(reader: JuteReader) -> MultiRequest:
    return _readOperations(reader, _WRITES)


def _readMultiRead(reader: JuteReader) -> MultiRequest:
    return _readOperations(reader, _READS)


_DECODERS: dict[OpCode, Callable[[JuteReader], Request]] = {
    **_WRITES,
    OpCode.EXISTS: _readWatched,
    OpCode.GET_DATA: _readWatched,
    OpCode.GET_ACL: _readPath,
    OpCode.SET_ACL: _readSetAcl,
    OpCode.GET_CHILDREN: _readWatched,
    OpCode.SYNC: _readPath,
    OpCode.PING: _readEmpty,
    OpCode.GET_CHILDREN2: _readWatched,
    OpCode.MULTI: _readMulti,
    OpCode.CHECK_WATCHES: _readWatch,
    OpCode.REMOVE_WATCHES: _readWatch,
    OpCode.MULTI_READ: _readMultiRead,
    OpCode.AUTH: _readAuth,
    OpCode.SET_WATCHES: _readSetWatches,
    OpCode.GET_EPHEMERALS: _readPath,
    OpCode.GET_ALL_CHILDREN_NUMBER: _readPath,
    OpCode.SET_WATCHES2: _readSetWatches2,
    OpCode.ADD_WATCH: _readWatch,
    OpCode.WHO_AM_I: _readEmpty,
    OpCode.CLOSE_SESSION: _readEmpty,
}


def _opCode(number: int) -> OpCode:
    try:
        return OpCode(number)
    except ValueError as error:
        raise WireError(f"an operation of the unknown type {number}") from error


def decodeRequest(data: bytes) -> tuple[int, int, Request | None]:
    """
    Decode a frame behind the first.

    @return: the client's number of the request, its type, and the request; L{None}: the type is
        unknown.
    @raise WireError: the bytes are no request of that type.
    """
    reader = JuteReader(data)
    xid, number = reader.readInt(), reader.readInt()
    try:
        decode = _DECODERS[OpCode(number)]
    except ValueError:
        return xid, number, None
    request = decode(reader)
    reader.readEnd()
    return xid, number, request


# -- responses

_REPLY = struct.Struct(">iiqi")
_REPLY_SIZE = 16
_STAT = struct.Struct(">qqqqiiiqiiq")
_OPERATION = struct.Struct(">ibi")
_SYNC_CONNECTED = 3


class NodeStat(NamedTuple):
    """
    What ZooKeeper tells of a node; times are milliseconds since the epoch.

    @ivar ephemeralOwner: the session; 0: none.
    @ivar pzxid: the last transaction that created or deleted a child.
    """

    czxid: int
    mzxid: int
    ctimeMs: int
    mtimeMs: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int
    dataSize: int
    childCount: int
    pzxid: int

    def encode(self) -> bytes:
        return _STAT.pack(*self)


def encodeReply(xid: int, zxid: int, error: int, body: bytes) -> bytes:
    """A whole frame."""
    return _REPLY.pack(_REPLY_SIZE + len(body), xid, zxid, error) + body


def encodeNotification(kind: int, path: str) -> bytes:
    """The body of a watch event."""
    return encodeInt(kind) + encodeInt(_SYNC_CONNECTED) + encodeString(path)


def encodeConnected(timeoutMs: int, sessionId: int, password: bytes, knowsReadOnly: bool) -> bytes:
    """The response to the first frame, a whole frame; a time-out of 0: the session is over."""
    body = struct.pack(">iiq", 0, timeoutMs, sessionId) + encodeBuffer(password)
    if knowsReadOnly:
        body += encodeBool(False)
    return encodeInt(len(body)) + body


def encodeOperations(results: Sequence[tuple[int, int, bytes]]) -> bytes:
    """
    The body of a response to several operations.

    @param results: of each its type, the error, and the body of its response. Without a response
        the type is L{NO_RESULT}; then the error may be 0, too: only another operation failed.
    """
    parts = []
    for opCode, error, body in results:
        if opCode == NO_RESULT:
            parts.append(_OPERATION.pack(NO_RESULT, 0, error) + encodeInt(error))
        else:
            parts.append(_OPERATION.pack(opCode, 0, 0) + body)
    parts.append(_OPERATION.pack(NO_RESULT, 1, -1))
    return b"".join(parts)
