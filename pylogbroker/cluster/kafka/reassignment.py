"""
Plans of reassignments: which replicas move to which brokers; and their form as Kafka's JSON.

What must be true of a plan:

  - Each partition has as many replicas as before (or as many as were asked for), on different
  brokers, all of them of the given set.
  - A replica stays where it is, unless its broker is not in the set, or balance needs it. A new one
  takes the place of the one that goes, so that the preferred leader changes only where it must.
  - New replicas are in racks that the partition does not have yet, as long as there are some. No
  move for balance takes a rack from a partition.
  - With balance, the replicas of two brokers differ by one at most, where racks do not forbid it;
  so do the partitions that brokers are to lead, where the replicas allow it. Another preferred
  leader among the same replicas moves no data.

The same arguments give the same plan.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from pylogbroker.types import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]
"""The replicas of partitions, the preferred leader first."""


def planReassignment(
    current: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    *,
    isBalancing: bool = False,
    replicationFactor: int | None = None,
) -> Assignment:
    """
    Plan where partitions are to be; the module states the rules.

    @param current: the replicas of partitions, the preferred leader first.
    @param racks: the brokers that may have replicas, and the rack of each; L{None}: it has none.
        Brokers without a rack are one rack.
    @param isBalancing: also move replicas that could stay.
    @param replicationFactor: of all the partitions; L{None}: as it is.
    @return: the partitions that change.
    @raise InvalidReplicationFactorError: there are not that many brokers.
    """
    most = max((replicationFactor or len(each) for each in current.values()), default=0)
    if most > len(racks):
        raise InvalidReplicationFactorError(
            f"{most} replicas of a partition need as many brokers, and there are {len(racks)}"
        )
    plan = _Plan(current, racks)
    plan.settle(replicationFactor)
    if isBalancing:
        plan.balance()
        plan.balanceLeaders()
    return {
        where: tuple(replicas)
        for where, replicas in plan.replicas.items()
        if tuple(replicas) != tuple(current[where])
    }


def planLeaders(current: Mapping[TopicPartition, Sequence[int]], leaving: int) -> Assignment:
    """
    Put a broker behind the other replicas of each partition, so that it is the preferred leader of
    none that has another replica.

    @return: the partitions that change.
    """
    return {
        where: (*(each for each in replicas if each != leaving), leaving)
        for where, replicas in current.items()
        if len(replicas) > 1 and replicas[0] == leaving
    }


class _Plan:
    """
    An assignment that is changed replica by replica.

    @ivar replicas: by partition.
    """

    def __init__(
        self, current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None]
    ) -> None:
        self._racks = {each: racks[each] or "" for each in sorted(racks)}
        self.replicas = {where: list(current[where]) for where in sorted(current)}
        self._on: dict[int, dict[TopicPartition, None]] = {each: {} for each in self._racks}
        for where, brokers in self.replicas.items():
            for each in brokers:
                if each in self._on:
                    self._on[each][where] = None

    def _count(self, broker: int) -> int:
        return len(self._on[broker])

    def _rackCount(self, brokers: Iterable[int]) -> int:
        return len({self._racks[each] for each in brokers if each in self._racks})

    def _put(self, where: TopicPartition, at: int, broker: int) -> None:
        """Give the replica in place C{at} to a broker."""
        old, self.replicas[where][at] = self.replicas[where][at], broker
        if old in self._on:
            del self._on[old][where]
        self._on[broker][where] = None

    # -- what must move

    def settle(self, replicationFactor: int | None) -> None:
        """Give each partition its number of replicas, all on brokers of the set."""
        for where, brokers in self.replicas.items():
            while replicationFactor is not None and len(brokers) > replicationFactor:
                self._shrink(where, brokers)
        for where, brokers in self.replicas.items():
            missing = max((replicationFactor or 0) - len(brokers), 0)
            gone = [at for at, each in enumerate(brokers) if each not in self._on]
            for at in gone:
                self._put(where, at, self._newBroker(where, brokers))
            for _ in range(missing):
                made = self._newBroker(where, brokers)
                brokers.append(made)
                self._on[made][where] = None

    def _shrink(self, where: TopicPartition, brokers: list[int]) -> None:
        """Take a replica away: of a broker that goes, of a rack with another, of a full broker."""

        def rank(at: int) -> tuple[bool, bool, int, int]:
            each = brokers[at]
            if each not in self._on:
                return True, True, 0, at
            rest = brokers[:at] + brokers[at + 1 :]
            keepsRacks = self._rackCount(rest) == self._rackCount(brokers)
            return False, keepsRacks, self._count(each), at

        old = brokers.pop(max(range(len(brokers)), key=rank))
        if old in self._on:
            del self._on[old][where]

    def _newBroker(self, where: TopicPartition, brokers: Collection[int]) -> int:
        """The broker for a new replica: of a new rack, if there is one, and with the fewest."""
        taken = {self._racks[each] for each in brokers if each in self._racks}
        return min(
            (each for each in self._racks if each not in brokers),
            key=lambda each: (self._racks[each] in taken, self._count(each), each),
        )

    # -- balance

    def balance(self) -> None:
        """Move replicas from brokers with many to brokers with few."""
        isMoving = True
        while isMoving:
            isMoving = False
            byCount = sorted(self._racks, key=lambda each: (self._count(each), each))
            for fullest in reversed(byCount):
                few = self._count(fullest) - 2
                for least in (each for each in byCount if self._count(each) <= few):
                    found = self._movable(fullest, least)
                    if found is not None:
                        self._put(found, self.replicas[found].index(fullest), least)
                        isMoving = True
                        break
                if isMoving:
                    break

    def _movable(self, source: int, target: int) -> TopicPartition | None:
        """A partition that loses no rack."""
        for where in self._on[source]:
            brokers = self.replicas[where]
            if target in brokers:
                continue
            if self._racks[source] != self._racks[target]:
                after = [target if each == source else each for each in brokers]
                if self._rackCount(after) < self._rackCount(brokers):
                    continue
            return where
        return None

    def balanceLeaders(self) -> None:
        """
        Choose preferred leaders among the replicas, so that brokers have as many as possible, by
        the shortest chains of exchanges.
        """
        # Partitions that the first broker is to lead, and of which the second has a replica.
        couples: dict[tuple[int, int], dict[TopicPartition, None]] = defaultdict(dict)
        counts = dict.fromkeys(self._racks, 0)
        for where, brokers in self.replicas.items():
            counts[brokers[0]] += 1
            for each in brokers[1:]:
                couples[brokers[0], each][where] = None
        isMoving = True
        while isMoving:
            isMoving = False
            for fullest in sorted(counts, key=lambda each: (-counts[each], each)):
                chain = self._chain(fullest, counts, couples)
                if chain:
                    for leader, follower in reversed(chain):
                        where = next(iter(couples[leader, follower]))
                        self._lead(where, follower, couples)
                    counts[fullest] -= 1
                    counts[chain[-1][1]] += 1
                    isMoving = True
                    break

    def _chain(
        self,
        start: int,
        counts: Mapping[int, int],
        couples: Mapping[tuple[int, int], Collection[TopicPartition]],
    ) -> list[tuple[int, int]]:
        """The shortest chain of exchanges to a broker that leads at least two fewer."""
        cameFrom: dict[int, int] = {start: start}
        queue = deque([start])
        while queue:
            leader = queue.popleft()
            for each in self._racks:
                if each in cameFrom or not couples.get((leader, each)):
                    continue
                cameFrom[each] = leader
                if counts[each] + 2 <= counts[start]:
                    chain = [(leader, each)]
                    while chain[0][0] != start:
                        chain.insert(0, (cameFrom[chain[0][0]], chain[0][0]))
                    return chain
                queue.append(each)
        return []

    def _lead(
        self,
        where: TopicPartition,
        leader: int,
        couples: dict[tuple[int, int], dict[TopicPartition, None]],
    ) -> None:
        """Exchange the preferred leader with another replica."""
        brokers = self.replicas[where]
        for each in brokers[1:]:
            del couples[brokers[0], each][where]
        at = brokers.index(leader)
        brokers[0], brokers[at] = brokers[at], brokers[0]
        for each in brokers[1:]:
            couples[leader, each][where] = None


# -- Kafka's JSON


class ThrottledReplicas(NamedTuple):
    """
    What a topic's settings throttle: pairs C{partition:broker}, with commas.

    @ivar leaders: which serve new replicas (C{leader.replication.throttled.replicas}).
    @ivar followers: the new replicas (C{follower.replication.throttled.replicas}).
    """

    leaders: str
    followers: str


def throttledReplicas(
    sources: Mapping[TopicPartition, Sequence[int]],
    targets: Mapping[TopicPartition, Sequence[int]],
) -> dict[str, ThrottledReplicas]:
    """
    What to throttle while partitions move, as Kafka's tool does: each replica that has a partition
    before, since it may lead, and each that is new.

    @param sources: the replicas before, of all partitions of C{targets}.
    @return: by topic; those without new replicas are left out.
    """
    leaders: dict[str, list[str]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    for where, target in sorted(targets.items()):
        new = [each for each in target if each not in sources[where]]
        if new:
            leaders[where.topic] += [f"{where.partition}:{each}" for each in sorted(sources[where])]
            followers[where.topic] += [f"{where.partition}:{each}" for each in new]
    return {
        name: ThrottledReplicas(",".join(leaders[name]), ",".join(found))
        for name, found in followers.items()
    }


def formatReassignment(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The JSON that C{kafka-reassign-partitions} reads and writes, and a line feed."""
    partitions = [
        {"topic": where.topic, "partition": where.partition, "replicas": list(replicas)}
        for where, replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}) + "\n"


def parseReassignment(text: str) -> Assignment:
    """
    The inverse of C{formatReassignment}. Kafka's C{log_dirs} may be C{"any"}.

    @raise InvalidReplicaAssignmentError: the text is no such JSON, and where.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidReplicaAssignmentError(f"it is no JSON: {error}") from error
    partitions = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(partitions, list) or document.get("version", 1) != 1:
        raise InvalidReplicaAssignmentError('it has no {"version": 1, "partitions": […]}')
    found: Assignment = {}
    for at, each in enumerate(partitions):
        where, replicas = _parsePartition(each, f"partitions[{at}]")
        if where in found:
            raise InvalidReplicaAssignmentError(f"partitions[{at}]: {where} stands there twice")
        found[where] = replicas
    if not found:
        raise InvalidReplicaAssignmentError("it names no partitions")
    return found


def _parsePartition(given: Any, name: str) -> tuple[TopicPartition, tuple[int, ...]]:
    fields = given if isinstance(given, dict) else {}
    topic, number, replicas = (fields.get(key) for key in ("topic", "partition", "replicas"))
    if not isinstance(topic, str) or not topic:
        raise InvalidReplicaAssignmentError(f"{name}: topic is no name")
    if not isinstance(number, int) or not _isNumber(number):
        raise InvalidReplicaAssignmentError(f"{name}: partition is no number")
    if not isinstance(replicas, list) or not replicas or not all(map(_isNumber, replicas)):
        raise InvalidReplicaAssignmentError(f"{name}: replicas are no list of brokers")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignmentError(f"{name}: replicas name a broker twice")
    if any(each != "any" for each in fields.get("log_dirs") or ()):
        raise InvalidReplicaAssignmentError(
            f"{name}: log_dirs can only be any: a broker has one log directory"
        )
    return TopicPartition(topic, number), tuple(replicas)


def _isNumber(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
