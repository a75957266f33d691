"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import time
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.oracle.scenarios.pieces import batch, fill, listOffsetsBody, makeTopic, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, scenario

_SPECIAL = {
    "latest": -1,
    "earliest": -2,
    "max timestamp": -3,
    "earliest local": -4,
    "latest tiered": -5,
    "earliest pending upload": -6,
    "-7": -7,
    "-100": -100,
}


def nowMs() -> int:
    """The clock, which is the broker's, too."""
    return time.time_ns() // 1_000_000


@scenario()
def listOffsets(setting: Setting) -> Steps:
    """By name, by time, with wrong epochs, replicas and isolation levels."""
    key, base = ApiKey.LIST_OFFSETS, setting.baseMs
    topicId = yield from makeTopic("offsets", 4)
    yield from fill(
        "offsets",
        topicId,
        batch(base, b"a", b"b", b"c", stepMs=100),
        batch(base + 1000, b"d", b"e", stepMs=100, codec=1),
        encodeBatch([Record(0, base + 5000, None, b"f"), Record(1, base + 2000, None, b"g")]),
        batch(base + 3000, b"h"),
    )
    yield from fill("offsets", topicId, batch(-1, b"x"), partition=2)
    appended = yield from makeTopic(
        "offsets-appended", 1, ("message.timestamp.type", "LogAppendTime")
    )
    yield from fill("offsets-appended", appended, batch(base, b"a", b"b"))
    appendedMs = nowMs()
    while nowMs() == appendedMs:
        pass  # the next append has a later time
    yield from fill("offsets-appended", appended, batch(base, b"c"))
    for version in versionsOf(key):
        for label, timestamp in _SPECIAL.items():
            for partition in (0, 1, 2):
                body = listOffsetsBody("offsets", [(partition, timestamp)])
                yield Ask(f"{label} of {partition}", key, version, body)
        for after in (
            0,
            1,
            100,
            101,
            200,
            201,
            1000,
            1001,
            1100,
            1101,
            2000,
            2001,
            4999,
            5000,
            5001,
        ):
            body = listOffsetsBody("offsets", [(0, base + after)])
            yield Ask(f"time T+{after}", key, version, body)
        for label, partitions in (
            ("time 0", [(0, 0)]),
            ("time far ahead", [(0, 2**62)]),
            ("time 0 of an empty partition", [(1, 0)]),
            ("unknown partition", [(4, -1)]),
            ("partition -1", [(-1, -1)]),
            ("several", [(0, -1), (1, -2), (4, -1)]),
            ("a partition twice", [(0, -1), (0, -2)]),
            ("none", []),
        ):
            yield Ask(label, key, version, listOffsetsBody("offsets", partitions))
        yield Ask("unknown topic", key, version, listOffsetsBody("offsets-none", [(0, -1)]))
        yield Ask("unknown topic by time", key, version, listOffsetsBody("offsets-none", [(0, 5)]))
        yield Ask("invalid topic", key, version, listOffsetsBody("a/b", [(0, -1)]))
        for timestamp in (-1, -2, -3, base, 0):
            body = listOffsetsBody("offsets-appended", [(0, timestamp)])
            name = "T" if timestamp == base else str(timestamp)
            yield Ask(f"append time, {name}", key, version, body)
        if version >= 2:
            for isolation in (1, 2, -1):
                body = listOffsetsBody("offsets", [(0, -1)], isolation=isolation)
                yield Ask(f"isolation {isolation}", key, version, body)
                body = listOffsetsBody("offsets", [(0, -3)], isolation=isolation)
                yield Ask(f"isolation {isolation}, max timestamp", key, version, body)
        if version >= 4:
            for epoch in (0, 1, -2):
                for timestamp in (-1, 0):
                    body = listOffsetsBody("offsets", [(0, timestamp)], epoch=epoch)
                    yield Ask(f"epoch {epoch}, {timestamp}", key, version, body)
        for replica in (setting.nodeId, 7, -2, -3):
            body = listOffsetsBody("offsets", [(0, -1)], replicaId=replica)
            name = "of the broker" if replica == setting.nodeId else str(replica)
            yield Ask(f"replica {name}", key, version, body)


@scenario()
def offsetForLeaderEpoch(setting: Setting) -> Steps:
    """Epochs that were, are, and are to come."""
    key, cls = ApiKey.OFFSET_FOR_LEADER_EPOCH, messages.OffsetForLeaderEpochRequest
    topicId = yield from makeTopic("epochs", 2)
    yield from fill("epochs", topicId, batch(setting.baseMs, b"a", b"b", b"c"))

    def body(name: str, *partitions: tuple[int, int, int], replicaId: int = -1) -> Any:
        parts = [
            cls.OffsetForLeaderPartition(
                partition=index, leaderEpoch=epoch, currentLeaderEpoch=current
            )
            for index, epoch, current in partitions
        ]
        made = cls(topics=[cls.OffsetForLeaderTopic(topic=name, partitions=parts)])
        made.replicaId = replicaId
        return made

    for version in versionsOf(key):
        for epoch in (0, 1, 5, -1, -2):
            for partition in (0, 1):
                asked = body("epochs", (partition, epoch, -1))
                yield Ask(f"epoch {epoch} of {partition}", key, version, asked)
        for current in (0, 1, -2):
            yield Ask(f"current {current}", key, version, body("epochs", (0, 0, current)))
        yield Ask("unknown partition", key, version, body("epochs", (2, 0, -1)))
        yield Ask("unknown topic", key, version, body("epochs-none", (0, 0, -1)))
        yield Ask("several", key, version, body("epochs", (0, 0, -1), (1, 0, -1), (2, 0, -1)))
        if version >= 3:
            for replica in (7, -2, -3):
                asked = body("epochs", (0, 0, -1), replicaId=replica)
                yield Ask(f"replica {replica}", key, version, asked)
        yield Ask("nothing", key, version, cls())
