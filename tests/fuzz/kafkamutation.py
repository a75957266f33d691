"""
Mutations of requests in today's protocol: the same ones for the same seed.

A mutation is a request of any kind and version that is served: with random values everywhere; with
values in the place of some that the broker knows, or will know (L{WORDS}, L{NUMBERS}), so that what
is behind the first check is reached, too; or one that makes sense, which topics and groups that
exist receive. Most are then changed as L{tests.fuzz.mutation} does: plainly, inside the frame,
whose size is put right again, or inside the records of a Produce request, whose batch gets its size
and checksum right again.

What could hold back or answer otherwise the client that watches is not among those values: no quota
for everybody, and no topic of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import crc32c

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID, ApiMessage
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.fuzz.mutation import SIZE_MAX, Mutator
from tests.oracle.scenarios import pieces
from tests.protocol.kafka.randommessages import INTEGERS, randomMessage

TOPICS = ("a", "orders")
"""There are such topics, of two partitions."""
MADE = tuple(f"made-{number}" for number in range(8))
"""There are such topics now and then."""
GROUPS = ("g", "a")
CONFIGS = {
    "cleanup.policy": ("compact", "delete", "compact,delete"),
    "compression.type": ("zstd", "producer", "uncompressed"),
    "max.message.bytes": ("100", "1000000"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ("0", "0.5"),
    "retention.bytes": ("-1", "1000"),
    "retention.ms": ("-1", "1000"),
    "segment.bytes": ("1048576", "14"),
}
"""Settings of topics, with values, of which some are refused."""
_TOPICS = (*TOPICS, *MADE)
_QUOTAS = ("producer_byte_rate", "request_percentage", "connection_creation_rate")
_TRANSACTIONS = ("transaction-0", "transaction-1", "transaction-2")
_VALUES = tuple(value for values in CONFIGS.values() for value in values)
WORDS: dict[str, tuple[str, ...]] = {
    "clientSoftwareName": ("fuzz",),
    "configurationKeys": tuple(CONFIGS),
    "coordinatorKeys": (*GROUPS, *_TRANSACTIONS),
    "entityName": ("orders", "192.0.2.1"),
    "entityType": ("user", "client-id", "ip"),
    "groupId": GROUPS,
    "groupIds": GROUPS,
    "groupInstanceId": ("instance-0",),
    "groups": GROUPS,
    "groupsNames": GROUPS,
    "host": ("*", "192.0.2.1"),
    "instanceId": ("instance-0",),
    "key": (*GROUPS, *_TRANSACTIONS, *_QUOTAS),
    "mechanism": ("SCRAM-SHA-256",),
    "memberId": ("", "member-0", "member-1"),
    "name": (*_TOPICS, *CONFIGS, "range"),
    "principal": ("User:orders",),
    "protocolName": ("range",),
    "protocolType": ("consumer",),
    "resourceName": (*_TOPICS, "0"),
    "serverAssignor": ("uniform", "range"),
    "subscribedTopicNames": _TOPICS,
    "subscribedTopicRegex": ("made-.*", "(o|r)*s"),
    "topic": _TOPICS,
    "topicName": _TOPICS,
    "topicNames": _TOPICS,
    "transactionalId": _TRANSACTIONS,
    "transactionalIds": _TRANSACTIONS,
    "v3AndBelowTransactionalId": _TRANSACTIONS,
    "value": _VALUES,
}
"""By the names of fields: strings that mean something there."""
_EPOCHS = (-1, 0, 1)
_PLACES = (0, 1)
_PRODUCERS = (0, 1, 2, 3)
NUMBERS: dict[str, tuple[int, ...]] = {
    "acks": (0, 1, -1),
    "brokerIds": (0,),
    "configOperation": (0, 1, 2, 3),
    "count": (2, 3),
    "currentLeaderEpoch": _EPOCHS,
    "generationId": _EPOCHS,
    "generationIdOrMemberEpoch": _EPOCHS,
    "index": _PLACES,
    "isolationLevel": (0, 1),
    "iterations": (4096,),
    "keyType": (0, 1),
    "leaderEpoch": _EPOCHS,
    "matchType": (0, 1, 2),
    "maxWaitMs": (0, 10),
    "mechanism": (1, 2),
    "memberEpoch": (*_EPOCHS, 2),
    "numPartitions": (-1, 1, 2),
    "offset": (-1, 0, 5),
    "operation": (1, 2, 3, 4),
    "partition": _PLACES,
    "partitionIndex": _PLACES,
    "partitionIndexes": _PLACES,
    "partitions": _PLACES,
    "permissionType": (2, 3),
    "producerEpoch": _EPOCHS,
    "producerId": _PRODUCERS,
    "rebalanceTimeoutMs": (100, 1000),
    "replicaId": (-1,),
    "replicas": (0,),
    "replicationFactor": (-1, 1),
    "resourcePatternType": (3, 4),
    "resourceType": (2, 4),
    "sessionTimeoutMs": (6000,),
    "timeoutMs": (1000,),
    "timestamp": (-1, -2, -3, 0),
    "transactionTimeoutMs": (1000, 60_000),
    "v3AndBelowProducerEpoch": _EPOCHS,
    "v3AndBelowProducerId": _PRODUCERS,
}
"""Likewise."""
_NAMES_VERSION = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9}
"""The last versions that name topics; behind them come ids."""
_CRC_START = 21
_SIZE_START = 8
_FIXED_SIZE = 61
_TIME_MS = 1_300_000_000_000


def frame(key: ApiKey, version: int, body: ApiMessage, correlationId: int = 1) -> bytes:
    """A request, with its size."""
    data = struct.pack(">hhih", key, version, correlationId, 1) + b"f"
    data += b"\0" * (version >= key.flexibleVersion) + body.encode(version)
    return struct.pack(">i", len(data)) + data


def giveMeaning(random: Random, message: Any, version: int) -> None:
    """Put L{WORDS} and L{NUMBERS} in the place of values that a message has."""
    for name, field in type(message)._fields.items():
        value = getattr(message, name)
        if value is None or not field.versions.has(version):
            continue
        if field.struct is not None:
            for each in value if field.isArray else (value,):
                giveMeaning(random, each, version)
            continue
        known = WORDS if field.kind == "string" else NUMBERS if field.kind in INTEGERS else {}
        if found := known.get(name):
            made = [random.choice(found) for _ in value] if field.isArray else random.choice(found)
            setattr(message, name, made)


def batchOf(random: Random) -> bytes:
    """A batch of a few records, sometimes of an idempotent producer."""
    values = [b"value %d" % number for number in range(random.randrange(1, 4))]
    fields: dict[str, Any] = {}
    if random.random() < 0.3:
        fields = {
            "producerId": random.choice(_PRODUCERS),
            "producerEpoch": random.choice(_PLACES),
            "baseSequence": random.randrange(4),
            "isTransactional": random.random() < 0.5,
        }
    return encodeBatch(
        [
            Record(at, _TIME_MS, None if at else b"key", value, (("h", b"x"),))
            for at, value in enumerate(values)
        ],
        codec=random.randrange(5),
        **fields,
    )


class KafkaMutator:
    """A source of mutations."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._keys = list(ApiKey)
        self._sensible: dict[ApiKey, Callable[[int], ApiMessage]] = {
            ApiKey.PRODUCE: lambda version: self._produce(version, batchOf(self._random)),
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._listOffsets,
            ApiKey.CREATE_TOPICS: self._createTopics,
            ApiKey.DELETE_TOPICS: self._deleteTopics,
            ApiKey.JOIN_GROUP: self._joinGroup,
            ApiKey.OFFSET_COMMIT: self._offsetCommit,
            ApiKey.INIT_PRODUCER_ID: self._initProducerId,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._consumerGroupHeartbeat,
        }
        samples = [self.sensible() for _ in range(200)] + [self.arbitrary() for _ in range(200)]
        self._bytes = Mutator(seed, samples)

    def next(self) -> bytes:
        """One more mutation: the bytes to send."""
        random = self._random
        way = random.random()
        if way < 0.15:
            data = self.sensible()
        elif way < 0.30:
            data = self.arbitrary()
        elif way < 0.50:
            data = self._framed(self._bytes.garble(self.sensible()[4:]))
        elif way < 0.70:
            data = self._framed(self._bytes.garble(self.arbitrary()[4:]))
        elif way < 0.92:
            data = self._insideBatch()
        elif way < 0.97:
            data = self._bytes.garble(self.sensible())
        else:
            data = self._bytes.garble(random.randbytes(random.randrange(64)))
        return data[:SIZE_MAX]

    def _framed(self, body: bytes) -> bytes:
        return struct.pack(">i", len(body)) + body

    def arbitrary(self) -> bytes:
        """Any request, with random values; half of them with some that mean something."""
        random = self._random
        key = random.choice(self._keys)
        version = random.randint(key.firstVersion, key.lastVersion)
        body = randomMessage(random, key.requestClass, version, 2)
        if random.random() < 0.5:
            giveMeaning(random, body, version)
        return frame(key, version, body)

    def sensible(self) -> bytes:
        """One that a client could send."""
        key = self._random.choice(list(self._sensible))
        version = self._random.randint(key.firstVersion, _NAMES_VERSION.get(key, key.lastVersion))
        return frame(key, version, self._sensible[key](version))

    def _insideBatch(self) -> bytes:
        """A Produce request whose batch is changed, and its size and checksum put right."""
        batch = bytearray(batchOf(self._random))
        if self._random.random() < 0.5:
            batch = bytearray(self._bytes.garble(bytes(batch)))
        else:
            batch[_FIXED_SIZE:] = self._bytes.garble(bytes(batch[_FIXED_SIZE:]))
        if len(batch) > _CRC_START:
            batch[_SIZE_START : _SIZE_START + 4] = struct.pack(">i", len(batch) - _SIZE_START - 4)
            sum_ = crc32c.crc32c(bytes(batch[_CRC_START:]))
            batch[_CRC_START - 4 : _CRC_START] = struct.pack(">I", sum_)
        version = self._random.randint(ApiKey.PRODUCE.firstVersion, 12)
        return frame(ApiKey.PRODUCE, version, self._produce(version, bytes(batch)))

    def _produce(self, version: int, batch: bytes) -> ApiMessage:
        """For one of the topics."""
        topic = self._random.choice((*TOPICS, self._random.choice(MADE)))
        acks = self._random.choice((1, -1))
        body = pieces.produceBody(
            version, topic, ZERO_UUID, [(self._random.randrange(2), batch)], acks
        )
        if self._random.random() < 0.2:
            body.transactionalId = self._random.choice(_TRANSACTIONS)
        return body

    def _fetch(self, version: int) -> ApiMessage:
        random = self._random
        return pieces.fetchBody(
            random.choice(TOPICS),
            ZERO_UUID,
            [(random.randrange(2), random.randrange(20))],
            partitionMaxBytes=random.choice((1, 1000, 1 << 20)),
            minBytes=random.choice((0, 1)),
            maxWaitMs=random.choice((0, 10)),
            sessionEpoch=random.choice((-1, 0)) if version >= 7 else -1,
        )

    def _listOffsets(self, version: int) -> ApiMessage:
        where = self._random.randrange(2), self._random.choice((-1, -2, _TIME_MS))
        return pieces.listOffsetsBody(self._random.choice(TOPICS), [where])

    def _createTopics(self, version: int) -> ApiMessage:
        topic = pieces.topic(self._random.choice(MADE), 2)
        return messages.CreateTopicsRequest(topics=[topic], timeoutMs=1000)

    def _deleteTopics(self, version: int) -> ApiMessage:
        return pieces.deleteTopicsBody(version, self._random.choice(MADE))

    def _joinGroup(self, version: int) -> ApiMessage:
        cls = messages.JoinGroupRequest
        return cls(
            groupId=self._random.choice(GROUPS),
            sessionTimeoutMs=6000,
            rebalanceTimeoutMs=100,
            protocolType="consumer",
            protocols=[cls.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )

    def _offsetCommit(self, version: int) -> ApiMessage:
        cls = messages.OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(
            partitionIndex=0, committedOffset=self._random.randrange(20)
        )
        topic = cls.OffsetCommitRequestTopic(name=self._random.choice(TOPICS), partitions=[part])
        return cls(groupId="alone", topics=[topic])

    def _initProducerId(self, version: int) -> ApiMessage:
        return messages.InitProducerIdRequest(transactionalId=None, transactionTimeoutMs=1000)

    def _consumerGroupHeartbeat(self, version: int) -> ApiMessage:
        random = self._random
        return messages.ConsumerGroupHeartbeatRequest(
            groupId="consumers",
            memberId=random.choice(WORDS["memberId"]),
            memberEpoch=random.choice(NUMBERS["memberEpoch"]),
            rebalanceTimeoutMs=1000,
            subscribedTopicNames=[random.choice(TOPICS)],
            topicPartitions=[],
        )
