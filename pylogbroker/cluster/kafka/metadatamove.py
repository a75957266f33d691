"""
What of a broker's own metadata a cluster lacks: the records that move them there. A module of its
own, so that the rules of a move can be read and checked without a directory and ZooKeeper.

The broker has and leads all partitions of its topics, and its cluster gets the broker's cluster id.
A cluster that is there already, with another id, takes the topics, if nothing contradicts: no topic
has a name of one of its own, rules, users, quotas and settings are all there already, and not both
have given away producer ids.

What is there already is left out, so that an interrupted move goes on where it has ended. A topic
comes with its partitions in one change, since a topic without partitions means that one broker has
them all; only one that is too large for a change is split.
"""

from __future__ import annotations

from collections.abc import Iterator

from pylogbroker.cluster.kafka.metadatalog import beginningOf
from pylogbroker.cluster.metadataimage import (
    TOPIC,
    AclRecord,
    ConfigRecord,
    MetadataImage,
    PartitionImage,
    ProducerIdsRecord,
    QuotaRecord,
    Record,
    ScramCredentialRecord,
    TopicRecord,
)
from pylogbroker.errors import MetadataError

_SHOWN_COUNT_MAX = 5


def nextMove(local: MetadataImage, cluster: MetadataImage, brokerId: int) -> list[Record]:
    """
    The next change of a move.

    @param local: the broker's own metadata.
    @param cluster: the latest image of the cluster.
    @return: no records: all is there.
    @raise MetadataError: the two contradict each other, and where.
    """
    if local.clusterId != cluster.clusterId:
        _check(local, cluster)
    records = list(_missing(local, cluster, brokerId))
    some = beginningOf(records)
    if len(some) == len(records):
        return some
    starts = [at for at, each in enumerate(some) if isinstance(each, TopicRecord) and at]
    isCut = not isinstance(records[len(some)], TopicRecord)
    return some[: starts[-1]] if isCut and starts else some


def _missing(local: MetadataImage, cluster: MetadataImage, brokerId: int) -> Iterator[Record]:
    """What the cluster lacks; the settings and partitions of a topic are behind it."""
    for topic in local.topics.values():
        known = cluster.topicsById.get(topic.topicId)
        topicId = str(topic.topicId)
        if known is None:
            yield TopicRecord(topic.name, topicId, topic.partitionCount)
        for name, value in topic.configs.items():
            if known is None or known.configs.get(name) != value:
                yield ConfigRecord(TOPIC, topicId, name, value)
        for number in range(0 if known is None else len(known.partitions), topic.partitionCount):
            yield PartitionImage(brokerId, 0, 0, (brokerId,), (brokerId,)).record(
                topic.topicId, number
            )
    there = set(map(repr, _others(cluster)))
    for record in _others(local):
        if repr(record) not in there:
            yield record
    if local.nextProducerId > cluster.nextProducerId:
        yield ProducerIdsRecord(local.nextProducerId)


def _others(image: MetadataImage) -> Iterator[Record]:
    """Rules, users, quotas, and settings of brokers and groups."""
    for record in image.records():
        if isinstance(record, ConfigRecord):
            if record.resource != TOPIC:
                yield record
        elif isinstance(record, AclRecord | QuotaRecord | ScramCredentialRecord):
            yield record


def _check(local: MetadataImage, cluster: MetadataImage) -> None:
    topics = [
        name
        for name, topic in local.topics.items()
        if name in cluster.topics and cluster.topics[name].topicId != topic.topicId
    ]
    if topics:
        raise MetadataError(f"the cluster has topics of these names already: {_shown(topics)}")
    there = set(map(repr, _others(cluster)))
    others = [str(each) for each in _others(local) if repr(each) not in there]
    if others:
        raise MetadataError(
            "the cluster lacks rules, users, quotas or settings that this broker has: "
            f"{_shown(others)}; give them to the cluster first"
        )
    isBegun = any(topicId in cluster.topicsById for topicId in local.topicsById)
    if local.nextProducerId and cluster.nextProducerId and not isBegun:
        raise MetadataError(
            "the cluster and this broker have both given ids to producers, which must not meet"
        )


def _shown(texts: list[str]) -> str:
    more = len(texts) - _SHOWN_COUNT_MAX
    return ", ".join(texts[:_SHOWN_COUNT_MAX]) + (f" and {more} more" if more > 0 else "")
