"""
Transactions: the changes of a L{pylogbroker.zookeeper.server.datatree.DataTree}, as the log keeps
them. Each says what becomes of the tree, never what a client wanted, so that applying it needs no
decision: the same transactions, applied in the same order, make the same tree.
"""

from __future__ import annotations

from typing import NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.zookeeper.server.jute import (
    Acl,
    JuteReader,
    encodeAcls,
    encodeBuffer,
    encodeInt,
    encodeLong,
    encodeString,
)

FORMAT_VERSION = 1


class CreateNode(NamedTuple):
    """
    A new node.

    @ivar path: with its sequence number, if it has one.
    @ivar owner: the session, L{pylogbroker.zookeeper.server.datatree.CONTAINER_OWNER}, or 0.
    """

    path: str
    data: bytes | None
    acls: tuple[Acl, ...]
    owner: int


class DeleteNode(NamedTuple):
    """A node without children goes."""

    path: str


class SetData(NamedTuple):
    """A node's data, and its next version."""

    path: str
    data: bytes | None


class SetAcl(NamedTuple):
    """A node's access control list, and the next version of that."""

    path: str
    acls: tuple[Acl, ...]


class CreateSession(NamedTuple):
    """
    A new session.

    @ivar timeoutMs: as it was granted.
    """

    sessionId: int
    timeoutMs: int
    password: bytes


class CloseSession(NamedTuple):
    """Deletes the session's ephemeral nodes, too."""

    sessionId: int


class Several(NamedTuple):
    """Changes that are made together, or not at all."""

    changes: tuple[Change, ...]


Change = CreateNode | DeleteNode | SetData | SetAcl
Transaction = Change | CreateSession | CloseSession | Several

_CREATE, _DELETE, _SET_DATA, _SET_ACL, _SESSION, _CLOSE, _SEVERAL = range(1, 8)


def encodeTransaction(transaction: Transaction) -> bytes:
    """The value of its record in the log."""
    return encodeInt(FORMAT_VERSION) + _encode(transaction)


def _encode(transaction: Transaction) -> bytes:
    match transaction:
        case CreateNode(path, data, acls, owner):
            return b"".join(
                (
                    encodeInt(_CREATE),
                    encodeString(path),
                    encodeBuffer(data),
                    encodeAcls(acls),
                    encodeLong(owner),
                )
            )
        case DeleteNode(path):
            return encodeInt(_DELETE) + encodeString(path)
        case SetData(path, data):
            return encodeInt(_SET_DATA) + encodeString(path) + encodeBuffer(data)
        case SetAcl(path, acls):
            return encodeInt(_SET_ACL) + encodeString(path) + encodeAcls(acls)
        case CreateSession(sessionId, timeoutMs, password):
            return b"".join(
                (
                    encodeInt(_SESSION),
                    encodeLong(sessionId),
                    encodeInt(timeoutMs),
                    encodeBuffer(password),
                )
            )
        case CloseSession(sessionId):
            return encodeInt(_CLOSE) + encodeLong(sessionId)
        case Several(changes):
            return b"".join((encodeInt(_SEVERAL), encodeInt(len(changes)), *map(_encode, changes)))


def decodeTransaction(data: bytes) -> Transaction:
    """@raise WireError: the bytes are none, or one of a later version."""
    reader = JuteReader(data)
    version = reader.readInt()
    if version != FORMAT_VERSION:
        raise WireError(f"a transaction of format {version}; this version reads {FORMAT_VERSION}")
    found = _read(reader)
    reader.readEnd()
    return found


def _read(reader: JuteReader) -> Transaction:
    kind = reader.readInt()
    if kind == _SESSION:
        return CreateSession(reader.readLong(), reader.readInt(), reader.readBuffer() or b"")
    if kind == _CLOSE:
        return CloseSession(reader.readLong())
    if kind == _SEVERAL:
        return Several(
            tuple(_readChange(reader, reader.readInt()) for _ in range(reader.readCount()))
        )
    return _readChange(reader, kind)


def _readChange(reader: JuteReader, kind: int) -> Change:
    if kind == _CREATE:
        return CreateNode(
            reader.readString(), reader.readBuffer(), reader.readAcls(), reader.readLong()
        )
    if kind == _DELETE:
        return DeleteNode(reader.readString())
    if kind == _SET_DATA:
        return SetData(reader.readString(), reader.readBuffer())
    if kind == _SET_ACL:
        return SetAcl(reader.readString(), reader.readAcls())
    raise WireError(f"a transaction of the unknown type {kind}")
