"""
From an application's values to message sets.

An encoder makes bytes of a value (spec-0.7 producer §6). What goes to one partition together is one set, which is compressed if the codec and the topic
say so, in both modes (0.7.2 heeds C{compressed.topics} in async mode only; gotcha 31). What is measured against C{max.message.size} is the
payload of each top-level message, which for a compressed set is the wrapper: many small messages may be too large together. Then they go in several
wrappers, in their order, in the same set; and what does not fit in a wrapper even alone, since it does not compress, goes as it is. So a codec keeps nothing
back that could go without one.

A value that cannot be sent must not take others with it. So a set is made in two steps: first the payloads, each for itself, then the set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pylogbroker.config.producersettings import DEFAULT_ENCODER, STRING_ENCODER
from pylogbroker.errors import EncodingError, MessageTooLargeError, PylogbrokerError
from pylogbroker.records.compression import NONE
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.types import Message

Encoder = Callable[[Any], bytes]
"""Makes the payload of a value."""

WRAPPER_OVERHEAD_SIZE = len(encodeMessage(b""))


def defaultEncoder(value: Any) -> bytes:
    """
    For values that are bytes already, or messages.

    @raise EncodingError: it is neither.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Message):
        return value.payload
    raise EncodingError(
        f"the default encoder takes bytes, not {type(value).__name__}; set serializer.class={STRING_ENCODER} to send text"
    )


def stringEncoder(value: Any) -> bytes:
    """
    For text, as UTF-8. (0.7.2 takes the platform's character set.)

    @raise EncodingError: it is no text, or has a lone surrogate in it.
    """
    if not isinstance(value, str):
        raise EncodingError(f"the string encoder takes text, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(f"text that has no UTF-8: {error}") from error


ENCODERS: Mapping[str, Encoder] = {DEFAULT_ENCODER: defaultEncoder, STRING_ENCODER: stringEncoder}


_BYTES = {bytes}


class Encoding:
    """
    How one producer makes message sets.

    @ivar encoder: makes the payloads.
    """

    def __init__(
        self, encoder: Encoder, codec: int, compressedTopics: Collection[str], payloadSizeMax: int
    ) -> None:
        """
        @param compressedTopics: those that the codec is for; empty for all.
        @param payloadSizeMax: bytes.
        """
        self.encoder = encoder
        self._codec = codec
        self._compressedTopics = compressedTopics
        self._payloadSizeMax = payloadSizeMax

    def codecFor(self, topic: str) -> int:
        """What a topic's sets are compressed with."""
        return (
            self._codec if not self._compressedTopics or topic in self._compressedTopics else NONE
        )

    def payload(self, value: Any) -> bytes:
        """
        @raise EncodingError: whatever the encoder raised, or that it gave no bytes.
        """
        encoder = self.encoder
        try:
            payload = encoder(value)
        except PylogbrokerError:
            raise
        except Exception as error:  # the application's own encoder
            raise EncodingError(f"the encoder failed: {error!r}") from error
        if not isinstance(payload, bytes):
            raise EncodingError(f"the encoder gave {type(payload).__name__}, not bytes")
        return payload

    def payloads(self, values: Sequence[Any], topic: str) -> list[bytes | PylogbrokerError]:
        """
        For each value its payload, or why it cannot be sent.
        """
        isMeasured = self.codecFor(topic) == NONE
        found: list[bytes | PylogbrokerError] = []
        for value in values:
            try:
                payload = self.payload(value)
                if isMeasured and len(payload) > self._payloadSizeMax:
                    raise MessageTooLargeError(
                        f"a payload for {topic} has {len(payload)} bytes, {self._payloadSizeMax} are allowed"
                    )
                found.append(payload)
            except PylogbrokerError as error:
                found.append(error)
        return found

    def arePlain(self, values: Sequence[Any], topic: str) -> bool:
        """The quick way: whether the values are their own payloads, and none is too large."""
        if self.encoder is not defaultEncoder or set(map(type, values)) - _BYTES:
            return False
        return (
            self.codecFor(topic) != NONE or max(map(len, values), default=0) <= self._payloadSizeMax
        )

    def pack(
        self, payloads: Sequence[bytes], topic: str
    ) -> tuple[bytes, dict[int, MessageTooLargeError]]:
        """
        One set of them all, in as few wrappers as there must be.

        @return: the set; and of those that are not in it, since they are too large compressed and as they are, by their index, why not. (C{payloads} has
            measured what is not to be compressed.)
        """
        codec = self.codecFor(topic)
        if codec == NONE:
            return encodeSet(payloads, codec), {}
        sizeMax = self._payloadSizeMax
        made: list[bytes] = []
        refused: dict[int, MessageTooLargeError] = {}
        waiting = [(0, len(payloads))]
        while waiting:
            start, end = waiting.pop()
            data = encodeSet(payloads[start:end], codec)
            size = len(data) - WRAPPER_OVERHEAD_SIZE
            if size <= sizeMax:
                made.append(data)
            elif end - start > 1:
                waiting += reversed(_divided(start, end, size // max(1, sizeMax) + 1))
            elif len(payloads[start]) <= sizeMax:
                made.append(encodeSet(payloads[start:end]))
            else:
                text = f"a payload for {topic} has {len(payloads[start])} bytes, and {size} in a compressed message; {sizeMax} are allowed"
                refused[start] = MessageTooLargeError(text)
        return b"".join(made), refused

    def messageSet(self, payloads: Sequence[bytes], topic: str) -> bytes:
        """
        All or nothing.

        @raise MessageTooLargeError: one is too large, compressed and as it is.
        """
        data, refused = self.pack(payloads, topic)
        for error in refused.values():
            raise error
        return data

    def messageSetOf(self, values: Sequence[Any], topic: str) -> bytes:
        """
        All or nothing, for sync mode.

        @raise PylogbrokerError: the first reason why not.
        """
        if self.arePlain(values, topic):
            return self.messageSet(values, topic)
        payloads = []
        for payload in self.payloads(values, topic):
            if isinstance(payload, PylogbrokerError):
                raise payload
            payloads.append(payload)
        return self.messageSet(payloads, topic)


def _divided(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """A range in so many ranges, none of which is empty; in as many as it has, if that is less."""
    step = max(1, -(-(end - start) // count))
    return [(each, min(each + step, end)) for each in range(start, end, step)]
