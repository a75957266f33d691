"""
From which replica a consumer reads (KIP-392): the choice of Kafka's C{RackAwareReplicaSelector}. A
module of its own, since neither a leader nor a follower needs racks.

A consumer reads from its own rack where it can: from the leader, if that is there, or else from the
follower there with the most records; of several, the one that was caught up last. Only a follower
that is in sync and has the consumer's offset is chosen. What a follower does not know to be
committed yet, its readers wait for there.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.replication.leader import LeaderReplica

NO_REPLICA = -1
"""The consumer reads from the leader."""


def preferredReadReplica(
    leader: LeaderReplica, rack: str, offset: int, racks: Mapping[int, str | None]
) -> int:
    """
    The follower from which a consumer reads.

    @param rack: the consumer's.
    @param offset: from which it reads next.
    @param racks: of the brokers that are there and that the consumer can reach, by id.
    @return: the broker, or L{NO_REPLICA}.
    """
    if racks.get(leader.brokerId) == rack:
        return NO_REPLICA
    found = [
        (each.logEndOffset, each.lastCaughtUpMs, brokerId)
        for brokerId, each in leader.followers.items()
        if racks.get(brokerId) == rack
        and brokerId in leader.inSync
        and each.logStartOffset <= offset <= each.logEndOffset
    ]
    return max(found)[2] if found else NO_REPLICA
