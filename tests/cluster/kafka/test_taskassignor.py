"""
Tests of L{pylogbroker.cluster.kafka.taskassignor}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka.assignors import Assignments, assignorOf
from pylogbroker.cluster.kafka.taskassignor import (
    TaskAssignor,
    decodeTasksOnDisk,
    encodeTasksOnDisk,
)
from pylogbroker.types import MemberSubscription, TopicPartition
from tests.cluster.kafka.test_assignors import groups, settle

ASSIGNOR = TaskAssignor()
TOPICS = ("a", "b")


def placesOf(tasks: Iterable[int], topics: Sequence[str] = TOPICS) -> tuple[TopicPartition, ...]:
    """The partitions of tasks."""
    return tuple(TopicPartition(topic, task) for task in tasks for topic in topics)


def member(
    name: str, owned: Iterable[int] = (), onDisk: Iterable[int] = (), generation: int = 1
) -> MemberSubscription:
    """A member that reads both topics."""
    return MemberSubscription(
        name, TOPICS, placesOf(owned), generation, userData=encodeTasksOnDisk(onDisk)
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
        """It is asked each time, and has a version byte before the numbers."""
        onDisk = [258, 1, 1]
        assignor = TaskAssignor(lambda: onDisk)
        self.assertEqual(assignor.userData(), b"\0\0\0\0\1\0\0\1\2")
        onDisk.clear()
        self.assertEqual(assignor.userData(), b"\0")
        self.assertEqual(ASSIGNOR.userData(), b"\0")
        self.assertIsNone(assignorOf("range").userData())

    def test_foreignUserData(self) -> None:
        """User data of another version, or cut, say nothing."""
        for data in (None, b"", b"\0", b"\1\0\0\0\1", b"\0\0\0\0", b"\0\0\0\0\1\2"):
            self.assertEqual(decodeTasksOnDisk(data), frozenset())

    @given(st.frozensets(st.integers(0, (1 << 32) - 1)))
    def test_userDataRoundTrip(self, tasks: frozenset[int]) -> None:
        """What is encoded is decoded."""
        self.assertEqual(decodeTasksOnDisk(encodeTasksOnDisk(tasks)), tasks)


TASKS = st.lists(st.integers(0, 9), max_size=6)


class PropertyTests(SynchronousTestCase):
    """Whatever members say."""

    @given(groups(), st.lists(st.none() | st.binary(max_size=9) | TASKS.map(encodeTasksOnDisk)))
    def test_always(
        self,
        group: tuple[dict[str, int], list[MemberSubscription]],
        userData: list[bytes | None],
    ) -> None:
        """
        Each task has one owner at most in the end, and in between no member gets a partition of a
        task of which another one has a part by the same right.
        """
        counts, members = group
        members = [
            each._replace(userData=data)
            for each, data in zip(members, userData + [None] * len(members), strict=False)
        ]
        found = ASSIGNOR.assign(counts, members)
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
        last, _rounds = settle(ASSIGNOR, counts, members)
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
