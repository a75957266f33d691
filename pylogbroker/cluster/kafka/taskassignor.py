"""
The assignor of a job's tasks. A module of its own, since it alone looks at the number of a
partition and not at its topic.

Task N reads the partitions with number N of all topics. What must be true:

  - All partitions with the same number go to one member together.
  - Numbers of tasks differ by at most one between members.
  - A member keeps its tasks, as far as that allows. Of those that it must give up, it first gives
  those whose state another member has: up to date, or at least on its disk. A task without an owner
  goes to a member that has its state and has room, or else to the member with the fewest.
  - While a member still has a partition of a task that goes to another one, none of the task's
  partitions is assigned to that one: two members never have parts of one task.
  - Of several members that claim partitions of a task, the one of the newest generation has it. If
  there are several of that, none has, and all of them give it up.

Members of a job have the same topics. While a new version with other topics replaces them one by
one, tasks go only to the members that subscribe to most topics. A partition of a topic to which its
owner does not subscribe is not assigned.

With I{stand-bys}, further members follow the state of a task. The leader's number counts. What must
be true then:

  - A task has as many stand-bys as are asked for, as far as there are folders: one process at a
  time can open a store, so no member has a stand-by whose folder is that of the task's owner, or of
  another stand-by of the task.
  - A task stays with a member, or goes to one, that has its state up to date, if there is one:
  before balance. The member that it belongs to by the rules above follows its state meanwhile, and
  is I{awaited}: it asks for the next rebalance when it is up to date. So a task that moves is never
  without state, and in the end the rules above hold.
  - Numbers of stand-bys are even, as far as folders allow. A stand-by that is up to date is given
  up only for another one that is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pylogbroker.cluster.assignment import javaOrder
from pylogbroker.cluster.kafka.assignors import Assignments, IPartitionAssignor
from pylogbroker.types import MemberSubscription, TopicPartition

NAME = "pylogbroker-tasks"

FOLDER_ID_SIZE = 16
"""Bytes."""

_TASK_SIZE = 4
_ON_DISK_VERSION, _STATE_VERSION = 0, 1
_STATE_HEAD = struct.Struct(f">B{FOLDER_ID_SIZE}sI")
_STANDBY_VERSION = 0
_STANDBY_HEAD = struct.Struct(">BI")

_HERE, _BESIDE, _ON_DISK, _NONE = range(4)
"""Up to date, in this process; in another one with the same folder; on the disk, older; nothing."""

_Claims = dict[int, str | None]
"""The owner of each task that is claimed; L{None}: several claim it by the same right."""


class TaskState(NamedTuple):
    """
    What a member says of the state that it has.

    @ivar folderId: 16 bytes: members with the same one share a folder of stores. Empty: unknown, of
        a member that takes no stand-bys.
    @ivar current: numbers of tasks whose state it has up to date.
    @ivar onDisk: of those whose state is on its disk, however old.
    """

    folderId: bytes = b""
    current: Collection[int] = frozenset()
    onDisk: Collection[int] = frozenset()


class TaskStandbys(NamedTuple):
    """
    What a member is told to follow.

    @ivar tasks: numbers of its stand-by tasks.
    @ivar awaited: those of them for which it is to ask for a rebalance, once it is up to date.
    """

    tasks: Collection[int] = frozenset()
    awaited: Collection[int] = frozenset()


def encodeTaskState(state: TaskState) -> bytes:
    """
    User data of JoinGroup: a version byte, 1; the folder's id; 4 bytes, how many tasks are up to
    date; then 4 bytes for each of their numbers, and each of those on disk, big-endian. Version 0
    has the version byte and the numbers on disk.
    """
    current, onDisk = sorted(set(state.current)), sorted(set(state.onDisk))
    head = _STATE_HEAD.pack(_STATE_VERSION, state.folderId, len(current))
    return head + _packed(current) + _packed(onDisk)


def decodeTaskState(data: bytes | None) -> TaskState:
    """
    @return: nothing for user data of another version, or of a wrong size: it only says which member
        would be faster.
    """
    if data and data[0] == _ON_DISK_VERSION:
        return TaskState(onDisk=frozenset(_unpacked(data[1:]) or ()))
    head, count, numbers = _decoded(_STATE_HEAD, data)
    if numbers is None or head[0] != _STATE_VERSION:
        return TaskState()
    folderId = head[1] if any(head[1]) else b""
    return TaskState(folderId, frozenset(numbers[:count]), frozenset(numbers[count:]))


def encodeTaskStandbys(standbys: TaskStandbys) -> bytes:
    """
    User data of SyncGroup: a version byte, 0; 4 bytes, how many tasks are awaited; then 4 bytes for
    each of their numbers, and each of the others, big-endian.
    """
    awaited = sorted(set(standbys.awaited))
    others = sorted(set(standbys.tasks).difference(awaited))
    return _STANDBY_HEAD.pack(_STANDBY_VERSION, len(awaited)) + _packed(awaited) + _packed(others)


def decodeTaskStandbys(data: bytes | None) -> TaskStandbys:
    """@return: nothing for user data of another version, or of a wrong size."""
    head, count, numbers = _decoded(_STANDBY_HEAD, data)
    if numbers is None or head[0] != _STANDBY_VERSION:
        return TaskStandbys()
    return TaskStandbys(frozenset(numbers), frozenset(numbers[:count]))


def _packed(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def _unpacked(data: bytes) -> Sequence[int] | None:
    """@return: L{None}: it is cut."""
    if len(data) % _TASK_SIZE:
        return None
    return struct.unpack(f">{len(data) // _TASK_SIZE}I", data)


def _decoded(
    head: struct.Struct, data: bytes | None
) -> tuple[Sequence[Any], int, Sequence[int] | None]:
    """The head, its last field, which counts numbers, and all numbers; L{None}: it is cut."""
    if data is None or len(data) < head.size:
        return (), 0, None
    values = head.unpack_from(data)
    numbers = _unpacked(data[head.size :])
    if numbers is None or values[-1] > len(numbers):
        return (), 0, None
    return values, values[-1], numbers


class TaskAssignor(IPartitionAssignor):
    """See the module."""

    name = NAME
    isCooperative = True

    def __init__(
        self,
        state: Callable[[], TaskState] = TaskState,
        standbyCount: int = 0,
        onStandbys: Callable[[Collection[int], TaskStandbys], object] = lambda *_given: None,
    ) -> None:
        """
        @param state: of this member; asked at each JoinGroup.
        @param standbyCount: of each task, if this member is the leader.
        @param onStandbys: called at each assignment, before partitions are adopted, with the
            numbers of the tasks of which this member has partitions, and its stand-bys.
        """
        self._state = state
        self._standbyCount = standbyCount
        self._onStandbys = onStandbys

    def userData(self) -> bytes:
        """See the interface."""
        return encodeTaskState(self._state())

    def assign(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignments:
        """See the interface."""
        made: Assignments = {each.memberId: [] for each in members}
        plan = _TaskPlan(partitionCounts, members, self._standbyCount)
        for task, owner in plan.owners.items():
            if not plan.isWithheld(task):
                made[owner] += (
                    TopicPartition(topic, task)
                    for topic, count in plan.counts.items()
                    if task < count and topic in plan.topicsOf[owner]
                )
        return made

    def assignedUserData(
        self, partitionCounts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Mapping[str, bytes]:
        """See the interface."""
        if not self._standbyCount:
            return {}
        plan = _TaskPlan(partitionCounts, members, self._standbyCount)
        return {member: encodeTaskStandbys(each) for member, each in plan.standbys().items()}

    def onAssignment(self, partitions: Collection[TopicPartition], userData: bytes | None) -> None:
        """See the interface."""
        self._onStandbys({each.partition for each in partitions}, decodeTaskStandbys(userData))


class _TaskPlan:
    """
    Who gets what.

    @ivar counts: partitions of the topics that have a reader.
    @ivar topicsOf: of each member.
    @ivar owners: of each task, in order.
    """

    def __init__(
        self,
        partitionCounts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        standbyCount: int,
    ) -> None:
        self.topicsOf = {each.memberId: frozenset(each.topics) for each in members}
        self.counts = {
            topic: partitionCounts.get(topic, 0)
            for topic in sorted(frozenset[str]().union(*self.topicsOf.values()))
        }
        self._claims = _claims(self.counts, members)
        self._states = _candidates(self.counts, members)
        self._standbyCount = standbyCount
        self._taskCount = max(self.counts.values(), default=0)
        # Of each member, the tasks that a member with the same folder has up to date.
        self._beside = {
            member: frozenset[int]().union(
                *(
                    other.current
                    for other in self._states.values()
                    if state.folderId and other.folderId == state.folderId
                )
            )
            for member, state in self._states.items()
        }
        self._awaited: dict[int, str] = {}
        self.owners = self._withState() if standbyCount else self._balanced()

    def isWithheld(self, task: int) -> bool:
        """Whether another member than its new owner has it still."""
        owner = self.owners[task]
        return self._claims.get(task, owner) != owner

    def _rank(self, member: str, task: int) -> int:
        """How near a member is to the state of a task; the nearer, the lower."""
        state = self._states[member]
        if task in state.current:
            return _HERE
        if task in self._beside[member]:
            return _BESIDE
        return _ON_DISK if task in state.onDisk else _NONE

    # -- owners

    def _balanced(self) -> dict[int, str]:
        """The owner of each task, by the rules that know no stand-bys."""
        members = list(self._states)
        share, more = divmod(self._taskCount, len(members))
        made: dict[int, str] = {}
        loads = dict.fromkeys(members, 0)
        for member in members:
            had = [task for task in range(self._taskCount) if self._claims.get(task) == member]
            others = [each for each in members if each != member]
            nearest = {task: self._nearest(task, others) for task in had}
            had.sort(key=lambda task: (-nearest[task], task))
            loads[member] = min(len(had), share + (more > 0))
            more -= loads[member] > share
            made.update(dict.fromkeys(had[: loads[member]], member))
        free = [task for task in range(self._taskCount) if task not in made]
        # Those whose state is in the fewest places choose first.
        holderCounts = {task: self._holderCount(task) for task in free}
        for task in sorted(free, key=lambda task: (holderCounts[task], task)):
            member = min(
                [each for each in members if loads[each] < share + (more > 0)],
                key=lambda each: (self._rank(each, task), loads[each]),
            )
            more -= loads[member] == share
            loads[member] += 1
            made[task] = member
        return dict(sorted(made.items()))

    def _nearest(self, task: int, members: Iterable[str]) -> int:
        return min((self._rank(each, task) for each in members), default=_NONE)

    def _holderCount(self, task: int) -> int:
        ranks = [self._rank(each, task) for each in self._states]
        return len(ranks) if min(ranks) == _NONE else ranks.count(min(ranks))

    def _withState(self) -> dict[int, str]:
        """
        The owner of each task where there are stand-bys. A task leaves a member that has its state
        only if numbers of tasks get more even by that: so members that join again settle.
        """
        members, claims = list(self._states), self._claims

        def isNear(member: str, task: int) -> bool:
            # One without a folder can follow nothing, so it waits for nothing.
            return self._rank(member, task) <= _BESIDE or not self._states[member].folderId

        near = {
            task: [each for each in members if isNear(each, task)]
            for task in range(self._taskCount)
        }
        owners: dict[int, list[str]] = {}
        loads = dict.fromkeys(members, 0)

        def give(task: int, member: str) -> None:
            owners[task] = [member]
            loads[member] += 1

        free = [task for task in near if claims.get(task) not in near[task]]
        for task in near.keys() - set(free):
            give(task, str(claims[task]))
        for task in free:
            if near[task]:
                give(task, min(near[task], key=lambda each: (loads[each], self._rank(each, task))))
        for task in free:
            if not near[task]:
                claimant = claims.get(task)
                give(
                    task,
                    min(
                        [each for each in members if loads[each] * len(members) < self._taskCount],
                        key=lambda each: (each != claimant, self._rank(each, task), loads[each]),
                    ),
                )

        def isFit(member: str, task: int, _given: str) -> bool:
            return member in near[task] or not near[task]

        # What is not claimed moves first.
        ordered = sorted(owners, key=lambda task: (claims.get(task) is not None, -task))
        _evenOut({task: owners[task] for task in ordered}, loads, self._rank, isFit)
        self._chooseAwaited(owners, loads)
        return {task: owner for task, [owner] in sorted(owners.items())}

    def _chooseAwaited(self, owners: Mapping[int, list[str]], loads: dict[str, int]) -> None:
        """Which members are to own tasks, once they have the state."""
        planned = {task: owner for task, [owner] in owners.items()}
        followers = [each for each, state in self._states.items() if state.folderId]
        while followers:
            member = min(followers, key=lambda each: loads[each])
            owner = max(loads, key=lambda each: loads[each])
            if loads[owner] - loads[member] < 2:
                break
            task = min(
                [task for task, each in planned.items() if each == owner],
                key=lambda task: (self._rank(member, task), task in self._awaited, -task),
            )
            planned[task] = member
            self._awaited[task] = member
            loads[owner] -= 1
            loads[member] += 1

    # -- stand-bys

    def standbys(self) -> dict[str, TaskStandbys]:
        """Of each member."""
        chosen = self._evenStandbys()
        tasks: dict[str, set[int]] = {member: set() for member in self.topicsOf}
        awaited: dict[str, set[int]] = {member: set() for member in self.topicsOf}
        for task, owner in self.owners.items():
            members = chosen[task]
            following = [*members, *self._heir(task)]
            for member in self._heir(task):
                awaited[member].add(task)
            missing = [each for each in members if self._standbyRank(each, task) > _BESIDE]
            kept = self._keptStandbys(task, following)[: len(missing)]
            for member in missing if kept else ():
                awaited[member].add(task)
            if self.isWithheld(task):  # its new owner has the state until it gets the task
                kept += (
                    each
                    for each, state in self._states.items()
                    if self._standbyRank(each, task) == _HERE
                    and state.folderId == self._states[owner].folderId
                )
            for member in (*following, *kept):
                tasks[member].add(task)
        return {each: TaskStandbys(tasks[each], awaited[each]) for each in tasks}

    def _heir(self, task: int) -> list[str]:
        """The member that is awaited for it, if there is one."""
        return [self._awaited[task]] if task in self._awaited else []

    def _standbyRank(self, member: str, task: int) -> int:
        """As C{_rank}; an owner that is to give the task up closes its state first."""
        isLeaving = self._claims.get(task) == member
        return max(self._rank(member, task), _ON_DISK if isLeaving else _HERE)

    def _folders(self, members: Iterable[str]) -> set[bytes]:
        return {self._states[each].folderId for each in members}

    def _keptStandbys(self, task: int, following: Sequence[str]) -> list[str]:
        """Those that are up to date, and would be given up."""
        taken = self._folders([self.owners[task], *following])
        return [
            each
            for each, state in self._states.items()
            if self._standbyRank(each, task) == _HERE and state.folderId not in taken
        ]

    def _evenStandbys(self) -> dict[int, list[str]]:
        """The stand-bys of each task, when all of them are up to date."""
        loads = {each: 0 for each, state in self._states.items() if state.folderId}
        chosen: dict[int, list[str]] = {}
        for task, owner in self.owners.items():
            found = chosen[task] = list[str]()
            taken = self._folders([owner, *self._heir(task)])
            while len(found) < self._standbyCount:
                open_ = [each for each in loads if self._states[each].folderId not in taken]
                if not open_:
                    break
                member = min(open_, key=lambda each: (self._standbyRank(each, task), loads[each]))
                found.append(member)
                taken.add(self._states[member].folderId)
                loads[member] += 1

        def isFit(member: str, task: int, given: str) -> bool:
            others = [each for each in chosen[task] if each != given]
            taken = self._folders([self.owners[task], *self._heir(task), *others])
            return self._states[member].folderId not in taken

        _evenOut(chosen, loads, self._standbyRank, isFit)
        return chosen


def _evenOut(
    chosen: Mapping[int, list[str]],
    loads: dict[str, int],
    rank: Callable[[str, int], int],
    isFit: Callable[[str, int, str], bool],
) -> None:
    """
    Move tasks to members with less, as long as that makes loads more even.

    @param chosen: the members of each task.
    @param rank: of a member for a task: the lowest ones get tasks first.
    @param isFit: whether a member can have a task in place of another one.
    """
    for rankMax in (_HERE, _BESIDE, _ON_DISK, _NONE):
        isMoved = True
        while isMoved:  # the sum of the squares of loads falls each time
            isMoved = False
            least = min(loads.values(), default=0)
            for task, members in chosen.items():
                for place, member in enumerate(members):
                    if loads[member] - least < 2:
                        continue
                    open_ = [
                        each
                        for each in loads
                        if loads[member] - loads[each] >= 2
                        and rank(each, task) <= rankMax
                        and isFit(each, task, member)
                    ]
                    if open_:
                        members[place] = min(open_, key=lambda each: loads[each])
                        loads[member] -= 1
                        loads[members[place]] += 1
                        isMoved = True


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
) -> dict[str, TaskState]:
    """The members that get tasks, and what each has of their state."""
    sizes = [sum(counts[topic] > 0 for topic in frozenset(each.topics)) for each in members]
    ranked = sorted(zip(members, sizes, strict=True), key=lambda each: javaOrder(each[0].memberId))
    return {
        member.memberId: decodeTaskState(member.userData)
        for member, size in ranked
        if size == max(sizes)
    }
