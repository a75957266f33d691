"""Groups of the new protocol (KIP-848): heartbeats, assignments, descriptions, errors."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.groups import awaitCoordinator, enter, join, leave, sync
from tests.oracle.scenarios.pieces import makeTopic, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario


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


@scenario()
def consumerGroups(setting: Setting) -> Steps:
    """A member, a second one, and both go; with what is refused."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.CONSUMER_GROUP_HEARTBEAT):
        group = f"consumer-groups-{version}"
        topicId = yield from makeTopic(group, 2)
        a, b = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"
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


@scenario()
def staticConsumers(setting: Setting) -> Steps:
    """Members of the new protocol with an instance id."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.CONSUMER_GROUP_HEARTBEAT):
        group = f"static-consumers-{version}"
        topicId = yield from makeTopic(group, 1)
        a, b = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"
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
