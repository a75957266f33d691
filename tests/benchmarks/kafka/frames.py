"""Requests as the load sends them, and a blocking client for what is asked once."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record, encodeBatch

CLIENT_ID = b"bench"
PRODUCE_VERSION = 11
FETCH_VERSION = 12
MESSAGE_SIZE = 200
TIMEOUT_SECONDS = 120.0
ERROR_RETRY_SECONDS_MAX = 60
LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC = 5, 3


def frame(key: ApiKey, version: int, body: Any, correlationId: int = 0) -> bytes:
    """A request, with its size."""
    head = struct.pack(">hhih", int(key), version, correlationId, len(CLIENT_ID)) + CLIENT_ID
    if version >= key.flexibleVersion:
        head += b"\0"
    rest = head + body.encode(version)
    return struct.pack(">i", len(rest)) + rest


def lines(count: int) -> list[bytes]:
    """Messages that look like lines of a web server's log, each of L{MESSAGE_SIZE} bytes."""
    state, found = 0x2545F491, []
    for number in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        text = (
            f'{{"time":"2026-06-12T10:{number // 60 % 60:02}:{number % 60:02}Z",'
            f'"host":"web-{state % 40:03}.example.org","method":"GET",'
            f'"path":"/articles/{state % 5000}.html","status":200,"size":{state % 90000},'
            f'"visitor":"{state * 2654435761 & 0xFFFFFFFF:08x}",'
            f'"referrer":"http://www.example.org/search?q={state % 977}","note":"'
        )
        note = "".join(chr(97 + (state >> shift % 24) % 16) for shift in range(MESSAGE_SIZE))
        found.append((text + note)[:MESSAGE_SIZE].encode())
    return found


def batch(count: int, codec: int) -> bytes:
    """A record batch of that many messages, of now."""
    nowMs = int(time.time() * 1000)
    records = [Record(index, nowMs, None, line) for index, line in enumerate(lines(count))]
    return encodeBatch(records, codec=codec)


def produceFrame(topic: str, records: bytes, acks: int) -> bytes:
    """A request for partition 0."""
    cls = messages.ProduceRequest
    data = cls.TopicProduceData(
        name=topic, partitionData=[cls.PartitionProduceData(records=records)]
    )
    body = cls(transactionalId=None, acks=acks, timeoutMs=60_000, topicData=[data])
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, body)


def errorPlace(topic: str) -> int:
    """The byte of the error code in the response to L{produceFrame}."""
    return 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4


def fetchFrame(topic: str, offset: int, size: int, *, waitMs: int = 500, sizeMin: int = 1) -> bytes:
    """A request for partition 0, without a session."""
    cls = messages.FetchRequest
    part = cls.FetchPartition(
        partition=0, fetchOffset=offset, partitionMaxBytes=size, currentLeaderEpoch=-1
    )
    body = cls(
        maxWaitMs=waitMs,
        minBytes=sizeMin,
        maxBytes=1 << 26,
        sessionId=0,
        sessionEpoch=-1,
        topics=[cls.FetchTopic(topic=topic, partitions=[part])],
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, body)


def fetchOffsetPlace(topic: str) -> int:
    """The byte of the offset in L{fetchFrame}."""
    mark = 0x1122334455667788
    return fetchFrame(topic, mark, 1).index(struct.pack(">q", mark))


class BlockingClient:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, key: ApiKey, version: int, body: Any) -> Any:
        """The decoded response."""
        self.socket.sendall(frame(key, version, body))
        return self.answer(key, version)

    def answer(self, key: ApiKey, version: int) -> Any:
        """The next response, to a request of that kind."""
        (size,) = struct.unpack(">i", self._read(4))
        data = self._read(size)
        isTagged = version >= key.flexibleVersion and key is not ApiKey.API_VERSIONS
        return key.responseClass.decode(data, version, 4 + isTagged)[0]

    def _read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            data = self.socket.recv(size - len(got))
            if not data:
                raise ConnectionError("the broker closed the connection")
            got += data
        return bytes(got)

    def createTopics(
        self,
        names: Sequence[str],
        configs: Mapping[str, str] | None = None,
        replicationFactor: int = 1,
    ) -> None:
        """
        Each with one partition, which accepts records when this returns, and all of whose replicas
        are in sync then.

        @raise RuntimeError: the broker refuses.
        """
        cls = messages.CreateTopicsRequest
        wanted = [
            cls.CreatableTopic(
                name=name,
                numPartitions=1,
                replicationFactor=replicationFactor,
                configs=[
                    cls.CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
            for name in names
        ]
        for topic in self.ask(ApiKey.CREATE_TOPICS, 5, cls(topics=wanted)).topics:
            if topic.errorCode:
                raise RuntimeError(f"{topic.name} is not created: error {topic.errorCode}")
        for name in names:
            self.awaitLeader(name, replicationFactor)

    def metadata(self, name: str) -> tuple[Any, dict[int, int]]:
        """What the broker says of a topic; and the ports of the brokers, by their ids."""
        cls = messages.MetadataRequest
        topics = [cls.MetadataRequestTopic(name=name)]
        answer = self.ask(ApiKey.METADATA, 5, cls(topics=topics, allowAutoTopicCreation=False))
        return answer.topics[0], {each.nodeId: each.port for each in answer.brokers}

    def awaitLeader(self, name: str, inSyncCount: int) -> int:
        """
        Wait until partition 0 has a leader, and that many replicas in sync.

        @return: the leader's id.
        @raise RuntimeError: it takes too long.
        """
        until = time.monotonic() + ERROR_RETRY_SECONDS_MAX
        while True:
            topic, _ = self.metadata(name)
            parts = [each for each in topic.partitions if not each.errorCode]
            if not topic.errorCode and parts and len(parts[0].isrNodes) >= inSyncCount:
                return int(parts[0].leaderId)
            if time.monotonic() > until:
                raise RuntimeError(f"{name} has error {topic.errorCode}")
            time.sleep(0.02)

    def deleteTopic(self, name: str) -> None:
        """And its records, now or soon."""
        cls = messages.DeleteTopicsRequest
        self.ask(ApiKey.DELETE_TOPICS, 5, cls(topicNames=[name], timeoutMs=30_000))

    def awaitGone(self, name: str) -> None:
        """
        Wait until a topic that was deleted is not known any more.

        @raise RuntimeError: it takes too long.
        """
        until = time.monotonic() + ERROR_RETRY_SECONDS_MAX
        while self.metadata(name)[0].errorCode != UNKNOWN_TOPIC:
            if time.monotonic() > until:
                raise RuntimeError(f"{name} is still there")
            time.sleep(0.02)

    def endOffset(self, name: str) -> int:
        """Of partition 0."""
        cls = messages.ListOffsetsRequest
        part = cls.ListOffsetsPartition(partitionIndex=0, timestamp=-1)
        answer = self.ask(
            ApiKey.LIST_OFFSETS,
            5,
            cls(replicaId=-1, topics=[cls.ListOffsetsTopic(name=name, partitions=[part])]),
        )
        return int(answer.topics[0].partitions[0].offset)
