"""
What a low-level client asks, and how it reads the answer: bytes and values, no socket. Shared by both kinds of client, the one for threads in this
room and the one for Twisted above, so that they cannot come to differ in what they accept, refuse and return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pylogbroker.errors import NO_ERROR, MessageTooLargeError, WireError, errorForCode
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from pylogbroker.records.compression import NONE
from pylogbroker.records.messageset import MessageSet, encodeSet, wrapCompressed
from pylogbroker.types import RANDOM_PARTITION

T = TypeVar("T")

RESPONSE_SIZE_MAX = 128 << 20
"""Bytes of an answer that a client accepts, unless it is told otherwise. 0.7.2's clients accept any that a size field can announce."""

PAYLOAD_SIZE_MAX = 1_000_000
"""Default of C{max.message.size}, bytes."""

CODE_SIZE = 2
SET_HEADER_SIZE = 6

Messages = bytes | bytearray | memoryview | Iterable[bytes]
"""A message set that is encoded already, or the payloads of one."""

FetchRange = tuple[str, int, int, int]
"""Topic, partition, offset, sizeMax. A L{pylogbroker.protocol.kafka07.requests.Fetch} is one."""

ProducePart = tuple[str, int, Messages]
"""Topic, partition, messages."""


@dataclass(frozen=True, slots=True)
class BrokerCall(Generic[T]):
    """
    A question to a broker that may be asked twice.

    @ivar frame: the request, with its size field.
    @ivar decode: makes the result of the answer, a frame without its size field; raises L{WireError} when it is none.
    """

    frame: bytes
    decode: Callable[[bytes], T]


def _messageSet(part: tuple[int, bytes], topic: str, partition: int, offset: int) -> MessageSet:
    code, data = part
    return MessageSet(
        data,
        offset,
        None if code == NO_ERROR else errorForCode(code, f"({topic}-{partition} at {offset})"),
    )


def _checkAnswerSize(size: int, responseSizeMax: int) -> None:
    if size > responseSizeMax:
        raise ValueError(f"the answer may have {size} bytes; {responseSizeMax} are accepted")


def _checkSizeMax(sizeMax: int) -> None:
    if sizeMax < 0:
        raise ValueError(f"sizeMax is {sizeMax}")


def fetchCall(
    topic: str, partition: int, offset: int, sizeMax: int, responseSizeMax: int
) -> BrokerCall[MessageSet]:
    """
    @raise ValueError: C{sizeMax} is negative (0.7.2 answers that with a broken frame), or the answer might be larger than is accepted.
    """
    _checkSizeMax(sizeMax)
    _checkAnswerSize(CODE_SIZE + sizeMax, responseSizeMax)
    return BrokerCall(
        encodeFetch(topic, partition, offset, sizeMax),
        lambda body: _messageSet(decodeFetch(body), topic, partition, offset),
    )


def multiFetchCall(
    fetches: Iterable[FetchRange], responseSizeMax: int
) -> BrokerCall[list[MessageSet]]:
    """
    @raise ValueError: as L{fetchCall}, over all of them; or there are more than a request can hold.
    """
    ranges = list(fetches)
    for _topic, _partition, _offset, sizeMax in ranges:
        _checkSizeMax(sizeMax)
    _checkAnswerSize(
        CODE_SIZE
        + sum(SET_HEADER_SIZE + sizeMax for _topic, _partition, _offset, sizeMax in ranges),
        responseSizeMax,
    )

    def decode(body: bytes) -> list[MessageSet]:
        parts = decodeMultiFetch(body)
        if len(parts) != len(ranges):
            raise WireError(f"{len(parts)} sets in the answer to {len(ranges)} fetches")
        return [
            _messageSet(part, topic, partition, offset)
            for part, (topic, partition, offset, _sizeMax) in zip(parts, ranges, strict=True)
        ]

    return BrokerCall(encodeMultiFetch(ranges), decode)


def offsetsCall(topic: str, partition: int, time: int, countMax: int) -> BrokerCall[list[int]]:
    """
    @raise ValueError: C{countMax} is negative.
    """
    if countMax < 0:
        raise ValueError(f"countMax is {countMax}")

    def decode(body: bytes) -> list[int]:
        code, offsets = decodeOffsets(body)
        if (
            code != NO_ERROR
        ):  # no 0.7 broker sends one, and 0.7.2's client would not look; silence would be wrong all the same
            raise errorForCode(code, f"({topic}-{partition}, offsets before {time})")
        return offsets

    return BrokerCall(encodeOffsets(topic, partition, time, countMax), decode)


def encodeMessages(messages: Messages, codec: int, payloadSizeMax: int) -> bytes:
    """
    A message set to send, and none that a broker would drop without a word.

    A set that is smaller than C{payloadSizeMax} cannot hold a payload that is larger; so only large ones are walked.

    @param messages: an encoded set, or payloads.
    @param codec: other than 0: the messages go into one wrapper, whose payload is then the one that is measured.
    @param payloadSizeMax: bytes that a top-level payload may have; exactly so many are still good (spec-0.7 producer §4).
    @raise MessageTooLargeError: one has more; the text and C{position} say which.
    @raise FormatError: a large encoded set is not one. (Small ones are not looked at.)
    """
    if isinstance(messages, bytes | bytearray | memoryview):
        data = wrapCompressed(codec, bytes(messages))
        if len(data) > payloadSizeMax:
            _checkEntries(data, payloadSizeMax)
        return data
    payloads = list(messages)
    data = encodeSet(payloads, codec)
    if len(data) > payloadSizeMax:
        if codec == NONE:
            _checkPayloads(payloads, payloadSizeMax)
        else:
            _checkEntries(data, payloadSizeMax)
    return data


def _tooLarge(what: str, size: int, payloadSizeMax: int, position: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"the payload of {what} has {size} bytes, {payloadSizeMax} are allowed", position
    )


def _checkPayloads(payloads: list[bytes], payloadSizeMax: int) -> None:
    for index, payload in enumerate(payloads):
        if len(payload) > payloadSizeMax:
            raise _tooLarge(
                f"message {index}", len(payload), payloadSizeMax, len(encodeSet(payloads[:index]))
            )


def _checkEntries(data: bytes, payloadSizeMax: int) -> None:
    position = 0
    for index, (message, behind) in enumerate(MessageSet(data).shallow()):
        if len(message.payload) > payloadSizeMax:
            raise _tooLarge(
                "the compressed batch" if message.codec else f"message {index}",
                len(message.payload),
                payloadSizeMax,
                position,
            )
        position = behind


def destination(
    topic: str, partition: int | Messages, messages: Messages | None
) -> tuple[str, int, Messages]:
    """
    The arguments of C{send}, of which the partition may be left out, as (topic, partition, messages).

    @raise TypeError: there is a partition and no message, or two of either.
    """
    if isinstance(partition, int):
        if messages is None:
            raise TypeError(
                "send(topic, partition, messages) or send(topic, messages): there are no messages"
            )
        return topic, partition, messages
    if messages is not None:
        raise TypeError(
            f"send(topic, partition, messages): {type(partition).__name__} is no partition"
        )
    return topic, RANDOM_PARTITION, partition


def checkedPartition(partition: int) -> int:
    """
    A partition to ask about.

    @raise ValueError: it is negative; only a produce request may leave the choice to the broker.
    """
    if partition < 0:
        raise ValueError(f"partition {partition}")
    return partition


def produceFrame(
    topic: str, partition: int, messages: Messages, codec: int, payloadSizeMax: int
) -> bytes:
    """A PRODUCE request; raises as L{encodeMessages}."""
    return encodeProduce(topic, partition, encodeMessages(messages, codec, payloadSizeMax))


def multiProduceFrame(parts: Iterable[ProducePart], codec: int, payloadSizeMax: int) -> bytes:
    """A MULTIPRODUCE request; raises as L{encodeMessages}, and L{ValueError} for more parts than a request can hold."""
    return encodeMultiProduce(
        [
            (topic, partition, encodeMessages(messages, codec, payloadSizeMax))
            for topic, partition, messages in parts
        ]
    )
