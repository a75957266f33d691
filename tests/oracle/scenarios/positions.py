"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.oracle.scenarios.groups import awaitCoordinator, enter, join, leave, sync
from tests.oracle.scenarios.pieces import NO_TOPIC_ID, makeTopic, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, scenario


def _commit(
    group: str,
    name: str,
    topicId: bytes,
    *offsets: tuple[int, int, str | None],
    memberId: str = "",
    generation: int = -1,
    instanceId: str | None = None,
    epoch: int = -1,
) -> Any:
    cls = messages.OffsetCommitRequest
    parts = [
        cls.OffsetCommitRequestPartition(
            partitionIndex=index,
            committedOffset=offset,
            committedMetadata=text,
            committedLeaderEpoch=epoch,
        )
        for index, offset, text in offsets
    ]
    return cls(
        groupId=group,
        memberId=memberId,
        generationIdOrMemberEpoch=generation,
        groupInstanceId=instanceId,
        topics=[cls.OffsetCommitRequestTopic(name=name, topicId=topicId, partitions=parts)],
    )


def _fetch(
    version: int,
    group: str,
    topics: Sequence[tuple[str, bytes, list[int]]] | None,
    isStable: bool = False,
) -> Any:
    cls = messages.OffsetFetchRequest
    if version >= 8:
        made = None
        if topics is not None:
            made = [
                cls.OffsetFetchRequestTopics(name=name, topicId=ident, partitionIndexes=parts)
                for name, ident, parts in topics
            ]
        return cls(
            groups=[cls.OffsetFetchRequestGroup(groupId=group, topics=made)], requireStable=isStable
        )
    named = None
    if topics is not None:
        named = [
            cls.OffsetFetchRequestTopic(name=name, partitionIndexes=parts)
            for name, _, parts in topics
        ]
    body = cls(groupId=group, topics=named)
    if version == 7:
        body.requireStable = isStable
    return body


@scenario()
def commits(setting: Setting) -> Steps:
    """Commits of groups without members, in every version, and what is fetched then."""
    yield from awaitCoordinator()
    key = ApiKey.OFFSET_COMMIT
    topicId = yield from makeTopic("commits", 3)
    wanted = [("commits", topicId, [0, 1, 2, 9])]
    for version in versionsOf(key):
        group = f"commits-{version}"
        for label, body in (
            ("one", _commit(group, "commits", topicId, (0, 5, "text"))),
            ("two", _commit(group, "commits", topicId, (0, 6, ""), (1, 7, None))),
            ("back", _commit(group, "commits", topicId, (0, 3, None))),
            ("behind the end", _commit(group, "commits", topicId, (0, 2**62, None))),
            ("offset -1", _commit(group, "commits", topicId, (0, -1, None))),
            ("offset -5", _commit(group, "commits", topicId, (0, -5, None))),
            ("a partition twice", _commit(group, "commits", topicId, (0, 1, None), (0, 2, None))),
            ("unknown partition", _commit(group, "commits", topicId, (3, 5, None))),
            ("partition -1", _commit(group, "commits", topicId, (-1, 5, None))),
            (
                "good and unknown partition",
                _commit(group, "commits", topicId, (2, 8, None), (3, 5, None)),
            ),
            ("unknown topic", _commit(group, "commits-none", NO_TOPIC_ID, (0, 5, None))),
            ("no topic", _commit(group, "", ZERO_UUID, (0, 5, None))),
            ("long text", _commit(group, "commits", topicId, (1, 5, "x" * 4096))),
            ("text too long", _commit(group, "commits", topicId, (1, 6, "x" * 4097))),
            (
                "text too long and good",
                _commit(group, "commits", topicId, (1, 6, "x" * 4097), (2, 9, "y")),
            ),
            ("leader epoch", _commit(group, "commits", topicId, (2, 9, "y"), epoch=0)),
            ("leader epoch -5", _commit(group, "commits", topicId, (2, 9, "y"), epoch=-5)),
            ("no partitions", _commit(group, "commits", topicId)),
            ("no group", _commit("", "commits", topicId, (0, 5, None))),
            ("unknown member", _commit(group, "commits", topicId, (0, 5, None), memberId="nobody")),
            ("a generation", _commit(group, "commits", topicId, (0, 5, None), generation=1)),
            (
                "member and generation",
                _commit(group, "commits", topicId, (0, 5, None), memberId="nobody", generation=1),
            ),
            (
                "new group, generation",
                _commit(f"{group}-none", "commits", topicId, (0, 5, None), generation=1),
            ),
            (
                "new group, member",
                _commit(f"{group}-none", "commits", topicId, (0, 5, None), memberId="nobody"),
            ),
            ("generation -2", _commit(group, "commits", topicId, (0, 5, None), generation=-2)),
        ):
            yield Ask(label, key, version, body)
            if label in ("two", "leader epoch", "offset -1"):
                stored = _fetch(7, group, wanted)
                yield Ask(f"{label}, fetched", ApiKey.OFFSET_FETCH, 7, stored)
        nothing = messages.OffsetCommitRequest(groupId=group)
        yield Ask("nothing", key, version, nothing)
        if version >= 7:
            body = _commit(group, "commits", topicId, (0, 5, None), instanceId="one")
            yield Ask("an instance", key, version, body)
        if version <= 4:
            body = _commit(group, "commits", topicId, (0, 55, None))
            body.retentionTimeMs = 1
            yield Ask("retention", key, version, body)
        yield Ask("at last", ApiKey.OFFSET_FETCH, 7, _fetch(7, group, None))


@scenario()
def commitsOfMembers(setting: Setting) -> Steps:
    """Commits of a group with a member, from members and others."""
    yield from awaitCoordinator()
    key = ApiKey.OFFSET_COMMIT
    topicId = yield from makeTopic("commits-of-members")
    for version in versionsOf(key):
        group = f"commits-of-members-{version}"

        def ask(label: str, memberId: str, generation: int, instanceId: str | None = None) -> Ask:
            body = _commit(
                group,  # noqa: B023
                "commits-of-members",
                topicId,
                (0, 5, None),
                memberId=memberId,
                generation=generation,
                instanceId=instanceId,
            )
            return Ask(label, key, version, body)  # noqa: B023

        instance = "one" if version >= 7 else None
        first = yield from enter("joins", 5, group, instanceId=instance)
        member, generation = first.memberId, first.generationId
        yield ask("before the sync", member, generation)
        yield sync("sync", 5, group, member, generation, [(member, b"x")], instanceId=instance)
        yield ask("in its generation", member, generation)
        yield ask("old generation", member, generation - 1)
        yield ask("generation to come", member, generation + 1)
        yield ask("generation -1", member, -1)
        yield ask("unknown member", "nobody", generation)
        yield ask("no member", "", -1)
        yield ask("no member, generation", "", generation)
        if version >= 7:
            yield ask("with its instance", member, generation, "one")
            yield ask("unknown instance", member, generation, "two")
            yield ask("another's instance", "nobody", generation, "one")
        second = yield from _second(group)
        yield ask("while it rebalances", member, generation)
        yield leave("second leaves", 5, group, (second, None))
        yield leave("leaves", 5, group, (member, instance))
        yield ask("after leaving", member, generation)
        yield ask("when empty, no member", "", -1)


def _second(group: str) -> Steps:
    """A second member whose join begins a rebalance, which nobody ends."""
    named = yield join("second", 5, group, on="b")
    yield join("second joins", 5, group, named.memberId, on="b", isAnswered=False)
    return named.memberId


@scenario()
def positionFetches(setting: Setting) -> Steps:
    """OffsetFetch in every version."""
    yield from awaitCoordinator()
    key, cls = ApiKey.OFFSET_FETCH, messages.OffsetFetchRequest
    group = "position-fetches"
    first = yield from makeTopic("position-a", 2)
    second = yield from makeTopic("position-b", 1)
    for name, ident, offset in (("position-a", first, 11), ("position-b", second, 22)):
        body = _commit(group, name, ident, (0, offset, f"of {name}"))
        yield Ask("commit", ApiKey.OFFSET_COMMIT, 6, body)
    body = _commit(f"{group}-2", "position-a", first, (1, 33, None), epoch=4)
    yield Ask("commit", ApiKey.OFFSET_COMMIT, 6, body)
    for version in versionsOf(key):
        for label, who, topics in (
            ("one", group, [("position-a", first, [0])]),
            ("two", group, [("position-a", first, [0, 1]), ("position-b", second, [0])]),
            ("a partition twice", group, [("position-a", first, [0, 0])]),
            ("a topic twice", group, [("position-a", first, [0]), ("position-a", first, [1])]),
            ("unknown partition", group, [("position-a", first, [5, -1])]),
            ("unknown topic", group, [("position-none", NO_TOPIC_ID, [0])]),
            (
                "unknown and known topic",
                group,
                [("position-none", NO_TOPIC_ID, [0]), ("position-a", first, [0])],
            ),
            ("no topic", group, [("", ZERO_UUID, [0])]),
            ("no partitions", group, [("position-a", first, [])]),
            ("unknown group", f"{group}-none", [("position-a", first, [0])]),
            ("no group", "", [("position-a", first, [0])]),
            ("no topics", group, []),
        ):
            yield Ask(label, key, version, _fetch(version, who, topics))
        if version >= 2:
            yield Ask("all", key, version, _fetch(version, group, None))
            yield Ask(
                "all of an unknown group", key, version, _fetch(version, f"{group}-none", None)
            )
        if version >= 7:
            for wanted in (None, [("position-a", first, [0])]):
                label = "stable, all" if wanted is None else "stable"
                yield Ask(label, key, version, _fetch(version, group, wanted, isStable=True))
        if version >= 8:
            several = _fetch(version, group, None)
            for who in (f"{group}-2", f"{group}-none", ""):
                several.groups = [
                    *several.groups,
                    *_fetch(version, who, [("position-a", first, [1])]).groups,
                ]
            yield Ask("several groups", key, version, several)
            twice = _fetch(version, group, None)
            twice.groups = [*twice.groups, *twice.groups]
            yield Ask("a group twice", key, version, twice)
            yield Ask("no groups", key, version, cls())
        if version >= 9:
            for memberId, epoch in (("nobody", 1), (None, 1), ("", -1), ("nobody", -1), ("", 0)):
                asked = _fetch(version, group, None)
                asked.groups[0].memberId, asked.groups[0].memberEpoch = memberId, epoch
                yield Ask(f"member {memberId!r}, epoch {epoch}", key, version, asked)


@scenario()
def offsetDelete(setting: Setting) -> Steps:
    """Positions that are deleted, of groups with and without members."""
    yield from awaitCoordinator()
    key, cls = ApiKey.OFFSET_DELETE, messages.OffsetDeleteRequest
    topicId = yield from makeTopic("offset-delete", 2)
    group = "offset-delete"
    body = _commit(group, "offset-delete", topicId, (0, 1, None), (1, 2, None))
    yield Ask("commit", ApiKey.OFFSET_COMMIT, 6, body)

    def asked(who: str, name: str, *partitions: int) -> Any:
        parts = [cls.OffsetDeleteRequestPartition(partitionIndex=index) for index in partitions]
        return cls(groupId=who, topics=[cls.OffsetDeleteRequestTopic(name=name, partitions=parts)])

    for label, body in (
        ("one", asked(group, "offset-delete", 0)),
        ("again", asked(group, "offset-delete", 0)),
        ("unknown partition", asked(group, "offset-delete", 7)),
        ("unknown topic", asked(group, "offset-delete-none", 0)),
        ("unknown group", asked("offset-delete-none", "offset-delete", 0)),
        ("no group", asked("", "offset-delete", 0)),
        ("nothing", cls(groupId=group)),
    ):
        yield Ask(label, key, 0, body)
    yield Ask("what is left", ApiKey.OFFSET_FETCH, 7, _fetch(7, group, None))
    yield Ask("the last", key, 0, asked(group, "offset-delete", 1))
    yield Ask("nothing is left", ApiKey.OFFSET_FETCH, 7, _fetch(7, group, None))
    # A member that subscribes to the topic, in the consumers' own format.
    subscription = messages.ConsumerProtocolSubscription(topics=["offset-delete"])
    data = b"\0\0" + subscription.encode(0)
    member = yield from enter("subscribed", 3, group, protocols=[("range", data)])
    yield sync("sync", 3, group, member.memberId, member.generationId, [(member.memberId, b"")])
    body = _commit(
        group,
        "offset-delete",
        topicId,
        (0, 1, None),
        memberId=member.memberId,
        generation=member.generationId,
    )
    yield Ask("commit of the member", ApiKey.OFFSET_COMMIT, 6, body)
    yield Ask("subscribed topic", key, 0, asked(group, "offset-delete", 0))
    yield Ask("another topic", key, 0, asked(group, "offset-delete-none", 0))
    yield leave("leave", 3, group, (member.memberId, None))
