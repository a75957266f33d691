"""
Server-side assignors of KIP-848's groups: who shall own which partitions. A module of its
own, since these are pure functions, which tests compare with what must hold of any assignment.

Both give each partition to one of the members that subscribe to its topic, and depend on nothing
but their arguments.

  - C{range} gives each member a run of each topic, in the order of the members, so that partitions
    of one number tend to meet at one member;
  - C{uniform} gives each member as many partitions as the others, as far as its topics allow, and
    leaves what a member has where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class AssignedMember(NamedTuple):
    """
    A member, as an assignor sees it.

    @ivar topicIds: what it subscribes to.
    @ivar owned: its part of the target assignment so far, by topic id.
    """

    memberId: str
    instanceId: str | None
    topicIds: Collection[bytes]
    owned: Mapping[bytes, Collection[int]]


Assignment = dict[str, dict[bytes, frozenset[int]]]
"""By member and topic id. Members without partitions have an empty entry."""

Assignor = Callable[[Sequence[AssignedMember], Mapping[bytes, int]], Assignment]
"""Called with the members, and the number of partitions by topic id."""


def assignRange(members: Sequence[AssignedMember], counts: Mapping[bytes, int]) -> Assignment:
    """The assignor C{range}."""
    assignment: Assignment = {each.memberId: {} for each in members}
    ordered = sorted(
        members, key=lambda each: (each.instanceId is None, each.instanceId or "", each.memberId)
    )
    for topicId, count in counts.items():
        takers = [each.memberId for each in ordered if topicId in each.topicIds]
        start = 0
        for index, memberId in enumerate(takers):
            end = start + count // len(takers) + (index < count % len(takers))
            if end > start:
                assignment[memberId][topicId] = frozenset(range(start, end))
            start = end
    return assignment


def assignUniform(members: Sequence[AssignedMember], counts: Mapping[bytes, int]) -> Assignment:
    """The assignor C{uniform}."""
    kept: dict[str, dict[bytes, set[int]]] = {each.memberId: {} for each in members}
    sizes = dict.fromkeys(kept, 0)
    free = {topicId: set(range(count)) for topicId, count in counts.items()}
    takers = {
        topicId: [each.memberId for each in members if topicId in each.topicIds]
        for topicId in counts
    }
    for member in members:
        for topicId, owned in member.owned.items():
            if topicId in member.topicIds and topicId in free:
                still = free[topicId].intersection(owned)
                free[topicId] -= still
                kept[member.memberId][topicId] = still
                sizes[member.memberId] += len(still)
    # Topics with the fewest subscribers first: theirs is the least choice.
    for topicId in sorted(free, key=lambda each: (len(takers[each]), each)):
        heap = [(sizes[memberId], memberId) for memberId in takers[topicId]]
        heapify(heap)
        for partition in sorted(free[topicId]):
            if not heap:
                break
            size, memberId = heappop(heap)
            kept[memberId].setdefault(topicId, set()).add(partition)
            sizes[memberId] = size + 1
            heappush(heap, (size + 1, memberId))
    _balance(kept, sizes, takers)
    return {
        memberId: {topicId: frozenset(some) for topicId, some in topics.items() if some}
        for memberId, topics in kept.items()
    }


def _balance(
    kept: dict[str, dict[bytes, set[int]]],
    sizes: dict[str, int],
    takers: Mapping[bytes, Sequence[str]],
) -> None:
    """
    Move partitions from members that have more to such with at least two fewer. Each move brings
    the two closer together, so that this ends.
    """
    if len({frozenset(each) for each in takers.values()}) <= 1:
        _level(kept, sizes, next(iter(takers.values()), ()))
        return
    isChanged = True
    while isChanged:
        isChanged = False
        for topicId, memberIds in takers.items():
            before = {memberId: sizes[memberId] for memberId in memberIds}
            _levelTopic(topicId, kept, sizes, memberIds)
            isChanged |= before != {memberId: sizes[memberId] for memberId in memberIds}


def _levelTopic(
    topicId: bytes,
    kept: dict[str, dict[bytes, set[int]]],
    sizes: dict[str, int],
    memberIds: Sequence[str],
) -> None:
    """Level the members out by partitions of one topic."""
    givers = [(-sizes[each], each) for each in memberIds if kept[each].get(topicId)]
    receivers = [(sizes[each], each) for each in memberIds]
    heapify(givers)
    heapify(receivers)
    while givers:
        most, giver = heappop(givers)
        if -most != sizes[giver]:
            heappush(givers, (-sizes[giver], giver))
            continue
        fewest, receiver = receivers[0]
        while fewest != sizes[receiver]:
            heappop(receivers)
            heappush(receivers, (sizes[receiver], receiver))
            fewest, receiver = receivers[0]
        if sizes[giver] - fewest < 2:
            return
        _move(topicId, kept, sizes, giver, receiver)
        if kept[giver][topicId]:
            heappush(givers, (-sizes[giver], giver))


def _level(
    kept: dict[str, dict[bytes, set[int]]], sizes: dict[str, int], memberIds: Sequence[str]
) -> None:
    """Level members out that subscribe to the same topics: who has too much gives the rest."""
    if not memberIds:
        return
    least, moreCount = divmod(sum(sizes[each] for each in memberIds), len(memberIds))
    rank = sorted(memberIds, key=lambda each: (-sizes[each], each))
    quotas = {each: least + (index < moreCount) for index, each in enumerate(rank)}
    receivers = [each for each in rank if sizes[each] < quotas[each]]
    for giver in rank:
        for topicId in sorted(kept[giver]):
            while sizes[giver] > quotas[giver] and kept[giver][topicId]:
                _move(topicId, kept, sizes, giver, receivers[-1])
                if sizes[receivers[-1]] == quotas[receivers[-1]]:
                    receivers.pop()


def _move(
    topicId: bytes,
    kept: dict[str, dict[bytes, set[int]]],
    sizes: dict[str, int],
    giver: str,
    receiver: str,
) -> None:
    partition = max(kept[giver][topicId])
    kept[giver][topicId].remove(partition)
    kept[receiver].setdefault(topicId, set()).add(partition)
    sizes[giver] -= 1
    sizes[receiver] += 1


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assignUniform, "range": assignRange}
"""By Kafka's names."""
