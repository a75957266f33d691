"""
The assignor of a job's tasks. A module of its own, since it alone looks at the number of a
partition and not at its topic.

Task N reads the partitions with number N of all topics. What must be true:

  - All partitions with the same number go to one member together.
  - Numbers of tasks differ by at most one between members.
  - A member keeps its tasks, as far as that allows. Of those that it must give up, it first gives
  those that another member has on its disk. A task without an owner goes to a member that has it on
  its disk and has room, or else to the member with the fewest.
  - While a member still has a partition of a task that goes to another one, none of the task's
  partitions is assigned to that one: two members never have parts of one task.
  - Of several members that claim partitions of a task, the one of the newest generation has it. If
  there are several of that, none has, and all of them give it up.

Members of a job have the same topics. While a new version with other topics replaces them one by
one, tasks go only to the members that subscribe to most topics. A partition of a topic to which its
owner does not subscribe is not assigned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from pylogbroker.cluster.assignment import javaOrder
from pylogbroker.cluster.kafka.assignors import Assignments, IPartitionAssignor
from pylogbroker.types import MemberSubscription, TopicPartition

NAME = "pylogbroker-tasks"

_VERSION = 0
_TASK_SIZE = 4

_Claims = dict[int, str | None]
"""The owner of each task that is claimed; L{None}: several claim it by the same right."""


def encodeTasksOnDisk(tasks: Iterable[int]) -> bytes:
    """User data of JoinGroup: a version byte, then 4 bytes for each task number, big-endian."""
    numbers = sorted(set(tasks))
    return struct.pack(f">B{len(numbers)}I", _VERSION, *numbers)


def decodeTasksOnDisk(data: bytes | None) -> frozenset[int]:
    """
    @return: nothing for user data of another version, or of a wrong size: it only says which member
        would be faster.
    """
    if not data or data[0] != _VERSION or len(data) % _TASK_SIZE != 1:
        return frozenset()
    return frozenset(struct.unpack(f">{len(data) // _TASK_SIZE}I", data[1:]))


class TaskAssignor(IPartitionAssignor):
    """See the module."""

    name = NAME
    isCooperative = True

    def __init__(self, tasksOnDisk: Callable[[], Iterable[int]] = tuple) -> None:
        """
        @param tasksOnDisk: the numbers of the tasks whose state the member has on its disk; asked
            at each JoinGroup.
        """
        self._tasksOnDisk = tasksOnDisk

    def userData(self) -> bytes:
        """See the interface."""
        return encodeTasksOnDisk(self._tasksOnDisk())

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        """See the interface."""
        made: Assignments = {each.memberId: [] for each in members}
        topicsOf = {each.memberId: frozenset(each.topics) for each in members}
        counts = {
            topic: partitionCounts.get(topic, 0)
            for topic in sorted(frozenset[str]().union(*topicsOf.values()))
        }
        claims = _claims(counts, members)
        taskCount = max(counts.values(), default=0)
        for task, owner in _ownersOf(taskCount, claims, _candidates(counts, members)).items():
            if claims.get(task, owner) == owner:
                made[owner] += (
                    TopicPartition(topic, task)
                    for topic, count in counts.items()
                    if task < count and topic in topicsOf[owner]
                )
        return made


def _claims(counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> _Claims:
    newest: dict[int, int] = {}
    claims: _Claims = {}
    for member in members:
        owned = {
            place.partition
            for place in member.ownedPartitions
            if place.partition < counts.get(place.topic, 0)
        }
        for task in owned:
            known = newest.get(task)
            if known is None or member.generation > known:
                newest[task], claims[task] = member.generation, member.memberId
            elif member.generation == known:
                claims[task] = None
    return claims


def _candidates(
    counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[str, frozenset[int]]:
    """The members that get tasks, and what each has on its disk."""
    sizes = [sum(counts[topic] > 0 for topic in frozenset(each.topics)) for each in members]
    ranked = sorted(zip(members, sizes, strict=True), key=lambda each: javaOrder(each[0].memberId))
    return {
        member.memberId: decodeTasksOnDisk(member.userData)
        for member, size in ranked
        if size == max(sizes)
    }


def _ownersOf(
    taskCount: int, claims: _Claims, onDisk: Mapping[str, frozenset[int]]
) -> dict[int, str]:
    """
    @param onDisk: of the members that get tasks, in their order.
    """
    holders: dict[int, list[str]] = {task: [] for task in range(taskCount)}
    for member, tasks in onDisk.items():
        for task in tasks.intersection(holders):
            holders[task].append(member)
    share, more = divmod(taskCount, len(onDisk))
    made: dict[int, str] = {}
    loads = dict.fromkeys(onDisk, 0)
    for member in onDisk:
        had = [task for task in holders if claims.get(task) == member]
        had.sort(key=lambda task: (holders[task] not in ([], [member]), task))
        loads[member] = min(len(had), share + (more > 0))
        more -= loads[member] > share
        made.update(dict.fromkeys(had[: loads[member]], member))
    free = [task for task in holders if task not in made]
    # Those on the fewest disks choose first.
    for task in sorted(free, key=lambda task: (len(holders[task]) or len(onDisk), task)):
        open_ = [each for each in onDisk if loads[each] < share + (more > 0)]
        member = min(
            [each for each in open_ if each in holders[task]] or open_, key=lambda each: loads[each]
        )
        more -= loads[member] == share
        loads[member] += 1
        made[task] = member
    return dict(sorted(made.items()))
