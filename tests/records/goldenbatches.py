"""
The record batches in C{tests/golden/kafka43/recordbatches.txt}, which Apache Kafka 4.3.1 built, and
what is in them.
"""

from __future__ import annotations

from pylogbroker.records.recordbatch import Record
from tests.goldenfiles import GOLDEN

START_MS = 1_700_000_000_000


def goldenBatches() -> dict[str, bytes]:
    """By name."""
    text = (GOLDEN / "kafka43" / "recordbatches.txt").read_text(encoding="ascii")
    return {name: bytes.fromhex(data) for name, data in map(str.split, text.splitlines())}


def mixedRecords(baseOffset: int = 0) -> list[Record]:
    """Of the batches C{mixed}, C{placed}, C{idempotent} and C{transactional}."""
    fields: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (0, b"key", b"value", ()),
        (70_000, None, b"later", (("trace", b"abc"), ("none", None), ("gr\u00fc\u00df", b""))),
        (-5, b"tombstone", None, ()),
        (1, b"", b"", ()),
        (2, b"k" * 100, b"v" * 300, ()),
    ]
    return [
        Record(baseOffset + index, START_MS + ms, key, value, headers)
        for index, (ms, key, value, headers) in enumerate(fields)
    ]


def manyRecords(count: int) -> list[Record]:
    """Of C{none} (20 records) and the compressed ones (400)."""
    return [
        Record(index, START_MS + index, b"k%d" % index, b"record %d " % index * 20)
        for index in range(count)
    ]
