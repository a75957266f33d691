"""
How a message is shown: as it is, by its checksum (0.7's ChecksumMessageFormatter, spec-0.7 tools §3), or as JSON.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Callable
from typing import Any

from pylogbroker.cli.tables import asJsonLine
from pylogbroker.records.zlibbackend import crc32
from pylogbroker.types import BrokerPartition

MessageFormat = Callable[[bytes, str, "BrokerPartition | int", int], bytes]
"""Called with payload, topic, partition and next offset; returns what stands in a line, without its end."""


def payloadAsJson(payload: bytes) -> dict[str, str]:
    """C{payload}, for text in UTF-8; C{payloadBase64} for anything else."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payloadBase64": base64.b64encode(payload).decode()}


def _plain(payload: bytes, topic: str, partition: BrokerPartition | int, nextOffset: int) -> bytes:
    return payload


def _checksum(
    payload: bytes, topic: str, partition: BrokerPartition | int, nextOffset: int
) -> bytes:
    return b"checksum:%d" % crc32(payload)


def _json(payload: bytes, topic: str, partition: BrokerPartition | int, nextOffset: int) -> bytes:
    place: dict[str, Any] = (
        partition._asdict() if isinstance(partition, BrokerPartition) else {"partition": partition}
    )
    return (
        asJsonLine({"topic": topic, **place, "nextOffset": nextOffset, **payloadAsJson(payload)})
        .rstrip("\n")
        .encode("utf-8", "surrogatepass")
    )


MESSAGE_FORMATS: dict[str, MessageFormat] = {
    "payload": _plain,
    "checksum": _checksum,
    "json": _json,
}


def addMessageFormat(parser: argparse.ArgumentParser) -> None:
    """How messages are shown."""
    parser.add_argument(
        "--format", choices=tuple(MESSAGE_FORMATS), default="payload",
        help="each message as it is (payload), as checksum:<its CRC-32>, or as a JSON object with topic, partition, nextOffset and payload, "
        "payloadBase64 if it is not UTF-8 (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
