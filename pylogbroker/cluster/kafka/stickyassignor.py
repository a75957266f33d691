"""
The assignor C{cooperative-sticky} (KIP-429). A module of its own, since it alone looks at what
members have.

What must be true, as with Java's:

  - Numbers of partitions differ by at most one between members that subscribe to the same topics.
  - A member keeps what it has, as far as that allows.
  - A partition that another member still has is assigned to neither in this round. Its owner gives
    it up and joins again; then it has a new owner.
  - Of several members that claim a partition, the one of the newest generation has it. If there are
    several of that, none has.

Among members that all subscribe to the same topics, the result is the one of Java's client, where
that does not depend on the order of its hash table: here the order is that of the member ids.

Rejected: Java's search for the best balance among members of different subscriptions. Here one
partition after another moves to a member with at least two partitions less, while there is one.
Rejected, too: to believe a claim of a partition that does not exist, after which Java's client
assigns others twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from pylogbroker.cluster.assignment import javaOrder
from pylogbroker.types import MemberSubscription, TopicPartition

_Claims = dict[TopicPartition, str | None]
"""The owner of each partition that is claimed; L{None}: several claim it by the same right."""

_GENERATION_SIZE = 4


def assignSticky(
    partitions: Sequence[TopicPartition], members: Sequence[MemberSubscription]
) -> dict[str, list[TopicPartition]]:
    """
    @param partitions: all of the topics to which members subscribe, sorted.
    @return: an entry for each member.
    """
    ranked = sorted(members, key=lambda each: javaOrder(each.memberId))
    claims = _claims(frozenset(partitions), ranked)
    if len({frozenset(each.topics) for each in ranked}) == 1:
        made = _assignEqual(partitions, [each.memberId for each in ranked], claims)
    else:
        made = _assignUnequal(partitions, ranked, claims)
    return {
        member: [place for place in places if claims.get(place, member) == member]
        for member, places in made.items()
    }


def _claims(existing: frozenset[TopicPartition], members: Sequence[MemberSubscription]) -> _Claims:
    newest: dict[TopicPartition, int] = {}
    claims: _Claims = {}
    for member in members:
        generation = _generation(member)
        for place in existing.intersection(member.ownedPartitions):
            known = newest.get(place)
            if known is None or generation > known:
                newest[place], claims[place] = generation, member.memberId
            elif generation == known:
                claims[place] = None
    return claims


def _generation(member: MemberSubscription) -> int:
    """Members of earlier versions have it in their user data."""
    data = member.userData
    if member.generation >= 0 or data is None or len(data) < _GENERATION_SIZE:
        return member.generation
    return int.from_bytes(data[:_GENERATION_SIZE], "big", signed=True)


def _assignEqual(
    partitions: Sequence[TopicPartition], members: Sequence[str], claims: _Claims
) -> dict[str, list[TopicPartition]]:
    """Each member keeps its share of what it has; the rest is dealt in turn."""
    share, more = divmod(len(partitions), len(members))
    owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for place in sorted(partitions, key=lambda each: (each.partition, each.topic)):
        owner = claims.get(place)
        if owner is not None:
            owned[owner].append(place)
    made: dict[str, list[TopicPartition]] = {}
    below: deque[str] = deque()
    atShare: deque[str] = deque()
    for member in members:
        had = owned[member]
        count = share + (len(had) > share and more > 0)
        more -= count > share
        made[member] = had[:count]
        if len(had) < share:
            below.append(member)
        elif count == share:
            atShare.append(member)
    kept = {place for places in made.values() for place in places}
    for place in partitions:
        if place in kept:
            continue
        member = (below or atShare).popleft()
        made[member].append(place)
        if len(made[member]) < share:
            below.append(member)
        elif len(made[member]) == share:
            atShare.append(member)
    return made


def _assignUnequal(
    partitions: Sequence[TopicPartition],
    members: Sequence[MemberSubscription],
    claims: _Claims,
) -> dict[str, list[TopicPartition]]:
    """What is free goes to the member with the least; then the members are balanced."""
    made: dict[str, dict[TopicPartition, None]] = {each.memberId: {} for each in members}
    readers: dict[str, list[str]] = {}
    for each in members:
        for topic in frozenset(each.topics):
            readers.setdefault(topic, []).append(each.memberId)
    free = []
    for place in partitions:
        owner = claims.get(place)
        if owner is not None and owner in readers[place.topic]:
            made[owner][place] = None
        else:
            free.append(place)
    for place in free:
        made[min(readers[place.topic], key=lambda each: len(made[each]))][place] = None
    while _balance(made, readers):
        pass
    return {member: list(places) for member, places in made.items()}


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
