"""Plans of reassignments, and Kafka's JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka.reassignment import (
    Assignment,
    formatReassignment,
    parseReassignment,
    planLeaders,
    planReassignment,
    throttledReplicas,
)
from pylogbroker.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from pylogbroker.types import TopicPartition


def partitions(*replicas: tuple[int, ...]) -> Assignment:
    """Partitions 0, 1, … of a topic."""
    return {TopicPartition("t", index): each for index, each in enumerate(replicas)}


@st.composite
def clusters(
    draw: st.DrawFn, brokerMax: int = 6, partitionMax: int = 14
) -> tuple[Assignment, list[int]]:
    """Partitions on some brokers, and the brokers on which they are to be."""
    brokers = list(range(draw(st.integers(1, brokerMax))))
    targets = draw(st.lists(st.sampled_from(brokers), min_size=1, unique=True))
    factor = draw(st.integers(1, len(targets)))
    made = draw(
        st.lists(
            st.permutations(brokers).map(lambda each: tuple(each[:factor])),
            min_size=1,
            max_size=partitionMax,
        )
    )
    return partitions(*made), sorted(targets)


def planned(current: Assignment, changes: Assignment) -> Assignment:
    """All partitions, when a plan has been carried out."""
    return {**current, **changes}


def moveCount(current: Assignment, after: Assignment) -> int:
    """Replicas that are copied."""
    return sum(len(set(after[where]) - set(replicas)) for where, replicas in current.items())


def fewestMoves(current: Assignment, targets: list[int]) -> int:
    """What balance within one costs at least, by trying everything."""
    choices = [list(combinations(targets, len(each))) for each in current.values()]
    best = -1
    for chosen in product(*choices):
        counts = Counter(dict.fromkeys(targets, 0))
        counts.update(broker for each in chosen for broker in each)
        if max(counts.values()) - min(counts.values()) <= 1:
            cost = moveCount(current, dict(zip(current, chosen, strict=True)))
            best = cost if best < 0 else min(best, cost)
    return best


class PlanTests(SynchronousTestCase):
    """C{planReassignment}."""

    def checkWhole(
        self, current: Assignment, after: Assignment, racks: Mapping[int, str | None]
    ) -> None:
        """Each partition has its number of replicas, on different brokers of the set."""
        for where, replicas in after.items():
            self.assertEqual(len(set(replicas)), len(replicas))
            self.assertEqual(len(replicas), len(current[where]))
            self.assertLessEqual(set(replicas), set(racks))

    @given(clusters())
    def test_evacuation(self, cluster: tuple[Assignment, list[int]]) -> None:
        """What must not move does not, and keeps its place."""
        current, targets = cluster
        racks = dict.fromkeys(targets)
        changes = planReassignment(current, racks)
        after = planned(current, changes)
        self.checkWhole(current, after, racks)
        for where, replicas in current.items():
            for old, new in zip(replicas, after[where], strict=True):
                if old in racks:
                    self.assertEqual(old, new)
        self.assertEqual(planReassignment(after, racks), {})

    @given(clusters())
    def test_balance(self, cluster: tuple[Assignment, list[int]]) -> None:
        """Without racks brokers differ by one replica at most; and balance needs no more moves."""
        current, targets = cluster
        racks = dict.fromkeys(targets)
        after = planned(current, planReassignment(current, racks, isBalancing=True))
        self.checkWhole(current, after, racks)
        counts = Counter(dict.fromkeys(targets, 0))
        counts.update(broker for replicas in after.values() for broker in replicas)
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 1)
        self.assertEqual(planReassignment(after, racks, isBalancing=True), {})

    @given(clusters(brokerMax=4, partitionMax=4))
    def test_fewestMoves(self, cluster: tuple[Assignment, list[int]]) -> None:
        """No plan that balances copies fewer replicas."""
        current, targets = cluster
        after = planned(
            current, planReassignment(current, dict.fromkeys(targets), isBalancing=True)
        )
        self.assertEqual(moveCount(current, after), fewestMoves(current, targets))

    @given(clusters(), st.data())
    def test_racks(self, cluster: tuple[Assignment, list[int]], data: st.DataObject) -> None:
        """
        A partition is on no fewer racks than it was, of those that are left; one that moves from a
        broker that goes gets a rack that it lacks.
        """
        current, targets = cluster
        racks: dict[int, str | None] = {
            each: data.draw(st.sampled_from(["a", "b", "c", None])) for each in targets
        }
        for isBalancing in (False, True):
            after = planned(current, planReassignment(current, racks, isBalancing=isBalancing))
            self.checkWhole(current, after, racks)
            for where, replicas in current.items():
                kept = {racks[each] for each in replicas if each in racks}
                goneCount = sum(each not in racks for each in replicas)
                most = min(len(kept) + goneCount, len(set(racks.values())))
                got = {racks[each] for each in after[where]}
                self.assertGreaterEqual(len(got), most)

    @given(clusters(), st.integers(1, 6))
    def test_factor(self, cluster: tuple[Assignment, list[int]], factor: int) -> None:
        """Replicas are added and taken away."""
        current, targets = cluster
        racks = dict.fromkeys(targets)
        if factor > len(targets):
            self.assertRaises(
                InvalidReplicationFactorError,
                *(planReassignment, current, racks),
                replicationFactor=factor,
            )
            return
        after = planned(current, planReassignment(current, racks, replicationFactor=factor))
        for where, replicas in after.items():
            self.assertEqual((len(replicas), len(set(replicas))), (factor, factor))
            self.assertLessEqual(set(replicas), set(racks))
            stayed = set(current[where]) & set(racks)
            self.assertEqual(len(stayed & set(replicas)), min(len(stayed), factor))

    def test_shrinksByRacks(self) -> None:
        """Of two replicas in a rack, one goes; the fuller broker's."""
        racks = {1: "a", 2: "b", 3: "b"}
        current = partitions((1, 2, 3), (3,))
        changes = planReassignment(current, racks, replicationFactor=2)
        self.assertEqual(changes[TopicPartition("t", 0)], (1, 2))

    def test_balanceKeepsRacks(self) -> None:
        """A broker stays the fullest if each of its moves would lose a rack."""
        racks = {1: "a", 2: "b", 3: "b"}
        current = partitions((1, 2), (1, 2), (1, 2))
        after = planned(current, planReassignment(current, racks, isBalancing=True))
        self.assertEqual([set(each) for each in after.values()], [{1, 3}, {1, 2}, {1, 2}])

    def test_chainOfLeaders(self) -> None:
        """Without a partition in common, a broker gives leaders to another by way of a third."""
        racks = {1: "a", 2: "b", 3: "a"}
        current = partitions((1, 2), (1, 2), (2, 3))
        after = planned(current, planReassignment(current, racks, isBalancing=True))
        self.assertEqual([set(each) for each in after.values()], [{1, 2}, {1, 2}, {2, 3}])
        self.assertEqual({each[0] for each in after.values()}, {1, 2, 3})

    @given(clusters())
    def test_leaders(self, cluster: tuple[Assignment, list[int]]) -> None:
        """No chain of exchanges makes the numbers of preferred leaders more equal."""
        current, targets = cluster
        racks = dict.fromkeys(targets)
        after = planned(current, planReassignment(current, racks, isBalancing=True))
        counts = Counter(dict.fromkeys(targets, 0))
        counts.update(replicas[0] for replicas in after.values())
        reached: dict[int, set[int]] = {each: {each} for each in targets}
        for _ in targets:
            for replicas in after.values():
                for found in reached.values():
                    if replicas[0] in found:
                        found.update(replicas)
        for each, found in reached.items():
            for other in found:
                self.assertLessEqual(counts[each], counts[other] + 1)

    def test_new(self) -> None:
        """A new, empty broker gets its share, and nothing moves between the others."""
        current = partitions(*[(1, 2), (2, 3), (3, 1)] * 4)
        changes = planReassignment(current, dict.fromkeys((1, 2, 3, 4)), isBalancing=True)
        after = planned(current, changes)
        self.assertEqual(moveCount(current, after), 6)
        self.assertEqual(sum(4 in each for each in after.values()), 6)
        self.assertEqual(Counter(each[0] for each in after.values()), dict.fromkeys(range(1, 5), 3))

    def test_leave(self) -> None:
        """A broker that is to lead nothing stands behind the others."""
        current = partitions((1, 2, 3), (2, 1), (1,))
        self.assertEqual(planLeaders(current, 1), {TopicPartition("t", 0): (2, 3, 1)})


class ThrottleTests(SynchronousTestCase):
    """What is throttled while partitions move."""

    def test_lists(self) -> None:
        """Those that have a partition before, and those that get it, of partitions that move."""
        sources = partitions((2, 1), (3,), (1, 2))
        targets = partitions((2, 3, 4), (1,), (2, 1))
        self.assertEqual(throttledReplicas(sources, targets), {"t": ("0:1,0:2,1:3", "0:3,0:4,1:1")})
        self.assertEqual(throttledReplicas(sources, partitions((1, 2), (3,))), {})


class JsonTests(SynchronousTestCase):
    """Kafka's JSON."""

    def test_roundTrip(self) -> None:
        """What is written can be read, also as Kafka writes it."""
        current = partitions((1, 2), (3,))
        text = formatReassignment(current)
        self.assertEqual(parseReassignment(text), current)
        document = json.loads(text)
        for each in document["partitions"]:
            each["log_dirs"] = ["any"] * len(each["replicas"])
        self.assertEqual(parseReassignment(json.dumps(document)), current)

    def test_refused(self) -> None:
        """What is wrong is told, with its place."""
        good = {"topic": "t", "partition": 0, "replicas": [1]}
        for document, text in (
            ("{", "it is no JSON: "),
            ([], 'it has no {"version": 1, "partitions"'),
            ({"version": 2, "partitions": [good]}, "it has no "),
            ({"partitions": []}, "it names no partitions"),
            ({"partitions": [7]}, "partitions[0]: topic is no name"),
            ({"partitions": [good, {**good, "topic": ""}]}, "partitions[1]: topic is no name"),
            ({"partitions": [{**good, "partition": -1}]}, "partitions[0]: partition is no number"),
            ({"partitions": [{**good, "partition": True}]}, "partition is no number"),
            ({"partitions": [{**good, "replicas": []}]}, "replicas are no list of brokers"),
            ({"partitions": [{**good, "replicas": ["1"]}]}, "replicas are no list of brokers"),
            ({"partitions": [{**good, "replicas": [1, 1]}]}, "replicas name a broker twice"),
            ({"partitions": [good, good]}, "partitions[1]: t-0 stands there twice"),
            ({"partitions": [{**good, "log_dirs": ["/a"]}]}, "log_dirs can only be any"),
        ):
            given = document if isinstance(document, str) else json.dumps(document)
            error = self.assertRaises(InvalidReplicaAssignmentError, parseReassignment, given)
            self.assertIn(text, str(error))
