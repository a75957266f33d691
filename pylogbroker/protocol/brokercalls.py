"""
The calls of a low-level client: requests as bytes, and how to decode their answers. The client on
Twisted and the client for threads share them, so that both accept, refuse and return the same.
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
"""Bytes of an answer that a client accepts by default. 0.7.2's clients accept any size."""

PAYLOAD_SIZE_MAX = 1_000_000
"""The default of C{max.message.size}, bytes."""

CODE_SIZE = 2
SET_HEADER_SIZE = 6

Messages = bytes | bytearray | memoryview | Iterable[bytes]
"""An encoded message set, or the payloads of one."""

FetchRange = tuple[str, int, int, int]
"""Topic, partition, offset, sizeMax; a L{pylogbroker.protocol.kafka07.requests.Fetch} is one."""

ProducePart = tuple[str, int, Messages]
"""Topic, partition, messages."""


@dataclass(frozen=True, slots=True)
class BrokerCall(Generic[T]):
    """
    A request to a broker that may be sent twice.

    @ivar frame: the request, with its size field.
    @ivar decode: makes the result of an answer's frame without its size field; raises L{WireError}.
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


def _checkAnswerSize(sizesMax: Iterable[int], headerSize: int, responseSizeMax: int) -> None:
    size = CODE_SIZE
    for sizeMax in sizesMax:
        if sizeMax < 0:
            raise ValueError(f"sizeMax is {sizeMax}")
        size += headerSize + sizeMax
    if size > responseSizeMax:
        raise ValueError(f"the answer may have {size} bytes; {responseSizeMax} are accepted")


def fetchCall(
    topic: str, partition: int, offset: int, sizeMax: int, responseSizeMax: int
) -> BrokerCall[MessageSet]:
    """
    @raise ValueError: C{sizeMax} is negative (0.7.2 answers that with a broken frame), or the
        answer might be larger than is accepted.
    """
    _checkAnswerSize((sizeMax,), 0, responseSizeMax)
    return BrokerCall(
        encodeFetch(topic, partition, offset, sizeMax),
        lambda body: _messageSet(decodeFetch(body), topic, partition, offset),
    )


def multiFetchCall(
    fetches: Iterable[FetchRange], responseSizeMax: int
) -> BrokerCall[list[MessageSet]]:
    """
    @raise ValueError: as L{fetchCall}, for all together; or there are more than a request can hold.
    """
    ranges = list(fetches)
    _checkAnswerSize((each[3] for each in ranges), SET_HEADER_SIZE, responseSizeMax)

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
        if code != NO_ERROR:  # which no 0.7 broker sends
            raise errorForCode(code, f"({topic}-{partition}, offsets before {time})")
        return offsets

    return BrokerCall(encodeOffsets(topic, partition, time, countMax), decode)


def encodeMessages(messages: Messages, codec: int, payloadSizeMax: int) -> bytes:
    """
    A message set to send, without a payload that a broker would drop silently. A set smaller than
    C{payloadSizeMax} cannot hold one, so only larger sets are checked.

    @param messages: an encoded set, or payloads.
    @param codec: other than 0: the messages go into one wrapper, whose payload counts then.
    @param payloadSizeMax: bytes of a top-level payload (spec-0.7 producer §4).
    @raise MessageTooLargeError: a payload has more; the text and C{position} say which.
    @raise FormatError: a large encoded set is not valid. (Small ones are not checked.)
    """
    if isinstance(messages, bytes | bytearray | memoryview):
        data = wrapCompressed(codec, bytes(messages))
        mayExceed = True
    else:
        payloads = list(messages)
        data = encodeSet(payloads, codec)
        mayExceed = codec != NONE or max(map(len, payloads), default=0) > payloadSizeMax
    if mayExceed and len(data) > payloadSizeMax:
        _checkEntries(data, payloadSizeMax)
    return data


def _checkEntries(data: bytes, payloadSizeMax: int) -> None:
    position = 0
    for index, (message, behind) in enumerate(MessageSet(data).shallow()):
        size = len(message.payload)
        if size > payloadSizeMax:
            what = "the compressed batch" if message.codec else f"message {index}"
            raise MessageTooLargeError(
                f"the payload of {what} has {size} bytes, {payloadSizeMax} are allowed", position
            )
        position = behind


def destination(
    topic: str, partition: int | Messages, messages: Messages | None
) -> tuple[str, int, Messages]:
    """
    The arguments of C{send}, whose partition may be missing, as (topic, partition, messages).

    @raise TypeError: the messages are missing, or there are two of either.
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
    """A MULTIPRODUCE request; raises as L{encodeMessages}, and L{ValueError} for too many parts."""
    return encodeMultiProduce(
        [
            (topic, partition, encodeMessages(messages, codec, payloadSizeMax))
            for topic, partition, messages in parts
        ]
    )
