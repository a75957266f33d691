"""
The range assignment of 0.7 (spec-0.7 zookeeper §4.5 f), and the check that a group follows it
(0.7's VerifyConsumerRebalance, spec-0.7 tools §8).

Every member computes the assignment from the same lists, so all must sort like 0.7's JVM members.
Strings sort by UTF-16 code units. Partitions sort as strings C{<broker>-<partition>}, so C{10-0}
comes before C{2-0} and the thread C{m-10} before C{m-2}.

A registration may claim any number of threads; at most one per partition is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import NamedTuple

from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.types import BrokerPartition, PartitionId


def javaOrder(text: str) -> bytes:
    """A sort key for Java's order of strings."""
    return text.encode("utf-16-be", "surrogatepass")


def assign(
    partitions: Iterable[BrokerPartition], threadCounts: Mapping[str, int]
) -> dict[str, list[BrokerPartition]]:
    """
    Assign the partitions of one topic to consumer threads.

    @param threadCounts: of each member, its threads for this topic.
    @return: the partitions of each thread that gets any, by name.
    """
    names = sorted(partitions, key=str)
    count = sum(threadCounts.values())
    if not count:
        return {}
    each, more = divmod(len(names), count)
    shares = {}
    threads = merge(*(_threads(*member) for member in threadCounts.items()), key=javaOrder)
    for index, thread in enumerate(islice(threads, len(names))):
        start = each * index + min(index, more)
        shares[thread] = names[start : start + each + (index < more)]
    return shares


def _threads(member: str, count: int) -> Iterator[str]:
    """In the order of their names as text: 0, 1, 10, 100, 11 …"""
    number = 0
    for index in range(count):
        yield f"{member}-{number}"
        if index == 0:
            number = 1
        elif number * 10 < count:
            number *= 10
        else:
            while number % 10 == 9 or number + 1 >= count:
                number //= 10
            number += 1


_NUMBER_LENGTH_MAX = 10


class OwnershipFault(NamedTuple):
    """
    A partition with a missing or wrong owner.

    @ivar owner: the owner node's value; L{None} without a node.
    @ivar reason: for people.
    """

    topic: str
    partition: BrokerPartition
    owner: str | None
    reason: str


def threadCountsByTopic(
    subscriptions: Mapping[str, ISubscription], topics: Iterable[str]
) -> dict[str, dict[str, int]]:
    """
    The threads of each member for each topic.

    @param subscriptions: by member id.
    @param topics: all existing ones.
    @raise pylogbroker.errors.InvalidPatternError: a member's pattern cannot be used.
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
    The partitions without an owner, or with a wrong one.

    @param threadCounts: of L{threadCountsByTopic}.
    @param partitions: of each topic.
    @param owners: the values of the owner nodes.
    """
    faults = []
    for topic in sorted(threadCounts):
        for partition in sorted(partitions.get(topic, ())):
            owner = owners.get(PartitionId(topic, partition))
            if owner is None:
                reason = "it has no owner"
            elif not _isThread(owner, threadCounts[topic]):
                reason = "the owner is no thread of a member that wants this topic"
            else:
                continue
            faults.append(OwnershipFault(topic, partition, owner, reason))
    return faults


def _isThread(owner: str, threadCounts: Mapping[str, int]) -> bool:
    member, _, number = owner.rpartition("-")
    return (
        number.isascii()
        and number.isdigit()
        and str(int(number[:_NUMBER_LENGTH_MAX])) == number
        and int(number) < threadCounts.get(member, 0)
    )
