"""
A broker on a lead with clients of consumer groups. What waits for its answer has none until it
comes.
"""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.testing import StringTransport

from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC
from pylogbroker.coordinator.groupmessages import JoinProtocol, MemberAssignment, OffsetFetchTopic
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import packUnsignedVarint
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from tests.broker.manualbroker import LeadBroker, LeadTestCase

GROUP = "g"
PROPERTIES = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}
PARTITION = 1
"""Of the topic of positions with two partitions, which holds L{GROUP}."""

TRANSPORT = StringTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 50_000))
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
PROTOCOLS = [JoinProtocol("range", SUBSCRIPTION)]


class Answer:
    """
    What a request has got.

    @ivar body: of the response; L{None}: none yet.
    """

    def __init__(self, key: ApiKey, version: int) -> None:
        self._key, self._version = key, version
        self.body: Any = None

    def take(self, parts: list[bytes]) -> None:
        data = b"".join(parts)
        isFlexible = self._version >= self._key.flexibleVersion
        assert struct.unpack_from(">ii", data) == (len(data) - 4, 7)
        body, end = self._key.responseClass.decode(data, self._version, 8 + isFlexible)
        assert end == len(data)
        self.body = body


class GroupCase(LeadTestCase):
    """A broker, and requests to it."""

    def setUp(self) -> None:
        self.lead = self.made()
        self.createTopic("t", 3)

    def made(self, properties: dict[str, str] | None = None, **more: Any) -> LeadBroker:
        """A broker that has started, and loaded its groups."""
        formats = (Kafka07Format(), KafkaFormat())
        lead = self.broker({**PROPERTIES, **(properties or {})}, formats=formats, **more)
        lead.settle()
        return lead

    def createTopic(self, name: str, partitionCount: int = 1) -> bytes:
        """The topic's id."""
        creating = Deferred.fromCoroutine(
            self.lead.service.kafka.topics.create(name, partitionCount)
        )
        self.lead.settle()
        topicId: bytes = self.successResultOf(creating).topicId.bytes
        return topicId

    def restart(self, **more: Any) -> None:
        """Another broker opens the directory."""
        self.lead = self.made(fileSystem=self.lead.fileSystem, reactor=self.lead.reactor, **more)

    def startUnsettled(self) -> None:
        """Another broker, whose workers have not worked yet."""
        before = self.lead
        self.lead = self.broker(
            PROPERTIES,
            fileSystem=before.fileSystem,
            reactor=before.reactor,
            formats=(Kafka07Format(), KafkaFormat()),
        )
        self.lead.turn()

    # -- requests

    def send(self, key: ApiKey, version: int, /, **fields: Any) -> Answer:
        """Send a request; neither time nor workers move."""
        cls = key.requestClass
        body = cls(**fields).encode(version)
        header = struct.pack(">hhih", key, version, 7, 1) + b"c"
        if version >= key.flexibleVersion:
            header += packUnsignedVarint(0)
        data = header + body
        protocol = self.lead.service.kafka.protocols[0]
        decoder = protocol.newDecoder()
        decoder.feed(struct.pack(">i", len(data)) + data)
        request = decoder.takeRequest()
        assert request is not None
        state = protocol.newState(TRANSPORT)
        answer = Answer(key, version)
        handled = protocol.handle(request, state)
        if isinstance(handled, Deferred):
            handled.addCallback(answer.take).addErrback(self.failures.append)
        elif callable(handled):
            handled(answer.take)
        else:
            answer.take(handled)
        return answer

    @property
    def failures(self) -> list[Any]:
        found: list[Any] = self.__dict__.setdefault("_failures", [])
        return found

    def tearDown(self) -> None:
        self.assertEqual(self.failures, [])

    def ask(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request, and do the work that it needs. The body of the response."""
        answer = self.send(key, version, **fields)
        self.lead.settle()
        self.assertIsNotNone(answer.body, f"no answer to {key.apiName}")
        return answer.body

    def find(self, version: int = 6, keyType: int = 0, key: str = GROUP) -> Any:
        """FindCoordinator."""
        if version < 4:
            return self.ask(ApiKey.FIND_COORDINATOR, version, key=key, keyType=keyType)
        found = self.ask(ApiKey.FIND_COORDINATOR, version, coordinatorKeys=[key], keyType=keyType)
        (coordinator,) = found.coordinators
        return coordinator

    def join(self, memberId: str = "", version: int = 3, **fields: Any) -> Answer:
        """JoinGroup; below version 4, no id is required first."""
        asked = {
            "groupId": GROUP,
            "sessionTimeoutMs": 10_000,
            "rebalanceTimeoutMs": 60_000,
            "memberId": memberId,
            "protocolType": "consumer",
            "protocols": PROTOCOLS,
            **fields,
        }
        return self.send(ApiKey.JOIN_GROUP, version, **asked)

    def sync(self, joined: Any, **assignments: bytes) -> Answer:
        """SyncGroup; assignments by the members' numbers C{m0}, C{m1} in the leader's list."""
        ids = [each.memberId for each in joined.members]
        return self.send(
            ApiKey.SYNC_GROUP,
            3,
            groupId=GROUP,
            generationId=joined.generationId,
            memberId=joined.memberId,
            assignments=[
                MemberAssignment(ids[int(name[1:])], data) for name, data in assignments.items()
            ],
        )

    def heartbeat(self, joined: Any) -> int:
        """Heartbeat of a member."""
        body = self.ask(
            ApiKey.HEARTBEAT,
            4,
            groupId=GROUP,
            generationId=joined.generationId,
            memberId=joined.memberId,
        )
        code: int = body.errorCode
        return code

    def stable(self) -> Any:
        """A group of one member."""
        self.find()
        joined = self.join()
        self.lead.settle()
        synced = self.sync(joined.body, m0=b"all")
        self.lead.settle()
        self.assertEqual(synced.body.assignment, b"all")
        return joined.body

    def commit(self, offset: int, joined: Any = None, version: int = 7, **more: Any) -> Answer:
        """OffsetCommit of partition 0 of topic t."""
        partition = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": "m"}
        cls = ApiKey.OFFSET_COMMIT.requestClass
        topic = cls.OffsetCommitRequestTopic(
            name="t", partitions=[cls.OffsetCommitRequestPartition(**partition)]
        )
        asked = {"groupId": GROUP, "topics": [topic], **more}
        if joined is not None:
            asked["generationIdOrMemberEpoch"] = joined.generationId
            asked["memberId"] = joined.memberId
        return self.send(ApiKey.OFFSET_COMMIT, version, **asked)

    def committed(self, answer: Answer) -> list[int]:
        """The outcome of a commit; nothing yet: empty."""
        topics = [] if answer.body is None else answer.body.topics
        return [each.errorCode for topic in topics for each in topic.partitions]

    def position(self, topic: str = "t", groupId: str = GROUP) -> int:
        """The committed offset of partition 0, or -1."""
        body = self.ask(
            ApiKey.OFFSET_FETCH,
            7,
            groupId=groupId,
            topics=[OffsetFetchTopic(topic, [0])],
            requireStable=False,
        )
        self.assertEqual(body.errorCode, 0)
        offset: int = body.topics[0].partitions[0].committedOffset
        return offset

    def offsetsLog(self, partition: int = PARTITION) -> Any:
        """The log of positions."""
        return self.lead.log(OFFSETS_TOPIC, partition)
