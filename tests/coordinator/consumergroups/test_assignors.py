"""What any assignment has to be, and what each assignor gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.consumergroups.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    assignRange,
    assignUniform,
)

FIVE, TWO = b"5" * 16, b"2" * 16
COUNTS = {FIVE: 5, TWO: 3}


def member(
    memberId: str,
    *topicIds: bytes,
    instanceId: str | None = None,
    owned: Mapping[bytes, Collection[int]] | None = None,
) -> AssignedMember:
    """A member that subscribes to topics."""
    return AssignedMember(memberId, instanceId, topicIds, owned or {})


def sizes(assignment: Assignment) -> dict[str, int]:
    """How many partitions each has."""
    return {each: sum(map(len, topics.values())) for each, topics in assignment.items()}


class AssignorTests(SynchronousTestCase):
    """Both assignors."""

    def test_random(self) -> None:
        """
        Of random groups, every partition has one owner if anybody wants it, and nobody gets what he
        does not want. The uniform one is level: nobody could give a partition to another who has
        two fewer.
        """
        random = Random(1)
        for _ in range(1_000):
            counts = {bytes([n]) * 16: random.randrange(9) for n in range(random.randrange(5))}
            isSame = random.random() < 0.5
            members = []
            free = {topicId: set(range(count + 2)) for topicId, count in counts.items()}
            for n in range(random.randrange(7)):
                wanted = {each for each in counts if isSame or random.random() < 0.6}
                owned = {}
                for topicId, partitions in free.items():
                    taken = {each for each in partitions if random.random() < 0.3}
                    partitions -= taken
                    owned[topicId] = taken
                members.append(AssignedMember(f"m{n}", None, wanted, owned))
            for assign in ASSIGNORS.values():
                self.check(assign(members, counts), members, counts)
            self.checkLevel(assignUniform(members, counts), members)

    def check(
        self, found: Assignment, members: list[AssignedMember], counts: Mapping[bytes, int]
    ) -> None:
        self.assertEqual(list(found), [each.memberId for each in members])
        for each in members:
            self.assertTrue(found[each.memberId].keys() <= set(each.topicIds))
        for topicId, count in counts.items():
            isWanted = any(topicId in each.topicIds for each in members)
            given = sorted(part for topics in found.values() for part in topics.get(topicId, ()))
            self.assertEqual(given, list(range(count)) if isWanted else [])

    def checkLevel(self, found: Assignment, members: list[AssignedMember]) -> None:
        counts = sizes(found)
        for giver in members:
            for topicId in found[giver.memberId]:
                for taker in members:
                    if topicId in taker.topicIds:
                        less = counts[giver.memberId] - counts[taker.memberId]
                        self.assertLess(less, 2)


class RangeTests(SynchronousTestCase):
    """The assignor C{range}."""

    def test_runs(self) -> None:
        """As Kafka's: each topic for itself, the first ones get what is left over."""
        members = [member("c", FIVE), member("b", FIVE, TWO), member("a", FIVE, TWO)]
        self.assertEqual(
            assignRange(members, COUNTS),
            {
                "a": {FIVE: {0, 1}, TWO: {0, 1}},
                "b": {FIVE: {2, 3}, TWO: {2}},
                "c": {FIVE: {4}},
            },
        )

    def test_order(self) -> None:
        """Static members come first, by their instances."""
        members = [
            member("a", TWO),
            member("z", TWO, instanceId="2"),
            member("y", TWO, instanceId="3"),
        ]
        found = assignRange(members, {TWO: 3})
        self.assertEqual(found, {"z": {TWO: {0}}, "y": {TWO: {1}}, "a": {TWO: {2}}})


class UniformTests(SynchronousTestCase):
    """The assignor C{uniform}."""

    def test_keeps(self) -> None:
        """A member keeps what it has, as far as that is level."""
        first = assignUniform([member("a", FIVE, TWO)], COUNTS)
        self.assertEqual(first, {"a": {FIVE: {0, 1, 2, 3, 4}, TWO: {0, 1, 2}}})
        both = [member("a", FIVE, TWO, owned=first["a"]), member("b", FIVE, TWO)]
        second = assignUniform(both, COUNTS)
        self.assertEqual(sizes(second), {"a": 4, "b": 4})
        for topicId, partitions in second["a"].items():
            self.assertTrue(partitions <= first["a"][topicId])
        again = [member(each, FIVE, TWO, owned=second[each]) for each in "ab"]
        self.assertEqual(assignUniform(again, COUNTS), second)

    def test_twice(self) -> None:
        """What two members have, which does not happen, one of them keeps."""
        both = [member(each, TWO, owned={TWO: {0, 1, 2}}) for each in "ab"]
        self.assertEqual(sizes(assignUniform(both, {TWO: 3})), {"a": 2, "b": 1})
