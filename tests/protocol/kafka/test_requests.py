"""Requests of today's protocol: headers, the decoders by hand, and bytes that are no request."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import UnknownRequestError, UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka import fetch, messages, produce
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import (
    RUN_COUNT_MAX,
    RequestHeader,
    decodeHeader,
    decodeProduceRun,
    decodeRequest,
)
from pylogbroker.protocol.kafka.schemas import ELEMENT_COUNT_MAX, packUnsignedVarint
from tests.protocol.kafka.randommessages import randomMessage

ALL = frozenset(ApiKey)


def requestFrame(key: ApiKey, version: int, body: bytes, clientId: bytes | None = b"me") -> bytes:
    """A request without its size."""
    size = -1 if clientId is None else len(clientId)
    head = struct.pack(">hhih", key, version, 7, size) + (clientId or b"")
    return head + (b"\0" if version >= key.flexibleVersion else b"") + body


class HeaderTests(SynchronousTestCase):
    """The header decides what is decoded."""

    def test_versions(self) -> None:
        """Every request of every version decodes behind its header, which has tags or not."""
        random = Random(3)
        for key in ALL - {ApiKey.PRODUCE, ApiKey.FETCH}:
            for version in range(key.firstVersion, key.lastVersion + 1):
                body = randomMessage(random, key.requestClass, version)
                header, found = decodeRequest(requestFrame(key, version, body.encode(version)), ALL)
                self.assertEqual(header, RequestHeader(key, version, 7, "me"))
                self.assertEqual(found, body)

    def test_clientId(self) -> None:
        """A client id may be null or empty, and is refused if it does not fit."""
        for clientId, expected in ((None, None), (b"", ""), (b"\xff", "\ufffd")):
            frame = requestFrame(ApiKey.HEARTBEAT, 0, b"", clientId)
            self.assertEqual(decodeHeader(frame, ALL)[0].clientId, expected)
        with self.assertRaisesRegex(WireError, "client id of 5 bytes in a request of 12"):
            decodeHeader(struct.pack(">hhih", 12, 0, 7, 5) + b"me", ALL)

    def test_tags(self) -> None:
        """Tags of the header are skipped."""
        body = messages.HeartbeatRequest(groupId="g").encode(4)
        head = struct.pack(">hhih", ApiKey.HEARTBEAT, 4, 7, -1)
        header, found = decodeRequest(head + b"\2\0\1x\5\0" + body, ALL)
        self.assertEqual((header.clientId, found.groupId), (None, "g"))
        with self.assertRaises(WireError):
            decodeRequest(head + b"\1\0\x7f" + body, ALL)

    def test_unknown(self) -> None:
        """A key that the broker has not finished is refused by number, a version by name."""
        frame = requestFrame(ApiKey.FETCH, 4, b"")
        with self.assertRaisesRegex(UnknownRequestError, "request 1 of version 4 is not served"):
            decodeRequest(frame, {ApiKey.PRODUCE})
        with self.assertRaisesRegex(UnknownRequestError, "request 4711 of version 0"):
            decodeRequest(struct.pack(">hhih", 4711, 0, 7, -1), ALL)
        for version in (-1, 3, 19):
            with self.assertRaisesRegex(UnsupportedVersionError, rf"Fetch of version {version}; 4"):
                decodeRequest(requestFrame(ApiKey.FETCH, version, b""), ALL)
        with self.assertRaisesRegex(WireError, "a request of 9 bytes"):
            decodeRequest(bytes(9), ALL)

    def test_apiVersions(self) -> None:
        """An ApiVersions request of an unknown version is told by its header; its body is empty."""
        for version in (5, 100):
            header, body = decodeRequest(requestFrame(ApiKey.API_VERSIONS, version, b"what"), ALL)
            self.assertFalse(header.isVersionServed)
            self.assertEqual((header.apiVersion, body), (version, messages.ApiVersionsRequest()))
        header, _ = decodeRequest(requestFrame(ApiKey.API_VERSIONS, -1, b""), ALL)
        self.assertFalse(header.isVersionServed)
        header, _ = decodeRequest(requestFrame(ApiKey.API_VERSIONS, 0, b""), ALL)
        self.assertTrue(header.isVersionServed)


def produceValues(found: Any) -> Any:
    """A Produce request as plain values."""
    return (
        found.transactionalId,
        found.acks,
        found.timeoutMs,
        [
            (
                topic.name,
                topic.topicId,
                [(part.index, part.records) for part in topic.partitionData],
            )
            for topic in found.topicData
        ],
    )


def fetchValues(found: Any, replicaId: int) -> Any:
    """A Fetch request as plain values."""
    return (
        replicaId,
        found.maxWaitMs,
        found.minBytes,
        found.maxBytes,
        found.isolationLevel,
        found.sessionId,
        found.sessionEpoch,
        [
            (
                topic.topic,
                topic.topicId,
                [
                    tuple(getattr(p, n) for n in fetch.FetchPartition._fields)
                    for p in topic.partitions
                ],
            )
            for topic in found.topics
        ],
        [(topic.topic, topic.topicId, topic.partitions) for topic in found.forgottenTopicsData],
        found.rackId,
    )


class ByHandTests(SynchronousTestCase):
    """The decoders by hand find what the general one finds."""

    def test_produce(self) -> None:
        """Produce requests with random values, plain ones and others for the general decoder."""
        random = Random(1)
        for version in range(3, 14):
            for countMax in (1, 3, 3, 6):
                body = randomMessage(random, messages.ProduceRequest, version, countMax)
                data = b"head" + body.encode(version)
                found = produce.decodeProduceRequest(data, version, 4)
                self.assertEqual(produceValues(found), produceValues(body), version)

    def test_produceCounts(self) -> None:
        """Many topics, many partitions and long names, whose sizes take more than a byte."""
        Request = messages.ProduceRequest
        for version in range(3, 14):
            parts = [Request.PartitionProduceData(index=i, records=b"r" * i) for i in range(200)]
            topics = [Request.TopicProduceData(partitionData=parts[:1]) for _ in range(200)]
            topics[7].partitionData = parts
            body = Request(transactionalId="x" * 200, topicData=topics)
            if version < 13:
                topics[9].name = "n" * 200
            found = produce.decodeProduceRequest(body.encode(version), version, 0)
            self.assertEqual(produceValues(found), produceValues(body))

    def test_produceTags(self) -> None:
        """Tagged fields that we do not know are skipped, wherever they are."""
        topic = b"\2\2t" + b"\2" + b"\0\0\0\5\3ab"
        head = b"\0\xff\xff\0\0\0\1"
        tag, none = b"\1\7\1x", b"\0"
        expected = (None, -1, 1, [("t", bytes(16), [(5, b"ab")])])
        for tags in ((none, none, none), (tag, none, none), (none, tag, none), (none, none, tag)):
            found = produce.decodeProduceRequest(head + topic + b"".join(tags), 9, 0)
            self.assertEqual(produceValues(found), expected)

    def test_produceNull(self) -> None:
        """Null records come as L{None}."""
        for version in (8, 9, 13):
            Request = messages.ProduceRequest
            part = Request.PartitionProduceData(index=1, records=None)
            body = Request(topicData=[Request.TopicProduceData(partitionData=[part])])
            found = produce.decodeProduceRequest(body.encode(version), version, 0)
            self.assertIsNone(found.topicData[0].partitionData[0].records)

    def test_fetch(self) -> None:
        """Fetch requests with random values, those of followers included."""
        random = Random(2)
        for version in range(4, 19):
            for countMax in (1, 3, 3, 6):
                body = randomMessage(random, messages.FetchRequest, version, countMax)
                replicaId = body.replicaState.replicaId if version >= 15 else body.replicaId
                data = b"head" + body.encode(version)
                found = fetch.decodeFetchRequest(data, version, 4)
                self.assertEqual(
                    fetchValues(found, found.replicaId), fetchValues(body, replicaId), version
                )

    def test_consumersFetch(self) -> None:
        """Fetch requests as consumers send them, without tagged fields."""
        Request = messages.FetchRequest
        for version in range(4, 19):
            parts = [Request.FetchPartition(partition=i, fetchOffset=i) for i in range(150)]
            body = Request(
                maxWaitMs=500, topics=[Request.FetchTopic(partitions=parts)], rackId="r" * 130
            )
            if version >= 7:
                body.forgottenTopicsData = [Request.ForgottenTopic(partitions=[1, 2])]
            found = fetch.decodeFetchRequest(body.encode(version), version, 0)
            if version < 11:
                body.rackId = ""
            self.assertEqual(fetchValues(found, -1), fetchValues(body, -1))

    def test_followersFetch(self) -> None:
        """
        Fetch requests as followers send them, with their broker id and epoch in a tagged field; and
        with a tagged field in that one, which we do not know.
        """
        Request = messages.FetchRequest
        for version in range(15, 19):
            parts = [Request.FetchPartition(partition=i, lastFetchedEpoch=i) for i in range(2)]
            body = Request(
                replicaState=Request.ReplicaState(replicaId=3, replicaEpoch=1 << 40),
                topics=[Request.FetchTopic(partitions=parts)],
            )
            data = body.encode(version)
            state = b"\1\1\x0d" + struct.pack(">iq", 3, 1 << 40)
            self.assertTrue(data.endswith(state + b"\0"))
            more = data[: -len(state) - 1] + b"\1\1\x10" + state[3:] + b"\1\7\1x"
            for each in (data, more):
                found = fetch.decodeFetchRequest(each, version, 0)
                self.assertEqual(fetchValues(found, -1), fetchValues(body, -1))
                self.assertEqual((found.replicaId, found.replicaEpoch), (3, 1 << 40))
            cut = data[:-1] + b"\1"
            with self.assertRaises(WireError):
                fetch.decodeFetchRequest(cut, version, 0)

    def test_elements(self) -> None:
        """More elements than a message may have are refused by the decoders by hand, too."""
        count = ELEMENT_COUNT_MAX + 1
        partition = struct.pack(">iqi", 0, 0, 0)
        body = struct.pack(">iiiibi", -1, 0, 0, 0, 0, 1) + b"\0\1t" + struct.pack(">i", count)
        with self.assertRaisesRegex(WireError, "elements more than a message may have"):
            fetch.decodeFetchRequest(body + partition * count, 4, 0)
        for version, head, partition in (
            (8, b"\xff\xff\0\0\0\0\0\0\0\0\0\1\0\1t" + struct.pack(">i", count), bytes(8)),
            (9, b"\0\0\0\0\0\0\0\2\2t" + packUnsignedVarint(count + 1), b"\0\0\0\0\1\0"),
        ):
            with self.assertRaisesRegex(WireError, "elements more than a message may have"):
                produce.decodeProduceRequest(head + partition * count, version, 0)


def slowly(frame: bytes) -> Any:
    """A Produce request by its decoders alone; the error, where it is none."""
    try:
        header, position = decodeHeader(frame, {ApiKey.PRODUCE})
        return header, produce.decodeProduceRequest(frame, header.apiVersion, position)
    except WireError as error:
        return str(error)


class UsualProduceTests(SynchronousTestCase):
    """What is remembered of Produce requests for one partition changes nothing that is decoded."""

    def check(self, frame: bytes) -> None:
        expected = slowly(frame)
        for _ in range(2):  # the second time what is remembered of the first is used
            try:
                found: Any = decodeRequest(frame, {ApiKey.PRODUCE})
            except WireError as error:
                found = str(error)
            self.assertEqual(found, expected, frame.hex())

    def frames(self) -> list[bytes]:
        """Of every version, with short and long names, with and without records."""
        Request, made = messages.ProduceRequest, []
        for version in range(3, 14):
            for size in (0, 1, 126, 127, 300):
                for records in (None, b"", b"r" * 126, b"s" * 127, b"t" * 20_000):
                    part = Request.PartitionProduceData(index=size << 20, records=records)
                    topic = Request.TopicProduceData(partitionData=[part])
                    if version < 13:
                        topic.name = "n" * size
                    else:
                        topic.topicId = bytes([size & 255]) * 16
                    body = Request(transactionalId="x" * size, acks=1, timeoutMs=9)
                    body.topicData = [topic]
                    for name in (None, b"", b"c" * size):
                        frame = requestFrame(ApiKey.PRODUCE, version, body.encode(version), name)
                        made.append(frame)
                        body.transactionalId = None
        return made

    def test_whole(self) -> None:
        """Whole requests, with bytes behind them, cut ones, and those of another version."""
        for frame in self.frames():
            for each in (frame, frame + b"\0", frame[:-1], frame[:3] + b"\15" + frame[4:]):
                self.check(each)

    def test_tags(self) -> None:
        """Tags, wherever they are, and more topics or partitions."""
        head = struct.pack(">hhih", ApiKey.PRODUCE, 9, 7, 1) + b"c"
        tag, none = b"\1\7\1x", b"\0"
        for count in range(5):
            tags = [tag if at == count else none for at in range(4)]
            body = b"\0\0\1\0\0\0\1\2\2t\2\0\0\0\5\3ab"
            self.check(head + tags[0] + body + b"".join(tags[1:]))
        for body in (b"\0\0\1\0\0\0\1\3", b"\0\0\1\0\0\0\1\2\2t\3", b"\0\0\1\0\0\0\1\1"):
            self.check(head + none + body + b"\0\0\0\5\3ab\0" * 2 + none * 2)

    def test_mutated(self) -> None:
        """Mutated requests, each right behind the one that it was made of."""
        random = Random(6)
        for frame in self.frames()[::3]:
            short = frame[:700]
            self.check(short)
            for _ in range(20):
                self.check(mutate(random, short))


def sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


class RunTests(SynchronousTestCase):
    """Produce requests that follow one another are decoded together as they are one by one."""

    SIZE_MAX = 100_000

    def produceFrame(
        self, correlationId: int, records: bytes | None = b"r", version: int = 9, **more: Any
    ) -> bytes:
        Request = messages.ProduceRequest
        part = Request.PartitionProduceData(index=more.pop("index", 3), records=records)
        topic = Request.TopicProduceData(partitionData=[part])
        if version < 13:
            topic.name = more.pop("name", "topic")
        else:
            topic.topicId = b"i" * 16
        clientId = more.pop("clientId", b"me")
        body = Request(acks=1, timeoutMs=9, topicData=[topic], **more).encode(version)
        frame = requestFrame(ApiKey.PRODUCE, version, body, clientId)
        return frame[:4] + struct.pack(">i", correlationId) + frame[8:]

    def take(self, *frames: bytes, behind: bytes = b"", sizeMax: int = SIZE_MAX) -> int:
        """How many frames are decoded together, which must be as they are alone."""
        buffer = b"??" + b"".join(map(sized, frames)) + behind
        found = decodeProduceRun(buffer, 2, sizeMax)
        if found is None:
            return 0
        header, run, position = found
        taken = run.separated(header)
        count = len(taken)
        self.assertEqual(taken, [decodeRequest(each, ALL) for each in frames[:count]])
        self.assertEqual(position, 2 + sum(4 + len(each) for each in frames[:count]))
        return count

    def test_versions(self) -> None:
        """From version 9 on, up to a number of them."""
        for version in range(3, 14):
            for count in (2, 5, RUN_COUNT_MAX, RUN_COUNT_MAX + 1):
                frames = [self.produceFrame(at, b"r" * (1 << at), version) for at in range(count)]
                expected = min(count, RUN_COUNT_MAX) if version >= 9 else 0
                self.assertEqual(self.take(*frames), expected, (version, count))

    def test_ends(self) -> None:
        """A run ends before what is not whole, not of its kind, or not of its partition."""
        one, two, more = (self.produceFrame(at) for at in range(3))
        others = {
            "cut": sized(more)[:-1],
            "size alone": sized(more)[:4],
            "nothing": b"",
            "empty": bytes(4),
            "negative": struct.pack(">i", -1) + more,
            "other request": sized(requestFrame(ApiKey.HEARTBEAT, 4, b"\2g\0\0\0\0\1m\0\0")),
            "other version": sized(self.produceFrame(2, version=10)),
            "other partition": sized(self.produceFrame(2, index=4)),
            "other topic": sized(self.produceFrame(2, name="topiC")),
            "other client": sized(self.produceFrame(2, clientId=b"mE")),
            "null records": sized(self.produceFrame(2, None)),
            "tags": sized(more[:-1] + b"\1\0\1x"),
            "bytes behind": sized(more + b"\0"),
            "size without end": sized(more[:-5] + b"\xff" * 6),
        }
        for name, other in others.items():
            self.assertEqual(self.take(one, two, behind=other), 2, name)
            self.assertEqual(self.take(one, behind=other), 0, name)
        self.assertEqual(self.take(one, two, sized(more), sizeMax=len(more)), 2)
        self.assertEqual(self.take(one, two, sizeMax=len(more) - 1), 0)

    def test_unusual(self) -> None:
        """What one request alone does not remember begins no run."""
        for more in ({"clientId": None}, {"name": "n" * 127}, {"name": "n" * 500}):
            self.assertEqual(self.take(*[self.produceFrame(1, **more)] * 2), 0, more)
        Request = messages.ProduceRequest
        part = Request.PartitionProduceData(index=1, records=b"r")
        topic = Request.TopicProduceData(name="t", partitionData=[part, part])
        body = Request(acks=1, timeoutMs=9, topicData=[topic]).encode(9)
        self.assertEqual(self.take(*[requestFrame(ApiKey.PRODUCE, 9, body)] * 2), 0)
        whole = self.produceFrame(1)
        for size in range(len(whole)):
            self.assertIsNone(decodeProduceRun(sized(whole[:size]) * 2, 0, self.SIZE_MAX))

    def test_mutated(self) -> None:
        """Mutated requests behind one that is not."""
        random = Random(8)
        for version in (9, 12, 13):
            whole = self.produceFrame(1, b"r" * 50, version)
            counts = set()
            for _ in range(1_000):
                counts.add(self.take(whole, mutate(random, whole), mutate(random, whole)))
            self.assertGreaterEqual(counts, {0, 2, 3})


class MutationTests(SynchronousTestCase):
    """Whatever comes, the answer is a request or a WireError, and memory stays in proportion."""

    def decode(self, frame: bytes) -> bool:
        """Whether a frame is a request; anything but a request or a WireError fails the test."""
        try:
            decodeRequest(frame, ALL)
        except WireError:
            return False
        return True

    def test_cut(self) -> None:
        """A request that is cut anywhere is refused."""
        random = Random(4)
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                body = randomMessage(random, key.requestClass, version, 2).encode(version)
                whole = requestFrame(key, version, body)
                self.assertTrue(self.decode(whole))
                for size in random.sample(range(len(whole)), min(len(whole), 12)):
                    self.assertFalse(self.decode(whole[:size]), (key, version, size))

    def decodeMeasured(self, frame: bytes) -> tuple[bool, int]:
        """Whether it is decoded, and how many bytes of memory that takes at the most."""
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        isDecoded = self.decode(frame)
        _, peak = tracemalloc.get_traced_memory()
        return isDecoded, peak - before

    def test_mutated(self) -> None:
        """
        Requests with bytes changed, put in or taken out, and with counts and sizes blown up, are
        refused or decoded; the memory for it is at most a constant and a hundred times the frame.
        """
        random = Random(5)
        refused = 0
        frames = []
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                body = randomMessage(random, key.requestClass, version).encode(version)
                frames.append(requestFrame(key, version, body))
                self.decode(frames[-1])
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for frame in frames:
            for _ in range(25):
                mutated = mutate(random, frame)
                sizeMax = 65536 + 100 * len(mutated)
                isDecoded, size = self.decodeMeasured(mutated)
                if size >= sizeMax:  # coverage's table of lines may have grown, once for all
                    isDecoded, size = self.decodeMeasured(mutated)
                self.assertLess(size, sizeMax, mutated.hex())
                refused += not isDecoded
        self.assertGreater(refused, len(frames))

    def test_random(self) -> None:
        """Random bytes behind a header are refused or decoded."""
        random = Random(6)
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                for _ in range(20):
                    body = random.randbytes(random.randrange(60))
                    self.decode(requestFrame(key, version, body))
                    self.decode(requestFrame(key, version, bytes(20) + body))


def mutate(random: Random, frame: bytes) -> bytes:
    """A frame with some bytes behind its key and version changed."""
    made = bytearray(frame)
    for _ in range(random.randrange(1, 4)):
        position = random.randrange(4, len(made))
        change = random.randrange(5)
        if change == 0:
            made[position] = random.randrange(256)
        elif change == 1:
            made[position] ^= 1 << random.randrange(8)
        elif change == 2:
            made[position : position + 4] = b"\x7f\xff\xff\xff"
        elif change == 3:
            made[position:position] = random.choice((b"\xff\xff\xff\xff\x07", b"\0", b"\xff" * 6))
        else:
            del made[position : position + random.randrange(1, 9)]
            made += bytes(max(0, 6 - len(made)))
    return bytes(made)
