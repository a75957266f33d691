"""
Headers of record batches, as the format gives them to the log.
"""

from __future__ import annotations

from pylogbroker.interfaces import BatchHeader

TRANSACTIONAL = 0x10
CONTROL = 0x20


def header(
    producerId: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    timestampMs: int = 0,
    *,
    isTransactional: bool = False,
    isControl: bool = False,
) -> BatchHeader:
    """The header of a batch of C{count} records, before it is stamped."""
    attributes = TRANSACTIONAL * isTransactional | CONTROL * isControl
    if isControl:
        sequence = -1
    return BatchHeader(
        0, 61, -1, 2, 0, attributes, count - 1, timestampMs, timestampMs,
        producerId, epoch, sequence, count,
    )  # fmt: skip
