"""
The assignors of consumer groups: which member reads which partition (KIP-54, KIP-429).

C{range} and C{roundrobin} give exactly what Java's client gives for members without racks, so that
a group may have leaders of different make. C{cooperative-sticky} promises, as Java's does:

  - Numbers of partitions differ by at most one between members that subscribe to the same topics.
  - A member keeps what it has, as far as that allows.
  - A partition that another member still has is assigned to neither in this round. Its owner gives
  it up and joins again; then it has a new owner.

Rejected: Java's search for the best balance among members of different subscriptions. Here one
partition after another moves to a member with at least two partitions less, while there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

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


def _rank(member: MemberSubscription) -> tuple[bool, str]:
    """Java's order: static members first, by instance id; then the others, by member id."""
    isDynamic = member.groupInstanceId is None
    return isDynamic, member.memberId if isDynamic else member.groupInstanceId or ""


class RangeAssignor:
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


class RoundRobinAssignor:
    """All partitions of all topics are dealt in turn to the members that subscribe to them."""

    name = "roundrobin"
    isCooperative = False

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        made: Assignments = {each.memberId: [] for each in members}
        ranked = sorted(members, key=_rank)
        subscribed = {topic for each in members for topic in each.topics}
        turn = 0
        for place in _all(partitionCounts, subscribed):
            while place.topic not in ranked[turn % len(ranked)].topics:
                turn += 1
            made[ranked[turn % len(ranked)].memberId].append(place)
            turn += 1
        return made


class CooperativeStickyAssignor:
    """See the module."""

    name = "cooperative-sticky"
    isCooperative = True

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        ranked = sorted(members, key=_rank)
        owners = _owners(partitionCounts, ranked)
        made: dict[str, dict[TopicPartition, None]] = {each.memberId: {} for each in ranked}
        readers = {
            topic: [each.memberId for each in ranked if topic in each.topics]
            for topic in partitionCounts
        }
        free = []
        for place in _all(partitionCounts, {name for name, found in readers.items() if found}):
            if place in owners:
                made[owners[place]][place] = None
            else:
                free.append(place)
        for place in free:
            made[min(readers[place.topic], key=lambda each: len(made[each]))][place] = None
        while _balance(made, readers):
            pass
        return {
            member: [place for place in places if owners.get(place, member) == member]
            for member, places in made.items()
        }


def _owners(
    partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[TopicPartition, str]:
    """
    The present owner of each partition: of those that claim it, the one of the newest generation.
    """
    claims: dict[TopicPartition, tuple[int, str]] = {}
    disputed: dict[TopicPartition, int] = {}
    for member in members:
        for place in member.ownedPartitions:
            if not (
                place.topic in member.topics
                and 0 <= place.partition < partitionCounts.get(place.topic, 0)
            ):
                continue
            generation, owner = claims.get(place, (-2, ""))
            if member.generation == generation and owner != member.memberId:
                disputed[place] = generation
            elif member.generation > generation:
                claims[place] = member.generation, member.memberId
    return {
        place: owner
        for place, (generation, owner) in claims.items()
        if disputed.get(place) != generation
    }


def _balance(
    made: dict[str, dict[TopicPartition, None]], readers: Mapping[str, Sequence[str]]
) -> bool:
    """
    Move partitions to members with two less, the last ones first. Each move makes the sum of the
    squares smaller, so that moves end.

    @return: whether there was one.
    """
    isMoved = False
    for member in sorted(made, key=lambda each: -len(made[each])):
        for place in reversed(list(made[member])):
            least = min(readers[place.topic], key=lambda each: len(made[each]))
            if len(made[least]) + 2 <= len(made[member]):
                del made[member][place]
                made[least][place] = None
                isMoved = True
    return isMoved


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
