"""Fetch: offsets, sizes, epochs, waiting and sessions."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.oracle.scenarios.pieces import (
    NO_TOPIC_ID,
    batch,
    deleteTopicsBody,
    fetch,
    fetchBody,
    fill,
    makeTopic,
    metadataBody,
    produce,
    versionsOf,
)
from tests.oracle.steps import Ask, Receive, Setting, Steps, Until, scenario


@scenario()
def fetchVersions(setting: Setting) -> Steps:
    """Every version: where a fetch may begin and how much it gets."""
    key = ApiKey.FETCH
    base = setting.baseMs
    for version in versionsOf(key):
        name = f"fetch-{version}"
        topicId = yield from makeTopic(name, 3)
        three = batch(base, b"a", b"b", b"c", key=b"k")
        yield from fill(
            name, topicId, three, batch(base + 10, b"d" * 300), batch(base + 20, b"e", codec=4)
        )
        yield from fill(name, topicId, batch(base, b"p"), partition=1)
        for offset in (0, 1, 2, 3, 4, 5, 6, -1, -2, 2**63 - 1):
            yield fetch(f"offset {offset}", version, name, topicId, offset)
        for label, fields in (
            ("one byte of a partition", {"partitionMaxBytes": 1}),
            ("no byte of a partition", {"partitionMaxBytes": 0}),
            ("-1 bytes of a partition", {"partitionMaxBytes": -1}),
            ("a batch's bytes", {"partitionMaxBytes": len(three)}),
            ("a batch's bytes and some", {"partitionMaxBytes": len(three) + 100}),
            ("one byte in all", {"maxBytes": 1}),
            ("no byte in all", {"maxBytes": 0}),
            ("-1 bytes in all", {"maxBytes": -1}),
            ("committed", {"isolation": 1}),
            ("isolation 2", {"isolation": 2}),
            ("isolation -1", {"isolation": -1}),
            ("min bytes 0", {"minBytes": 0}),
            ("min bytes -1", {"minBytes": -1}),
            ("max wait -1", {"maxWaitMs": -1}),
        ):
            yield fetch(label, version, name, topicId, 0, **fields)
        if version >= 9:
            for epoch in (0, 1, -2):
                yield fetch(f"leader epoch {epoch}", version, name, topicId, 0, epoch=epoch)
                yield fetch(
                    f"leader epoch {epoch}, out of range", version, name, topicId, 99, epoch=epoch
                )
        if version >= 12:
            for lastEpoch in (0, 1, -2):
                yield fetch(
                    f"last fetched epoch {lastEpoch}",
                    version,
                    name,
                    topicId,
                    3,
                    lastEpoch=lastEpoch,
                )
        waits = {"minBytes": 1, "maxWaitMs": 100}
        yield fetch("wait at the end", version, name, topicId, 5, **waits)
        yield fetch("wait for too much", version, name, topicId, 3, minBytes=100_000, maxWaitMs=100)
        body = fetchBody(name, topicId, [(0, 0), (1, 0), (2, 0)])
        yield Ask("three partitions", key, version, body)
        body = fetchBody(name, topicId, [(0, 0), (1, 0), (2, 0)], maxBytes=1)
        yield Ask("three partitions, one byte in all", key, version, body)
        body = fetchBody(name, topicId, [(0, 0), (1, 0)], partitionMaxBytes=1)
        yield Ask("two partitions, one byte each", key, version, body)
        body = fetchBody(name, topicId, [(0, 99), (1, 0)], minBytes=100_000, maxWaitMs=5000)
        yield Ask("an error ends the wait", key, version, body)
        body = fetchBody(name, topicId, [(3, 0), (-1, 0)])
        yield Ask("unknown partitions", key, version, body)
        body = fetchBody(name, topicId, [(0, 0), (0, 3)])
        yield Ask("a partition twice", key, version, body)
        yield fetch("unknown topic", version, "fetch-none", NO_TOPIC_ID, 0)
        yield fetch("unknown topic, waiting", version, "fetch-none", NO_TOPIC_ID, 0, maxWaitMs=5000)
        yield fetch("no topic", version, "", ZERO_UUID, 0)
        yield Ask("nothing", key, version, fetchBody(name, topicId, [], minBytes=0))
        if version <= 14:
            for replica in (1, 7, -2, -3):
                body = fetchBody(name, topicId, [(0, 0)])
                body.replicaId = replica if replica != 1 else setting.nodeId
                yield Ask(f"replica {replica}", key, version, body)
        waiting = fetch("", version, name, topicId, 5, minBytes=1, maxWaitMs=10_000)
        yield waiting._replace(on="waiting", isAnswered=False)
        yield produce("wakes", 9, name, topicId, batch(base + 30, b"woken"))
        yield Receive("woken", "waiting")


@scenario()
def fetchOfCompressed(setting: Setting) -> Steps:
    """Batches of every codec, and versions before zstd."""
    topicId = yield from makeTopic("fetch-packed", 5)
    for codec in range(5):
        yield from fill(
            "fetch-packed", topicId, batch(setting.baseMs, b"a" * 99, codec=codec), partition=codec
        )
    for version in versionsOf(ApiKey.FETCH):
        for codec in range(5):
            body = fetchBody("fetch-packed", topicId, [(codec, 0)])
            yield Ask(f"codec {codec}", ApiKey.FETCH, version, body)


@scenario()
def fetchSessions(setting: Setting) -> Steps:
    """Sessions: made, used, changed, closed, wrong."""
    key = ApiKey.FETCH
    for version in versionsOf(key, 7):
        name = f"session-{version}"
        topicId = yield from makeTopic(name, 3)
        records = batch(setting.baseMs, b"a")
        yield from fill(name, topicId, records)

        def ask(
            label: str, sessionId: int, epoch: int, *partitions: tuple[int, int], **fields: Any
        ) -> Ask:
            body = fetchBody(
                name,  # noqa: B023
                topicId,  # noqa: B023
                partitions,
                sessionId=sessionId,
                sessionEpoch=epoch,
                **fields,
            )
            return Ask(label, key, version, body)  # noqa: B023

        yield ask("without a session", 0, -1, (0, 0))
        made = yield ask("make", 0, 0, (0, 0), (1, 0))
        session = made.sessionId
        yield ask("nothing is new", session, 1, (0, 1))
        yield from fill(name, topicId, records, partition=1)
        yield ask("one partition has more", session, 2)
        yield ask("again, as it was not moved", session, 3)
        yield ask("moved", session, 4, (1, 1))
        yield ask("a partition more", session, 5, (2, 0))
        yield from fill(name, topicId, records, partition=2)
        yield ask("it has records", session, 6)
        yield ask("forgotten", session, 7, forgotten=[2])
        yield ask("an offset out of range", session, 8, (0, 99))
        yield ask("still out of range", session, 9)
        yield ask("in range", session, 10, (0, 0))
        yield ask("the epoch before", session, 10)
        yield ask("an epoch too high", session, 20)
        yield ask("the epoch due", session, 11)
        yield ask("forgotten and asked", session, 12, (2, 0), forgotten=[2])
        yield ask("an unknown session", 123_456_789, 1, (0, 0))
        yield ask("an unknown session to close", 123_456_789, -1, (0, 0))
        yield ask("no session, epoch 1", 0, 1, (0, 0))
        yield ask("epoch -2", session, -2, (0, 0))
        yield ask("an unknown partition", session, 13, (9, 0))
        yield ask("still unknown", session, 14)
        again = yield ask("made anew", session, 0, (0, 0))
        yield ask("the old one", session, 15)
        yield ask("closed", again.sessionId, -1, (0, 0))
        yield ask("after closing", again.sessionId, 1)
        empty = yield ask("made without partitions", 0, 0)
        yield ask("without partitions", empty.sessionId, 1, minBytes=0)
        last = yield ask("made for a topic that goes", 0, 0, (0, 0))
        yield Ask("the topic goes", ApiKey.DELETE_TOPICS, 3, deleteTopicsBody(3, name))
        yield Until(
            Ask("gone", ApiKey.METADATA, 7, metadataBody([name], 7), isRecorded=False),
            lambda body: body.topics[0].errorCode == 3,
        )
        yield Until(
            Ask("gone", ApiKey.FETCH, 7, fetchBody(name, topicId, [(0, 0)]), isRecorded=False),
            lambda body: body.responses[0].partitions[0].errorCode == 3,
        )
        yield ask("it is gone", last.sessionId, 1)
        yield ask("it is still gone", last.sessionId, 2)


@scenario()
def fetchIds(setting: Setting) -> Steps:
    """Topic ids that are unknown, and several topics."""
    cls = messages.FetchRequest
    first = yield from makeTopic("ids-a")
    second = yield from makeTopic("ids-b")
    yield from fill("ids-a", first, batch(setting.baseMs, b"a"))
    yield from fill("ids-b", second, batch(setting.baseMs, b"b"))

    def body(*topics: tuple[str, bytes]) -> Any:
        part = cls.FetchPartition(partition=0, fetchOffset=0, partitionMaxBytes=1000)
        made = [
            cls.FetchTopic(topic=name, topicId=ident, partitions=[part]) for name, ident in topics
        ]
        return cls(maxWaitMs=0, minBytes=1, topics=made)

    for version in versionsOf(ApiKey.FETCH):
        for label, asked in (
            ("both", body(("ids-b", second), ("ids-a", first))),
            ("a topic twice", body(("ids-a", first), ("ids-a", first))),
            ("one known, one unknown", body(("ids-none", NO_TOPIC_ID), ("ids-a", first))),
        ):
            yield Ask(label, ApiKey.FETCH, version, asked)
