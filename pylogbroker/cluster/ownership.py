"""
Whether a group has shared its partitions out (0.7's VerifyConsumerRebalance, spec-0.7 tools §8): every partition of every topic that somebody wants has
an owner, who is a thread of a member that is there and wants this topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.model import BrokerPartition


class OwnershipFault(NamedTuple):
    """
    @ivar owner: what its node says; L{None} when there is none.
    @ivar reason: why that is wrong, for people.
    """

    topic: str
    partition: BrokerPartition
    owner: str | None
    reason: str


def threadsByTopic(subscriptions: Mapping[str, ISubscription], topics: Iterable[str]) -> dict[str, set[str]]:
    """
    Which threads take part in which topics.

    @param subscriptions: of the members, by their ids.
    @param topics: all that there are.
    @raise pylogbroker.errors.InvalidPatternError: a member's pattern means nothing to us.
    """
    names = list(topics)
    threads: dict[str, set[str]] = {}
    for member, subscription in subscriptions.items():
        for topic, count in subscription.streamCounts(names).items():
            threads.setdefault(topic, set()).update(f"{member}-{index}" for index in range(count))
    return threads


def ownershipFaults(
    threads: Mapping[str, Collection[str]], partitions: Mapping[str, Iterable[BrokerPartition]], owners: Mapping[tuple[str, BrokerPartition], str]
) -> list[OwnershipFault]:
    """
    Partitions that nobody reads, or somebody who should not.

    @param threads: as L{threadsByTopic} returns them.
    @param partitions: of each topic.
    @param owners: what stands in the owners' nodes.
    """
    faults = []
    for topic in sorted(threads):
        for partition in sorted(partitions.get(topic, ())):
            owner = owners.get((topic, partition))
            if owner is None:
                faults.append(OwnershipFault(topic, partition, None, "nobody owns it"))
            elif owner not in threads[topic]:
                faults.append(OwnershipFault(topic, partition, owner, "the owner is no thread of a member that wants this topic"))
    return faults
