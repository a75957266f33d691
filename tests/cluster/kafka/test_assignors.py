"""
Tests of L{pylogbroker.cluster.kafka.assignors}.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka.assignors import Assignments, IPartitionAssignor, assignorOf
from pylogbroker.errors import ConfigurationError
from pylogbroker.types import MemberSubscription, TopicPartition
from tests.goldenfiles import GOLDEN

NAMES = ("range", "roundrobin", "cooperative-sticky")
TOPICS = "abc"


def places(names: Sequence[str]) -> tuple[TopicPartition, ...]:
    """C{topic-partition}, as in the recordings."""
    pairs = (name.rsplit("-", 1) for name in names)
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def shown(found: Assignments) -> dict[str, str]:
    """Assignments as text."""
    return {member: " ".join(map(str, places)) for member, places in found.items()}


def member(name: str, topics: str, **more: object) -> MemberSubscription:
    """A member that subscribes to topics of one letter."""
    return MemberSubscription(name, tuple(topics), **more)  # type: ignore[arg-type]


def settle(
    assignor: IPartitionAssignor, counts: dict[str, int], members: Sequence[MemberSubscription]
) -> tuple[Assignments, int]:
    """Members give up, get and join again until nothing changes; also how many rounds that took."""
    found = assignor.assign(counts, members)
    for count in range(1, 10):
        members = [
            each._replace(ownedPartitions=tuple(found[each.memberId]), generation=count)
            for each in members
        ]
        again = assignor.assign(counts, members)
        if again == found:
            return found, count
        found = again
    raise AssertionError("the assignment does not settle")


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], list[MemberSubscription]]:
    """Topics, and members that may claim what they like."""
    counts = {topic: draw(st.integers(0, 6)) for topic in TOPICS}
    claims = st.lists(
        st.builds(TopicPartition, st.sampled_from(TOPICS + "z"), st.integers(0, 7)), max_size=8
    )
    members = [
        MemberSubscription(
            f"m{number}",
            tuple(draw(st.sets(st.sampled_from(TOPICS), max_size=3))),
            tuple(draw(claims)),
            draw(st.integers(-1, 3)),
            draw(st.none() | st.just(f"i{9 - number}")),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    return counts, members


class AssignorTests(SynchronousTestCase):
    """All assignors."""

    @given(groups(), st.sampled_from(NAMES))
    def test_everyPartition(
        self, group: tuple[dict[str, int], list[MemberSubscription]], name: str
    ) -> None:
        """Each partition of a topic with readers has one owner, which subscribes to the topic."""
        counts, members = group
        found, _rounds = settle(assignorOf(name), counts, members)
        self.assertEqual(set(found), {each.memberId for each in members})
        places = [place for owned in found.values() for place in owned]
        subscribed = {topic for each in members for topic in each.topics}
        expected = {
            TopicPartition(topic, number) for topic in subscribed for number in range(counts[topic])
        }
        self.assertEqual(len(places), len(expected))
        self.assertEqual(set(places), expected)
        for each in members:
            self.assertLessEqual({place.topic for place in found[each.memberId]}, set(each.topics))

    def test_range(self) -> None:
        """Java's example: neighbours of each topic; the first members get one more."""
        found = assignorOf("range").assign(
            {"a": 3, "b": 5}, [member("m2", "ab"), member("m1", "ab"), member("m3", "b")]
        )
        self.assertEqual(shown(found), {"m1": "a-0 a-1 b-0 b-1", "m2": "a-2 b-2 b-3", "m3": "b-4"})

    def test_roundRobin(self) -> None:
        """Java's example: dealt in turn to the members that subscribe."""
        found = assignorOf("roundrobin").assign(
            {"a": 1, "b": 2, "c": 3},
            [member("m1", "a"), member("m2", "ab"), member("m3", "abc")],
        )
        self.assertEqual(shown(found), {"m1": "a-0", "m2": "b-0", "m3": "b-1 c-0 c-1 c-2"})

    def test_staticMembersFirst(self) -> None:
        """Static members come first, by their instance id."""
        members = [
            member("m1", "a"),
            member("m3", "a", groupInstanceId="x"),
            member("m2", "a", groupInstanceId="y"),
        ]
        for name in ("range", "roundrobin"):
            found = assignorOf(name).assign({"a": 3}, members)
            self.assertEqual(shown(found), {"m1": "a-2", "m2": "a-1", "m3": "a-0"})

    def test_names(self) -> None:
        """Java's class names mean the same; an unknown name is refused with the known ones."""
        java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        self.assertIs(assignorOf(java), assignorOf("cooperative-sticky"))
        self.assertTrue(assignorOf(java).isCooperative)
        error = self.assertRaises(ConfigurationError, assignorOf, "stick")
        self.assertIn("'stick'", str(error))
        self.assertIn("roundrobin", str(error))


class RecordedTests(SynchronousTestCase):
    """What Java's client gives groups (C{tests/golden/kafka43/Assignors.java})."""

    def test_recorded(self) -> None:
        """Random groups, also with missing topics and claims by several, are assigned as there."""
        seen: Counter[str] = Counter()
        with gzip.open(GOLDEN / "kafka43" / "assignors.json.gz", "rt", encoding="ascii") as lines:
            for line in lines:
                case = json.loads(line)
                members = [
                    MemberSubscription(name, topics, places(owned), generation, instanceId)
                    for name, (instanceId, topics, owned, generation) in case["members"].items()
                ]
                counts = {topic: count for topic, count in case["counts"].items() if count}
                found = assignorOf(case["assignor"]).assign(counts, members)
                expected = {name: list(places(owned)) for name, owned in case["found"].items()}
                if case["assignor"] == "range":
                    expected = {name: sorted(owned) for name, owned in expected.items()}
                self.assertEqual(found, expected, line)
                seen[case["assignor"]] += 1
        self.assertEqual(set(seen), set(NAMES))
        self.assertGreater(min(seen.values()), 100)


class CooperativeTests(SynchronousTestCase):
    """The cooperative sticky assignor."""

    assignor = assignorOf("cooperative-sticky")

    @given(st.integers(0, 20), st.integers(1, 6), st.integers(1, 6))
    def test_balanced(self, partitionCount: int, before: int, after: int) -> None:
        """
        With equal subscriptions the numbers differ by one at most, and no more partitions move than
        must, when members come or go.
        """
        counts = {"a": partitionCount}
        members = [member(f"m{number}", "a") for number in range(before)]
        found, _rounds = settle(self.assignor, counts, members)
        members = [
            member(
                f"m{number}", "a", ownedPartitions=tuple(found.get(f"m{number}", ())), generation=1
            )
            for number in range(after)
        ]
        later, rounds = settle(self.assignor, counts, members)
        sizes = sorted(map(len, later.values()))
        self.assertLessEqual(sizes[-1] - sizes[0], 1)
        self.assertLessEqual(rounds, 2)
        for each in members:
            kept = set(found.get(each.memberId, ())) & set(later[each.memberId])
            had = len(found.get(each.memberId, ()))
            self.assertGreaterEqual(len(kept), min(had, partitionCount // after))

    def test_withheld(self) -> None:
        """A partition that moves is nobody's until its owner has given it up."""
        places = tuple(TopicPartition("a", number) for number in range(4))
        members = [member("m1", "a", ownedPartitions=places, generation=1), member("m2", "a")]
        found = self.assignor.assign({"a": 4}, members)
        self.assertEqual(shown(found), {"m1": "a-0 a-1", "m2": ""})
        found, rounds = settle(self.assignor, {"a": 4}, members)
        self.assertEqual((shown(found), rounds), ({"m1": "a-0 a-1", "m2": "a-2 a-3"}, 2))

    def test_disputed(self) -> None:
        """The newest generation's claim counts; of two of the same, neither."""
        place = (TopicPartition("a", 0),)
        old = member("m1", "a", ownedPartitions=place, generation=1)
        new = member("m2", "a", ownedPartitions=place, generation=2)
        self.assertEqual(shown(self.assignor.assign({"a": 1}, [old, new])), {"m1": "", "m2": "a-0"})
        same = old._replace(generation=2)
        self.assertEqual(shown(self.assignor.assign({"a": 1}, [same, new])), {"m1": "", "m2": ""})
        older = [
            each._replace(generation=-1, userData=bytes((0, 0, 0, each.generation)))
            for each in (old, new)
        ]
        self.assertEqual(shown(self.assignor.assign({"a": 1}, older)), {"m1": "", "m2": "a-0"})

    @given(groups())
    def test_neverTwoOwners(self, group: tuple[dict[str, int], list[MemberSubscription]]) -> None:
        """Whatever members claim, a partition that one has is given to no other one."""
        counts, members = group
        found = self.assignor.assign(counts, members)
        for member_ in members:
            for place in member_.ownedPartitions:
                for other in members:
                    if other.memberId != member_.memberId and place in found[other.memberId]:
                        self.assertIn(place, other.ownedPartitions)
                        self.assertGreater(other.generation, member_.generation)

    def test_unsubscribed(self) -> None:
        """A partition whose owner does not want the topic any more moves when it is given up."""
        place = (TopicPartition("a", 0),)
        members = [member("m1", "b", ownedPartitions=place, generation=1), member("m2", "a")]
        self.assertEqual(shown(self.assignor.assign({"a": 1}, members)), {"m1": "", "m2": ""})
        found, _rounds = settle(self.assignor, {"a": 1}, members)
        self.assertEqual(shown(found), {"m1": "", "m2": "a-0"})

    def test_unequal(self) -> None:
        """Where one member could have more, another one gives it."""
        places = tuple(TopicPartition("a", number) for number in range(3))
        members = [
            member("m1", "ab", ownedPartitions=places, generation=1),
            member("m2", "a"),
            member("m3", "b"),
        ]
        found, _rounds = settle(self.assignor, {"a": 3, "b": 2}, members)
        self.assertEqual(sorted(map(len, found.values())), [1, 2, 2])
