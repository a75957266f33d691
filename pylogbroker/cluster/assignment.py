"""
Who reads what: 0.7's range assignment (spec-0.7 zookeeper §4.5 f), to the letter.

Every member of a group computes this for itself, from the same lists, and takes its own share. So all must sort alike, 0.7's JVM members included: strings are
compared as Java compares them, by UTF-16 code units, and partitions as the strings C{<broker>-<partition>}, so that C{10-0} comes before C{2-0}, and
the thread C{m-10} before C{m-2}.

How many threads there are is what anybody wrote into a registration. So they are not all made: no more than there are partitions can have one.
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
    Share the partitions of one topic among consumer threads.

    @param threadCounts: members of the group, and with how many threads each takes part in this topic.
    @return: for each thread that gets any its partitions, in the order of their names.
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
    """Of one member, in the order of their names as text: 0, 1, 10, 100, 11 …"""
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
