"""
What a group becomes when it goes on with the other protocol while it has members: the same members,
epochs and assignments. A module of its own, since it knows both kinds of groups and nothing of
requests.
"""

from __future__ import annotations

from functools import partial

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.coordinator.classicgroup import ClassicGroup, ClassicGroupState, ClassicMember
from pylogbroker.coordinator.consumergroups import consumerrecords
from pylogbroker.coordinator.consumergroups.consumergroup import (
    FIRST_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Owned,
)
from pylogbroker.coordinator.consumergroups.consumerprotocol import (
    Places,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    placesOf,
)
from pylogbroker.coordinator.consumergroups.consumerrecords import ClassicMemberMetadata
from pylogbroker.coordinator.group import CONSUMER_PROTOCOL_TYPE, GroupTotals
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.schemas import ApiMessage


class UserDataError(FormatError):
    """An assignment has data of an assignor that would be lost."""


def upgraded(group: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """
    A group of KIP-848 with the members of a classic one, in its last generation. It counts in no
    totals yet. If a rebalance goes on, or that generation has not assigned every partition, the
    next look at the topics begins an epoch: they are not those of the group's hash.

    @raise FormatError: what a member has told, or was assigned, cannot be read.
    @raise UserDataError: an assignment has user data.
    """
    made = ConsumerGroup(group.groupId, group.partition, GroupTotals())
    made.epoch = made.targetEpoch = generation = max(group.generation, FIRST_EPOCH)
    protocol = group.selectProtocol() if group.members else ""
    targets = {each.memberId: _assigned(each.assignment, image) for each in group.members.values()}
    assigned = _merged(*targets.values())
    for member in group.members.values():
        subscription = decodeSubscription(member.metadata(protocol))
        target = targets[member.memberId]
        owned = _merged(target, _claimed(subscription, assigned, image))
        made.put(
            ConsumerMember(
                member.memberId,
                member.groupInstanceId,
                subscription.rackId,
                member.clientId,
                member.clientHost,
                tuple(sorted(set(subscription.topics))),
                rebalanceTimeoutMs=member.rebalanceTimeoutMs,
                epoch=generation,
                previousEpoch=generation,
                assigned={each: dict.fromkeys(some, generation) for each, some in owned.items()},
                classic=ClassicMemberMetadata(member.sessionTimeoutMs, member.protocols),
            )
        )
        made.setTarget(member.memberId, target)
    isStable = group.state is ClassicGroupState.STABLE
    if isStable and all(
        len(assigned.get(each.topicId.bytes, ())) == each.partitionCount
        for each in made.existingTopics(image)
    ):
        made.metadataHash = made.hashOf(image)
    made.changed(consumerrecords.EPOCH_KEY)
    made.changed(consumerrecords.TARGET_KEY)
    return made


def _assigned(assignment: bytes, image: MetadataImage) -> Places:
    """Partitions that the leader has assigned to a member, which may not know them yet."""
    if not assignment:
        return {}
    found = decodeAssignment(assignment)
    if found.userData:
        raise UserDataError(f"{len(found.userData)} bytes of user data")
    return placesOf(found.assignedPartitions, image)


def _claimed(subscription: ApiMessage, assigned: Places, image: MetadataImage) -> Places:
    """
    Partitions that a member had when it joined, and that no member is assigned: it gives them up
    when it learns of its assignment, which it may not have.
    """
    found = placesOf(subscription.ownedPartitions, image)
    return {each: some - assigned.get(each, frozenset()) for each, some in found.items()}


def _places(owned: Owned) -> Places:
    return {each: frozenset(some) for each, some in owned.items()}


def _merged(*parts: Places) -> Places:
    found: Places = {}
    for part in parts:
        for topicId, some in part.items():
            if some:
                found[topicId] = found.get(topicId, frozenset()) | some
    return found


def downgraded(
    group: ConsumerGroup, epoch: int, image: MetadataImage, nowMs: int, totals: GroupTotals
) -> ClassicGroup:
    """
    A classic group with the members of one of KIP-848, all of which speak the classic protocol, and
    with what they own, or have to give up: the group may change back before they do.

    @param epoch: of the group: becomes the generation.
    """
    made = ClassicGroup(group.groupId, group.partition, nowMs, totals)
    for member in group.members.values():
        assert member.classic is not None
        made.add(
            ClassicMember(
                member.memberId,
                member.instanceId,
                member.clientId,
                member.clientHost,
                member.rebalanceTimeoutMs,
                member.classic.sessionTimeoutMs,
                CONSUMER_PROTOCOL_TYPE,
                member.classic.protocols,
            )
        )
    made.takeUp(epoch, nowMs)
    for each in made.members.values():
        member = group.members[each.memberId]
        owned = _merged(_places(member.assigned), _places(member.pending))
        assignment = encodeAssignment(owned, each.metadata(made.protocolName), image)
        made.update(each, partial(_assign, assignment))
    return made


def _assign(assignment: bytes, member: ClassicMember) -> None:
    member.assignment = assignment
