"""
Storm's multi-language protocol: messages in JSON, each followed by a line C{end}. Pure. A module of
its own, since the components and their subprocesses read it.

We send the handshake, tuples, heartbeats, the commands of spouts and the task ids of emits; the
subprocess sends commands.

What must be true:

  - A message of the subprocess is whole and valid, or there is an error that quotes it. No more
  than L{MESSAGE_SIZE_MAX} bytes are kept of one.
  - Values arrive as they were: what JSON lacks and Python's JSON modules read (C{NaN}, half a
  surrogate pair) is written as those write it. Bytes become a string in Base64, since JSON has
  none; dates and times become strings in ISO 8601.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pylogbroker.errors import TupleError, WireError
from pylogbroker.topologies.api import SYSTEM_TASK, StreamTuple

MESSAGE_SIZE_MAX = 32 << 20
"""Bytes of a message of a subprocess."""

HEARTBEAT_STREAM = "__heartbeat"

EMIT, ACK, FAIL, LOG, ERROR, SYNC, METRICS = (
    "emit",
    "ack",
    "fail",
    "log",
    "error",
    "sync",
    "metrics",
)
"""Commands of a subprocess."""

NEXT, ACTIVATE, DEACTIVATE = "next", "activate", "deactivate"
"""Commands to the subprocess of a spout, as are L{ACK} and L{FAIL}."""

_END = b"\nend\n"
_QUOTE_SIZE = 200

_encode = msgspec.json.Encoder().encode


class ShellMessage(msgspec.Struct, gc=False):
    """
    A message of a subprocess.

    @ivar command: one of the commands of a subprocess; empty: the answer to the handshake.
    @ivar pid: of the answer to the handshake.
    @ivar id: of C{ack} and C{fail}: the tuple's; of an C{emit} of a spout, for tracking.
    @ivar tuple: of C{emit}: the values.
    @ivar stream: of C{emit}; L{None}: the default stream.
    @ivar task: of C{emit}: the target of a direct grouping.
    @ivar anchors: of C{emit}: ids of tuples.
    @ivar needsTaskIds: of C{emit}: the subprocess waits for the targets.
    @ivar msg: of C{log} and C{error}.
    @ivar level: of C{log}: 0 is trace, 4 is error.
    @ivar name: of C{metrics}.
    @ivar params: of C{metrics}.
    """

    command: str = ""
    pid: int | None = None
    id: Any = None
    tuple: list[Any] | None = None
    stream: str | None = None
    task: int | None = None
    anchors: list[str | int] | str | None = None
    needsTaskIds: bool | None = msgspec.field(default=True, name="need_task_ids")
    msg: Any = None
    level: int | None = None
    name: Any = None
    params: Any = None


_decode = msgspec.json.Decoder(ShellMessage).decode


class ShellMessageDecoder:
    """Messages from the bytes of a subprocess, in pieces of any size."""

    def __init__(self, sizeMax: int = MESSAGE_SIZE_MAX) -> None:
        self._sizeMax = sizeMax
        self._pieces: list[bytes] = []  # of a message that is not whole yet
        self._size = 0  # of the pieces
        self._tail = b""  # of the pieces: C{end} may be split

    def feed(self, data: bytes) -> list[ShellMessage]:
        """
        @return: the messages that are whole now.
        @raise WireError: a message is none, or too large. The decoder is of no use any more.
        """
        if self._pieces:
            joint = self._tail + data
            self._pieces.append(data)
            self._size += len(data)
            if _END not in joint:
                self._tail = joint[1 - len(_END) :]
                self._check(self._size)
                return []
            data = b"".join(self._pieces)
        *bodies, rest = data.split(_END)
        self._check(max(map(len, (*bodies, rest))))
        self._pieces, self._size, self._tail = (
            [rest] if rest else [],
            len(rest),
            rest[1 - len(_END) :],
        )
        return [decodeMessage(body) for body in bodies]

    def _check(self, size: int) -> None:
        if size > self._sizeMax:
            raise WireError(f"a message is larger than {self._sizeMax} bytes")


def decodeMessage(body: bytes) -> ShellMessage:
    """
    @param body: without the line C{end}.
    @raise WireError: it is no message.
    """
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        try:  # NaN, or half a surrogate pair, which Python writes and msgspec does not read
            return msgspec.convert(json.loads(body), ShellMessage)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            quoted = body[:_QUOTE_SIZE].decode("utf-8", "backslashreplace")
            raise WireError(f"{quoted!r} is no message: {error}") from error


def encodeValues(values: Any) -> bytes:
    """
    A value in JSON, on one line.

    @raise TupleError: it cannot be in JSON.
    """
    try:
        try:
            data = _encode(values)
            if b"null" not in data or not _hasNan(values):
                return data
        except UnicodeEncodeError:  # half a surrogate pair
            pass
        return json.dumps(values).encode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TupleError(f"it cannot be written in JSON: {error}") from error


def _hasNan(value: Any) -> bool:
    if isinstance(value, float):
        return value - value != 0  # NaN, and infinities
    if isinstance(value, Mapping):
        return any(map(_hasNan, value.values()))
    return isinstance(value, list | tuple) and any(map(_hasNan, value))


def encodeMessage(message: Any) -> bytes:
    """
    A message, with its line C{end}.

    @raise TupleError: it cannot be in JSON.
    """
    return encodeValues(message) + _END


def encodeCommand(command: str, id: Any = None) -> bytes:
    """A command to the subprocess of a spout; C{id} is that of L{ACK} and L{FAIL}."""
    if command in (ACK, FAIL):
        return encodeMessage({"command": command, "id": id})
    return encodeMessage({"command": command})


HEARTBEAT = encodeMessage(
    {"id": "0", "comp": None, "stream": HEARTBEAT_STREAM, "task": SYSTEM_TASK, "tuple": []}
)
"""A tuple that the subprocess of a bolt answers with L{SYNC}."""


class TupleEncoder:
    """Tuples for the subprocess of a bolt."""

    def __init__(self) -> None:
        # By component, stream and task: a topology has a known number of those.
        self._middles: dict[tuple[str, str, int], bytes] = {}

    def encode(self, id: int, tup: StreamTuple) -> bytes:
        """
        A message, with its line C{end}.

        @param id: what the subprocess calls the tuple.
        @raise TupleError: a value cannot be in JSON.
        """
        key = tup.component, tup.stream, tup.task
        middle = self._middles.get(key)
        if middle is None:
            place = _encode(dict(zip(("comp", "stream", "task"), key, strict=True)))
            middle = self._middles[key] = b'",' + place[1:-1] + b',"tuple":'
        return b'{"id":"%d%b%b}\nend\n' % (id, middle, encodeValues(tup.values))


def handshakeOf(
    pidFolder: str, config: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """The first message to a subprocess, which writes an empty file named after its process id."""
    return {"pidDir": pidFolder, "conf": config, "context": context}


def groupingInWords(kind: str, fieldNames: Sequence[str]) -> dict[str, Any]:
    """A grouping, as Storm writes it into a handshake."""
    if kind == "fields":
        return {"type": "FIELDS", "fields": list(fieldNames)}
    if kind == "global":
        return {"type": "FIELDS", "fields": []}
    return {"type": "CUSTOM_OBJECT" if kind == "custom" else kind.replace("-", "_").upper()}
