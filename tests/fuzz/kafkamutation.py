"""
Mutations of requests in today's protocol: the same ones for the same seed.

A mutation is a request of any kind and version that is served: with random values everywhere, or
one that makes sense, which topics and groups that exist receive. Most are then changed as
L{tests.fuzz.mutation} does: plainly, inside the frame, whose size is put right again, or inside the
records of a Produce request, whose batch gets its size and checksum right again.
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
from tests.protocol.kafka.randommessages import randomMessage

TOPICS = ("a", "orders")
"""There are such topics, of two partitions."""
MADE = tuple(f"made-{number}" for number in range(8))
"""There are such topics now and then."""
GROUPS = ("g", "a")
LEFT_OUT = frozenset((ApiKey.ALTER_CLIENT_QUOTAS,))
"""A quota for everybody would slow the watcher down, as it should."""
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


def batchOf(random: Random, **fields: Any) -> bytes:
    """A batch of a few records."""
    values = [b"value %d" % number for number in range(random.randrange(1, 4))]
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
        self._keys = [key for key in ApiKey if key not in LEFT_OUT]
        self._sensible: dict[ApiKey, Callable[[int], ApiMessage]] = {
            ApiKey.PRODUCE: lambda version: self._produce(version, batchOf(self._random)),
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._listOffsets,
            ApiKey.CREATE_TOPICS: self._createTopics,
            ApiKey.DELETE_TOPICS: self._deleteTopics,
            ApiKey.JOIN_GROUP: self._joinGroup,
            ApiKey.OFFSET_COMMIT: self._offsetCommit,
            ApiKey.INIT_PRODUCER_ID: self._initProducerId,
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
        """Any request, with random values."""
        key = self._random.choice(self._keys)
        version = self._random.randint(key.firstVersion, key.lastVersion)
        return frame(key, version, randomMessage(self._random, key.requestClass, version, 2))

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
        return pieces.produceBody(
            version, topic, ZERO_UUID, [(self._random.randrange(2), batch)], acks
        )

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
        return messages.InitProducerIdRequest(transactionTimeoutMs=1000)
