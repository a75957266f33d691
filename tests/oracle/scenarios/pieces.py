"""
Pieces of scenarios: topics that are ready for use, batches, and the bodies of frequent requests in
any version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.oracle.steps import Ask, Steps, Until

NO_TOPIC_ID = bytes(range(100, 116))
"""The id of no topic."""

LATEST = -1
EARLIEST = -2


def versionsOf(key: ApiKey, first: int = 0, last: int = 99) -> range:
    """The versions of a request that are served, within two bounds."""
    return range(max(key.firstVersion, first), min(key.lastVersion, last) + 1)


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    configs: Iterable[tuple[str, str | None]] = (),
    assignments: Iterable[tuple[int, list[int]]] = (),
) -> Any:
    """A topic in a CreateTopics request."""
    cls = messages.CreateTopicsRequest
    return cls.CreatableTopic(
        name=name,
        numPartitions=partitions,
        replicationFactor=factor,
        configs=[cls.CreatableTopicConfig(name=key, value=value) for key, value in configs],
        assignments=[
            cls.CreatableReplicaAssignment(partitionIndex=index, brokerIds=ids)
            for index, ids in assignments
        ],
    )


def makeTopic(name: str, partitions: int = 1, *configs: tuple[str, str]) -> Steps:
    """
    Make a topic and wait until it serves; nothing is recorded.

    @return: its id.
    """
    body = messages.CreateTopicsRequest(topics=[topic(name, partitions, configs=configs)])
    yield Ask("make", ApiKey.CREATE_TOPICS, 7, body, isRecorded=False)
    return (yield from awaitTopic(name, partitions))


def awaitTopic(name: str, partitions: int = 1) -> Steps:
    """
    Wait until a topic serves.

    @return: its id.
    """
    offsets = listOffsetsBody(name, [(index, LATEST) for index in range(partitions)])
    yield Until(
        Ask("serves", ApiKey.LIST_OFFSETS, 5, offsets, isRecorded=False),
        lambda body: all(found.errorCode == 0 for found in body.topics[0].partitions),
    )
    found = yield Ask("id", ApiKey.METADATA, 12, metadataBody([name], 12), isRecorded=False)
    return found.topics[0].topicId


def metadataBody(names: Sequence[str | bytes] | None, version: int, mayCreate: bool = False) -> Any:
    """
    The body of a Metadata request.

    @param names: or ids; L{None}: of all topics, which version 0 says with an empty list.
    """
    cls = messages.MetadataRequest
    made = cls(topics=[] if names is None and version == 0 else None)
    if names is not None:
        made.topics = [
            cls.MetadataRequestTopic(name=name)
            if isinstance(name, str)
            else cls.MetadataRequestTopic(topicId=name, name=None)
            for name in names
        ]
    if version >= 4:
        made.allowAutoTopicCreation = mayCreate
    return made


def listOffsetsBody(
    name: str,
    partitions: Iterable[tuple[int, int]],
    epoch: int = -1,
    isolation: int = 0,
    replicaId: int = -1,
) -> Any:
    """
    The body of a ListOffsets request.

    @param partitions: index and timestamp of each.
    """
    cls = messages.ListOffsetsRequest
    return cls(
        replicaId=replicaId,
        isolationLevel=isolation,
        topics=[
            cls.ListOffsetsTopic(
                name=name,
                partitions=[
                    cls.ListOffsetsPartition(
                        partitionIndex=index, timestamp=timestamp, currentLeaderEpoch=epoch
                    )
                    for index, timestamp in partitions
                ],
            )
        ],
    )


def batch(
    baseMs: int, *values: bytes | None, key: bytes | None = None, stepMs: int = 1, **fields: Any
) -> bytes:
    """A batch of a value a record, C{stepMs} apart."""
    records = [
        Record(index, baseMs + index * stepMs, key, value) for index, value in enumerate(values)
    ]
    return encodeBatch(records, **fields)


def produceBody(
    version: int,
    name: str,
    topicId: bytes,
    partitions: Iterable[tuple[int, bytes | None]],
    acks: int = -1,
    transactionalId: str | None = None,
) -> Any:
    """The body of a Produce request, with the topic's name or its id, as the version has it."""
    cls = messages.ProduceRequest
    return cls(
        acks=acks,
        timeoutMs=5000,
        transactionalId=transactionalId,
        topicData=[
            cls.TopicProduceData(
                name=name,
                topicId=topicId,
                partitionData=[
                    cls.PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ],
            )
        ],
    )


def produce(
    label: str,
    version: int,
    name: str,
    topicId: bytes,
    records: bytes | None,
    acks: int = -1,
    partition: int = 0,
    **fields: Any,
) -> Ask:
    """A Produce request for one partition."""
    body = produceBody(version, name, topicId, [(partition, records)], acks)
    return Ask(label, ApiKey.PRODUCE, version, body, isAnswered=acks != 0, **fields)


def fill(name: str, topicId: bytes, *batches: bytes, partition: int = 0) -> Steps:
    """Produce batches, one a request; nothing is recorded."""
    for records in batches:
        yield produce("fill", 9, name, topicId, records, partition=partition, isRecorded=False)


def fetchBody(
    name: str,
    topicId: bytes,
    partitions: Iterable[tuple[int, int]],
    maxBytes: int = 1 << 20,
    partitionMaxBytes: int = 1 << 20,
    minBytes: int = 1,
    maxWaitMs: int = 0,
    epoch: int = -1,
    lastEpoch: int = -1,
    isolation: int = 0,
    sessionId: int = 0,
    sessionEpoch: int = -1,
    forgotten: Sequence[int] = (),
) -> Any:
    """
    The body of a Fetch request.

    @param partitions: index and offset of each.
    """
    cls = messages.FetchRequest
    made = cls(
        maxWaitMs=maxWaitMs,
        minBytes=minBytes,
        maxBytes=maxBytes,
        isolationLevel=isolation,
        sessionId=sessionId,
        sessionEpoch=sessionEpoch,
        topics=[
            cls.FetchTopic(
                topic=name,
                topicId=topicId,
                partitions=[
                    cls.FetchPartition(
                        partition=index,
                        fetchOffset=offset,
                        partitionMaxBytes=partitionMaxBytes,
                        currentLeaderEpoch=epoch,
                        lastFetchedEpoch=lastEpoch,
                    )
                    for index, offset in partitions
                ],
            )
        ],
    )
    if not made.topics[0].partitions:
        made.topics = []
    if forgotten:
        made.forgottenTopicsData = [
            cls.ForgottenTopic(topic=name, topicId=topicId, partitions=list(forgotten))
        ]
    return made


def fetch(label: str, version: int, name: str, topicId: bytes, offset: int, **fields: Any) -> Ask:
    """A Fetch request for partition 0."""
    body = fetchBody(name, topicId, [(0, offset)], **fields)
    return Ask(label, ApiKey.FETCH, version, body)


def deleteTopicsBody(version: int, *names: str | bytes) -> Any:
    """The body of a DeleteTopics request, by names, or ids from version 6."""
    cls = messages.DeleteTopicsRequest
    if version < 6:
        return cls(topicNames=list(names), timeoutMs=5000)
    return cls(
        timeoutMs=5000,
        topics=[
            cls.DeleteTopicState(name=name, topicId=ZERO_UUID)
            if isinstance(name, str)
            else cls.DeleteTopicState(name=None, topicId=name)
            for name in names
        ],
    )
