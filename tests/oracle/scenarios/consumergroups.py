"""Groups of the new protocol (KIP-848): heartbeats, assignments, descriptions, errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.groups import (
    awaitCoordinator,
    beat,
    describe,
    enter,
    join,
    leave,
    sync,
)
from tests.oracle.scenarios.pieces import makeTopic, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

_SETTINGS = (
    ("group.consumer.migration.policy", "disabled"),
    ("group.consumer.assignment.interval.ms", "0"),
)
"""Without an interval, no answer depends on how fast a broker or this program is."""

A, B, C = "A" * 22, "B" * 22, "C" * 22


def _beat(label: str, version: int, group: str, memberId: str, epoch: int, **fields: Any) -> Ask:
    body = messages.ConsumerGroupHeartbeatRequest(
        groupId=group, memberId=memberId, memberEpoch=epoch, **fields
    )
    return Ask(label, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, body)


def _first(label: str, version: int, group: str, memberId: str, topic: str, **fields: Any) -> Ask:
    values = {"rebalanceTimeoutMs": 30_000, "subscribedTopicNames": [topic], "topicPartitions": []}
    return _beat(label, version, group, memberId, 0, **{**values, **fields})


def _owned(topicId: bytes, *partitions: int) -> list[Any]:
    cls = messages.ConsumerGroupHeartbeatRequest
    return [cls.TopicPartitions(topicId=topicId, partitions=list(partitions))]


def _describe(label: str, version: int, *groups: str, **fields: Any) -> Ask:
    body = messages.ConsumerGroupDescribeRequest(groupIds=list(groups), **fields)
    return Ask(label, ApiKey.CONSUMER_GROUP_DESCRIBE, version, body)


@scenario(*_SETTINGS)
def consumerGroups(setting: Setting) -> Steps:
    """A member, a second one, and both go; with what is refused."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.CONSUMER_GROUP_HEARTBEAT):
        group = f"consumer-groups-{version}"
        topicId = yield from makeTopic(group, 2)
        a, b = A, B
        yield _first("no group", version, "", a, group)
        yield _first("no topics", version, group, a, group, subscribedTopicNames=None)
        yield _first("no time-out", version, group, a, group, rebalanceTimeoutMs=-1)
        yield _first(
            "owns partitions", version, group, a, group, topicPartitions=_owned(topicId, 0)
        )
        yield _first("partitions are null", version, group, a, group, topicPartitions=None)
        yield _first("empty rack", version, group, a, group, rackId="")
        yield _first("empty instance", version, group, a, group, instanceId="")
        yield _first("unknown assignor", version, group, a, group, serverAssignor="none")
        yield _beat("unknown member", version, group, a, 5)
        yield _beat("leaves before it joined", version, group, a, -1)
        yield _describe("before", version, group)
        made = yield Until(
            _first("first", version, group, a, group), lambda found: found.assignment is not None
        )
        epoch = made.memberEpoch
        yield _describe("one member", version, group)
        yield _beat("beat", version, group, a, epoch, topicPartitions=_owned(topicId, 0, 1))
        yield _beat("epoch to come", version, group, a, epoch + 1)
        yield _beat("old epoch", version, group, a, epoch - 1)
        yield _beat("epoch -2 without instance", version, group, a, -2)
        yield _beat("epoch -3", version, group, a, -3)
        yield _first("second", version, group, b, group)
        moved = yield Until(
            _beat("first gives away", version, group, a, epoch),
            lambda found: (
                found.assignment is not None
                and len(found.assignment.topicPartitions[0].partitions) == 1
            ),
        )
        kept = moved.assignment.topicPartitions[0].partitions
        moved = yield _beat(
            "first has given away",
            version,
            group,
            a,
            moved.memberEpoch,
            topicPartitions=_owned(topicId, *kept),
        )
        yield Until(
            _first("second gets its part", version, group, b, group),
            lambda found: found.assignment is not None and bool(found.assignment.topicPartitions),
        )
        yield _describe("two members", version, group, includeAuthorizedOperations=True)
        yield _describe("several", version, group, "consumer-groups-none", "")
        yield join("a classic member", 5, group, protocols=[("range", b"x")])
        body: Any = messages.DescribeGroupsRequest(groups=[group])
        yield Ask("described as classic", ApiKey.DESCRIBE_GROUPS, 6, body)
        body = messages.ListGroupsRequest(typesFilter=["consumer"])
        yield Ask("listed", ApiKey.LIST_GROUPS, 5, body, own=group)
        body = messages.DeleteGroupsRequest(groupsNames=[group])
        yield Ask("deleted with members", ApiKey.DELETE_GROUPS, 2, body)
        yield _beat("second leaves", version, group, b, -1)
        yield _beat("second leaves again", version, group, b, -1)
        yield _beat("first leaves", version, group, a, -1)
        yield _describe("empty", version, group)
        yield Ask("deleted", ApiKey.DELETE_GROUPS, 2, body)
        classic = yield from enter("classic", 5, f"{group}-classic")
        member = classic.memberId
        yield sync("classic", 5, f"{group}-classic", member, classic.generationId, [(member, b"x")])
        yield _first("into a classic group", version, f"{group}-classic", a, group)
        yield _describe("a classic group", version, f"{group}-classic")
        yield leave("classic", 5, f"{group}-classic", (member, None))
        if version >= 1:
            for number, pattern in enumerate(("consumer-.*", "(", "")):
                asked = _first(
                    f"pattern {pattern}",
                    version,
                    f"{group}-pattern-{number}",
                    a,
                    group,
                    subscribedTopicNames=None,
                    subscribedTopicRegex=pattern,
                )
                yield asked
                yield _beat("leaves", version, f"{group}-pattern-{number}", a, -1)


@scenario(*_SETTINGS)
def staticConsumers(setting: Setting) -> Steps:
    """Members of the new protocol with an instance id."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.CONSUMER_GROUP_HEARTBEAT):
        group = f"static-consumers-{version}"
        topicId = yield from makeTopic(group, 1)
        a, b = A, B
        made = yield Until(
            _first("first", version, group, a, group, instanceId="one"),
            lambda found: found.assignment is not None,
        )
        yield _first("another with the instance", version, group, b, group, instanceId="one")
        yield _beat("goes for a while", version, group, a, -2, instanceId="one")
        yield _describe("away", version, group)
        back = yield _first("comes back", version, group, b, group, instanceId="one")
        yield _beat("the old one", version, group, a, made.memberEpoch, instanceId="one")
        yield _beat(
            "beat",
            version,
            group,
            b,
            back.memberEpoch,
            instanceId="one",
            topicPartitions=_owned(topicId, 0),
        )
        yield _beat("another instance", version, group, b, back.memberEpoch, instanceId="two")
        yield _beat("leaves", version, group, b, -1, instanceId="one")
        yield _describe("empty", version, group)


def _commit(
    label: str,
    version: int,
    group: str,
    memberId: str,
    epoch: int,
    name: str,
    topicId: bytes,
    *partitions: int,
    instanceId: str | None = None,
) -> Ask:
    cls = messages.OffsetCommitRequest
    found = [
        cls.OffsetCommitRequestPartition(partitionIndex=index, committedOffset=5)
        for index in partitions
    ]
    body = cls(
        groupId=group,
        memberId=memberId,
        generationIdOrMemberEpoch=epoch,
        groupInstanceId=instanceId,
        topics=[cls.OffsetCommitRequestTopic(name=name, topicId=topicId, partitions=found)],
    )
    return Ask(label, ApiKey.OFFSET_COMMIT, version, body)


def _fetch(label: str, group: str, memberId: str | None = None, epoch: int = -1) -> Ask:
    cls = messages.OffsetFetchRequest
    asked = cls.OffsetFetchRequestGroup(groupId=group, topics=None)
    asked.memberId, asked.memberEpoch = memberId, epoch
    return Ask(label, ApiKey.OFFSET_FETCH, 9, cls(groups=[asked]))


def _quiet(ask: Ask) -> Ask:
    return ask._replace(isRecorded=False)


def _pair(group: str, topicId: bytes, topics: list[str]) -> Steps:
    """A has the first half of a topic with two partitions, B the other one; both at epoch 3."""
    yield _first("A joins", 1, group, A, "", subscribedTopicNames=topics)
    yield _first("B joins", 1, group, B, "", subscribedTopicNames=topics)
    owned = _owned(topicId, 0)
    yield Until(_quiet(_beat("A", 1, group, A, 2)), lambda found: found.assignment is not None)
    yield _beat("A has given away", 1, group, A, 2, topicPartitions=owned)
    yield Until(_quiet(_beat("B", 1, group, B, 3)), lambda found: found.assignment is not None)


@scenario(*_SETTINGS)
def consumerCommits(setting: Setting) -> Steps:
    """Offsets of members of the new protocol, at epochs that are theirs, old or to come."""
    yield from awaitCoordinator()
    name = group = "consumer-commits"
    topicId = yield from makeTopic(name, 2)
    yield _commit("no group", 9, group, A, 2, name, topicId, 0)
    yield _commit("no group", 8, group, A, 2, name, topicId, 0)
    yield _fetch("no group", group, A, 2)
    yield from _pair(group, topicId, [name])
    for who, memberId in (("A", A), ("B", B), ("C", C), ("nobody", "")):
        for epoch in (4, 3, 2, 1, 0, -1, -2):
            for version in (8, 9, 10):
                for places in ((0,), (1,), (0, 1)):
                    label = f"{who} at {epoch}, {len(places)} from {places[0]}"
                    yield _commit(label, version, group, memberId, epoch, name, topicId, *places)
            yield _fetch(f"{who} at {epoch}", group, memberId, epoch)
    yield _commit("another instance", 9, group, A, 3, name, topicId, 0, instanceId="x")
    yield _fetch("no member", group)
    cls = messages.OffsetDeleteRequest
    deleted = [
        cls.OffsetDeleteRequestTopic(
            name=each, partitions=[cls.OffsetDeleteRequestPartition(partitionIndex=0)]
        )
        for each in (name, "consumer-commits-none")
    ]
    body: Any = cls(groupId=group, topics=deleted)
    yield Ask("subscribed", ApiKey.OFFSET_DELETE, 0, body)
    yield _beat("A leaves", 1, group, A, -1)
    yield _commit("nobody, with a member", 9, group, "", -1, name, topicId, 0)
    yield _beat("B leaves", 1, group, B, -1)
    yield _commit("A has left", 9, group, A, 3, name, topicId, 0)
    yield _commit("nobody, in an empty group", 9, group, "", -1, name, topicId, 0)
    yield _fetch("A has left", group, A, 3)
    yield _fetch("an empty group", group)
    yield Ask("empty", ApiKey.OFFSET_DELETE, 0, body)


@scenario(*_SETTINGS)
def consumersAndClassicMembers(setting: Setting) -> Steps:
    """Groups that go from one protocol to the other when they are empty, and not before."""
    yield from awaitCoordinator()
    name = group = "consumers-and-classic-members"
    topicId = yield from makeTopic(name, 2)
    yield from _pair(group, topicId, [name])
    for version in (3, 5):
        yield join("into a group with members", version, group)
        yield join("with an id", version, group, "somebody")
        yield join("with an instance", max(version, 5), group, instanceId="one")
    yield sync("of a consumer", 5, group, A, 3)
    body: Any = messages.HeartbeatRequest(groupId=group, generationId=3, memberId=A)
    yield Ask("of a consumer", ApiKey.HEARTBEAT, 4, body)
    yield leave("of a stranger", 5, group, (C, None))
    yield leave("of an instance", 5, group, ("", "one"))
    for states in ([], ["stable"], ["Reconciling"], ["Assigning"], ["Empty"]):
        for types in ([], ["Consumer"], ["classic"], ["nix"]):
            body = messages.ListGroupsRequest(statesFilter=states, typesFilter=types)
            yield Ask(f"{states} {types}", ApiKey.LIST_GROUPS, 5, body, own=group)
    for version in (3, 5, 6):
        body = messages.DescribeGroupsRequest(groups=[group])
        yield Ask("of consumers", ApiKey.DESCRIBE_GROUPS, version, body)
    yield _commit("A", 9, group, A, 3, name, topicId, 0)
    yield leave("of a consumer", 5, group, (A, None))
    yield _describe("one is left", 1, group)
    yield _beat("B leaves", 1, group, B, -1)
    yield join("with an id into an empty group", 5, group, "somebody")
    made = yield join("into an empty group", 3, group)
    yield _fetch("offsets stay", group)
    yield _describe("is classic now", 1, group)
    yield _first("into a classic group", 1, group, A, name)
    yield _beat("an epoch in a classic group", 1, group, A, 3)
    yield _beat("leaves a classic group", 1, group, A, -1)
    yield leave("goes", 3, group, (made.memberId, None))
    yield _beat("an epoch in an empty classic group", 1, group, A, 3)
    yield _first("into an empty classic group", 1, group, A, name)
    yield _fetch("offsets stay again", group)
    yield _describe("is a consumer group now", 1, group)
    yield _commit("no members", 9, f"{group}-2", "", -1, name, topicId, 0)
    yield _describe("only offsets", 1, f"{group}-2")
    yield _first("into a group of offsets", 1, f"{group}-2", A, name)
    yield _fetch("they stay", f"{group}-2", A, 2)


@scenario(*_SETTINGS, ("group.consumer.max.size", "2"))
def consumerSubscriptions(setting: Setting) -> Steps:
    """What members subscribe to changes, and so do the topics; patterns; how many members."""
    yield from awaitCoordinator()
    prefix = "consumer-subscriptions"
    one = yield from makeTopic(f"{prefix}-one", 2)
    two = yield from makeTopic(f"{prefix}-two", 3)
    names = [f"{prefix}-one", f"{prefix}-two"]
    for assignor in ("range", "uniform", "nobody"):
        asked = _first(
            f"by {assignor}", 1, f"{prefix}-{assignor}", A, names[1], serverAssignor=assignor
        )
        yield asked
    group = f"{prefix}-range"
    yield _first("range for two", 1, group, B, names[1], serverAssignor="range")
    yield _first("a third", 1, group, C, names[1])
    yield Until(_quiet(_beat("A", 1, group, A, 2)), lambda found: found.assignment is not None)
    yield _describe("range", 1, group)
    group = prefix
    made = yield _first("one topic", 1, group, A, names[0])
    old = made.memberEpoch
    made = yield _beat("two topics", 1, group, A, old, subscribedTopicNames=names)
    epoch = made.memberEpoch
    yield _describe("two topics", 1, group)
    both = [*_owned(one, 0, 1), *_owned(two, 0, 1, 2)]
    told = {"rebalanceTimeoutMs": 30_000, "subscribedTopicNames": names, "topicPartitions": both}
    yield _beat("full", 1, group, A, epoch, **told)
    yield _beat("the epoch before", 1, group, A, old, topicPartitions=_owned(one, 0))
    yield _beat("the epoch before, without", 1, group, A, old)
    yield _beat("the epoch before, a stranger's", 1, group, A, old, topicPartitions=_owned(one, 5))
    yield _beat("one less", 1, group, A, epoch, subscribedTopicNames=names[1:])
    yield _describe("one less", 1, group)
    made = yield _beat("given up", 1, group, A, epoch, topicPartitions=_owned(two, 0, 1, 2))
    epoch = made.memberEpoch
    yield _describe("has one less", 1, group)
    yield _beat("none", 1, group, A, epoch, subscribedTopicNames=[], topicPartitions=[])
    yield _describe("none", 1, group)
    group = f"{prefix}-later"
    later = f"{prefix}-x-later"
    yield _first("no such topic", 1, group, A, later)
    yield _describe("no such topic", 1, group)
    laterId = yield from makeTopic(later, 1)
    made = yield Until(
        _quiet(_beat("A", 1, group, A, 2)), lambda found: found.assignment is not None
    )
    yield _describe("the topic came", 1, group)
    body: Any = messages.DeleteTopicsRequest(topicNames=[later], timeoutMs=5_000)
    yield Ask("delete", ApiKey.DELETE_TOPICS, 5, body, isRecorded=False)
    epoch = made.memberEpoch
    yield Until(
        _quiet(_beat("A", 1, group, A, epoch, topicPartitions=_owned(laterId, 0))),
        lambda found: found.assignment is not None,
    )
    yield _describe("the topic went", 1, group)
    yield _beat("has nothing", 1, group, A, epoch, topicPartitions=[])
    for number, pattern in enumerate(
        (
            "consumer-subscriptions-(one|two)", "(?i)CONSUMER-SUBSCRIPTIONS-ONE", "one", ".*-one",
            "[", "a**", "(?P<n>x", r"\1", "(?=a)", "x{2000}", "*", "\\", ")", "(?<=x)y",
        )
    ):  # fmt: skip
        group = f"{prefix}-pattern-{number}"
        made = yield _first(
            f"pattern {pattern}",
            1,
            group,
            A,
            "",
            subscribedTopicNames=None,
            subscribedTopicRegex=pattern,
        )
        if not made.errorCode and pattern != "one":
            yield Until(
                _quiet(_beat("A", 1, group, A, 1)), lambda found: found.assignment is not None
            )
            yield _describe(f"pattern {pattern}", 1, group)
    group = f"{prefix}-pattern-0"
    made = yield _beat("names beside it", 1, group, A, 2, subscribedTopicNames=names[:1])
    yield _describe("names beside it", 1, group)
    told = {"subscribedTopicRegex": "", "topicPartitions": _owned(one, 0, 1)}
    yield _beat("no pattern any more", 1, group, A, made.memberEpoch, **told)
    yield _describe("no pattern any more", 1, group)


# -- groups with members of both protocols

_MIGRATION = (("group.consumer.assignment.interval.ms", "0"),)
"""C{group.consumer.migration.policy} has its default."""


def _subscription(
    *topics: str, owned: Sequence[tuple[str, list[int]]] = (), version: int = 3
) -> bytes:
    """What a classic member says about itself."""
    cls = messages.ConsumerProtocolSubscription
    parts = [cls.TopicPartition(topic=name, partitions=some) for name, some in owned]
    made = cls(topics=list(topics), ownedPartitions=parts)
    return struct.pack(">h", version) + made.encode(version)


def _protocols(*topics: str, **fields: Any) -> list[tuple[str, bytes]]:
    data = _subscription(*topics, **fields)
    return [("range", data), ("cooperative-sticky", data)]


def _assigned(name: str, *partitions: int, userData: bytes | None = None) -> bytes:
    cls = messages.ConsumerProtocolAssignment
    parts = [cls.TopicPartition(topic=name, partitions=list(partitions))] if partitions else []
    return struct.pack(">h", 1) + cls(assignedPartitions=parts, userData=userData).encode(1)


def _classic(group: str, data: bytes, **fields: Any) -> Steps:
    """A classic group with a member that has its assignment; the answer to its join."""
    made = yield from enter("classic", 5, group, **fields)
    member = made.memberId
    instanceId = fields.get("instanceId")
    yield sync("classic", 5, group, member, made.generationId, [(member, data)], instanceId)
    return made


def _shown(label: str, group: str) -> Steps:
    """The group, in every way to see it."""
    yield _describe(label, 1, group)
    for version in (5, 6):
        yield describe(label, version, group)
    body: Any = messages.ListGroupsRequest()
    yield Ask(label, ApiKey.LIST_GROUPS, 5, body, own=group)


@scenario(*_MIGRATION)
def upgradedGroups(setting: Setting) -> Steps:
    """A classic group gets a member of the new protocol, and loses it again."""
    yield from awaitCoordinator()
    name = group = "upgraded-groups"
    topicId = yield from makeTopic(name, 2)
    yield from makeTopic(f"{name}-b", 1)
    both, half = _protocols(name, owned=[(name, [0, 1])]), _protocols(name, owned=[(name, [0])])
    made = yield from _classic(group, _assigned(name, 0, 1), protocols=_protocols(name))
    m, old = made.memberId, made.generationId
    yield _commit("classic", 9, group, m, old, name, topicId, 0)
    yield _beat("an epoch in a classic group", 1, group, A, 3)
    yield _first("consumer", 1, group, A, name)
    yield from _shown("upgraded", group)
    new = old + 1
    for version in (8, 9):
        for generation in (old - 1, old, new):
            for place in (0, 1):
                label = f"classic at {generation - old}, {place}"
                yield _commit(label, version, group, m, generation, name, topicId, place)
    for generation in (old, new):
        yield _fetch(f"classic at {generation - old}", group, m, generation)
    yield sync("before it joins again", 5, group, m, old)
    yield beat("classic", 5, group, m, old)
    yield beat("a generation to come", 5, group, m, new)
    yield beat("of a stranger", 5, group, "x", old)
    yield beat("of the consumer", 5, group, A, new)
    yield sync("of the consumer", 5, group, A, new)
    yield _beat("consumer by the classic's id", 1, group, m, old + 5)
    joined = yield join("classic owns both", 5, group, m, both)
    yield sync("classic owns both", 5, group, m, joined.generationId)
    yield beat("classic owns both", 5, group, m, joined.generationId)
    yield from _shown("classic owns both", group)
    joined = yield join("classic owns one", 5, group, m, half)
    yield sync("another name", 5, group, m, joined.generationId, protocolName="sticky")
    yield sync("another type", 5, group, m, joined.generationId, protocolType="other")
    yield sync("no names", 5, group, m, joined.generationId, protocolType=None, protocolName=None)
    yield sync("no names", 3, group, m, joined.generationId, protocolType=None, protocolName=None)
    yield sync("another generation", 5, group, m, joined.generationId + 1)
    yield sync("classic owns one", 5, group, m, joined.generationId)
    yield beat("classic owns one", 5, group, m, joined.generationId)
    yield _beat("consumer gets the other", 1, group, A, new, topicPartitions=[])
    yield from _shown("both", group)
    yield join("another type", 5, group, "", both, protocolType="other")
    yield join("no protocol in common", 5, group, "", [("sticky", _subscription(name))])
    yield join("no protocol", 5, group, "", [])
    yield join("a second classic member", 5, group, "", _protocols(name))
    second = yield join("a second, which needs no id", 3, group, "", _protocols(f"{name}-b"))
    yield sync("a second", 5, group, second.memberId, second.generationId)
    yield beat("a second", 5, group, second.memberId, second.generationId)
    yield beat("classic, at another rebalance", 5, group, m, joined.generationId)
    joined = yield join("classic, at another rebalance", 5, group, m, half)
    yield sync("classic, at another rebalance", 5, group, m, joined.generationId)
    made = yield _beat("consumer, at another rebalance", 1, group, A, new)
    yield leave("the second and a stranger", 5, group, (second.memberId, None), ("x", None))
    yield from _shown("the second has left", group)
    yield _beat("consumer leaves", 1, group, A, -1)
    yield from _shown("downgraded", group)
    yield _beat("consumer again", 1, group, A, made.memberEpoch)
    yield beat("downgraded", 5, group, m, joined.generationId)
    yield beat("downgraded", 5, group, m, joined.generationId + 1)
    made = yield join("downgraded", 5, group, m, _protocols(name))
    yield sync("downgraded", 5, group, m, made.generationId, [(m, _assigned(name, 0, 1))])
    yield from _shown("joined again", group)
    yield _fetch("offsets stay", group)
    yield _first("consumer comes back", 1, group, A, name)
    yield leave("classic", 5, group, (m, None))
    yield from _shown("a consumer is left", group)
    yield _beat("consumer gets all", 1, group, A, made.generationId + 1, topicPartitions=[])
    yield _beat("consumer leaves at last", 1, group, A, -1)
    yield from _shown("empty", group)


@scenario(*_MIGRATION)
def refusedUpgrades(setting: Setting) -> Steps:
    """Classic groups that cannot go on, and one that rebalances."""
    yield from awaitCoordinator()
    name = "refused-upgrades"
    topicId = yield from makeTopic(name, 2)
    yield from makeTopic(f"{name}-b", 1)
    cases: tuple[tuple[str, bytes, dict[str, Any]], ...] = (
        ("other", _assigned(name, 0), {"protocolType": "other", "protocols": _protocols(name)}),
        ("broken subscription", _assigned(name, 0), {"protocols": [("range", b"x")]}),
        ("broken assignment", b"x", {"protocols": _protocols(name)}),
        ("user data", _assigned(name, 0, userData=b"u"), {"protocols": _protocols(name)}),
        ("no user data", _assigned(name, 0, userData=b""), {"protocols": _protocols(name)}),
        ("unknown topic", _assigned("nix", 0), {"protocols": _protocols(name, "nix")}),
        ("version 0", _assigned(name, 1), {"protocols": _protocols(name, version=0)}),
        (
            "version to come",
            _assigned(name, 1),
            {"protocols": [("range", b"\0\x09" + _subscription(name)[2:])]},
        ),
    )
    for label, data, fields in cases:
        group = f"{name}-{label}".replace(" ", "-")
        made = yield from _classic(group, data, **fields)
        yield _first(label, 1, group, A, f"{name}-b" if label == "unknown topic" else name)
        yield from _shown(label, group)
        yield beat(label, 5, group, made.memberId, made.generationId)
        if label == "version 0":
            joined = yield join(label, 5, group, made.memberId, fields["protocols"])
            yield sync(label, 5, group, made.memberId, joined.generationId)
            yield from _shown("version 0, joined", group)
    group = f"{name}-without-assignment"
    made = yield from enter("no assignment", 5, group, protocols=_protocols(name))
    yield _first("no assignment", 1, group, A, f"{name}-b")
    yield from _shown("no assignment", group)
    yield sync("no assignment", 5, group, made.memberId, made.generationId)
    yield _commit("no assignment", 9, group, made.memberId, made.generationId, name, topicId, 0)
    yield join("broken subscription", 5, group, made.memberId, [("range", b"x")])


@scenario(*_MIGRATION)
def staticMembersOfBothProtocols(setting: Setting) -> Steps:
    """An instance goes on with the other protocol."""
    yield from awaitCoordinator()
    name = "static-members-of-both-protocols"
    yield from makeTopic(name, 2)
    group = f"{name}-up"
    made = yield from _classic(
        group, _assigned(name, 0, 1), protocols=_protocols(name), instanceId="one"
    )
    old, m = made.generationId, made.memberId
    made = yield _first("consumer takes the place", 1, group, A, name, instanceId="one")
    yield from _shown("consumer has the place", group)
    yield beat("the classic one", 5, group, m, old, "one")
    yield join("the classic one", 5, group, m, _protocols(name), "one")
    yield _first("another consumer", 1, group, B, name, instanceId="one")
    back = yield join("classic takes the place", 5, group, "", _protocols(name), "one")
    yield from _shown("classic has the place", group)
    yield _beat("the consumer", 1, group, A, made.memberEpoch, instanceId="one")
    yield beat("classic has the place", 5, group, back.memberId, back.generationId, "one")
    yield sync(
        "classic has the place", 5, group, back.memberId, back.generationId, instanceId="one"
    )
    group = f"{name}-two"
    made = yield from _classic(group, _assigned(name, 0, 1), protocols=_protocols(name))
    m = made.memberId
    yield _first("a static consumer", 1, group, A, name, instanceId="one")
    joined = yield join("owns one", 5, group, m, _protocols(name, owned=[(name, [0])]))
    yield sync("owns one", 5, group, m, joined.generationId)
    yield _beat(
        "a static consumer", 1, group, A, joined.generationId, instanceId="one", topicPartitions=[]
    )
    yield _beat("goes for a while", 1, group, A, -2, instanceId="one")
    yield from _shown("goes for a while", group)
    other = _protocols(name, f"{name}-b")
    back = yield join("classic with other topics", 5, group, "", other, "one")
    yield from _shown("classic with other topics", group)
    yield beat("owns one", 5, group, m, joined.generationId)


@scenario(*_MIGRATION, ("group.consumer.migration.policy", "upgrade"))
def upgradesOnly(setting: Setting) -> Steps:
    """C{group.consumer.migration.policy=upgrade}: no way back."""
    yield from awaitCoordinator()
    name = group = "upgrades-only"
    yield from makeTopic(name, 2)
    made = yield from _classic(group, _assigned(name, 0, 1), protocols=_protocols(name))
    m = made.memberId
    yield _first("consumer", 1, group, A, name)
    yield _beat("consumer leaves", 1, group, A, -1)
    yield from _shown("a classic member is left", group)
    yield beat("classic", 5, group, m, made.generationId)
    joined = yield join("classic", 5, group, m, _protocols(name))
    yield sync("classic", 5, group, m, joined.generationId)
    yield leave("classic", 5, group, (m, None))
    yield from _shown("empty", group)


@scenario(*_MIGRATION, ("group.consumer.migration.policy", "downgrade"))
def downgradesOnly(setting: Setting) -> Steps:
    """C{group.consumer.migration.policy=downgrade}: classic groups stay, others may become such."""
    yield from awaitCoordinator()
    name = group = "downgrades-only"
    topicId = yield from makeTopic(name, 2)
    made = yield from _classic(f"{group}-b", _assigned(name, 0), protocols=_protocols(name))
    yield _first("into a classic group", 1, f"{group}-b", A, name)
    yield leave("classic", 5, f"{group}-b", (made.memberId, None))
    yield _first("consumer", 1, group, A, name)
    joined = yield join("classic", 3, group, "", _protocols(name))
    m = joined.memberId
    yield sync("classic", 5, group, m, joined.generationId)
    yield _beat("consumer owns both", 1, group, A, 2)
    yield _beat("consumer owns one", 1, group, A, 2, topicPartitions=_owned(topicId, 0))
    yield beat("the other is free", 5, group, m, joined.generationId)
    joined = yield join("the other is free", 5, group, m, _protocols(name))
    yield sync("the other is free", 5, group, m, joined.generationId)
    yield from _shown("both", group)
    yield leave("the consumer", 5, group, (A, None))
    yield from _shown("downgraded", group)
    yield beat("downgraded", 5, group, m, joined.generationId)
