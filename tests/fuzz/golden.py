"""
What real 0.7.2 software sent, answered and wrote (C{tests/golden}), as values: where mutations
begin.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.topologies import messages
from tests.fuzz import judge
from tests.protocol.kafka.randommessages import randomMessage
from tests.records.goldenbatches import goldenBatches
from tests.topologies.streammanager.containers import physicalPlan

FOLDER = Path(__file__).resolve().parent.parent / "golden"


def cases() -> list[dict[str, Any]]:
    """The recorded exchanges of C{wire.json}, as they are written there."""
    return list(json.loads((FOLDER / "wire.json").read_text(encoding="utf-8")))


def requests() -> list[tuple[str, bytes]]:
    """
    Name and bytes of each recorded request, those of the clients among them; some are several
    frames, some are bad.
    """
    found = [(case["name"], bytes.fromhex(case["request"])) for case in cases()]
    return found + [
        (path.name, bytes.fromhex(path.read_text(encoding="ascii")))
        for path in sorted((FOLDER / "clients").glob("*.hex"))
    ]


def responses() -> list[tuple[str, bytes]]:
    """Name and bytes of what was answered, where there was an answer."""
    return [(case["name"], bytes.fromhex(case["response"])) for case in cases() if case["response"]]


def segment() -> bytes:
    """The segment file that 0.7.2 wrote."""
    return (FOLDER / "segment-sample.kafka").read_bytes()


def frames(stream: bytes) -> list[bytes]:
    """The bodies of the whole frames of a stream."""
    found = []
    at = 0
    while (
        0
        < (size := int.from_bytes(stream[at : at + 4], "big", signed=True))
        <= len(stream) - at - 4
    ):
        found.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def setsIn(body: bytes) -> list[bytes]:
    """
    The message sets in the body of a PRODUCE or MULTIPRODUCE request, as far as its size fields
    make sense.
    """
    if body[:2] == b"\x00\x00":
        count, at = 1, 2
    elif body[:2] == b"\x00\x03":
        count, at = int.from_bytes(body[2:4], "big", signed=True), 4
    else:
        return []
    found: list[bytes] = []
    while len(found) < count and at + 2 <= len(body):
        at += 2 + max(int.from_bytes(body[at : at + 2], "big", signed=True), 0) + 8
        if at > len(body):
            break
        size = max(int.from_bytes(body[at - 4 : at], "big", signed=True), 0)
        found.append(body[at : at + size])
        at += size
    return found


def messageSets() -> list[bytes]:
    """The message sets of the recorded requests, and the segment; some are bad."""
    return [segment()] + [
        data for _, stream in requests() for body in frames(stream) for data in setsIn(body)
    ]


def wrapperPayloads() -> list[bytes]:
    """The compressed payloads in L{messageSets}."""
    return [
        entry.payload
        for data in messageSets()
        for entry in judge.recoverable(data)
        if entry.codec in (1, 2)
    ]


def kafkaMessages(isResponse: bool) -> list[bytes]:
    """Random messages of every kind and version, each behind two bytes that name it."""
    random = Random(1)
    found = []
    for at, key in enumerate(ApiKey):
        for version in range(key.firstVersion, key.lastVersion + 1):
            cls = key.responseClass if isResponse else key.requestClass
            body = randomMessage(random, cls, version).encode(version)
            found.append(bytes((at, version - key.firstVersion)) + body)
    return found


def topologyFrames() -> list[bytes]:
    """The bodies of a frame of each kind between processes of a topology, and of some batches."""
    plan = physicalPlan({1: [1, 2], 2: [3]})
    controls: list[messages.Control] = [
        messages.Hello("words", messages.INSTANCE, 3, 1 << 60, 5, 7, 9, "h1:7000"),
        messages.Welcome(1 << 60, 7),
        messages.Refused("no"),
        messages.Confirm(300),
        messages.PlanPushed(plan),
        messages.BackPressure(2, True),
        messages.Metrics(1, "7", "count", 5, 1_795_194_789_000, {"executed": 1.0}),
    ]
    numbers = messages.encodeNumbers([1, 5, 2, 7])
    entries = [
        messages.encodeEntry(kind, task, 2, numbers[:size])
        for kind in range(6)
        for task in (1, 2, 3, 9)
        for size in (32, 16, 0)
    ]
    batches = [entries[:1], entries[:3], entries[:12], entries[2::12], entries]
    frames = [messages.encodeBatch(number, each) for number, each in enumerate(batches, 1)]
    return [frame[4:] for frame in [*map(messages.encodeControl, controls), *frames]]


def samples(promise: str) -> list[bytes]:
    """What to begin with for a promise of L{tests.fuzz.promises}."""
    if promise == "requestStream":
        return [b"\x00" + stream for _, stream in requests()]
    if promise in ("kafkaRequest", "kafkaResponse"):
        return kafkaMessages(promise == "kafkaResponse")
    if promise == "kafkaBatch":
        return [bytes((head,)) + data for data in goldenBatches().values() for head in (0, 255)]
    if promise == "requestBody":
        return [body for _, stream in requests() for body in frames(stream)]
    if promise == "responseBody":
        return [body for _, stream in responses() for body in frames(stream)]
    if promise == "messageSet":
        return messageSets()
    if promise == "wrapped":
        return [bytes([codec]) + payload for payload in wrapperPayloads() for codec in (1, 2)]
    if promise == "compression":
        return [b"\x04" + payload for payload in wrapperPayloads()]
    if promise == "topologyFrame":
        return topologyFrames()
    made = [
        b"\xff\x00\x05\x80\x00hello\x00\x03\xff\x01\x00\x01\xff\x00",
        b"\xff\x00\x20\xff\x02\x00\x01\xff\x00abcdefgh",
    ]
    return [b"\x00" + data for data in messageSets()] + made
