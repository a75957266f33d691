"""
Numbered messages, and a judge that runs inside Spark: what each stretch of a partition holds, in a
few numbers, so that millions of rows can be compared exactly without being gathered in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pylogbroker.records.messageset import encodeSet
from pylogbroker.types import BrokerPartition

MESSAGE_SIZE = 200
EMBEDDED = encodeSet([b"embedded %d" % number for number in range(3)])
STRETCHES = "broker int, partition int, start long, end long, first long, messages long"


def payload(place: BrokerPartition, number: int) -> bytes:
    """200 bytes, different for each message; every tenth holds valid message sets."""
    head = b"%s %010d " % (str(place).encode(), number)
    return (head + EMBEDDED * 4 if number % 10 == 0 else head).ljust(MESSAGE_SIZE, b".")[
        :MESSAGE_SIZE
    ]


def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    For C{mapInArrow}: one row for each batch, with where it begins and ends, the number of its
    first message and how many there are.

    @raise AssertionError: a message is not the one behind the message before it, byte for byte.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        broker, partition = batch.column("broker")[0].as_py(), batch.column("partition")[0].as_py()
        values, place = batch.column("value").to_pylist(), BrokerPartition(broker, partition)
        first = int(values[0].split()[1])
        if values != [payload(place, first + index) for index in range(len(values))]:
            raise AssertionError(
                f"partition {place}: the messages from {first} on are not those that were written"
            )
        start, end = batch.column("offset")[0].as_py(), batch.column("nextOffset")[-1].as_py()
        row: dict[str, list[Any]] = {
            "broker": [broker],
            "partition": [partition],
            "start": [start],
            "end": [end],
            "first": [first],
            "messages": [len(values)],
        }
        kinds = [pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64()]
        yield pa.RecordBatch.from_arrays(
            [pa.array(each, kind) for each, kind in zip(row.values(), kinds, strict=True)],
            names=list(row),
        )


def faults(rows: Iterable[Any], counts: dict[BrokerPartition, int]) -> list[str]:
    """
    What is wrong with a whole table of stretches.

    @param rows: what L{judge} gave.
    @param counts: how many messages each partition was given.
    """
    byPlace: dict[BrokerPartition, list[Any]] = {place: [] for place in counts}
    for row in rows:
        byPlace.setdefault(BrokerPartition(row.broker, row.partition), []).append(row)
    found = []
    for place, stretches in byPlace.items():
        number = 0
        for row in sorted(stretches, key=lambda row: (row.start, row.first)):
            if row.first != number:
                found.append(f"partition {place}: message {row.first} where {number} should be")
            number = row.first + row.messages
        if number != counts.get(place, 0):
            found.append(f"partition {place}: {number} messages of {counts.get(place, 0)}")
    return found
