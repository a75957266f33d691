"""
Tests of L{pylogbroker.cluster.kafka.taskassignor}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka.assignors import Assignments, assignorOf
from pylogbroker.cluster.kafka.taskassignor import (
    FOLDER_ID_SIZE,
    TaskAssignor,
    TaskStandbys,
    TaskState,
    decodeTaskStandbys,
    decodeTaskState,
    encodeTaskStandbys,
    encodeTaskState,
)
from pylogbroker.types import MemberSubscription, TopicPartition
from tests.cluster.kafka.test_assignors import groups, settle

ASSIGNOR = TaskAssignor()
TOPICS = ("a", "b")


NUMBERS = st.frozensets(st.integers(0, (1 << 32) - 1))


def placesOf(tasks: Iterable[int], topics: Sequence[str] = TOPICS) -> tuple[TopicPartition, ...]:
    """The partitions of tasks."""
    return tuple(TopicPartition(topic, task) for task in tasks for topic in topics)


def stateOf(folder: str = "", current: Iterable[int] = (), onDisk: Iterable[int] = ()) -> bytes:
    """User data of a member."""
    folderId = folder.encode().ljust(FOLDER_ID_SIZE, b"-") if folder else b""
    return encodeTaskState(TaskState(folderId, frozenset(current), frozenset(onDisk)))


def member(
    name: str, owned: Iterable[int] = (), onDisk: Iterable[int] = (), generation: int = 1
) -> MemberSubscription:
    """A member that reads both topics."""
    return MemberSubscription(
        name, TOPICS, placesOf(owned), generation, userData=stateOf(onDisk=frozenset(onDisk))
    )


def tasksOf(found: Assignments) -> dict[str, list[int]]:
    """Task numbers by member."""
    return {name: sorted({place.partition for place in places}) for name, places in found.items()}


def assigned(count: int, *members: MemberSubscription) -> dict[str, list[int]]:
    """The tasks of members in the first round; both topics have as many partitions."""
    return tasksOf(ASSIGNOR.assign(dict.fromkeys(TOPICS, count), members))


def settled(count: int, *members: MemberSubscription) -> dict[str, list[int]]:
    """The tasks of members when nothing changes any more."""
    found, rounds = settle(ASSIGNOR, dict.fromkeys(TOPICS, count), members)
    assert rounds <= 2
    return tasksOf(found)


class TaskAssignorTests(SynchronousTestCase):
    """L{TaskAssignor}."""

    def test_together(self) -> None:
        """Partitions of the same number go together, also where topics have more of them."""
        found = ASSIGNOR.assign({"a": 4, "b": 2}, [member("m1"), member("m2")])
        self.assertEqual(
            {name: " ".join(map(str, places)) for name, places in found.items()},
            {"m1": "a-0 b-0 a-2", "m2": "a-1 b-1 a-3"},
        )

    def test_sticky(self) -> None:
        """A member that comes gets what must move; the others keep the rest."""
        self.assertEqual(
            settled(4, member("m1", [0, 3]), member("m2", [1, 2]), member("m3")),
            {"m1": [0, 3], "m2": [1], "m3": [2]},
        )
        self.assertEqual(
            settled(5, member("m1", [4]), member("m3", [0, 2])), {"m1": [1, 3, 4], "m3": [0, 2]}
        )

    def test_withheld(self) -> None:
        """A task that moves goes to no member until its owner has given up all of it."""
        self.assertEqual(assigned(2, member("m1", [0, 1]), member("m2")), {"m1": [0], "m2": []})
        half = member("m1")._replace(ownedPartitions=(*placesOf([0]), TopicPartition("a", 1)))
        self.assertEqual(assigned(2, half, member("m2")), {"m1": [0], "m2": []})

    def test_onDisk(self) -> None:
        """A task without owner goes to the member that has its state, while that has room."""
        members = member("m1"), member("m2", onDisk=[0, 1]), member("m3", onDisk=[0])
        self.assertEqual(assigned(3, *members), {"m1": [2], "m2": [1], "m3": [0]})
        self.assertEqual(
            assigned(4, member("m1"), member("m2", onDisk=range(4))), {"m1": [2, 3], "m2": [0, 1]}
        )

    def test_balanceBeforeDisk(self) -> None:
        """Only as many members get one more as must."""
        self.assertEqual(
            assigned(4, member("m1"), member("m2", onDisk=[0, 1]), member("m3", onDisk=[2, 3])),
            {"m1": [3], "m2": [0, 1], "m3": [2]},
        )

    def test_comesBack(self) -> None:
        """A member that comes back gets the tasks whose state it has on its disk."""
        self.assertEqual(
            settled(4, member("m1", range(4), range(4)), member("m2", onDisk=[0, 2])),
            {"m1": [1, 3], "m2": [0, 2]},
        )

    def test_ownerBeforeDisk(self) -> None:
        """The owner keeps a task, whatever others have on their disks."""
        self.assertEqual(
            settled(2, member("m1", [0]), member("m2", [1], onDisk=[0])), {"m1": [0], "m2": [1]}
        )

    def test_disputed(self) -> None:
        """The newest generation's claim counts; of two of the same, neither gets the task."""
        old, new = member("m1", [0], generation=1), member("m2", [0], generation=2)
        for members in ((old, new), (new, old)):
            self.assertEqual(assigned(1, *members), {"m1": [], "m2": [0]})
        self.assertEqual(assigned(1, old._replace(generation=2), new), {"m1": [], "m2": []})
        self.assertEqual(settled(1, old._replace(generation=2), new), {"m1": [0], "m2": []})

    def test_unknownPartitions(self) -> None:
        """A claim of a partition that does not exist counts for nothing."""
        owned = (TopicPartition("a", 1), TopicPartition("z", 1))
        other = member("m2")._replace(topics=(*TOPICS, "z"), ownedPartitions=owned)
        same = member("m1", onDisk=[1])._replace(topics=(*TOPICS, "z"))
        found = ASSIGNOR.assign({"a": 1, "b": 2}, [same, other])
        self.assertEqual(tasksOf(found), {"m1": [1], "m2": [0]})

    def test_newVersion(self) -> None:
        """
        While members with other topics come, tasks go to those with most topics, and no member gets
        partitions of a topic to which it does not subscribe.
        """
        counts = {"a": 2, "b": 2}
        old = member("m1", [])._replace(topics=("a",), ownedPartitions=placesOf([0, 1], ("a",)))
        first = ASSIGNOR.assign(counts, [old, member("m2")])
        self.assertEqual(tasksOf(first), {"m1": [], "m2": []})
        found, _rounds = settle(ASSIGNOR, counts, [old, member("m2")])
        self.assertEqual(tasksOf(found), {"m1": [], "m2": [0, 1]})
        other = member("m2")._replace(topics=("b",))
        found, _rounds = settle(ASSIGNOR, counts, [old, other])
        self.assertEqual(found, {"m1": [TopicPartition("a", 0)], "m2": [TopicPartition("b", 1)]})

    def test_noTopics(self) -> None:
        """Topics that do not exist make no tasks."""
        self.assertEqual(ASSIGNOR.assign({}, [member("m1")]), {"m1": []})

    def test_userData(self) -> None:
        """It is asked each time: a version byte, the folder, and numbers."""
        onDisk = [258, 1, 1]
        folder = b"0123456789abcdef"
        assignor = TaskAssignor(lambda: TaskState(folder, [3], onDisk))
        data = b"\1" + folder + b"\0\0\0\1" + b"\0\0\0\3" + b"\0\0\0\1" + b"\0\0\1\2"
        self.assertEqual(assignor.userData(), data)
        onDisk.clear()
        self.assertEqual(assignor.userData(), data[:-8])
        self.assertEqual(ASSIGNOR.userData(), b"\1" + bytes(20))
        self.assertIsNone(assignorOf("range").userData())

    def test_userDataOfVersion0(self) -> None:
        """Members of the first version say what is on their disks."""
        self.assertEqual(decodeTaskState(b"\0\0\0\0\1\0\0\1\2"), TaskState(onDisk={1, 258}))

    def test_foreignUserData(self) -> None:
        """User data of another version, or cut, say nothing."""
        whole = stateOf("f", [1], [2])
        counted = whole[:17] + b"\0\0\0\3" + whole[21:]
        for data in (None, b"", b"\0", b"\0\0\0\0", b"\2" + whole[1:], whole[:-1], counted):
            self.assertEqual(decodeTaskState(data), TaskState())
        whole = encodeTaskStandbys(TaskStandbys([1, 2], [2]))
        for data in (None, b"", b"\0", b"\1" + whole[1:], whole[:-1], b"\0\0\0\0\3" + whole[5:]):
            self.assertEqual(decodeTaskStandbys(data), TaskStandbys())

    @given(st.binary(min_size=16, max_size=16), NUMBERS, NUMBERS)
    def test_userDataRoundTrip(
        self, folderId: bytes, first: frozenset[int], second: frozenset[int]
    ) -> None:
        """What is encoded is decoded."""
        state = TaskState(folderId if any(folderId) else b"", first, second)
        self.assertEqual(decodeTaskState(encodeTaskState(state)), state)
        standbys = TaskStandbys(first | second, second)
        self.assertEqual(decodeTaskStandbys(encodeTaskStandbys(standbys)), standbys)


TASKS = st.lists(st.integers(0, 9), max_size=6)
FOLDERS = st.sampled_from(["", "f1", "f2", "f3"])
USER_DATA = st.none() | st.binary(max_size=30) | st.builds(stateOf, FOLDERS, TASKS, TASKS)


class PropertyTests(SynchronousTestCase):
    """Whatever members say."""

    @given(groups(), st.lists(USER_DATA), st.integers(0, 2))
    def test_always(
        self,
        group: tuple[dict[str, int], list[MemberSubscription]],
        userData: list[bytes | None],
        standbyCount: int,
    ) -> None:
        """
        Each task has one owner at most in the end, and in between no member gets a partition of a
        task of which another one has a part by the same right.
        """
        counts, members = group
        assignor = TaskAssignor(standbyCount=standbyCount)
        members = [
            each._replace(userData=data)
            for each, data in zip(members, userData + [None] * len(members), strict=False)
        ]
        found = assignor.assign(counts, members)
        for each in members:
            for place in each.ownedPartitions:
                if place.partition >= counts.get(place.topic, 0) or not any(
                    place.topic in other.topics for other in members
                ):
                    continue
                for other in members:
                    tasks = {own.partition for own in found[other.memberId]}
                    if other is not each and place.partition in tasks:
                        self.assertGreater(other.generation, each.generation)
        last, _rounds = settle(assignor, counts, members)
        owners: dict[int, str] = {}
        for name, places in last.items():
            for place in places:
                self.assertEqual(owners.setdefault(place.partition, name), name)

    @given(
        st.integers(0, 20),
        st.lists(st.tuples(TASKS, TASKS, st.integers(0, 2)), min_size=1, max_size=6),
    )
    def test_balancedAndSticky(
        self, count: int, claims: list[tuple[list[int], list[int], int]]
    ) -> None:
        """
        In the end all partitions are assigned, whole tasks, numbers of tasks differ by one at most;
        each member has kept what it had alone, as far as its share goes; after two rounds nothing
        moves.
        """
        taken: set[int] = set()
        members = []
        for number, (owned, onDisk, generation) in enumerate(claims):
            alone = [task for task in dict.fromkeys(owned) if task not in taken and task < count]
            taken.update(alone)
            members.append(member(f"m{number}", alone, onDisk, generation))
        found, rounds = settle(ASSIGNOR, dict.fromkeys(TOPICS, count), members)
        self.assertLessEqual(rounds, 2)
        tasks = tasksOf(found)
        for name, places in found.items():
            self.assertEqual(sorted(places), sorted(placesOf(tasks[name])))
        self.assertEqual(sorted(chain(*tasks.values())), list(range(count)))
        sizes = [len(each) for each in tasks.values()]
        self.assertLessEqual(max(sizes) - min(sizes), 1)
        for each in members:
            had = {place.partition for place in each.ownedPartitions}
            kept = had.intersection(tasks[each.memberId])
            self.assertGreaterEqual(len(kept), min(len(had), count // len(members)))

    @given(st.integers(0, 20), st.integers(1, 5))
    def test_stays(self, count: int, memberCount: int) -> None:
        """Members that join again with what they have keep exactly that."""
        found = ASSIGNOR.assign(
            dict.fromkeys(TOPICS, count), [member(f"m{each}") for each in range(memberCount)]
        )
        again = [member(name, tasks, range(count)) for name, tasks in tasksOf(found).items()]
        self.assertEqual(assigned(count, *again), tasksOf(found))


class Worker:
    """
    A member whose state changes as the assignor says.

    @ivar owned: tasks.
    @ivar standbys: what it follows.
    @ivar current: what of it is up to date; and what it had on its disk.
    """

    def __init__(self, name: str, folder: str = "", onDisk: Iterable[int] = ()) -> None:
        self.name = name
        self.folder = folder or name
        self.owned = frozenset[int]()
        self.standbys = TaskStandbys()
        self.current: set[int] = set()
        self.onDisk = set(onDisk)

    def subscription(self, generation: int) -> MemberSubscription:
        data = stateOf(self.folder, self.current, self.onDisk)
        return MemberSubscription(
            self.name, TOPICS, placesOf(self.owned), generation, userData=data
        )

    def adopt(self, tasks: Collection[int], standbys: TaskStandbys) -> None:
        """An assignment."""
        # What it gives up is up to date on its disk when it joins again.
        self.current &= self.owned.union(tasks, standbys.tasks)
        self.owned, self.standbys = frozenset(tasks), standbys
        self.onDisk.update(self.owned, standbys.tasks)


class StandbyGroup:
    """Members with stand-bys, in a group that rebalances when one of them asks for it."""

    def __init__(self, taskCount: int, standbyCount: int, workers: Iterable[Worker]) -> None:
        self.counts = dict.fromkeys(TOPICS, taskCount)
        self.workers = {each.name: each for each in workers}
        self.assignor = TaskAssignor(standbyCount=standbyCount)
        self.generation = 0

    def rebalance(self) -> bool:
        """@return: whether a member has to give tasks up, so that another round follows."""
        self.generation += 1
        for each in self.workers.values():
            mates = [other for other in self.workers.values() if other.folder == each.folder]
            each.onDisk = set[int]().union(*(other.onDisk for other in mates))
        members = [each.subscription(self.generation - 1) for each in self.workers.values()]
        found = tasksOf(self.assignor.assign(self.counts, members))
        data = self.assignor.assignedUserData(self.counts, members)
        had = {name: each.owned for name, each in self.workers.items()}
        held = self.held()
        isAgain = False
        for name, worker in self.workers.items():
            member = TaskAssignor(onStandbys=worker.adopt)
            member.onAssignment(placesOf(found[name]), data.get(name))
            isAgain = isAgain or not worker.owned.issuperset(had[name])
            # What another one with the same folder had is opened at once.
            tasks = worker.owned.union(worker.standbys.tasks)
            worker.current.update(each for each in tasks if (worker.folder, each) in held)
        return isAgain

    def held(self) -> set[tuple[str, int]]:
        """Folders, and the tasks that are up to date in them."""
        return {(each.folder, task) for each in self.workers.values() for task in each.current}

    def settle(self, isFollowing: bool = True) -> int:
        """
        Rebalance as long as members ask for it.

        @param isFollowing: whether what they follow is up to date soon.
        @return: rebalances.
        """
        for count in range(1, 20):
            isAgain = self.rebalance()
            for each in self.workers.values():
                awaited = each.current.issuperset(each.standbys.awaited)
                if isFollowing:
                    each.current.update(each.owned, each.standbys.tasks)
                    isAgain = isAgain or not awaited
            if not isAgain:
                return count
        raise AssertionError("the group does not settle")

    @property
    def owned(self) -> dict[str, list[int]]:
        return {name: sorted(each.owned) for name, each in self.workers.items()}

    @property
    def followed(self) -> dict[str, list[int]]:
        return {name: sorted(each.standbys.tasks) for name, each in self.workers.items()}


class StandbyTests(SynchronousTestCase):
    """Tasks with stand-bys."""

    def test_takeover(self) -> None:
        """A task whose owner dies goes to its stand-by, before balance; then balance comes back."""
        group = StandbyGroup(6, 1, [Worker("m1"), Worker("m2"), Worker("m3")])
        group.settle()
        self.assertEqual([len(each) for each in group.owned.values()], [2, 2, 2])
        self.assertEqual([len(each) for each in group.followed.values()], [2, 2, 2])
        before, lost = group.owned, group.workers.pop("m1").owned
        had = {task: name for name, each in group.followed.items() for task in each if task in lost}
        group.rebalance()
        for task, name in had.items():
            self.assertIn(task, group.workers[name].owned)
        for name in ("m2", "m3"):
            self.assertLessEqual(set(before[name]), set(group.owned[name]))
        group.settle()
        self.assertEqual([len(each) for each in group.owned.values()], [3, 3])
        self.assertEqual([len(each) for each in group.followed.values()], [3, 3])

    def test_takeoverBeforeBalance(self) -> None:
        """The only stand-by takes all tasks, until another member is up to date."""
        m2, m3 = Worker("m2"), Worker("m3")
        m2.current = m2.onDisk = {0, 1, 2, 3}
        m2.standbys = TaskStandbys([0, 1, 2, 3])
        group = StandbyGroup(4, 1, [m2, m3])
        group.rebalance()
        self.assertEqual(group.owned, {"m2": [0, 1, 2, 3], "m3": []})
        self.assertEqual(m3.standbys.awaited, {2, 3})
        self.assertEqual(group.followed, {"m2": [], "m3": [0, 1, 2, 3]})
        group.settle()
        self.assertEqual(group.owned, {"m2": [0, 1], "m3": [2, 3]})
        self.assertEqual(group.followed, {"m2": [2, 3], "m3": [0, 1]})

    def test_newMember(self) -> None:
        """A member that comes follows first what it will have; its owner keeps it meanwhile."""
        m1, m2 = Worker("m1"), Worker("m2")
        group = StandbyGroup(4, 1, [m1])
        group.settle()
        self.assertEqual(group.followed, {"m1": []})
        group.workers["m2"] = m2
        group.rebalance()
        self.assertEqual(group.owned, {"m1": [0, 1, 2, 3], "m2": []})
        self.assertEqual(m2.standbys, ({0, 1, 2, 3}, {2, 3}))
        m2.current.add(2)
        group.settle(isFollowing=False)
        self.assertEqual(group.owned, {"m1": [0, 1, 3], "m2": [2]})
        self.assertEqual(m2.standbys, ({0, 1, 3}, {3}))
        group.settle()
        self.assertEqual(group.owned, {"m1": [0, 1], "m2": [2, 3]})
        self.assertEqual(group.followed, {"m1": [2, 3], "m2": [0, 1]})

    def test_withheld(self) -> None:
        """A stand-by that gets a task follows it until its owner has given it up."""
        m1, m2 = Worker("m1"), Worker("m2")
        group = StandbyGroup(2, 1, [m1])
        group.settle()
        group.workers["m2"] = m2
        group.rebalance()
        m2.current = {0, 1}
        self.assertTrue(group.rebalance())
        self.assertEqual(group.owned, {"m1": [0], "m2": []})
        self.assertEqual(group.followed, {"m1": [1], "m2": [0, 1]})
        self.assertFalse(group.rebalance())
        self.assertEqual(group.owned, {"m1": [0], "m2": [1]})

    def test_folders(self) -> None:
        """Members that share a folder have no stand-bys of one another, and need none."""
        names = {"m1": "f", "m2": "f", "m3": "g"}
        group = StandbyGroup(4, 2, [Worker(name, folder) for name, folder in names.items()])
        group.settle()
        for name, folder in names.items():
            owned = {
                task for other in names if names[other] == folder for task in group.owned[other]
            }
            self.assertFalse(owned.intersection(group.followed[name]))
        # What the one has up to date, the other one opens at once.
        m1, m2 = Worker("m1", "f"), Worker("m2", "f")
        group = StandbyGroup(2, 1, [m1])
        group.settle()
        group.workers["m2"] = m2
        group.settle(isFollowing=False)
        self.assertEqual(group.owned, {"m1": [0], "m2": [1]})
        self.assertEqual(group.followed, {"m1": [], "m2": []})

    def test_noStandbys(self) -> None:
        """Without, nothing is told, and tasks move at once."""
        group = StandbyGroup(4, 0, [Worker("m1")])
        group.settle()
        group.workers["m2"] = Worker("m2")
        group.settle(isFollowing=False)
        self.assertEqual(group.owned, {"m1": [0, 1], "m2": [2, 3]})
        subscriptions = [each.subscription(1) for each in group.workers.values()]
        self.assertEqual(group.assignor.assignedUserData(group.counts, subscriptions), {})
        self.assertEqual(assignorOf("range").assignedUserData({}, []), {})
        assignorOf("range").onAssignment([], None)
        TaskAssignor().onAssignment([], None)

    def test_oldMembers(self) -> None:
        """A member that does not tell its folder has no stand-bys, and waits for none."""
        m1 = Worker("m1")
        group = StandbyGroup(2, 1, [m1])
        group.settle()
        members = [m1.subscription(1), member("m2", onDisk=[0])]
        found = tasksOf(group.assignor.assign(group.counts, members))
        self.assertEqual(found, {"m1": [1], "m2": []})
        data = group.assignor.assignedUserData(group.counts, members)
        self.assertEqual(decodeTaskStandbys(data["m2"]), TaskStandbys())

    def test_restoringOwner(self) -> None:
        """An owner that has no state yet gives its task to a member that has it."""
        m1, m2 = Worker("m1"), Worker("m2")
        m1.owned, m2.current = frozenset([0]), {0}
        m2.owned = frozenset([1])
        group = StandbyGroup(2, 1, [m1, m2])
        group.rebalance()
        group.rebalance()
        self.assertEqual(group.owned, {"m1": [1], "m2": [0]})

    @settings(max_examples=50)
    @given(
        st.integers(0, 12),
        st.integers(1, 2),
        st.lists(st.tuples(st.sampled_from(["", "f", "g"]), TASKS), min_size=1, max_size=5),
        st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.booleans()), max_size=4),
    )
    def test_changes(
        self,
        taskCount: int,
        standbyCount: int,
        given: list[tuple[str, list[int]]],
        changes: list[tuple[bool, int, bool]],
    ) -> None:
        """
        Members come and go, sometimes before all is followed. No folder has a task twice; what an
        owner or a stand-by had up to date, one has at once after each change; in the end all is as
        balanced as without stand-bys, and tasks have as many stand-bys as folders allow.
        """
        workers = [Worker(f"m{at}", folder, onDisk) for at, (folder, onDisk) in enumerate(given)]
        group = StandbyGroup(taskCount, standbyCount, workers)
        group.settle()
        self._check(group, taskCount, standbyCount)
        for number, (isComing, which, isSettling) in enumerate(changes):
            if isComing or len(group.workers) == 1:
                group.workers[f"n{number}"] = Worker(f"n{number}", ("", "f", "g")[which % 3])
            else:
                group.workers.pop(sorted(group.workers)[which % len(group.workers)])
            held = {(each.folder, task) for each in group.workers.values() for task in each.current}
            self.assertLessEqual(group.settle(isFollowing=False), 6)
            owners = {(each.folder, task) for each in group.workers.values() for task in each.owned}
            self.assertEqual({task for _, task in held}, {task for _, task in held & owners})
            self._checkFolders(group)
            if isSettling:
                group.settle()
                self._check(group, taskCount, standbyCount)
        group.settle()
        self._check(group, taskCount, standbyCount)

    def _checkFolders(self, group: StandbyGroup) -> None:
        """A task is once in a folder, as soon as all is given up."""
        seen: set[tuple[str, int]] = set()
        for each in group.workers.values():
            self.assertFalse(each.owned.intersection(each.standbys.tasks))
            self.assertLessEqual(set(each.standbys.awaited), set(each.standbys.tasks))
            for task in (*each.owned, *each.standbys.tasks):
                self.assertNotIn((each.folder, task), seen)
                seen.add((each.folder, task))

    def _check(self, group: StandbyGroup, taskCount: int, standbyCount: int) -> None:
        self._checkFolders(group)
        sizes = [len(each) for each in group.owned.values()]
        self.assertEqual(sum(sizes), taskCount)
        self.assertLessEqual(max(sizes) - min(sizes), 1)
        folders = {each.folder for each in group.workers.values()}
        followed = Counter(task for tasks in group.followed.values() for task in tasks)
        for task in range(taskCount):
            self.assertEqual(followed[task], min(standbyCount, len(folders) - 1))
        if len(folders) == len(group.workers):
            loads = [len(each) for each in group.followed.values()]
            self.assertLessEqual(max(loads) - min(loads), 2)
        rebalances = group.generation
        before = group.owned, group.followed
        group.settle()
        self.assertEqual(group.generation, rebalances + 1)
        self.assertEqual((group.owned, group.followed), before)
