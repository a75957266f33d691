"""
A broker on a lead that speaks Kafka's current protocol: topics, requests and answers.
"""

from __future__ import annotations

import struct
from typing import Any

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.broker.manualbroker import START, LeadTestCase, Peer

NOW_MS = int(START * 1000)
CORRELATION = 77


def batchOf(*values: bytes | None, key: bytes | None = None, **fields: Any) -> bytes:
    """A batch, as a client sends it."""
    timeMs = fields.pop("timestampMs", NOW_MS)
    records = [Record(at, timeMs, key, value) for at, value in enumerate(values)]
    return encodeBatch(records, **fields)


def frameOf(key: ApiKey, version: int, body: Any, clientId: str = "c") -> bytes:
    """A request."""
    name = clientId.encode()
    head = struct.pack(">hhih", key, version, CORRELATION, len(name)) + name
    head += b"\0" * (version >= key.flexibleVersion)
    data = head + body.encode(version)
    return struct.pack(">i", len(data)) + data


def decoded(key: ApiKey, version: int, frame: bytes) -> Any:
    """The body of a response, given without its size."""
    start = 4 + (version >= key.flexibleVersion and key is not ApiKey.API_VERSIONS)
    body, end = key.responseClass.decode(frame, version, start)
    assert end == len(frame), (end, frame)
    assert frame[:4] == struct.pack(">i", CORRELATION)
    return body


class KafkaCase(LeadTestCase):
    """
    @ivar lead: the broker.
    @ivar peer: a client that has greeted it.
    """

    properties: dict[str, str] = {}
    topicConfigs: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.begin()

    def begin(self, **more: Any) -> None:
        """Start a broker with a topic C{t} of two partitions, if it is not there yet."""
        formats = (Kafka07Format(), KafkaFormat())
        self.lead = self.broker(self.properties, formats=formats, **more)
        self.lead.settle()
        self.create("t", 2, self.topicConfigs)
        self.peer = self.connect()

    def create(self, name: str, count: int = 1, configs: Any = None) -> None:
        creating = self.lead.service.kafka.topics.create(name, count, configs)
        outcomes: list[Any] = []
        from twisted.internet.defer import Deferred

        Deferred.fromCoroutine(creating).addBoth(outcomes.append)
        self.lead.settle()
        (outcome,) = outcomes
        if hasattr(outcome, "raiseException"):
            outcome.raiseException()

    def connect(self) -> Peer:
        peer = self.lead.connect()
        peer.send(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, CORRELATION, 0))
        (frame,) = peer.frames()
        assert frame[:6] == struct.pack(">ih", CORRELATION, 0)
        return peer

    def topicId(self, name: str = "t") -> bytes:
        return self.lead.service.kafka.topics.image.topics[name].topicId.bytes

    def ask(self, key: ApiKey, version: int, body: Any, **more: Any) -> Any:
        """The answer to a request, when the broker has settled; L{None}: there is none yet."""
        self.peer.send(frameOf(key, version, body, **more))
        self.lead.settle()
        return self.answer(key, version)

    def answer(self, key: ApiKey, version: int) -> Any:
        frames = self.peer.frames()
        if not frames:
            return None
        (frame,) = frames
        return decoded(key, version, frame)
