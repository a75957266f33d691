"""Responses of today's protocol: frames, and what is packed by hand."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.fetch import FetchResponseWriter, withLongerThrottleTime
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    encodeProduceResponse,
    frameProduceResponse,
    frameProduceRun,
    withThrottleTime,
)
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import (
    MetadataResponsePartition,
    apiVersionsResponse,
    encodeResponse,
    frameResponse,
)
from tests.protocol.kafka.randommessages import randomMessage


def header(key: ApiKey, version: int) -> RequestHeader:
    return RequestHeader(key, version, 7, "me")


def framed(frame: bytes) -> bytes:
    """What is in a frame behind its size and correlation id, which are checked."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:8] == b"\0\0\0\7"
    return frame[8:]


class ThrottleTests(SynchronousTestCase):
    """A client that exceeds a quota is told so in a response that is packed already."""

    def test_produce(self) -> None:
        """The response is that with another throttle time."""
        topics = [TopicProduceResponse("t", bytes(16), [PartitionProduceResponse(0, 0, 5)])]
        for version in range(3, 14):
            head = header(ApiKey.PRODUCE, version)
            made, wanted = (
                frameResponse(head, encodeProduceResponse(version, topics, throttleMs))
                for throttleMs in (0, 77)
            )
            self.assertEqual(withThrottleTime(made, version, 77), wanted)

    def test_fetch(self) -> None:
        """The longer throttle time counts."""
        for version in range(4, 19):
            made, wanted = (
                FetchResponseWriter(version, 7, 0, throttleMs).finish()[0]
                for throttleMs in (50, 77)
            )
            assert isinstance(made, bytes)
            assert isinstance(wanted, bytes)
            self.assertEqual(withLongerThrottleTime(made, version, 77), wanted)
            self.assertEqual(withLongerThrottleTime(wanted, version, 50), wanted)


class FrameTests(SynchronousTestCase):
    """A frame is size, correlation id, tags if the version is flexible, and body."""

    def test_headers(self) -> None:
        """Every response of every version stands behind its header."""
        random = Random(1)
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                body = randomMessage(random, key.responseClass, version)
                tags = version >= key.flexibleVersion and key is not ApiKey.API_VERSIONS
                self.assertEqual(
                    framed(encodeResponse(header(key, version), body)),
                    b"\0" * tags + body.encode(version),
                )

    def test_encoded(self) -> None:
        """A body that is encoded already gets the same frame."""
        for version in (3, 4):
            body = messages.HeartbeatResponse().encode(version)
            self.assertEqual(
                frameResponse(header(ApiKey.HEARTBEAT, version), body),
                encodeResponse(header(ApiKey.HEARTBEAT, version), messages.HeartbeatResponse()),
            )


class ApiVersionsTests(SynchronousTestCase):
    """What a client reads first."""

    def test_unknownVersion(self) -> None:
        """An unknown version is answered with error 35 in the layout of version 0, with key 18."""
        asked = header(ApiKey.API_VERSIONS, 9)
        frame = encodeResponse(asked, apiVersionsResponse(asked, ApiKey))
        self.assertEqual(framed(frame), bytes.fromhex("0023 00000001 0012 0000 0004"))
        self.assertEqual(len(frame) - 4, 16)

    def test_keys(self) -> None:
        """The keys that the broker has finished are listed in their order, Produce from 0."""
        asked = header(ApiKey.API_VERSIONS, 3)
        body = apiVersionsResponse(asked, {ApiKey.FETCH, ApiKey.PRODUCE})
        self.assertEqual(body.errorCode, 0)
        self.assertEqual(
            [(key.apiKey, key.minVersion, key.maxVersion) for key in body.apiKeys],
            [(0, 0, 13), (1, 4, 18)],
        )
        found, _ = messages.ApiVersionsResponse.decode(framed(encodeResponse(asked, body)), 3)
        self.assertEqual(found, body)


def leaderOf(part: Any) -> tuple[int, int] | None:
    """The leader of a partition in a response, if it is not the default one."""
    found = part.currentLeader.leaderId, part.currentLeader.leaderEpoch
    return None if found == (-1, -1) else found


class ProduceTests(SynchronousTestCase):
    """Produce responses by hand are those of the general encoder."""

    def check(self, version: int, body: Any) -> None:
        responses = [
            TopicProduceResponse(
                topic.name,
                topic.topicId,
                [
                    PartitionProduceResponse(
                        part.index,
                        part.errorCode,
                        part.baseOffset,
                        part.logAppendTimeMs,
                        part.logStartOffset,
                        [(e.batchIndex, e.batchIndexErrorMessage) for e in part.recordErrors],
                        part.errorMessage,
                        leaderOf(part),
                    )
                    for part in topic.partitionResponses
                ],
            )
            for topic in body.responses
        ]
        found = encodeProduceResponse(version, responses, body.throttleTimeMs, body.nodeEndpoints)
        self.assertEqual(found, body.encode(version), version)

    def test_random(self) -> None:
        """Responses with random values."""
        random = Random(2)
        for version in range(3, 14):
            for countMax in (1, 3, 3, 6):
                self.check(
                    version, randomMessage(random, messages.ProduceResponse, version, countMax)
                )

    def test_plain(self) -> None:
        """Responses of numbers alone, the usual ones."""
        Response = messages.ProduceResponse
        for version in range(3, 14):
            parts = [
                Response.PartitionProduceResponse(index=i, baseOffset=i << 40) for i in range(200)
            ]
            body = Response(
                throttleTimeMs=5,
                responses=[
                    Response.TopicProduceResponse(name="a", partitionResponses=parts[:1]),
                    Response.TopicProduceResponse(name="b" * 200, partitionResponses=parts),
                ],
            )
            self.check(version, body)

    def test_frame(self) -> None:
        """
        A whole frame for one partition is that of the general encoder; there is none for other
        responses.
        """
        names, topicId = ("t", "ä" * 200), bytes(range(16))
        plain = PartitionProduceResponse(3, 0, 1 << 40, 1_700_000_000_000, 77)
        for version in range(3, 14):
            for name in names:
                topic = TopicProduceResponse(name, topicId, [plain])
                found = frameProduceResponse(version, 7, topic, plain)
                body = encodeProduceResponse(version, [topic])
                wanted = frameResponse(header(ApiKey.PRODUCE, version), body)
                self.assertEqual(found, None if version < 9 else wanted)
        topic = TopicProduceResponse("t", topicId, [])
        for part in (plain._replace(errorCode=3), plain._replace(index=1 << 31)):
            self.assertIsNone(frameProduceResponse(9, 7, topic, part))

    def test_run(self) -> None:
        """Frames that differ in correlation id and base offset alone are those of each."""
        part = PartitionProduceResponse(3, 0, 5, 1_700_000_000_000, 77)
        for version in range(9, 14):
            topic = TopicProduceData("t", bytes(range(16)), [])
            offsets = [5, 9, 1 << 40]
            expected = b"".join(
                frameProduceResponse(version, at, topic, part._replace(baseOffset=offset)) or b""
                for at, offset in enumerate(offsets)
            )
            self.assertEqual(frameProduceRun(version, range(3), topic, part, offsets), expected)

    def test_values(self) -> None:
        """A value that does not fit is refused."""
        part = PartitionProduceResponse(1 << 31)
        with self.assertRaisesRegex(WireError, "ProduceResponse v9: "):
            encodeProduceResponse(9, [TopicProduceResponse("t", bytes(16), [part])])


class File:
    """Stands for a segment file."""

    def pin(self) -> None: ...

    def unpin(self) -> None: ...

    def fileno(self) -> int:
        return 0


class FetchTests(SynchronousTestCase):
    """Fetch responses by hand are those of the general encoder, with slices for records."""

    def write(self, version: int, body: Any) -> list[Any]:
        """The parts of a response; every other partition has its records as a slice."""
        writer = FetchResponseWriter(
            version, 7, len(body.responses), body.throttleTimeMs, body.errorCode, body.sessionId
        )
        for topic in body.responses:
            writer.topic(topic.topic, topic.topicId, len(topic.partitions))
            for position, part in enumerate(topic.partitions):
                records = part.records
                if position % 2 == 0:
                    records = Slice(Records(records), 0, len(records))  # type: ignore[arg-type]
                    records = records if records.size else EMPTY_SLICE
                aborted = part.abortedTransactions
                diverging = part.divergingEpoch
                writer.partition(
                    part.partitionIndex,
                    records,
                    part.errorCode,
                    part.highWatermark,
                    part.lastStableOffset,
                    part.logStartOffset,
                    None if aborted is None else [(a.producerId, a.firstOffset) for a in aborted],
                    part.preferredReadReplica,
                    (diverging.epoch, diverging.endOffset) if diverging != EPOCH else None,
                    leaderOf(part),
                )
        return writer.finish(body.nodeEndpoints)

    def joined(self, parts: list[Any]) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part.file.records for part in parts)

    def test_random(self) -> None:
        """Responses with random values."""
        random = Random(3)
        for version in range(4, 19):
            for countMax in (1, 3, 3, 6):
                body = randomMessage(random, messages.FetchResponse, version, countMax)
                for topic in body.responses:
                    for part in topic.partitions:
                        part.records = part.records or b""
                        part.snapshotId = messages.FetchResponse.SnapshotId()
                found = framed(self.joined(self.write(version, body)))
                self.assertEqual(found, b"\0" * (version >= 12) + body.encode(version), version)

    def test_slices(self) -> None:
        """Slices stand in the list as they were given, between the bytes around them."""
        records = Slice(Records(b"0123456789"), 4, 10)  # type: ignore[arg-type]
        writer = FetchResponseWriter(11, 7, 1)
        writer.topic("t", b"", 1)
        writer.partition(0, records)
        head, found = writer.finish()
        self.assertIs(found, records)
        assert isinstance(head, bytes)
        self.assertEqual(int.from_bytes(head[:4], "big"), len(head) - 4 + 10)

    def test_counts(self) -> None:
        """A topic or a partition too many or too few is a mistake of the caller."""
        writer = FetchResponseWriter(4, 7, 1)
        with self.assertRaisesRegex(ValueError, "a partition more"):
            writer.partition(0)
        with self.assertRaisesRegex(ValueError, "1 topics are missing"):
            writer.finish()
        writer.topic("t", b"", 2)
        writer.partition(0)
        with self.assertRaisesRegex(ValueError, "1 partitions of the topic are missing"):
            writer.finish()
        writer.partition(1)
        with self.assertRaisesRegex(ValueError, "a topic more"):
            writer.topic("t", b"", 2)


class Records(File):
    """A file with these records."""

    def __init__(self, records: bytes) -> None:
        self.records = records


EPOCH = messages.FetchResponse.EpochEndOffset()


class MetadataTests(SynchronousTestCase):
    """Metadata responses by hand are those of the general encoder."""

    def test_random(self) -> None:
        """Responses with random values."""
        random = Random(4)
        for version in range(14):
            for countMax in (0, 1, 3, 8):
                body = randomMessage(random, messages.MetadataResponse, version, countMax)
                found = encodeResponse(header(ApiKey.METADATA, version), body)
                self.assertEqual(framed(found)[version >= 9 :], body.encode(version), version)

    def test_partitions(self) -> None:
        """Partitions may be the cheaper tuples."""
        Response = messages.MetadataResponse
        topic = Response.MetadataResponseTopic(name="t")
        body = Response(topics=[topic])
        for version in range(14):
            topic.partitions = [MetadataResponsePartition(3, 4, 5, -1, [1] * 126, [1])] * 200
            found = encodeResponse(header(ApiKey.METADATA, version), body)
            topic.partitions = [
                Response.MetadataResponsePartition(
                    errorCode=3, partitionIndex=4, leaderId=5, replicaNodes=[1] * 126, isrNodes=[1]
                )
            ] * 200
            self.assertEqual(found, encodeResponse(header(ApiKey.METADATA, version), body))

    def test_refused(self) -> None:
        """What does not fit into the version is refused."""
        Response = messages.MetadataResponse
        for text, version, topic in (
            ("a topic without a name", 11, Response.MetadataResponseTopic(name=None)),
            ("MetadataResponse v9: ", 9, Response.MetadataResponseTopic(errorCode=1 << 20)),
            (
                "more than 126 replicas",
                9,
                Response.MetadataResponseTopic(
                    partitions=[MetadataResponsePartition(0, 0, 0, 0, [0] * 127, [])]
                ),
            ),
        ):
            with self.assertRaisesRegex(WireError, text):
                encodeResponse(header(ApiKey.METADATA, version), Response(topics=[topic]))
