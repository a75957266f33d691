"""
Groups with members of both protocols: how they become such, what their classic members are told,
and how they become classic again. Kafka's answers are in the scenarios of C{tests.oracle}; here is
what those cannot show: time, failed appends, another coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pylogbroker.coordinator.groupmessages import (
    JoinGroupAnswer,
    JoinProtocol,
    LeavingMember,
    MemberAssignment,
    SyncGroupAnswer,
)
from pylogbroker.coordinator.offsetstopic import encodeGroupMetadataKey
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.consumergroups.consumercase import (
    INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    A,
    B,
    ConsumerCase,
    Owned,
)
from tests.coordinator.groupcase import GROUP, REBALANCE_MS, SESSION_MS

REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def subscription(*topics: str, owned: Owned | None = None, rack: str | None = None) -> bytes:
    """What a classic member tells about itself."""
    cls: Any = messages.ConsumerProtocolSubscription
    parts = [
        cls.TopicPartition(topic=name, partitions=some) for name, some in (owned or {}).items()
    ]
    made = cls(topics=list(topics), ownedPartitions=parts, rackId=rack)
    return b"\0\3" + bytes(made.encode(3))


def assignment(owned: Owned, userData: bytes | None = None) -> bytes:
    """What a leader assigns."""
    cls: Any = messages.ConsumerProtocolAssignment
    parts = [cls.TopicPartition(topic=name, partitions=some) for name, some in owned.items()]
    return b"\0\1" + bytes(cls(assignedPartitions=parts, userData=userData).encode(1))


class MixedCase(ConsumerCase):
    """
    A classic group with a member that owns C{t}.

    @ivar m: its id.
    """

    members: Sequence[str | None] = (None,)  # instances

    def setUp(self) -> None:
        super().setUp()
        self.joined = self.classic()
        self.m = self.joined.memberId

    def classic(self, owned: Owned | None = None, **fields: Any) -> JoinGroupAnswer:
        """A classic group that is stable."""
        (joined,) = self.tell("", **fields)
        data = assignment({"t": [0, 1]} if owned is None else owned)
        given = [MemberAssignment(joined.memberId, data)]
        instanceId = fields.get("groupInstanceId")
        (synced,) = self.sync(joined, assignments=given, groupInstanceId=instanceId)
        self.assertEqual(synced.errorCode, 0)
        return joined

    def tell(self, memberId: str, owned: Owned | None = None, **fields: Any) -> Any:
        """JoinGroup of a member that subscribes to C{t}."""
        data = subscription(*fields.pop("topics", ["t"]), owned=owned)
        protocols = [JoinProtocol("range", data), JoinProtocol("sticky", data)]
        return self.join(memberId, **{"protocols": protocols, **fields})

    def told(self, memberId: str, owned: Owned | None = None, **fields: Any) -> JoinGroupAnswer:
        """One that is answered at once, and well."""
        (answer,) = self.tell(memberId, owned, **fields)
        self.assertEqual(answer.errorCode, 0, answer)
        self.assertEqual((answer.leader, answer.members), ("", ()))
        found: JoinGroupAnswer = answer
        return found

    def synced(self, joined: JoinGroupAnswer, **fields: Any) -> Owned:
        """What SyncGroup tells a member that it may own."""
        (answer,) = self.sync(joined, **fields)
        self.assertEqual(answer.errorCode, 0, answer)
        found: Any = messages.ConsumerProtocolAssignment.decode(answer.assignment, 3, 2)[0]
        return {each.topic: each.partitions for each in found.assignedPartitions}

    def both(self) -> JoinGroupAnswer:
        """The group has a consumer, which owns partition 1; the classic member owns 0."""
        self.assertEqual(self.given(self.enter(A, "t")), {})
        joined = self.told(self.m, {"t": [0, 1]})
        self.assertEqual(self.synced(joined), {"t": [0]})
        joined = self.told(self.m, {"t": [0]})
        self.assertEqual(self.synced(joined), {"t": [0]})
        self.assertEqual(self.given(self.beat(A, joined.generationId, owned={})), {"t": [1]})
        self.assertEqual(self.described().groupState, "Stable")
        return joined

    def types(self) -> dict[str, int]:
        """By member: 0 for the classic protocol, 1 for the other."""
        return {each.memberId: each.memberType for each in self.described().members}

    def codeOf(self, answers: Sequence[Any]) -> int:
        (answer,) = answers
        return int(answer.errorCode)


class FirstTests(MixedCase):
    """A classic group that waits for its first members."""

    settings = replace(ConsumerCase.settings, initialRebalanceDelayMs=3_000)

    def setUp(self) -> None:
        ConsumerCase.setUp(self)

    def test_noGeneration(self) -> None:
        """It goes on, though it has had no generation; who waits shall join again."""
        waiting = self.tell("")
        self.assertEqual(waiting, [])
        self.assertEqual(self.given(self.enter(A, "u")), {"u": [0, 1, 2]})
        (answer,) = waiting
        self.assertEqual(answer.errorCode, REBALANCE)
        self.assertEqual(self.synced(self.told(answer.memberId)), {"t": [0, 1]})
        self.advance(3_000)
        self.assertEqual(self.types(), {answer.memberId: 0, A: 1})

    def test_noEpoch(self) -> None:
        """Nor is the epoch 0 of one that does not subscribe to a topic yet: that means to join."""
        self.removeTopic("t")
        self.tell("")
        answer = self.enter(A, subscribedTopicNames=[], subscribedTopicRegex="x")
        self.assertEqual((answer.errorCode, answer.memberEpoch), (0, 1))

    def test_noMembers(self) -> None:
        """It goes on if it waits for ids that it has given alone."""
        self.tell("", groupInstanceId="i")
        self.tell("", version=4)
        self.leave(LeavingMember("", "i"))
        self.assertEqual((self.state(), self.memberIds()), ("PreparingRebalance", []))
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})


class UpgradeTests(MixedCase):
    """A classic group gets a member of the new protocol."""

    def test_upgrade(self) -> None:
        """Its members keep what they own until they have given it up, and its offsets stay."""
        self.commit(5, self.joined)
        joined = self.both()
        self.assertEqual(self.types(), {self.m: 0, A: 1})
        self.assertEqual(self.position(), 5)
        self.assertIn(
            (encodeGroupMetadataKey(GROUP), None), [record for _, record in self.log.records]
        )
        self.reload()
        self.assertEqual(self.types(), {self.m: 0, A: 1})
        self.assertEqual(self.owned(), {self.m: {"t": [0]}, A: {"t": [1]}})
        self.assertEqual(self.heartbeat(joined), 0)
        self.assertEqual(self.position(), 5)

    def test_waiting(self) -> None:
        """Members whose join or sync waits are told to join again; ids that were given are good."""
        second = self.tell("")
        self.assertEqual((second, self.heartbeat(self.joined)), ([], REBALANCE))
        self.assertEqual(len(self.tell("", version=4)), 1)
        self.enter(A, "t")
        self.assertEqual(self.codeOf(second), REBALANCE)
        memberId = second[0].memberId
        self.assertIn(memberId, self.types())
        self.assertEqual(self.synced(self.told(memberId)), self.targets()[memberId])
        self.told("an id that was given")

    def test_waitingSyncs(self) -> None:
        """A member that waits for the leader's assignment gets the coordinator's."""
        waiting = self.tell("")
        (first,) = self.tell(self.m)
        (second,) = waiting
        syncs = self.sync(second)
        self.assertEqual(syncs, [])
        self.enter(A, "u")
        self.assertEqual(self.codeOf(syncs), REBALANCE)
        self.assertEqual(self.codeOf(self.sync(first)), REBALANCE)
        self.told(self.m)
        self.told(second.memberId)
        self.assertEqual(self.given(self.beat(A, first.generationId + 1)), None)

    def test_refused(self) -> None:
        """A group that cannot go on stays as it is."""
        prefix = f"Cannot upgrade classic group {GROUP} to consumer group because "
        totals = replace(self.coordinator._table.totals)
        self.assertEqual(self.codeOf(self.send(memberId=A, memberEpoch=4)), 69)
        for fields, text in (
            ({"mayUpgrade": False}, "online upgrade is disabled."),
            (
                {"consumerGroupMaxSize": 0},
                "the group size exceeds the consumer group maximum size.",
            ),
        ):
            settings = replace(self.settings, **fields)
            self.coordinator._consumers._settings = settings
            self.assertEqual(self.enter(A, "t").errorMessage, prefix + text)
        self.coordinator._consumers._settings = replace(self.settings, memberMetadataSizeMax=0)
        self.assertEqual(self.enter(A, "t").errorCode, ErrorCode.GROUP_MAX_SIZE_REACHED)
        self.assertEqual(self.heartbeat(self.joined), 0)
        self.assertEqual(self.coordinator._table.totals, totals)

    def test_notReadable(self) -> None:
        """Nor does one whose members have told, or were assigned, what cannot be taken along."""
        for fields, data, text in (
            (
                {"protocols": [JoinProtocol("range", b"x")]},
                assignment({}),
                "the embedded consumer protocol is malformed.",
            ),
            ({}, b"x", "the embedded consumer protocol is malformed."),
            (
                {},
                assignment({"t": [0]}, b"data"),
                "an unsupported custom assignor is in use. Please refer to the documentation or"
                " switch to a default assignor before re-attempting the upgrade.",
            ),
            (
                {"protocolType": "other"},
                b"",
                "the group does not use the consumer embedded protocol.",
            ),
        ):
            self.leave(LeavingMember(self.m))
            (self.joined,) = self.tell("", **fields)
            self.m = self.joined.memberId
            self.sync(self.joined, assignments=[MemberAssignment(self.m, data)])
            answer = self.enter(A, "t")
            self.assertEqual(answer.errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
            self.assertTrue((answer.errorMessage or "").endswith(f"because {text}"), answer)
            self.assertEqual(self.heartbeat(self.joined), 0)

    def test_totals(self) -> None:
        """Members count once, whatever they speak."""
        totals = self.coordinator._table.totals
        self.both()
        self.assertEqual(totals.memberCount, 2)
        self.beat(A, -1)
        self.assertEqual(totals.memberCount, 1)
        self.leave(LeavingMember(self.m))
        self.assertEqual((totals.memberCount, totals.metadataSize), (0, 0))

    def test_notAppended(self) -> None:
        """If the records fail, the member tries again, and they are appended then."""
        self.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        answer = self.enter(A, "t")
        self.assertEqual(answer.errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(
            self.codeOf(self.tell(self.m, {"t": [0]})), ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        self.assertEqual(
            self.codeOf(self.sync(self.joined._replace(generationId=2))),
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.enter(A, "t").errorCode, 0)
        self.reload()
        self.assertEqual(self.types(), {self.m: 0, A: 1})

    def test_incomplete(self) -> None:
        """What the last generation has not assigned is, even if the new member needs nothing."""
        (joined,) = self.tell(self.m)
        self.sync(joined, assignments=[MemberAssignment(self.m, assignment({"t": [0]}))])
        self.enter(A, subscribedTopicNames=[], subscribedTopicRegex="x")
        self.assertEqual(self.heartbeat(joined), REBALANCE)
        self.assertEqual(self.synced(self.told(self.m, {"t": [0]})), {"t": [0, 1]})

    def test_claimed(self) -> None:
        """A cooperative member has what it joined with until it has learned of its assignment."""
        (joined,) = self.tell(self.m, {"t": [0, 1]})
        self.sync(joined, assignments=[MemberAssignment(self.m, assignment({"t": [0]}))])
        entered = self.enter(A, "t")
        self.assertEqual(self.given(entered), {})
        joined = self.told(self.m, {"t": [0, 1]})
        self.assertEqual(self.synced(joined), {"t": [0]})
        self.assertEqual(self.given(self.beat(A, entered.memberEpoch, owned={})), None)
        self.told(self.m, {"t": [0]})
        self.assertEqual(self.given(self.beat(A, entered.memberEpoch, owned={})), {"t": [1]})

    def test_lateFailure(self) -> None:
        """An append of the classic group that fails only then begins no rebalance of it."""
        (joined,) = self.tell(self.m)
        self.log.isHeld = True
        syncs = self.sync(joined, assignments=[MemberAssignment(self.m, b"")])
        answers = self.send(
            memberId=A,
            memberEpoch=0,
            subscribedTopicNames=["t"],
            rebalanceTimeoutMs=REBALANCE_MS,
            owned={},
        )
        self.assertEqual((self.codeOf(syncs), answers), (REBALANCE, []))
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.assertEqual(self.log.waiting, [])
        self.assertEqual(self.codeOf(answers), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.types(), {self.m: 0, A: 1})
        self.log.isHeld = False
        self.assertEqual(self.enter(A, "t").errorCode, 0)
        self.reload()
        self.assertEqual(self.types(), {self.m: 0, A: 1})

    def test_refusedBefore(self) -> None:
        """If the change is refused, so is what waits behind it: the log still has the members."""
        self.log.isHeld = True
        for memberId in (A, B):
            self.send(
                memberId=memberId,
                memberEpoch=0,
                subscribedTopicNames=["t"],
                rebalanceTimeoutMs=REBALANCE_MS,
                owned={},
            )
        while self.log.waiting:
            first, *behind = self.log.waiting
            self.log.waiting = [first]
            self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
            self.log.waiting += behind
            self.log.flush()
        self.reload()
        self.assertEqual(self.memberIds(), [self.m])
        self.assertEqual(self.heartbeat(self.joined), 0)

    def test_answersWait(self) -> None:
        """No answer comes before what it tells is appended."""
        self.both()
        self.log.isHeld = True
        self.advance(INTERVAL_MS)
        joins = self.tell("", topics=["u"])
        self.assertEqual(joins, [])
        self.log.flush()
        (joined,) = joins
        self.tell(joined.memberId, topics=["t", "u"])
        syncs = self.sync(joined)
        self.assertEqual(syncs, [])
        self.log.flush()
        self.assertEqual(len(syncs), 1)


class ClassicMemberTests(MixedCase):
    """What classic members of such a group may do."""

    def test_removedButOwning(self) -> None:
        """A member that was removed cannot join with what it has not given up."""
        joined = self.both()
        self.leave(LeavingMember(self.m))
        answers = self.tell(self.m, {"t": [0]})
        self.assertEqual(self.codeOf(answers), UNKNOWN)
        self.assertEqual(self.heartbeat(joined), UNKNOWN)
        self.told(self.m)

    def test_join(self) -> None:
        """A join is refused that does not fit, and one whose subscription cannot be read."""
        self.both()
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        for fields, code in (
            ({"protocolType": "other"}, inconsistent),
            ({"protocols": [JoinProtocol("nix", subscription("t"))]}, inconsistent),
            ({"protocols": []}, inconsistent),
            ({"protocols": [JoinProtocol("range", b"")]}, ErrorCode.UNKNOWN_SERVER_ERROR),
            ({"groupInstanceId": "i"}, UNKNOWN),
        ):
            (answer,) = self.join("somebody", **fields)
            self.assertEqual((answer.errorCode, answer.memberId), (code, ""), fields)
        (answer,) = self.tell("", version=4)
        self.assertEqual(answer.errorCode, ErrorCode.MEMBER_ID_REQUIRED)
        self.assertEqual(len(self.described().members), 2)
        joined = self.told(answer.memberId, version=4)
        self.assertEqual(joined.memberId, answer.memberId)
        self.coordinator._consumers._settings = replace(self.settings, consumerGroupMaxSize=3)
        self.assertEqual(self.codeOf(self.tell("")), ErrorCode.GROUP_MAX_SIZE_REACHED)

    def test_versionZero(self) -> None:
        """Version 0 has one time-out for both."""
        self.both()
        self.advance(INTERVAL_MS)
        joined = self.told("", version=0)
        self.advance(SESSION_MS - 1)
        self.assertIn(joined.memberId, self.types())
        self.advance(2)
        self.assertNotIn(joined.memberId, self.types())

    def test_requests(self) -> None:
        """Requests of another generation, instance or protocol are refused."""
        joined = self.both()
        illegal = ErrorCode.ILLEGAL_GENERATION
        other = joined._replace(generationId=joined.generationId + 1)
        self.assertEqual(self.heartbeat(other), illegal)
        self.assertEqual(self.codeOf(self.sync(other)), illegal)
        consumer = joined._replace(memberId=A)
        self.assertEqual(self.heartbeat(consumer), UNKNOWN)
        self.assertEqual(self.codeOf(self.sync(consumer)), UNKNOWN)
        self.assertEqual(self.heartbeat(joined, groupInstanceId="i"), UNKNOWN)
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        for fields in (
            {"protocolName": "sticky"},
            {"protocolType": "other"},
            {"protocolName": None},
        ):
            self.assertEqual(self.codeOf(self.sync(joined, **fields)), inconsistent)
        self.assertEqual(self.synced(joined, version=3, protocolName=None), {"t": [0]})

    def test_commits(self) -> None:
        """Its generation is its epoch, in every version; another one is illegal."""
        joined = self.both()
        generation = joined.generationId
        for version in (8, 9):
            self.assertEqual(self.commitAs(self.m, generation, version=version), 0)
            for other in (generation + 1, 0):
                code = self.commitAs(self.m, other, version=version)
                self.assertEqual(code, ErrorCode.ILLEGAL_GENERATION)
        self.assertEqual(self.fetchAs(self.m, generation), 0)
        self.assertEqual(self.fetchAs(self.m, 0), ErrorCode.ILLEGAL_GENERATION)

    def test_unreleased(self) -> None:
        """One that waits for a partition is told to join again when that is free, not before."""
        self.both()
        self.beat(A, -1)
        self.leave(LeavingMember(self.m))
        self.enter(A, "t")
        joined = self.told("")
        self.advance(INTERVAL_MS)
        epoch = self.epochs()[A]
        self.beat(A, epoch)
        joined = self.told(joined.memberId)
        self.assertEqual(self.synced(joined), {})
        self.assertEqual(self.heartbeat(joined), 0)
        self.beat(A, epoch, owned={"t": [0]})
        self.assertEqual(self.heartbeat(joined), REBALANCE)
        joined = self.told(joined.memberId)
        self.assertEqual(self.synced(joined), {"t": [1]})
        self.assertEqual(self.heartbeat(joined), 0)

    def test_session(self) -> None:
        """Its session has the length that it asked for; it is gone when that is over."""
        joined = self.both()
        for _ in range(3):
            self.advance(SESSION_MS - 1)
            self.assertEqual(self.heartbeat(joined), 0)
        self.assertEqual(self.types(), {self.m: 0, A: 1})
        self.beat(A, joined.generationId)
        self.advance(SESSION_MS)
        self.assertEqual(self.types(), {A: 1})
        self.advance(INTERVAL_MS)
        answer = self.beat(A, joined.generationId, owned={"t": [1]})
        self.assertEqual(self.given(answer), {"t": [0, 1]})

    def test_upgradedSession(self) -> None:
        """The session of a member that was there before begins with the upgrade."""
        self.enter(A, "t")
        self.advance(SESSION_MS)
        self.assertEqual(self.types(), {A: 1})

    def test_noJoin(self) -> None:
        """One that does not join again in its time is gone, though it shows that it lives."""
        joined = self.both()
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, joined.generationId)
        for _ in range(REBALANCE_MS // SESSION_MS):
            self.assertEqual(self.heartbeat(joined), REBALANCE)
            self.assertEqual(self.codeOf(self.sync(joined)), REBALANCE)
            self.advance(SESSION_MS - 1)
            self.beat(A, self.epochs()[A])
        self.assertIn(self.m, self.types())
        self.assertEqual(self.heartbeat(joined), REBALANCE)
        self.advance(REBALANCE_MS // SESSION_MS + 1)
        self.assertNotIn(self.m, self.types())

    def test_noSync(self) -> None:
        """Nor is one that joins and does not ask for its assignment."""
        self.both()
        self.leave(LeavingMember(self.m))
        self.advance(INTERVAL_MS)
        joined = self.told("", topics=["u"])
        for _ in range(REBALANCE_MS // SESSION_MS):
            self.advance(SESSION_MS - 1)
            self.assertEqual(self.heartbeat(joined), 0)
            self.beat(A, self.epochs()[A])
        self.advance(REBALANCE_MS // SESSION_MS + 1)
        self.assertNotIn(joined.memberId, self.types())

    def test_otherProtocol(self) -> None:
        """A member that goes on with the new protocol under its id has no classic time-outs."""
        self.both()
        self.told(self.m, {"t": [0]})
        answer = self.enter(self.m, "t")
        self.assertEqual(answer.errorCode, 0)
        self.assertEqual(self.types(), {self.m: 1, A: 1})
        for _ in range(2 * REBALANCE_MS // SESSION_TIMEOUT_MS + 1):
            self.advance(SESSION_TIMEOUT_MS - 1)
            self.beat(self.m, self.epochs()[self.m])
        self.assertEqual(self.types(), {self.m: 1})


class DowngradeTests(MixedCase):
    """The last member of the new protocol goes."""

    def again(self, joined: JoinGroupAnswer) -> JoinGroupAnswer:
        """The classic member joins again, and leads the group."""
        self.assertEqual(self.state(), "PreparingRebalance")
        (answer,) = self.tell(self.m)
        self.assertEqual((answer.errorCode, answer.leader), (0, self.m))
        given = [MemberAssignment(self.m, assignment({"t": [0, 1]}))]
        self.assertEqual(self.synced(answer, assignments=given), {"t": [0, 1]})
        found: JoinGroupAnswer = answer
        return found

    def test_leaves(self) -> None:
        """It leaves: the group is classic, and its members join again."""
        joined = self.both()
        self.commitAs(self.m, joined.generationId)
        self.assertEqual(self.codeOf(self.send(memberId=A, memberEpoch=-1)), 0)
        self.assertEqual(self.described().errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.assertEqual(self.heartbeat(joined), REBALANCE)
        self.again(joined)
        self.assertEqual(self.position(), 5)
        self.reload()
        self.assertEqual((self.state(), self.memberIds()), ("Stable", [self.m]))
        self.assertEqual(self.position(), 5)

    def test_loaded(self) -> None:
        """A coordinator that takes over before the members have joined again lets them do so."""
        joined = self.both()
        self.beat(A, -1)
        for _ in range(2):
            self.reload()
            self.assertEqual(self.heartbeat(joined), REBALANCE)
        self.again(joined)
        self.reload()
        self.assertEqual((self.state(), self.memberIds()), ("Stable", [self.m]))

    def test_loadedAndBack(self) -> None:
        """One that takes over finds what each member owns."""
        self.both()
        self.beat(A, -1)
        self.reload()
        self.assertEqual(self.given(self.enter(B, "t")), {"t": [1]})
        self.assertEqual(self.owned()[self.m], {"t": [0]})

    def test_silent(self) -> None:
        """The group is classic again if its last member of KIP-848 is silent for too long."""
        joined = self.both()
        for _ in range(SESSION_TIMEOUT_MS // SESSION_MS + 1):
            self.advance(SESSION_MS - 1)
            self.heartbeat(joined)
        self.again(joined)

    def test_removed(self) -> None:
        """The group is classic again if an administrator removes its last member of KIP-848."""
        joined = self.both()
        (answer,) = self.leave(LeavingMember(A))
        self.assertEqual([each.errorCode for each in answer.members], [0])
        self.again(joined)

    def test_patterns(self) -> None:
        """Its pattern is no more."""
        self.enter(A, subscribedTopicNames=None, subscribedTopicRegex="u")
        self.advance(1)
        self.beat(A, -1)
        self.again(self.joined)
        self.reload()
        self.assertEqual(self.memberIds(), [self.m])

    def test_notAllowed(self) -> None:
        """Without leave to do so, the group stays with its classic members; the last one goes."""
        joined = self.both()
        self.coordinator._consumers._settings = replace(self.settings, mayDowngrade=False)
        self.beat(A, -1)
        self.assertEqual(self.types(), {self.m: 0})
        self.advance(INTERVAL_MS)
        self.assertEqual(self.heartbeat(joined), REBALANCE)
        self.assertEqual(self.synced(self.told(self.m, {"t": [0]})), {"t": [0, 1]})
        self.leave(LeavingMember(self.m))
        self.assertEqual(self.described().groupState, "Empty")

    def test_tooMany(self) -> None:
        """The group stays as it is if a classic one may not have that number of members."""
        self.both()
        self.coordinator._consumers._settings = replace(self.settings, groupMaxSize=0)
        self.beat(A, -1)
        self.assertEqual(self.types(), {self.m: 0})

    def test_notAppended(self) -> None:
        """If the records fail, the first generation puts an end to the group before."""
        joined = self.both()
        self.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        answers = self.send(memberId=A, memberEpoch=-1)
        self.assertEqual(self.codeOf(answers), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.log.error = ErrorCode.NONE
        self.again(joined)
        self.reload()
        self.assertEqual((self.state(), self.memberIds()), ("Stable", [self.m]))

    def test_answerWaits(self) -> None:
        """A member that leaves is answered when the classic group is in the log."""
        self.both()
        self.log.isHeld = True
        answers = self.send(memberId=A, memberEpoch=-1)
        self.assertEqual(answers, [])
        self.log.flush()
        self.assertEqual(self.codeOf(answers), 0)

    def test_backAtOnce(self) -> None:
        """What a member has is its own still if the group changes back before it has joined."""
        self.enter(A, "t")
        self.beat(A, -1)
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.given(self.enter(B, "t")), {})
        self.assertEqual(self.owned()[self.m], {"t": [0, 1]})


class InstanceTests(MixedCase):
    """Static members that go on with the other protocol."""

    def setUp(self) -> None:
        ConsumerCase.setUp(self)
        self.joined = self.classic(groupInstanceId="i")
        self.m = self.joined.memberId

    def test_upgrade(self) -> None:
        """A process of the new protocol takes the place at once, with what was its part."""
        answer = self.enter(A, "t", instanceId="i")
        self.assertEqual(self.given(answer), {"t": [0, 1]})
        self.assertEqual(self.types(), {A: 1})
        self.assertEqual(
            self.heartbeat(self.joined, groupInstanceId="i"), ErrorCode.FENCED_INSTANCE_ID
        )
        self.assertEqual(
            self.codeOf(self.tell(self.m, groupInstanceId="i")), ErrorCode.FENCED_INSTANCE_ID
        )
        self.reload()
        self.assertEqual(self.owned(), {A: {"t": [0, 1]}})

    def test_upgradeInRebalance(self) -> None:
        """A member that had only asked to join has a part, too, if nothing else changes."""
        self.assertEqual(self.tell(""), [])
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.given(self.enter(A, "t", instanceId="i")), {"t": [0]})

    def test_downgrade(self) -> None:
        """One of the classic protocol takes it back: without a rebalance, if nothing changes."""
        self.enter(A, "t", instanceId="i")
        joined = self.told("", groupInstanceId="i")
        self.assertEqual((self.state(), self.memberIds()), ("Stable", [joined.memberId]))
        self.assertEqual(self.heartbeat(joined, groupInstanceId="i"), 0)
        self.assertEqual(self.synced(joined, groupInstanceId="i"), {"t": [0, 1]})
        self.assertEqual(self.beat(A, 1, instanceId="i").errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.reload()
        self.assertEqual((self.state(), self.memberIds()), ("Stable", [joined.memberId]))

    def downgrade(self) -> tuple[list[JoinGroupAnswer], list[SyncGroupAnswer]]:
        """It does so; a sync comes, too, before the log has it."""
        epoch = self.enter(A, "t", instanceId="i").memberEpoch
        self.log.isHeld = True
        joins = self.tell("", groupInstanceId="i")
        (memberId,) = self.memberIds()
        joined = JoinGroupAnswer(0, epoch, "consumer", "range", memberId=memberId)
        return joins, self.sync(joined, groupInstanceId="i")

    def test_downgradeInTheLog(self) -> None:
        """Its assignment is told when the classic group is in the log."""
        joins, syncs = self.downgrade()
        self.assertEqual((joins, syncs), ([], []))
        self.log.flush()
        self.assertEqual((self.codeOf(joins), self.codeOf(syncs)), (0, 0))

    def test_downgradeNotAppended(self) -> None:
        """If the records fail, a rebalance begins, whose generation is in the log."""
        joins, syncs = self.downgrade()
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.assertEqual(self.codeOf(joins), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.codeOf(syncs), REBALANCE)
        self.assertEqual(self.state(), "PreparingRebalance")

    def test_downgradeWithOtherTopics(self) -> None:
        """With other topics it begins a rebalance."""
        self.enter(A, "t", instanceId="i")
        joined = self.told("", groupInstanceId="i", topics=["u"])
        self.assertEqual(self.state(), "PreparingRebalance")
        (again,) = self.tell(joined.memberId, groupInstanceId="i", topics=["u"])
        self.assertEqual((again.errorCode, again.leader), (0, joined.memberId))

    def test_downgradeLoaded(self) -> None:
        """A start in this rebalance goes on with it: the next process that comes assigns."""
        self.enter(A, "t", instanceId="i")
        self.told("", groupInstanceId="i", topics=["u"])
        self.reload()
        self.assertEqual(self.state(), "PreparingRebalance")
        (again,) = self.tell("", groupInstanceId="i", topics=["u"])
        self.assertEqual((again.leader, again.skipAssignment), (again.memberId, False))
        self.assertEqual([each.memberId for each in again.members], [again.memberId])

    def test_sameId(self) -> None:
        """A static member may go on with the classic protocol under its id."""
        self.enter(A, "t", instanceId="i")
        joined = self.told(A, {"t": [0, 1]}, groupInstanceId="i")
        self.assertEqual(self.synced(joined, groupInstanceId="i"), {"t": [0, 1]})
        self.assertEqual(self.memberIds(), [A])

    def test_notTheLast(self) -> None:
        """While there is another member of the new protocol, the group stays what it is."""
        self.enter(A, "t", instanceId="i")
        self.enter(B, "u")
        joined = self.told("", groupInstanceId="i")
        self.assertEqual(self.types(), {joined.memberId: 0, B: 1})
        self.assertEqual(self.synced(joined, groupInstanceId="i"), {"t": [0, 1]})
        again: list[SyncGroupAnswer] = self.sync(joined, groupInstanceId="j")
        self.assertEqual(self.codeOf(again), UNKNOWN)

    def test_newInstance(self) -> None:
        """An instance that the group does not know is one member more."""
        self.enter(B, "u")
        joined = self.told("", groupInstanceId="j")
        self.assertEqual(self.types(), {self.m: 0, joined.memberId: 0, B: 1})

    def test_classicAgain(self) -> None:
        """Another process of the classic protocol takes the place of one, too."""
        self.enter(B, "u")
        joined = self.told("", groupInstanceId="i")
        self.assertNotEqual(joined.memberId, self.m)
        self.assertEqual(self.types(), {joined.memberId: 0, B: 1})
        self.assertEqual(self.synced(joined, groupInstanceId="i"), {"t": [0, 1]})
