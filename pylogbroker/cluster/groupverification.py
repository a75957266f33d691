"""
Whether a group has shared its partitions out (0.7's VerifyConsumerRebalance, spec-0.7 tools §8): every partition of every topic that somebody wants has
an owner, who is a thread of a member that is there and wants this topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.types import BrokerPartition, PartitionId

_NUMBER_LENGTH_MAX = 10


class OwnershipFault(NamedTuple):
    """
    @ivar owner: what its node says; L{None} when there is none.
    @ivar reason: why that is wrong, for people.
    """

    topic: str
    partition: BrokerPartition
    owner: str | None
    reason: str


def threadCountsByTopic(
    subscriptions: Mapping[str, ISubscription], topics: Iterable[str]
) -> dict[str, dict[str, int]]:
    """
    With how many threads each member takes part in which topics.

    @param subscriptions: of the members, by their ids.
    @param topics: all that there are.
    @raise pylogbroker.errors.InvalidPatternError: a member's pattern means nothing to us.
    """
    names = list(topics)
    threadCounts: dict[str, dict[str, int]] = {}
    for member, subscription in subscriptions.items():
        for topic, count in subscription.streamCounts(names).items():
            threadCounts.setdefault(topic, {})[member] = count
    return threadCounts


def ownershipFaults(
    threadCounts: Mapping[str, Mapping[str, int]],
    partitions: Mapping[str, Iterable[BrokerPartition]],
    owners: Mapping[PartitionId, str],
) -> list[OwnershipFault]:
    """
    Partitions that nobody reads, or somebody who should not.

    @param threadCounts: as L{threadCountsByTopic} returns them.
    @param partitions: of each topic.
    @param owners: what stands in the owners' nodes.
    """
    faults = []
    for topic in sorted(threadCounts):
        for partition in sorted(partitions.get(topic, ())):
            owner = owners.get(PartitionId(topic, partition))
            if owner is None:
                faults.append(OwnershipFault(topic, partition, None, "nobody owns it"))
            elif not _isThread(owner, threadCounts[topic]):
                faults.append(
                    OwnershipFault(
                        topic,
                        partition,
                        owner,
                        "the owner is no thread of a member that wants this topic",
                    )
                )
    return faults


def _isThread(owner: str, threadCounts: Mapping[str, int]) -> bool:
    """Whether it is C{<member>-<number>}, and the number one of that member's."""
    member, _, number = owner.rpartition("-")
    return (
        number.isascii()
        and number.isdigit()
        and str(int(number[:_NUMBER_LENGTH_MAX])) == number
        and int(number) < threadCounts.get(member, 0)
    )
