"""FindCoordinator, and classic groups: members that join, sync, beat, leave and are described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.pieces import versionsOf
from tests.oracle.steps import Ask, Close, Receive, Setting, Steps, Until, scenario

_REBALANCE = 27
_MEMBER_ID_REQUIRED = 79
RANGE = (("range", b"a"),)


def awaitCoordinator() -> Steps:
    """Wait until there is a coordinator that answers; nothing is recorded."""
    body = messages.FindCoordinatorRequest(key="await")
    ask = Ask("coordinator", ApiKey.FIND_COORDINATOR, 2, body, isRecorded=False)
    yield Until(ask, lambda found: found.errorCode == 0)
    body = messages.OffsetFetchRequest(groupId="await", topics=None)
    ask = Ask("loaded", ApiKey.OFFSET_FETCH, 5, body, isRecorded=False)
    yield Until(ask, lambda found: found.errorCode == 0)


def join(
    label: str,
    version: int,
    group: str,
    memberId: str = "",
    protocols: Sequence[tuple[str, bytes]] = RANGE,
    instanceId: str | None = None,
    sessionMs: int = 30_000,
    rebalanceMs: int = 30_000,
    protocolType: str = "consumer",
    **fields: Any,
) -> Ask:
    """A JoinGroup request."""
    cls = messages.JoinGroupRequest
    body = cls(
        groupId=group,
        sessionTimeoutMs=sessionMs,
        rebalanceTimeoutMs=rebalanceMs,
        memberId=memberId,
        groupInstanceId=instanceId,
        protocolType=protocolType,
        protocols=[
            cls.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols
        ],
    )
    return Ask(label, ApiKey.JOIN_GROUP, version, body, **fields)


def sync(
    label: str,
    version: int,
    group: str,
    memberId: str,
    generation: int,
    assignments: Sequence[tuple[str, bytes]] = (),
    instanceId: str | None = None,
    protocolType: str | None = "consumer",
    protocolName: str | None = "range",
    **fields: Any,
) -> Ask:
    """A SyncGroup request; C{version} of JoinGroup."""
    cls = messages.SyncGroupRequest
    body = cls(
        groupId=group,
        generationId=generation,
        memberId=memberId,
        groupInstanceId=instanceId,
        protocolType=protocolType,
        protocolName=protocolName,
        assignments=[
            cls.SyncGroupRequestAssignment(memberId=who, assignment=data)
            for who, data in assignments
        ],
    )
    return Ask(label, ApiKey.SYNC_GROUP, min(version, 5), body, **fields)


def beat(
    label: str,
    version: int,
    group: str,
    memberId: str,
    generation: int,
    instanceId: str | None = None,
    **fields: Any,
) -> Ask:
    """A Heartbeat request; C{version} of JoinGroup."""
    body = messages.HeartbeatRequest(
        groupId=group, generationId=generation, memberId=memberId, groupInstanceId=instanceId
    )
    return Ask(label, ApiKey.HEARTBEAT, min(version, 4), body, **fields)


def awaitRebalance(
    label: str, version: int, group: str, memberId: str, generation: int, **fields: Any
) -> Until:
    """Heartbeats until the member is told to join again."""
    ask = beat(label, version, group, memberId, generation, **fields)
    return Until(ask, lambda body: body.errorCode == _REBALANCE)


def leave(
    label: str, version: int, group: str, *members: tuple[str, str | None], **fields: Any
) -> Ask:
    """A LeaveGroup request; C{version} of JoinGroup; below 3, of the first member alone."""
    cls = messages.LeaveGroupRequest
    version = min(version, 5)
    if version < 3:
        body = cls(groupId=group, memberId=members[0][0])
    else:
        made = [
            cls.MemberIdentity(memberId=who, groupInstanceId=instance) for who, instance in members
        ]
        body = cls(groupId=group, members=made)
    return Ask(label, ApiKey.LEAVE_GROUP, version, body, **fields)


def enter(label: str, version: int, group: str, on: str = "main", **fields: Any) -> Steps:
    """
    Join a group that has no other member; from version 4 it takes two requests.

    @return: the answer to the last.
    """
    body = yield join(label, version, group, on=on, **fields)
    if body.errorCode == _MEMBER_ID_REQUIRED:
        body = yield join(f"{label}, with its id", version, group, body.memberId, on=on, **fields)
    return body


def describe(label: str, version: int, *groups: str) -> Ask:
    """A DescribeGroups request; C{version} of JoinGroup."""
    body = messages.DescribeGroupsRequest(groups=list(groups))
    return Ask(label, ApiKey.DESCRIBE_GROUPS, min(version, 6), body)


@scenario()
def findCoordinator(setting: Setting) -> Steps:
    """Of groups, of transactions, of nothing."""
    key, cls = ApiKey.FIND_COORDINATOR, messages.FindCoordinatorRequest
    yield from awaitCoordinator()
    body = cls(key="coordinator", keyType=1)
    ask = Ask("transactions", key, 2, body, isRecorded=False)
    yield Until(ask, lambda found: found.errorCode == 0)
    for version in versionsOf(key):
        for kind in (0, 1, 2, 3, -1):
            for keys in ([], ["coordinator"], [""], ["coordinator", "second"], ["a", "a"]):
                if version < 4 and len(keys) != 1:
                    continue
                if version < 1 and kind:
                    continue
                body = (
                    cls(keyType=kind, coordinatorKeys=keys)
                    if version >= 4
                    else cls(key=keys[0], keyType=kind)
                )
                yield Ask(f"type {kind}, {keys}", key, version, body)


@scenario()
def classicGroups(setting: Setting) -> Steps:
    """Two members, in every version: a generation each time somebody comes or goes."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.JOIN_GROUP):
        group = f"classic-groups-{version}"
        yield describe("before", version, group)
        first = yield from enter("first", version, group)
        a = first.memberId
        yield describe("joined", version, group)
        yield beat("beat before the sync", version, group, a, first.generationId)
        yield sync("sync", version, group, a, first.generationId, [(a, b"all")])
        yield describe("stable", version, group)
        yield beat("beat", version, group, a, first.generationId)
        yield sync("sync again", version, group, a, first.generationId)
        yield beat("old generation", version, group, a, first.generationId - 1)
        yield beat("generation to come", version, group, a, first.generationId + 1)
        yield beat("unknown member", version, group, "nobody", first.generationId)
        yield beat("no member", version, group, "", first.generationId)
        yield beat("unknown group", version, "classic-groups-none", a, first.generationId)
        yield beat("no group", version, "", a, first.generationId)
        yield sync("sync, old generation", version, group, a, 0)
        yield sync("sync, unknown member", version, group, "nobody", first.generationId)
        yield sync("sync, unknown group", version, "classic-groups-none", a, 1)
        yield sync("sync, no group", version, "", a, 1)
        if version >= 5:
            yield sync(
                "sync, another type", version, group, a, first.generationId, protocolType="other"
            )
            yield sync(
                "sync, another protocol",
                version,
                group,
                a,
                first.generationId,
                protocolName="other",
            )

        # A second member.
        if version >= 4:
            named = yield join("second", version, group, on="b", protocols=[("range", b"b")])
            b = named.memberId
        else:
            b = ""
        yield join(
            "second joins", version, group, b, on="b", protocols=[("range", b"b")], isAnswered=False
        )
        yield awaitRebalance("told to rejoin", version, group, a, first.generationId)
        yield describe("while the first is awaited", version, group)
        yield sync("sync while others join", version, group, a, first.generationId)
        yield join("first again", version, group, a, isAnswered=False)
        second = yield Receive("second has joined", "b")
        b = second.memberId
        both = yield Receive("first has joined again", "main")
        yield sync("second syncs", version, group, b, second.generationId, on="b", isAnswered=False)
        parts = [(a, b"a's"), (b, b"b's"), ("nobody", b"x")]
        yield sync("first syncs", version, group, a, both.generationId, parts)
        yield Receive("second has its part", "b")
        yield describe("two members", version, group)
        yield beat("second beats", version, group, b, second.generationId, on="b")
        yield leave("second leaves", version, group, (b, None), on="b")
        yield leave("second leaves again", version, group, (b, None), on="b")
        yield awaitRebalance("told again", version, group, a, both.generationId)
        alone = yield join("first alone", version, group, a)
        yield sync("first alone syncs", version, group, a, alone.generationId, [(a, b"all again")])
        same = yield join("joins as before", version, group, a)
        yield sync("and syncs", version, group, a, same.generationId, [(a, b"same")])
        yield leave("unknown member leaves", version, group, ("nobody", None))
        yield leave("from an unknown group", version, "classic-groups-none", ("nobody", None))
        yield leave("from no group", version, "", ("nobody", None))
        if version >= 3:
            yield leave("nobody leaves", version, group)
            yield leave("two leave", version, group, (a, None), ("nobody", None))
        else:
            yield leave("first leaves", version, group, (a, None))
        yield describe("empty", version, group)
        yield Close("b")


@scenario()
def joinErrors(setting: Setting) -> Steps:
    """Joins that are refused, in every version."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.JOIN_GROUP):
        group = f"join-errors-{version}"
        yield join("no group", version, "")
        yield join("unknown member", version, group, "nobody")
        yield join("session too short", version, group, sessionMs=5999)
        yield join("session too long", version, group, sessionMs=1_800_001)
        yield join("session -1", version, group, sessionMs=-1)
        yield join("no protocols", version, group, protocols=[])
        yield join("no protocol type", version, group, protocolType="")
        first = yield from enter(
            "good", version, group, protocols=[("range", b"r"), ("sticky", b"s")]
        )
        yield sync(
            "sync", version, group, first.memberId, first.generationId, [(first.memberId, b"x")]
        )
        yield join("another type", version, group, protocolType="connect", on="b")
        yield join("no protocol in common", version, group, protocols=[("other", b"")], on="b")
        yield join("no protocols, as second", version, group, protocols=[], on="b")
        yield join("unknown member, as second", version, group, "nobody", on="b")
        again = yield join("other metadata", version, group, first.memberId, [("sticky", b"new")])
        yield sync(
            "sync again",
            version,
            group,
            first.memberId,
            again.generationId,
            [(first.memberId, b"y")],
            protocolName="sticky",
        )
        yield describe("described", version, group)
        yield leave("leave", version, group, (first.memberId, None))
        other = yield from enter("another type when empty", version, group, protocolType="connect")
        yield leave("leave", version, group, (other.memberId, None))


@scenario()
def staticMembers(setting: Setting) -> Steps:
    """Members with an instance id: they come back without a rebalance, and replace each other."""
    yield from awaitCoordinator()
    for version in versionsOf(ApiKey.JOIN_GROUP, 5):
        group = f"static-members-{version}"
        first = yield from enter("first", version, group, instanceId="one")
        a = first.memberId
        yield sync("sync", version, group, a, first.generationId, [(a, b"all")], instanceId="one")
        yield describe("stable", version, group)
        back = yield join("comes back", version, group, instanceId="one")
        yield beat("the old member id", version, group, a, first.generationId, "one")
        yield sync("the old member syncs", version, group, a, first.generationId, instanceId="one")
        yield beat("without instance id", version, group, a, first.generationId)
        b = back.memberId
        again = yield sync(
            "the new one syncs", version, group, b, back.generationId, instanceId="one"
        )
        if again is not None and again.errorCode == _REBALANCE:
            return
        yield beat("the new one beats", version, group, b, back.generationId, "one")
        yield beat("an unknown instance", version, group, b, back.generationId, "two")
        yield join("a wrong member id", version, group, "nobody", instanceId="one")
        yield join("an unknown instance with an id", version, group, b, instanceId="two")
        yield leave("a wrong instance leaves", version, group, (b, "two"))
        yield leave("a wrong id leaves", version, group, ("nobody", "one"))
        changed = yield join(
            "other metadata", version, group, b, [("range", b"new")], instanceId="one"
        )
        if changed is not None and changed.errorCode == 0:
            yield sync(
                "sync", version, group, b, changed.generationId, [(b, b"x")], instanceId="one"
            )
        yield leave("leaves by instance", version, group, ("", "one"))
        yield leave("leaves again", version, group, ("", "one"))
        yield describe("empty", version, group)


@scenario()
def lateMembers(setting: Setting) -> Steps:
    """A member that does not rejoin in time is left out."""
    yield from awaitCoordinator()
    for version in (1, 5, 9):
        group = f"late-members-{version}"
        first = yield from enter("first", version, group, rebalanceMs=500)
        a = first.memberId
        yield sync("sync", version, group, a, first.generationId, [(a, b"all")])
        b = ""
        if version >= 4:
            b = (yield join("second", version, group, rebalanceMs=500, on="b")).memberId
        second = yield join("second joins", version, group, b, rebalanceMs=500, on="b")
        yield beat("the late one beats", version, group, a, first.generationId)
        yield join("the late one joins", version, group, a, rebalanceMs=500)
        b = second.memberId
        yield sync("second syncs", version, group, b, second.generationId, [(b, b"x")], on="b")
        yield describe("without the late one", version, group)
        yield leave("leave", version, group, (b, None))
        yield Close("b")


@scenario()
def protocolsOfGroups(setting: Setting) -> Steps:
    """Which protocol is chosen when members prefer different ones."""
    yield from awaitCoordinator()
    for number, (left, right) in enumerate(
        (
            ([("range", b"1"), ("sticky", b"2")], [("sticky", b"3"), ("range", b"4")]),
            ([("range", b"1"), ("sticky", b"2")], [("sticky", b"3")]),
            ([("x", b"1"), ("y", b"2"), ("z", b"")], [("z", b"3"), ("y", b"4")]),
        )
    ):
        group = f"protocols-of-groups-{number}"
        first = yield from enter("first", 3, group, protocols=left)
        yield join("second", 3, group, protocols=right, on="b", isAnswered=False)
        yield awaitRebalance("told", 3, group, first.memberId, first.generationId)
        yield join("first again", 3, group, first.memberId, left, isAnswered=False)
        second = yield Receive("second has joined", "b")
        yield Receive("first has joined", "main")
        yield leave("leaves", 3, group, (second.memberId, None), on="b")
        yield leave("leaves", 3, group, (first.memberId, None))
        yield Close("b")


@scenario()
def listedGroups(setting: Setting) -> Steps:
    """ListGroups with filters, DescribeGroups, DeleteGroups."""
    yield from awaitCoordinator()
    own = "listed-groups"
    first = yield from enter("stable", 3, "listed-groups-stable")
    a = first.memberId
    yield sync("stable", 3, "listed-groups-stable", a, first.generationId, [(a, b"x")])
    yield from enter("completing", 3, "listed-groups-completing", on="b")
    gone = yield from enter("empty", 3, "listed-groups-empty", on="c", protocolType="other")
    yield leave("empty", 3, "listed-groups-empty", (gone.memberId, None))
    key, cls = ApiKey.LIST_GROUPS, messages.ListGroupsRequest
    for version in versionsOf(key):
        yield Ask("all", key, version, cls(), own=own)
        if version >= 4:
            for states in (
                ["Stable"],
                ["stable"],
                ["Empty", "Stable"],
                ["CompletingRebalance"],
                ["Nonsense"],
                [""],
                ["Dead"],
            ):
                yield Ask(f"states {states}", key, version, cls(statesFilter=states), own=own)
        if version >= 5:
            for kinds in (
                ["classic"],
                ["Classic"],
                ["consumer"],
                ["nonsense"],
                ["classic", "consumer"],
                ["share"],
            ):
                yield Ask(f"types {kinds}", key, version, cls(typesFilter=kinds), own=own)
            both = cls(typesFilter=["classic"], statesFilter=["Empty"])
            yield Ask("state and type", key, version, both, own=own)
    key, described = ApiKey.DESCRIBE_GROUPS, messages.DescribeGroupsRequest
    names = ["listed-groups-stable", "listed-groups-none", "listed-groups-empty", ""]
    for version in versionsOf(key):
        yield Ask("several", key, version, described(groups=names))
        yield Ask("none", key, version, described())
        yield Ask("completing", key, version, described(groups=["listed-groups-completing"]))
        twice = described(groups=["listed-groups-stable", "listed-groups-stable"])
        yield Ask("a group twice", key, version, twice)
        if version >= 3:
            body = described(groups=names[:2], includeAuthorizedOperations=True)
            yield Ask("authorized operations", key, version, body)
    key, deleted = ApiKey.DELETE_GROUPS, messages.DeleteGroupsRequest
    for version in versionsOf(key):
        group = f"listed-groups-delete-{version}"
        member = yield from enter("joins", 3, group)
        yield Ask("with members", key, version, deleted(groupsNames=[group]))
        yield leave("leaves", 3, group, (member.memberId, None))
        mixed = deleted(groupsNames=["listed-groups-none", group, "listed-groups-stable", ""])
        yield Ask("several", key, version, mixed)
        yield Ask("again", key, version, deleted(groupsNames=[group]))
        yield Ask("twice in a request", key, version, deleted(groupsNames=[group, group]))
        yield Ask("none", key, version, deleted())
        yield describe("afterwards", 9, group)
