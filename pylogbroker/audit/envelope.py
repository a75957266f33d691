"""
When and where a message was made, since messages of 2011 carry neither (C{docs/audit.md} has the
layout).

    =======  =====  ==============================================================================
    bytes    type   what
    =======  =====  ==============================================================================
    0..3            C{FF 70 6C 61}: no UTF-8 text begins so, nor do JSON, Avro files or gzip
    4        uint8  the version of the layout, 1
    5..12    int64  milliseconds since the epoch, big-endian
    13       uint8  bytes of the host's name
    14..            the host's name, UTF-8; then the payload
    =======  =====  ==============================================================================

A consumer of a topic with envelopes uses L{unwrapEnvelope}, which passes on messages without one.
So producers can be changed one by one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pylogbroker.errors import FormatError

MAGIC = b"\xffpla"
VERSION = 1
HOST_SIZE_MAX = 255
_PREFIX = MAGIC + bytes((VERSION,))
_HEAD = struct.Struct(">4sBqB")
_TIME = struct.Struct(">q")
_TIME_AT = len(_PREFIX)
HEAD_SIZE = _HEAD.size


class Envelope(NamedTuple):
    """
    A payload with its origin.

    @ivar timeMs: its time, in milliseconds since the epoch.
    @ivar host: its host.
    """

    timeMs: int
    host: str
    payload: bytes


def hostBytes(host: str) -> bytes:
    """A host name in UTF-8, cut to the size that fits."""
    return host.encode("utf-8", "replace")[:HOST_SIZE_MAX]


def encodeEnvelope(timeMs: int, host: bytes, payload: bytes) -> bytes:
    """
    @param timeMs: milliseconds since the epoch; 64 bits.
    @param host: from L{hostBytes}.
    @raise FormatError: a value does not fit.
    """
    try:
        return b"".join((_HEAD.pack(MAGIC, VERSION, timeMs, len(host)), host, payload))
    except struct.error as error:
        raise FormatError(
            f"time {timeMs} or a host of {len(host)} bytes does not fit in an envelope"
        ) from error


def envelopeTime(data: bytes) -> int | None:
    """
    The time of an envelope, without decoding the rest; L{None} for another payload, or a cut one.
    """
    if (
        data[:_TIME_AT] != _PREFIX
        or len(data) < HEAD_SIZE
        or len(data) < HEAD_SIZE + data[HEAD_SIZE - 1]
    ):
        return None
    time: int = _TIME.unpack_from(data, _TIME_AT)[0]
    return time


def decodeEnvelope(data: bytes) -> Envelope:
    """@raise FormatError: the payload has no envelope."""
    timeMs = envelopeTime(data)
    if timeMs is None:
        raise FormatError("these bytes are no audit envelope, or a cut one")
    end = HEAD_SIZE + data[HEAD_SIZE - 1]
    return Envelope(timeMs, data[HEAD_SIZE:end].decode("utf-8", "replace"), data[end:])


def unwrapEnvelope(data: bytes) -> bytes:
    """The payload in an envelope, or the bytes as they are: a C{decode} function for streams."""
    return data if envelopeTime(data) is None else data[HEAD_SIZE + data[HEAD_SIZE - 1] :]
