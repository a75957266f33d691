"""
Which brokers are to have the replicas of a new partition, as Kafka's controllers (KRaft) decide it.

B{Rules.} The first replica leads at first. Leaders go round the racks, and within a rack round its
brokers, from a random start: a topic with as many partitions as there are brokers, all in racks of
one size or in none, gives each broker one to lead. The other replicas of a partition are in other
racks, as long as there are racks without one. A broker that is shutting down is given nothing; one
that is fenced is given replicas only behind all that serve, and never the first. After as many
partitions as there are serving brokers the rounds are shuffled, so that the same brokers do not
share all their partitions.

Brokers without a rack are one rack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from random import Random

from pylogbroker.cluster.metadataimage import BrokerImage
from pylogbroker.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


class _Round:
    """
    Brokers of a rack, each once for a partition.

    @ivar start: the place of the first one, for the partition at hand.
    """

    def __init__(self, brokerIds: Iterable[int], random: Random) -> None:
        self.brokerIds = sorted(brokerIds)
        self.start = random.randrange(len(self.brokerIds)) if self.brokerIds else 0

    def ordered(self) -> list[int]:
        """The brokers for the partition at hand."""
        return self.brokerIds[self.start :] + self.brokerIds[: self.start]

    def advance(self, used: Set[int]) -> None:
        """Go on, if the partition at hand has taken one of these brokers."""
        if not used.isdisjoint(self.brokerIds):
            self.start = (self.start + 1) % len(self.brokerIds)


class _Rack:
    """
    The brokers of a rack.

    @ivar serving: those that may lead.
    @ivar fenced: the others.
    """

    def __init__(self, brokers: Sequence[BrokerImage], random: Random) -> None:
        self.serving = _Round((each.brokerId for each in brokers if not each.isFenced), random)
        self.fenced = _Round((each.brokerId for each in brokers if each.isFenced), random)

    def ordered(self) -> list[int]:
        """All brokers for the partition at hand, those that serve first."""
        return self.serving.ordered() + self.fenced.ordered()

    def advance(self, used: Set[int]) -> None:
        """Go on to the next partition."""
        self.serving.advance(used)
        self.fenced.advance(used)


def placeReplicas(
    brokers: Iterable[BrokerImage], partitionCount: int, replicationFactor: int, random: Random
) -> list[tuple[int, ...]]:
    """
    Choose brokers for new partitions; the module states the rules.

    @param replicationFactor: replicas of each partition.
    @return: the replicas of each partition, the first of which may lead.
    @raise InvalidReplicationFactorError: there are not as many brokers, or none serves.
    """
    usable = [each for each in brokers if not each.isShuttingDown]
    servingCount = sum(each.mayLead for each in usable)
    if replicationFactor < 1:
        raise InvalidReplicationFactorError(
            f"Invalid replication factor {replicationFactor}: the replication factor must be"
            " positive."
        )
    if not servingCount:
        raise _refusal(
            replicationFactor, "All brokers are currently fenced or in controlled shutdown."
        )
    if replicationFactor > len(usable):
        raise _refusal(
            replicationFactor,
            f"The target replication factor of {replicationFactor} cannot be reached because only"
            f" {len(usable)} broker(s) are registered or some brokers have all their log"
            " directories cordoned.",
        )
    byRack: dict[str, list[BrokerImage]] = {}
    for each in usable:
        byRack.setdefault(each.rack or "", []).append(each)
    racks = [_Rack(byRack[name], random) for name in sorted(byRack)]
    start = random.randrange(len(racks))
    placed: list[tuple[int, ...]] = []
    for number in range(partitionCount):
        if number and number % servingCount == 0:
            random.shuffle(racks)
            for rack in racks:
                random.shuffle(rack.serving.brokerIds)
                random.shuffle(rack.fenced.brokerIds)
        found = _place(racks[start:] + racks[:start], replicationFactor)
        placed.append(found)
        start = (start + 1) % len(racks)
        for rack in racks:
            rack.advance(frozenset(found))
    return placed


def _place(racks: Sequence[_Rack], replicationFactor: int) -> tuple[int, ...]:
    """
    The replicas of one partition.

    @param racks: in the order in which they are to be used. They have enough brokers.
    """
    leading = next(rack for rack in racks if rack.serving.brokerIds)
    found = leading.serving.ordered()[:1]
    left = [rack.ordered() for rack in racks if rack is not leading]
    left.append([each for each in leading.ordered() if each not in found])
    while len(found) < replicationFactor:
        found += [some.pop(0) for some in left if some]
    return tuple(found[:replicationFactor])


def _refusal(replicationFactor: int, why: str) -> InvalidReplicationFactorError:
    return InvalidReplicationFactorError(
        f"Unable to replicate the partition {replicationFactor} time(s): {why}"
    )


def checkAssignment(
    brokerIds: Iterable[int], replicas: Sequence[int], replicationFactor: int | None = None
) -> None:
    """
    Check the replicas that a client has chosen for a partition.

    @param brokerIds: those that have registered.
    @param replicationFactor: of the partitions before it; L{None}: there is none.
    @raise InvalidReplicaAssignmentError: they cannot be its replicas.
    """
    known = frozenset(brokerIds)
    text = ""
    if not replicas:
        text = "includes an empty replica list."
    before = None
    for each in sorted(replicas):
        if each not in known:
            text = f"includes broker {each}, but no such broker is registered."
        elif each == before:
            text = f"includes the broker {each} more than once."
        if text:
            break
        before = each
    if not text and replicationFactor not in (None, len(replicas)):
        text = (
            f"includes a partition with {len(replicas)} replica(s), but this is not consistent with"
            f" previous partitions, which have {replicationFactor} replica(s)."
        )
    if text:
        raise InvalidReplicaAssignmentError(f"The manual partition assignment {text}")
