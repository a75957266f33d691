"""Produce without producer ids: codecs, acknowledgements, and batches that are refused."""

from __future__ import annotations

import struct
import zlib

from crc32c import crc32c

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import Record, controlBatch, encodeBatch
from tests.oracle.scenarios.groups import awaitCoordinator
from tests.oracle.scenarios.pieces import (
    EARLIEST,
    LATEST,
    NO_TOPIC_ID,
    awaitTopic,
    batch,
    fetch,
    listOffsetsBody,
    makeTopic,
    produce,
    produceBody,
    versionsOf,
)
from tests.oracle.steps import Ask, Setting, Steps, scenario

_DAY_MS = 86_400_000
_COUNT_POSITION = 57
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _changed(data: bytes, position: int, layout: str, value: int, isSealed: bool = True) -> bytes:
    """A batch with another number in its header, and a checksum that fits if sealed."""
    made = bytearray(data)
    struct.pack_into(f">{layout}", made, position, value)
    if isSealed:
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def _oldMessage(magic: int) -> bytes:
    """A message set of format 0 or 1 with one message."""
    body = struct.pack(">bb", magic, 0)
    if magic:
        body += struct.pack(">q", 1_600_000_000_000)
    body += struct.pack(">ii", -1, 3) + b"old"
    data = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(data)) + data


@scenario()
def produceVersions(setting: Setting) -> Steps:
    """Every version: acknowledgements, unknown topics, several partitions, nothing at all."""
    key, cls, good = ApiKey.PRODUCE, messages.ProduceRequest, batch(setting.baseMs, b"a", b"b")
    for version in versionsOf(key):
        name = f"produce-{version}"
        topicId = yield from makeTopic(name, 3)
        yield produce("all", version, name, topicId, good)
        yield produce("one", version, name, topicId, good, acks=1)
        yield produce("zero", version, name, topicId, good, acks=0)
        yield Ask("after zero", ApiKey.LIST_OFFSETS, 5, listOffsetsBody(name, [(0, LATEST)]))
        for acks in (2, -2):
            yield produce(f"acks {acks}", version, name, topicId, good, acks=acks)
        several = produceBody(version, name, topicId, [(0, good), (2, good), (9, good)])
        yield Ask("several partitions", key, version, several)
        several = produceBody(version, name, topicId, [(1, good), (1, good)])
        yield Ask("a partition twice", key, version, several)
        yield produce("partition -1", version, name, topicId, good, partition=-1)
        yield produce("unknown topic", version, "produce-none", NO_TOPIC_ID, good)
        yield produce("no topic", version, "", ZERO_UUID, good)
        yield produce("invalid topic", version, "a/b", NO_TOPIC_ID, good)
        yield Ask("nothing", key, version, cls(acks=-1, timeoutMs=1000))
        yield Ask("no partitions", key, version, produceBody(version, name, topicId, []))
        yield produce("no records", version, name, topicId, b"")
        yield produce("unknown topic, zero", version, "produce-none", NO_TOPIC_ID, good, acks=0)
        yield Ask("after an error of zero", ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        bad = _changed(good, 17, "I", 1, isSealed=False)
        yield produce("bad checksum", version, name, topicId, bad)
        mixed = produceBody(version, name, topicId, [(0, good), (1, bad)])
        yield Ask("good and bad", key, version, mixed)
        yield produce("too large", version, name, topicId, batch(setting.baseMs, b"x" * 1_100_000))
        yield fetch("what was stored", 11, name, topicId, 0)


@scenario()
def produceBatches(setting: Setting) -> Steps:
    """What a batch may be, in the first version, one in the middle and the last."""
    good = batch(setting.baseMs, b"a", b"b", b"c", key=b"k")
    one = batch(setting.baseMs, b"one")
    packed = batch(setting.baseMs, b"a", b"b", codec=1)
    headers = encodeBatch(
        [Record(0, setting.baseMs, b"k", b"v", (("h", b"1"), ("h", None), ("", b"")))]
    )
    empty = encodeBatch([], lastOffsetDelta=0)
    marker = controlBatch(True, 12_345, 0, 0, setting.baseMs)
    unordered = encodeBatch(
        [Record(0, setting.baseMs + 5, None, b"a"), Record(1, setting.baseMs, None, b"b")]
    )
    cases: tuple[tuple[str, bytes], ...] = (
        ("headers", headers),
        ("null key and value", batch(setting.baseMs, None)),
        ("base offset 77", encodeBatch([Record(77, setting.baseMs, None, b"a")], baseOffset=77)),
        ("leader epoch 9", _changed(one, 12, "i", 9, isSealed=False)),
        ("times that go back", unordered),
        ("two batches", one + good),
        ("two batches, the second bad", one + _changed(good, 17, "I", 1, isSealed=False)),
        ("bytes behind", one + b"123"),
        ("a header's bytes behind", one + bytes(61)),
        ("cut", good[:-1]),
        ("cut in the header", good[:40]),
        ("one byte", b"x"),
        ("eleven bytes", bytes(11)),
        ("twelve bytes", bytes(12)),
        ("offset and size alone", one[:12]),
        ("up to the magic", one[:16]),
        ("text", b"garbage" * 20),
        ("magic 0", _oldMessage(0)),
        ("magic 1", _oldMessage(1)),
        ("magic 3", _changed(one, 16, "b", 3)),
        ("magic -1", _changed(one, 16, "b", -1)),
        ("size 0", _changed(one, 8, "i", 0)),
        ("size -1", _changed(one, 8, "i", -1)),
        ("size too small", _changed(one, 8, "i", 48)),
        ("size too large", _changed(one, 8, "i", 1000)),
        ("codec 5", _changed(one, 21, "h", 5)),
        ("codec 7", _changed(one, 21, "h", 7)),
        ("unknown attributes", _changed(one, 21, "h", 0x0780)),
        ("delete horizon", _changed(one, 21, "h", 0x40)),
        ("log append time", _changed(one, 21, "h", 0x08)),
        ("control", marker),
        ("control flag alone", _changed(one, 21, "h", 0x20)),
        ("transactional without a transaction", _changed(one, 21, "h", 0x10)),
        ("no records", empty),
        ("count too small", _changed(good, _COUNT_POSITION, "i", 2)),
        ("count too large", _changed(good, _COUNT_POSITION, "i", 4)),
        ("count 0", _changed(good, _COUNT_POSITION, "i", 0)),
        ("count -1", _changed(good, _COUNT_POSITION, "i", -1)),
        ("count huge", _changed(good, _COUNT_POSITION, "i", 2**31 - 1)),
        ("last offset delta too large", _changed(good, 23, "i", 5)),
        ("last offset delta too small", _changed(good, 23, "i", 1)),
        ("last offset delta -1", _changed(good, 23, "i", -1)),
        (
            "offsets with a gap",
            encodeBatch(
                [Record(0, setting.baseMs, None, b"a"), Record(2, setting.baseMs, None, b"b")]
            ),
        ),
        ("max timestamp wrong", _changed(one, 35, "q", setting.baseMs + 50)),
        ("max timestamp -1", _changed(one, 35, "q", -1)),
        ("timestamp -1", batch(-1, b"a")),
        ("timestamp -2", batch(-2, b"a")),
        ("timestamp 0", batch(0, b"a")),
        ("timestamp in two days", batch(setting.baseMs + 2 * _DAY_MS, b"a")),
        ("packed: count too small", _changed(packed, _COUNT_POSITION, "i", 1)),
        ("packed: count too large", _changed(packed, _COUNT_POSITION, "i", 3)),
        ("packed: bad checksum", _changed(packed, 17, "I", 1, isSealed=False)),
        (
            "packed: offsets with a gap",
            encodeBatch(
                [Record(0, setting.baseMs, None, b"a"), Record(2, setting.baseMs, None, b"b")],
                codec=1,
            ),
        ),
        ("packed: last offset delta too large", _changed(packed, 23, "i", 5)),
        ("sequence without a producer", _changed(one, 53, "i", 4)),
        ("epoch without a producer", _changed(one, 51, "h", 4)),
        ("producer -2", _changed(one, 43, "q", -2)),
    )
    for version in (3, 8, 9, 12, 13):
        name = f"batches-{version}"
        topicId = yield from makeTopic(name)
        for label, records in cases:
            yield produce(label, version, name, topicId, records)
        yield Ask("end", ApiKey.LIST_OFFSETS, 5, listOffsetsBody(name, [(0, LATEST)]))
        yield fetch("what was stored", 11, name, topicId, 0)


@scenario()
def produceUnreadableRecords(setting: Setting) -> Steps:
    """Batches whose header and checksum are right, and whose records are not."""
    one = batch(setting.baseMs, b"one")
    packed = batch(setting.baseMs, b"a", b"b", codec=1)
    body = one[61:]
    for version in (3, 8, 13):
        name = f"unreadable-{version}"
        topicId = yield from makeTopic(name)
        for label, records in (
            ("record cut", _changed(one[:-2], 8, "i", len(one) - 14)),
            ("records with bytes behind", _changed(one + b"12", 8, "i", len(one) - 10)),
            ("a record's size too large", _changed(one, 61, "b", body[0] + 2)),
            ("a record's size too small", _changed(one, 61, "b", body[0] - 2)),
            ("a record's size below 0", _changed(one, 61, "b", 1)),
            ("offset of a record 1", _changed(one, 64, "b", 2)),
            ("size of a key too large", _changed(one, 65, "b", 126)),
            ("headers below 0", _changed(one, len(one) - 1, "b", 1)),
            ("headers that are not there", _changed(one, len(one) - 1, "b", 2)),
            ("packed: not gzip", _changed(one, 21, "h", 1)),
            ("packed: not snappy", _changed(one, 21, "h", 2)),
            ("packed: not lz4", _changed(one, 21, "h", 3)),
            ("packed: not zstd", _changed(one, 21, "h", 4)),
            ("packed: cut", _changed(packed[:-9], 8, "i", len(packed) - 21)),
        ):
            yield produce(label, version, name, topicId, records)


@scenario()
def produceCodecs(setting: Setting) -> Steps:
    """Every codec to topics of every compression type, and what is stored."""
    for kind in ("producer", "uncompressed", *_CODECS[1:]):
        name = f"codecs-{kind}"
        topicId = yield from makeTopic(name, 1, ("compression.type", kind))
        for codec, named in enumerate(_CODECS):
            for version in (3, 6, 7, 13):
                records = batch(setting.baseMs, b"a" * 50, b"b" * 50, key=b"k", codec=codec)
                yield produce(f"{named} to {kind}", version, name, topicId, records)
        yield fetch("what was stored", 11, name, topicId, 0)


@scenario()
def produceToTopics(setting: Setting) -> Steps:
    """Settings of topics: times, sizes, compaction, append time."""
    good = batch(setting.baseMs, b"a", b"b")
    keyed = batch(setting.baseMs, b"a", b"b", key=b"k")
    mixed = encodeBatch(
        [Record(0, setting.baseMs, b"k", b"a"), Record(1, setting.baseMs, None, b"b")]
    )
    for version in (3, 8, 13):

        def make(suffix: str, *configs: tuple[str, str]) -> Steps:
            name = f"settings-{suffix}-{version}"  # noqa: B023
            return name, (yield from makeTopic(name, 1, *configs))

        name, topicId = yield from make("compacted", ("cleanup.policy", "compact"))
        for label, records in (
            ("no key", good),
            ("keys", keyed),
            ("a record without a key", mixed),
            ("no key, packed", batch(setting.baseMs, b"a", codec=4)),
            ("two batches, one without keys", keyed + good),
            ("tombstone", batch(setting.baseMs, None, key=b"k")),
        ):
            yield produce(f"compacted: {label}", version, name, topicId, records)
        yield fetch("compacted: stored", 11, name, topicId, 0)

        name, topicId = yield from make("appended", ("message.timestamp.type", "LogAppendTime"))
        for label, records in (
            ("plain", good),
            ("packed", batch(setting.baseMs, b"a", codec=3)),
            ("a time far ahead", batch(setting.baseMs + 9 * _DAY_MS, b"a")),
            ("two batches", good + good),
        ):
            yield produce(f"append time: {label}", version, name, topicId, records)
        yield fetch("append time: stored", 11, name, topicId, 0)

        limits = (
            ("message.timestamp.before.max.ms", "7200000"),
            ("message.timestamp.after.max.ms", "1000"),
        )
        name, topicId = yield from make("times", *limits)
        for label, records in (
            ("in range", good),
            ("too old", batch(setting.baseMs - _DAY_MS, b"a")),
            ("too new", batch(setting.baseMs + _DAY_MS, b"a")),
            (
                "one too old",
                encodeBatch(
                    [
                        Record(0, setting.baseMs, None, b"a"),
                        Record(1, setting.baseMs - _DAY_MS, None, b"b"),
                    ]
                ),
            ),
            ("too old, packed", batch(setting.baseMs - _DAY_MS, b"a", codec=2)),
            ("none", batch(-1, b"a")),
        ):
            yield produce(f"times: {label}", version, name, topicId, records)

        name, topicId = yield from make("small", ("max.message.bytes", "200"))
        for label, records in (
            ("fits", good),
            ("too large", batch(setting.baseMs, b"x" * 200)),
            ("too large, packed small", batch(setting.baseMs, b"x" * 2000, codec=1)),
            ("two that fit, together too large", batch(setting.baseMs, b"x" * 90) * 2),
            ("one that fits, one that does not", good + batch(setting.baseMs, b"x" * 200)),
            ("largest", batch(setting.baseMs, b"x" * (200 - 61 - 8))),
            ("largest and one", batch(setting.baseMs, b"x" * (200 - 61 - 7))),
            ("largest and two", batch(setting.baseMs, b"x" * (200 - 61 - 6))),
            ("largest and three", batch(setting.baseMs, b"x" * (200 - 61 - 5))),
        ):
            yield produce(f"small: {label}", version, name, topicId, records)
        yield fetch("small: stored", 11, name, topicId, 0)

        name, topicId = yield from make("unsynced", ("min.insync.replicas", "2"))
        for acks in (-1, 1):
            yield produce(f"min.insync.replicas, acks {acks}", version, name, topicId, good, acks)
        yield Ask(
            "unsynced: start",
            ApiKey.LIST_OFFSETS,
            5,
            listOffsetsBody(name, [(0, EARLIEST), (0, LATEST)]),
        )


@scenario()
def produceToInternalTopics(setting: Setting) -> Steps:
    """Topics that the broker keeps for itself, by name."""
    yield from awaitCoordinator()
    yield from awaitTopic("__consumer_offsets")
    for version in (3, 9, 12):
        for acks in (-1, 1):
            records = batch(setting.baseMs, b"a", key=b"k")
            yield produce(f"acks {acks}", version, "__consumer_offsets", bytes(16), records, acks)


@scenario()
def produceToTooFewReplicas(setting: Setting) -> Steps:
    """C{min.insync.replicas} above the one replica that there is, which Kafka accepts."""
    name = "produce-to-too-few-replicas"
    topicId = yield from makeTopic(name, 1, ("min.insync.replicas", "2"))
    records = batch(setting.baseMs, b"x")
    for version in (3, 9, 13):
        for acks in (1, -1):
            yield produce(f"acks={acks}", version, name, topicId, records, acks)
