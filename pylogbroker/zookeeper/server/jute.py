"""
Jute, the encoding of ZooKeeper's requests and responses: numbers in network order, strings and
buffers behind their length, where -1 stands for null, and vectors behind their count.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pylogbroker.errors import WireError

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VECTOR_COUNT_MAX = 1 << 20
"""No frame has room for more elements."""


class Acl(NamedTuple):
    """
    An entry of an access control list.

    @ivar permissions: bits: 1 read, 2 write, 4 create, 8 delete, 16 administer.
    """

    permissions: int
    scheme: str
    identity: str


class JuteReader:
    """
    Reads values from bytes, in order.

    @ivar position: of the next value.
    """

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data: Final = data
        self.position = position

    @property
    def isAtEnd(self) -> bool:
        return self.position >= len(self.data)

    def readInt(self) -> int:
        """@raise WireError: as every method here: the bytes are no such value."""
        try:
            (found,) = _INT.unpack_from(self.data, self.position)
        except struct.error as error:
            raise self._cut("a number") from error
        self.position += 4
        return int(found)

    def readLong(self) -> int:
        try:
            (found,) = _LONG.unpack_from(self.data, self.position)
        except struct.error as error:
            raise self._cut("a number") from error
        self.position += 8
        return int(found)

    def readBool(self) -> bool:
        if self.isAtEnd:
            raise self._cut("a truth value")
        self.position += 1
        return self.data[self.position - 1] != 0

    def readBuffer(self) -> bytes | None:
        size = self.readInt()
        if size == -1:
            return None
        start = self.position
        if not 0 <= size <= len(self.data) - start:
            raise WireError(
                f"a length of {size} bytes at byte {start - 4}, and {len(self.data) - start} are"
                " left"
            )
        self.position += size
        return self.data[start : start + size]

    def readString(self) -> str:
        """Null is the empty string, as kazoo encodes that."""
        start = self.position
        found = self.readBuffer()
        try:
            return "" if found is None else found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"the text at byte {start} is not UTF-8") from error

    def readCount(self) -> int:
        """Of a vector; null is empty."""
        count = self.readInt()
        if not -1 <= count <= min(len(self.data) - self.position, _VECTOR_COUNT_MAX):
            raise WireError(f"a vector of {count} elements at byte {self.position - 4}")
        return max(count, 0)

    def readStrings(self) -> list[str]:
        return [self.readString() for _ in range(self.readCount())]

    def readAcls(self) -> tuple[Acl, ...]:
        return tuple(
            Acl(self.readInt(), self.readString(), self.readString())
            for _ in range(self.readCount())
        )

    def readEnd(self) -> None:
        """@raise WireError: bytes are left."""
        if not self.isAtEnd:
            raise WireError(f"{len(self.data) - self.position} bytes are behind the request")

    def _cut(self, what: str) -> WireError:
        return WireError(f"the request is cut at byte {self.position}, where {what} must be")


def encodeInt(value: int) -> bytes:
    """Four bytes."""
    return _INT.pack(value)


def encodeLong(value: int) -> bytes:
    """Eight bytes."""
    return _LONG.pack(value)


def encodeBool(value: bool) -> bytes:
    """One byte."""
    return b"\1" if value else b"\0"


def encodeBuffer(value: bytes | None) -> bytes:
    """Bytes behind their length; L{None} is null."""
    return b"\xff\xff\xff\xff" if value is None else _INT.pack(len(value)) + value


def encodeString(value: str) -> bytes:
    """Text in UTF-8."""
    found = value.encode("utf-8")
    return _INT.pack(len(found)) + found


def encodeStrings(values: Sequence[str]) -> bytes:
    """A vector of text."""
    return b"".join((_INT.pack(len(values)), *map(encodeString, values)))


def encodeAcls(acls: Sequence[Acl]) -> bytes:
    """An access control list."""
    return b"".join(
        (
            _INT.pack(len(acls)),
            *(
                _INT.pack(each.permissions)
                + encodeString(each.scheme)
                + encodeString(each.identity)
                for each in acls
            ),
        )
    )
