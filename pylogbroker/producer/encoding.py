"""
Encoders and message sets (spec-0.7 producer §6).

The messages for one partition in a request are one set, compressed according to the codec and
C{compressed.topics}. (0.7.2 heeds C{compressed.topics} in async mode only; gotcha 31.)
C{max.message.size} limits the payload of a top-level message, which is the wrapper of a compressed
set. Messages that exceed the limit together go in several wrappers. A message that exceeds it
alone, because it does not compress, goes uncompressed.

Payloads are encoded one by one first, so that a bad value fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
    The encoder for bytes and L{Message}s.

    @raise EncodingError: for any other value.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Message):
        return value.payload
    raise EncodingError(
        f"the default encoder takes bytes, not {type(value).__name__}; "
        f"set serializer.class={STRING_ENCODER} to send text"
    )


def stringEncoder(value: Any) -> bytes:
    """
    The encoder for text, as UTF-8. (0.7.2 uses the platform's character set.)

    @raise EncodingError: the value is not a L{str}, or contains a lone surrogate.
    """
    if not isinstance(value, str):
        raise EncodingError(f"the string encoder takes text, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(f"text that cannot be encoded as UTF-8: {error}") from error


ENCODERS: Mapping[str, Encoder] = {DEFAULT_ENCODER: defaultEncoder, STRING_ENCODER: stringEncoder}

_BYTES = {bytes}


@dataclass(frozen=True, slots=True)
class Encoding:
    """
    The encoder and codec of one producer.

    @ivar compressedTopics: topics to compress; empty for all.
    @ivar payloadSizeMax: bytes of the payload of a top-level message.
    """

    encoder: Encoder
    codec: int
    compressedTopics: Collection[str]
    payloadSizeMax: int

    def codecFor(self, topic: str) -> int:
        isCompressed = not self.compressedTopics or topic in self.compressedTopics
        return self.codec if isCompressed else NONE

    def payload(self, value: Any) -> bytes:
        """@raise EncodingError: the encoder raised an exception, or did not return bytes."""
        try:
            payload = self.encoder(value)
        except PylogbrokerError:
            raise
        except Exception as error:  # the application's own encoder
            raise EncodingError(f"the encoder failed: {error!r}") from error
        if not isinstance(payload, bytes):
            raise EncodingError(f"the encoder gave {type(payload).__name__}, not bytes")
        return payload

    def arePlain(self, values: Sequence[Any], topic: str) -> bool:
        if self.encoder is not defaultEncoder or set(map(type, values)) - _BYTES:
            return False
        return (
            self.codecFor(topic) != NONE or max(map(len, values), default=0) <= self.payloadSizeMax
        )

    def encode(
        self, values: Sequence[Any], topic: str
    ) -> tuple[bytes, Mapping[int, PylogbrokerError]]:
        """
        Encode the valid values.

        @return: the set, and the error of each value left out, by index.
        """
        if self.arePlain(values, topic):
            return self.pack(values, topic)
        isMeasured = self.codecFor(topic) == NONE
        refused: dict[int, PylogbrokerError] = {}
        payloads: dict[int, bytes] = {}
        for index, value in enumerate(values):
            try:
                payload = self.payload(value)
                if isMeasured and len(payload) > self.payloadSizeMax:
                    raise MessageTooLargeError(
                        f"a payload for {topic} has {len(payload)} bytes, "
                        f"{self.payloadSizeMax} are allowed"
                    )
                payloads[index] = payload
            except PylogbrokerError as error:
                refused[index] = error
        data, tooLarge = self.pack(list(payloads.values()), topic)
        indexes = list(payloads)
        return data, refused | {indexes[at]: error for at, error in tooLarge.items()}

    def encodeAll(self, values: Sequence[Any], topic: str) -> bytes:
        """
        Encode all values or none.

        @raise PylogbrokerError: the error of the first invalid value.
        """
        data, refused = self.encode(values, topic)
        if refused:
            raise refused[min(refused)]
        return data

    def pack(
        self, payloads: Sequence[bytes], topic: str
    ) -> tuple[bytes, Mapping[int, MessageTooLargeError]]:
        """
        Make one set of payloads, in as few wrappers as the size limit allows.

        @return: the set, and the error of each payload that is too large, compressed and
            uncompressed, by index. Without compression L{encode} has checked the sizes.
        """
        codec = self.codecFor(topic)
        if codec == NONE:
            return encodeSet(payloads, codec), {}
        sizeMax = self.payloadSizeMax
        made: list[bytes] = []
        refused: dict[int, MessageTooLargeError] = {}
        pending = [(0, len(payloads))]
        while pending:
            start, end = pending.pop()
            data = encodeSet(payloads[start:end], codec)
            size = len(data) - WRAPPER_OVERHEAD_SIZE
            if size <= sizeMax:
                made.append(data)
            elif end - start > 1:
                pending += reversed(_split(start, end, size // max(1, sizeMax) + 1))
            elif len(payloads[start]) <= sizeMax:
                made.append(encodeSet(payloads[start:end]))
            else:
                refused[start] = MessageTooLargeError(
                    f"a payload for {topic} has {len(payloads[start])} bytes, "
                    f"and {size} in a compressed message; {sizeMax} are allowed"
                )
        return b"".join(made), refused


def _split(start: int, end: int, count: int) -> list[tuple[int, int]]:
    step = max(1, -(-(end - start) // count))
    return [(each, min(each + step, end)) for each in range(start, end, step)]
