"""
The assignors of consumer groups: which member reads which partition (KIP-54, KIP-429).

C{range} and C{roundrobin} give exactly what Java's client gives for members without racks, so that
a group may have leaders of different make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from pylogbroker.cluster.assignment import javaOrder
from pylogbroker.cluster.kafka.stickyassignor import assignSticky
from pylogbroker.errors import ConfigurationError
from pylogbroker.types import MemberSubscription, TopicPartition

Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member, by its id."""


class IPartitionAssignor(Protocol):
    """
    An assignor.

    @ivar name: as it stands in JoinGroup.
    @ivar isCooperative: whether members keep their partitions while a group rebalances.
    """

    name: str
    isCooperative: bool

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        """
        @param partitionCounts: of the topics that exist.
        @return: an entry for each member.
        """
        ...

    def userData(self) -> bytes | None:
        """
        What a member tells the leader beside its subscription; asked at each JoinGroup.

        @return: at most some kilobytes; the coordinator sends it to the leader.
        """
        return None

    def assignedUserData(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Mapping[str, bytes]:
        """
        What the leader tells members beside their partitions, by member id. It is given what
        L{assign} is given.
        """
        return {}

    def onAssignment(self, partitions: Collection[TopicPartition], userData: bytes | None) -> None:
        """
        A member learns what is assigned to it: it has given up the rest, and will adopt what it has
        not yet.

        @param userData: of the leader.
        """
        return None


def _rank(member: MemberSubscription) -> tuple[bool, bytes]:
    """Java's order: static members first, by instance id; then the others, by member id."""
    instanceId = member.groupInstanceId
    return instanceId is None, javaOrder(member.memberId if instanceId is None else instanceId)


class RangeAssignor(IPartitionAssignor):
    """Of each topic, each member gets neighbouring partitions; the first ones get one more."""

    name = "range"
    isCooperative = False

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        made: Assignments = {each.memberId: [] for each in members}
        ranked = sorted(members, key=_rank)
        for topic, count in sorted(partitionCounts.items()):
            readers = [each.memberId for each in ranked if topic in each.topics]
            if not readers:
                continue
            share, more = divmod(count, len(readers))
            start = 0
            for place, reader in enumerate(readers):
                end = start + share + (place < more)
                made[reader] += (TopicPartition(topic, number) for number in range(start, end))
                start = end
        return made


class RoundRobinAssignor(IPartitionAssignor):
    """All partitions of all topics are dealt in turn to the members that subscribe to them."""

    name = "roundrobin"
    isCooperative = False

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        made: Assignments = {each.memberId: [] for each in members}
        ranked = [(each.memberId, frozenset(each.topics)) for each in sorted(members, key=_rank)]
        subscribed = {topic for each in members for topic in each.topics}
        turn = 0
        for place in _all(partitionCounts, subscribed):
            while place.topic not in ranked[turn][1]:
                turn = (turn + 1) % len(ranked)
            made[ranked[turn][0]].append(place)
            turn = (turn + 1) % len(ranked)
        return made


class CooperativeStickyAssignor(IPartitionAssignor):
    """See L{pylogbroker.cluster.kafka.stickyassignor}."""

    name = "cooperative-sticky"
    isCooperative = True

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        subscribed = {topic for each in members for topic in each.topics}
        return assignSticky(_all(partitionCounts, subscribed), members)


def _all(partitionCounts: Mapping[str, int], topics: Iterable[str]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in sorted(topics)
        for number in range(partitionCounts.get(topic, 0))
    ]


_ASSIGNORS: dict[str, IPartitionAssignor] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}
_JAVA = "org.apache.kafka.clients.consumer."
_BY_CLASS = {f"{_JAVA}{type(each).__name__}": each for each in _ASSIGNORS.values()}


def assignorOf(name: str) -> IPartitionAssignor:
    """
    @param name: of the assignor, or of Java's class.
    @raise ConfigurationError: there is none of this name.
    """
    found = _ASSIGNORS.get(name) or _BY_CLASS.get(name)
    if found is None:
        raise ConfigurationError(
            f"there is no assignor {name!r}; there are {', '.join(sorted(_ASSIGNORS))}"
        )
    return found
