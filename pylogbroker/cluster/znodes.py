"""
The values of znodes, to and from bytes (spec-0.7 zookeeper §1, §4). An invalid value is refused
with its path.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pylogbroker.cluster.paths import pathSegment
from pylogbroker.errors import InvalidNameError, ZnodeError
from pylogbroker.types import HOST, BrokerPartition

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_NAME = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")
_SHOWN_SIZE_MAX = 100
_BROKER_SIZE_MAX = 10

PARTITION_COUNT_MAX = 100_000
"""Partitions of a topic on a broker; a larger count is garbage."""


class BrokerRegistration(NamedTuple):
    """
    A broker's address.

    @ivar creatorId: names the start of the writing broker: C{<host>-<milliseconds since the
        epoch>}.
    @ivar host: for clients; without a colon, since readers split at colons.
    """

    creatorId: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def encode(self) -> bytes:
        """@raise ValueError: the host is not valid. A colon, so an IPv6 literal, is not."""
        if ":" in self.host:
            raise ValueError(
                f"the host {self.host!r} has a colon in it: give a name, the value in ZooKeeper "
                "cannot carry an IPv6 address"
            )
        if not HOST.fullmatch(self.host):
            raise ValueError(f"{self.host!r} is not a host")
        return f"{self.creatorId}:{self.host}:{self.port}".encode()


def creatorId(host: str, nowMs: int) -> str:
    """@param nowMs: milliseconds since the epoch."""
    return f"{host}-{nowMs}"


def decodeText(path: str, data: bytes | None) -> str:
    """
    A value as text; null is the empty text.

    @raise ZnodeError: it is not UTF-8.
    """
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise ZnodeError(path, _shown(data), "it is not UTF-8") from error


def decodeBroker(path: str, data: bytes | None) -> BrokerRegistration:
    """
    Decode fields 1 and 2, as 0.7's JVM clients do, and ignore those behind.

    @raise ZnodeError: there are fewer than three fields, the host is neither a name nor an IPv4
        address, or the port is not valid.
    """
    fields = decodeText(path, data).split(":")
    if len(fields) < 3 or not fields[1]:
        raise ZnodeError(path, _shown(data), "a broker's value is creator:host:port")
    if not HOST.fullmatch(fields[1]):
        raise ZnodeError(path, _shown(data), f"{_shown(fields[1])} is not a host")
    if not fields[2].isascii() or not fields[2].isdigit() or not 0 < int(fields[2][:6]) < 65536:
        raise ZnodeError(path, _shown(data), f"{fields[2]!r} is not a port")
    return BrokerRegistration(fields[0], fields[1], int(fields[2]))


def encodeNumber(number: int) -> bytes:
    """A count of partitions, or an offset, in decimal."""
    return str(number).encode()


def decodeNumber(path: str, data: bytes | None) -> int:
    """@raise ZnodeError: it is not a decimal number of 64 bits."""
    text = decodeText(path, data)
    if not _NUMBER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ZnodeError(path, _shown(data), "it should be a number")
    return int(text)


def decodeCount(path: str, data: bytes | None) -> int:
    """
    The number of partitions of a topic on a broker.

    @raise ZnodeError: it is no number, or out of range.
    """
    count = decodeNumber(path, data)
    if not 0 <= count <= PARTITION_COUNT_MAX:
        raise ZnodeError(
            path, str(count), f"a number of partitions is from 0 to {PARTITION_COUNT_MAX}"
        )
    return count


def decodeBrokerNumber(path: str, name: str) -> int:
    """
    A broker's number, from the name of a node.

    @raise ZnodeError: anything else, also a leading zero, which no broker writes.
    """
    if name.isascii() and name.isdigit() and str(int(name[:_BROKER_SIZE_MAX])) == name:
        return int(name)
    raise ZnodeError(path, repr(name), "it should be named with a broker's number")


def decodeTopic(path: str, name: str) -> str:
    """
    A topic's name, from the name of a node.

    @raise ZnodeError: it is not valid.
    """
    try:
        return pathSegment("topic", name)
    except InvalidNameError as error:
        raise ZnodeError(path, repr(name), str(error)) from error


def decodePartition(path: str, name: str) -> BrokerPartition:
    """
    A partition, from an owner's or an offset's node name: C{<broker>-<partition>}.

    @raise ZnodeError: anything else.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ZnodeError(path, repr(name), "it should be named <broker>-<partition>")
    return BrokerPartition(int(found[1]), int(found[2]))


def _shown(data: bytes | str | None) -> str:
    shown = repr(data)
    return shown if len(shown) <= _SHOWN_SIZE_MAX else f"{shown[:_SHOWN_SIZE_MAX]}…"
