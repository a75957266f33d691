"""Groups of the new protocol (KIP-848): heartbeats, assignments, descriptions, errors."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.groups import awaitCoordinator, enter, join, leave, sync
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
