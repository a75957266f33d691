"""
The client of today's protocol that must not notice anything, and its connection.
"""

from __future__ import annotations

import socket
from typing import Any

from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID, ApiMessage
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    encodeBatch,
    iterateRecords,
    readHeader,
)
from tests.fuzz.asking import RECEIVE_SIZE
from tests.fuzz.figures import Figures
from tests.fuzz.kafkamutation import frame
from tests.fuzz.livebroker import LiveBroker
from tests.fuzz.watching import WATCHED_TOPIC, Watcher
from tests.oracle.scenarios import pieces

_TIME_MS = 1_300_000_000_000
_FETCH_VERSION = 11
_LIST_VERSION = 5


def batch(value: bytes) -> bytes:
    """One record."""
    return encodeBatch([Record(0, _TIME_MS, b"key", value, ())])


def fetch(topic: str, offset: int, size: int, correlationId: int) -> bytes:
    """A Fetch request that does not wait, and is answered with one whole batch at least."""
    body = pieces.fetchBody(
        topic, ZERO_UUID, [(0, offset)], maxBytes=size, partitionMaxBytes=size, minBytes=0
    )
    return frame(ApiKey.FETCH, _FETCH_VERSION, body, correlationId)


def logEnd(topic: str, correlationId: int) -> bytes:
    """A request for the end of a log, which is answered from memory."""
    return frame(
        ApiKey.LIST_OFFSETS, _LIST_VERSION, pieces.listOffsetsBody(topic, [(0, -1)]), correlationId
    )


class KafkaCaller:
    """A connection that asks requests of today's protocol."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder(2**31 - 1)

    def receive(self, request: bytes) -> bytes:
        """The answer, without its size."""
        self._socket.sendall(request)
        while (answer := self._decoder.take()) is None:
            data = self._socket.recv(RECEIVE_SIZE)
            if not data:
                raise AssertionError("the broker has closed the connection")
            self._decoder.feed(data)
        return bytes(answer)

    def ask(self, key: ApiKey, version: int, body: ApiMessage) -> Any:
        """The decoded answer to a request; its header has no tags."""
        found, _ = key.responseClass.decode(self.receive(frame(key, version, body)), version, 4)
        return found

    def create(self, name: str, partitionCount: int = 1) -> None:
        """A topic that keeps all, since the records here are old."""
        topic = pieces.topic(name, partitionCount, configs=[("retention.ms", "-1")])
        body = messages.CreateTopicsRequest(topics=[topic], timeoutMs=10_000)
        codes = [found.errorCode for found in self.ask(ApiKey.CREATE_TOPICS, 4, body).topics]
        Watcher.expect(codes, [ErrorCode.NONE])

    def produce(self, topic: str, records: bytes) -> int:
        """Acknowledged; returns its offset."""
        body = pieces.produceBody(8, topic, ZERO_UUID, [(0, records)])
        (found,) = self.ask(ApiKey.PRODUCE, 8, body).responses
        (part,) = found.partitionResponses
        Watcher.expect(part.errorCode, ErrorCode.NONE)
        return int(part.baseOffset)

    def records(self, topic: str, offset: int, size: int) -> bytes:
        """Of a Fetch that does not wait."""
        answer = self.receive(fetch(topic, offset, size, 1))
        found, _ = messages.FetchResponse.decode(answer, _FETCH_VERSION, 4)
        (part,) = found.responses[0].partitions
        Watcher.expect(part.errorCode, ErrorCode.NONE)
        return bytes(part.records)

    def emptyGroups(self) -> bool:
        """Remove the members of all groups. Returns whether there were any."""
        leave = ApiKey.LEAVE_GROUP.requestClass
        listed = self.ask(ApiKey.LIST_GROUPS, 2, ApiKey.LIST_GROUPS.requestClass())
        names = [group.groupId for group in listed.groups]
        described = ApiKey.DESCRIBE_GROUPS.requestClass(groups=names)
        groups = self.ask(ApiKey.DESCRIBE_GROUPS, 4, described).groups
        full = [group for group in groups if group.members]
        for group in full:
            members = [leave.MemberIdentity(memberId=member.memberId) for member in group.members]
            self.ask(ApiKey.LEAVE_GROUP, 3, leave(groupId=group.groupId, members=members))
        return bool(full)

    def close(self) -> None:
        self._socket.close()


class KafkaWatcher(Watcher):
    """
    Produces, fetches and asks for offsets and topics; in the end all that it has produced is there,
    in order, once.
    """

    def __init__(
        self, broker: LiveBroker, figures: Figures, caller: KafkaCaller, answers: dict[bytes, bytes]
    ) -> None:
        """@param answers: of requests."""
        super().__init__(broker, figures)
        self._caller = caller
        self._answers = list(answers.items())

    def round(self, number: int) -> None:
        self.expect(self._caller.produce(WATCHED_TOPIC, batch(b"%08d" % number)), number)
        request, answer = self._answers[number % len(self._answers)]
        self.expect(self._caller.receive(request), answer)
        unknown = pieces.metadataBody(["unknown"], 8)
        (topic,) = self._caller.ask(ApiKey.METADATA, 8, unknown).topics
        self.expect(topic.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        body = pieces.listOffsetsBody(WATCHED_TOPIC, [(0, -1)])
        (listed,) = self._caller.ask(ApiKey.LIST_OFFSETS, _LIST_VERSION, body).topics
        self.expect(listed.partitions[0].offset, number + 1)

    def last(self) -> None:
        count, found = self._figures.watchCount, list[bytes | None]()
        while len(found) < count:
            data = self._caller.records(WATCHED_TOPIC, len(found), 1 << 16)
            self.expect(bool(data), True)
            position = 0
            while len(data) - position >= BATCH_OVERHEAD:
                header = readHeader(data, position)
                if header.size > len(data) - position:
                    break
                records = iterateRecords(data, position, header)
                found += [record.value for record in records]
                position += header.size
        self.expect(found == [b"%08d" % number for number in range(count)], True)

    def close(self) -> None:
        self._caller.close()
