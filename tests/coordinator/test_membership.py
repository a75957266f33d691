"""
Joins, syncs, heartbeats, leaves and sessions of classic groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    JoinedMember,
    JoinGroup,
    JoinGroupAnswer,
    JoinProtocol,
    LeavingMember,
    LeftMember,
    MemberAssignment,
)
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.offsetstopic import GroupMetadataKey, decodeKey, decodeStoredGroup
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupcase import (
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    GroupCase,
    subscription,
)

ROUND_ROBIN = JoinProtocol("roundrobin", b"rr")
OTHER = (JoinProtocol("range", subscription("u")),)


class JoinTests(GroupCase):
    """Becoming a member."""

    def test_alone(self) -> None:
        """The only member leads the first generation, and sees its own metadata."""
        (joined,) = self.join()
        self.assertEqual(joined.errorCode, 0)
        self.assertEqual(joined.generationId, 1)
        self.assertEqual((joined.protocolType, joined.protocolName), ("consumer", "range"))
        self.assertEqual(joined.leader, joined.memberId)
        self.assertEqual(joined.members, [JoinedMember(joined.memberId, None, RANGE[0].metadata)])
        self.assertTrue(joined.memberId.startswith("client-"))
        self.assertEqual(self.state(), "CompletingRebalance")

    def test_memberIdRequired(self) -> None:
        """From version 4 a dynamic member is given an id, with which it joins."""
        (refused,) = self.join(version=4)
        self.assertEqual(refused.errorCode, ErrorCode.MEMBER_ID_REQUIRED)
        self.assertEqual((refused.generationId, refused.protocolName), (-1, ""))
        self.assertEqual(self.state(), "Empty")
        (joined,) = self.join(refused.memberId, version=4)
        self.assertEqual((joined.errorCode, joined.memberId), (0, refused.memberId))

    def test_nullProtocol(self) -> None:
        """From version 7 an answer without a protocol has none, not an empty one."""
        self.assertIs(self.join(version=7)[0].protocolName, None)

    def test_idNotUsed(self) -> None:
        """An id that was given is forgotten after the session time-out."""
        (refused,) = self.join(version=4)
        self.advance(SESSION_MS)
        (late,) = self.join(refused.memberId, version=4)
        self.assertEqual(late.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)

    def test_idNotUsedHoldsUp(self) -> None:
        """A rebalance waits for ids that were given, but not beyond the session time-out."""
        (first,) = self.stable()
        self.join(version=4)
        second = self.join()
        again = self.join(first.memberId)
        self.advance(SESSION_MS - 1)
        self.assertEqual((again, second), ([], []))
        self.advance(1)
        self.assertEqual([again[0].generationId, second[0].generationId], [2, 2])

    def test_oldestVersion(self) -> None:
        """In version 0 the session time-out is the rebalance time-out, too."""
        (joined,) = self.join(version=0, rebalanceTimeoutMs=-1)
        self.sync(joined, version=0)
        stored = decodeStoredGroup(self.log.records[-1][1][1] or b"")
        self.assertEqual(stored.members[0].rebalanceTimeoutMs, SESSION_MS)
        self.join(joined.memberId, version=0, rebalanceTimeoutMs=-1)
        self.assertEqual(self.state(), "CompletingRebalance")

    def test_unknownMember(self) -> None:
        """Only a member that has no id yet can begin a group, or come into it."""
        (answer,) = self.join("nobody")
        self.assertEqual(
            (answer.errorCode, answer.memberId), (ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
        )
        self.stable()
        (answer,) = self.join("nobody")
        self.assertEqual(answer.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)

    def test_sessionTimeout(self) -> None:
        """The session time-out has bounds."""
        for timeoutMs in (5_999, 1_800_001):
            (answer,) = self.join("m", sessionTimeoutMs=timeoutMs)
            self.assertEqual(
                (answer.errorCode, answer.memberId), (ErrorCode.INVALID_SESSION_TIMEOUT, "m")
            )

    def test_noGroup(self) -> None:
        """The group id must not be empty."""
        self.assertEqual(self.join(groupId="")[0].errorCode, ErrorCode.INVALID_GROUP_ID)

    def test_noProtocols(self) -> None:
        """A member needs a type and a protocol, and one that all members know."""
        refusals = [
            self.join(protocols=()),
            self.join(protocolType=""),
        ]
        (first,) = self.stable()
        refusals += [
            self.join(protocolType="connect"),
            self.join(protocols=[ROUND_ROBIN]),
            self.join(first.memberId, protocols=[ROUND_ROBIN]),
        ]
        self.assertEqual(
            {each.errorCode for (each,) in refusals}, {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
        )

    def test_selection(self) -> None:
        """The protocol is one that all members know, and that most of them put first."""
        range_, sticky = RANGE[0], JoinProtocol("sticky", b"")
        first = self.join(protocols=[range_, sticky, ROUND_ROBIN])
        second = self.join(protocols=[ROUND_ROBIN, sticky])
        third = self.join(protocols=[ROUND_ROBIN, sticky, range_])
        # Known to all are sticky and roundrobin.
        first = self.join(first[0].memberId, protocols=[range_, sticky, ROUND_ROBIN, sticky])
        names = {each.protocolName for (each,) in (first, second, third)}
        self.assertEqual(names, {"roundrobin"})

    def test_tie(self) -> None:
        """At a tie it is the one that Java's hash table, which Kafka looks into, has first."""
        for names, chosen in (
            (["range", "roundrobin"], "range"),
            (["roundrobin", "range"], "range"),
            (["sticky", "cooperative-sticky", "range", "roundrobin"], "sticky"),
            ([f"proto-{7 * number}" for number in range(14)], "proto-14"),
        ):
            self.coordinator = self.make()
            protocols = [JoinProtocol(name, b"") for name in names]
            joins = [self.join(protocols=[favourite, *protocols]) for favourite in protocols]
            joins[0] = self.join(joins[0][0].memberId, protocols=protocols)
            self.assertEqual({each.protocolName for (each,) in joins}, {chosen})

    def test_rejoinWhileCompleting(self) -> None:
        """
        A member that joins again with the same metadata gets the generation that has begun; with
        others, it begins a rebalance.
        """
        (joined,) = self.join()
        self.assertEqual(self.join(joined.memberId), [joined])
        waiting = self.join()
        leader = self.join(joined.memberId)
        self.assertEqual(self.join(waiting[0].memberId)[0].members, [])
        self.assertEqual(leader[0].generationId, 2)
        changed = self.join(waiting[0].memberId, protocols=OTHER)
        self.assertEqual((changed, self.state()), ([], "PreparingRebalance"))

    def test_rejoinWhileStable(self) -> None:
        """A leader that joins again begins a rebalance, a follower with the same metadata not."""
        leader, follower = self.stable(2)
        (again,) = self.join(follower.memberId)
        self.assertEqual((again.generationId, again.members), (2, []))
        self.assertEqual(self.state(), "Stable")
        self.assertEqual(self.join(follower.memberId, protocols=OTHER), [])
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.join(leader.memberId)[0].generationId, 3)

    def test_joinTwice(self) -> None:
        """A member that joins again while its join waits gets the first one answered."""
        leader, follower = self.stable(2)
        first = self.join(leader.memberId)
        second = self.join(leader.memberId)
        self.assertEqual(first[0].errorCode, ErrorCode.REBALANCE_IN_PROGRESS)
        self.join(follower.memberId)
        self.assertEqual(second[0].generationId, 3)

    def test_notJoined(self) -> None:
        """A dynamic member that does not join within the rebalance time-out is removed."""
        leader, follower = self.stable(2)
        waiting = self.join(follower.memberId, protocols=OTHER)
        for _ in range(6):
            self.advance(SESSION_MS - 1)
            self.assertEqual(self.heartbeat(leader), ErrorCode.REBALANCE_IN_PROGRESS)
            self.assertEqual(waiting, [])
        self.advance(REBALANCE_MS - 6 * (SESSION_MS - 1))
        self.assertEqual(waiting[0].leader, follower.memberId)
        self.assertEqual(self.memberIds(), [follower.memberId])
        self.assertEqual(self.heartbeat(leader), ErrorCode.UNKNOWN_MEMBER_ID)

    def test_longestTimeout(self) -> None:
        """The longest rebalance time-out of any member counts."""
        leader, _ = self.stable(2)
        waiting = self.join(leader.memberId, rebalanceTimeoutMs=1)
        self.advance(1_000)
        self.assertEqual(waiting, [])

    def test_newMemberGivesUp(self) -> None:
        """A new member does not wait for ever: it may be dead, and have come back as another."""
        self.coordinator = self.make(
            GroupSettings(initialRebalanceDelayMs=0, newMemberJoinTimeoutMs=5_000)
        )
        (leader,) = self.stable()
        waiting = self.join()
        self.advance(5_000)
        self.assertEqual(
            (waiting[0].errorCode, waiting[0].memberId), (ErrorCode.UNKNOWN_MEMBER_ID, "")
        )
        self.assertEqual(self.join(leader.memberId)[0].generationId, 2)

    def test_maximumSize(self) -> None:
        """A group has no more members than C{group.max.size}, in each state."""
        self.coordinator = self.make(GroupSettings(initialRebalanceDelayMs=0, groupMaxSize=1))
        (leader,) = self.join()
        full = ErrorCode.GROUP_MAX_SIZE_REACHED
        self.assertEqual(self.join()[0].errorCode, full)
        self.sync(leader)
        self.assertEqual(self.join()[0].errorCode, full)
        self.assertEqual(self.state(), "Stable")
        self.assertEqual(self.join(leader.memberId)[0].generationId, 2)

    def test_maximumSizePreparing(self) -> None:
        """
        While a rebalance is prepared, those that join first are admitted; a member for which there
        is no room any more is removed.
        """
        self.coordinator = self.make(GroupSettings(initialRebalanceDelayMs=0, groupMaxSize=2))
        leader, follower = self.stable(2)
        late = self.join(leader.memberId)
        self.assertEqual(self.join(follower.memberId)[0].generationId, 3)
        self.assertEqual(len(late), 1)
        self.join(leader.memberId, protocols=OTHER)
        (given,) = self.join(version=4)
        again = self.join(leader.memberId, protocols=OTHER)
        self.assertEqual(again, [])
        new = self.join(given.memberId)
        self.assertEqual(new, [])
        (refused,) = self.join(follower.memberId)
        self.assertEqual(
            (refused.errorCode, refused.memberId), (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        )
        self.assertNotIn(follower.memberId, self.memberIds())

    def test_limits(self) -> None:
        """
        Groups, members, ids that were given and bytes of metadata have limits; what is there
        already goes on.
        """
        full = ErrorCode.GROUP_MAX_SIZE_REACHED

        for limits, isFull in (
            ({"groupCountMax": 1}, lambda: self.join(groupId="h")),
            ({"memberCountMax": 1}, lambda: self.join()),
            ({"memberCountMax": 1}, lambda: self.join(groupId="h")),
            (
                {"memberMetadataSizeMax": 20},
                lambda: self.join(protocols=[JoinProtocol("range", bytes(16))]),
            ),
            (
                {"metadataSizeMax": 40},
                lambda: self.join(protocols=[JoinProtocol("range", bytes(30))]),
            ),
        ):
            self.coordinator = self.make(replace(self.settings, **dict[str, Any](limits)))
            (leader,) = self.join(protocols=[JoinProtocol("range", b"x")])
            self.assertEqual(leader.errorCode, 0)
            self.assertEqual(isFull()[0].errorCode, full)
            again = self.join(leader.memberId, protocols=[JoinProtocol("range", b"x")])
            self.assertEqual(again[0].errorCode, 0)
            self.assertEqual(self.leave(LeavingMember(leader.memberId))[0].errorCode, 0)
        self.coordinator = self.make(GroupSettings(initialRebalanceDelayMs=0, memberCountMax=1))
        (given,) = self.join(version=4)
        self.assertEqual(self.join(version=4)[0].errorCode, full)
        self.assertEqual(self.join(given.memberId, version=4)[0].errorCode, 0)

    def test_longClientId(self) -> None:
        """A member id fits the protocol however long the client's is."""
        request = JoinGroup(GROUP, SESSION_MS, REBALANCE_MS, protocols=RANGE)
        answers: list[JoinGroupAnswer] = []
        self.coordinator.joinGroup(ClientContext(3, "x" * 32_767), request, answers.append)
        self.assertTrue(len(answers[0].memberId) < 10_000)


class InitialDelayTests(GroupCase):
    """A new group waits for more members."""

    settings = GroupSettings(initialRebalanceDelayMs=3_000)

    def test_oneMember(self) -> None:
        """After the delay the only member begins."""
        joined = self.join()
        self.advance(2_999)
        self.assertEqual(joined, [])
        self.advance(1)
        self.assertEqual(joined[0].generationId, 1)

    def test_putOff(self) -> None:
        """Each member that comes puts the beginning off, up to the rebalance time-out."""
        joins = [self.join(rebalanceTimeoutMs=7_000)]
        for _ in range(3):
            self.advance(2_000)
            self.assertEqual(joins[0], [])
            joins.append(self.join(rebalanceTimeoutMs=7_000))
        self.advance(999)
        self.assertEqual(joins[0], [])
        self.advance(1)
        self.assertEqual({each.generationId for (each,) in joins}, {1})
        self.assertEqual(len(joins[0][0].members), 4)

    def test_allGone(self) -> None:
        """If all leave meanwhile, the group is empty after the delay."""
        (given,) = self.join(version=4)
        self.join(given.memberId, version=4)
        self.leave(LeavingMember(given.memberId))
        self.assertEqual(self.state(), "PreparingRebalance")
        self.advance(3_000)
        self.assertEqual(self.state(), "Empty")

    def test_pendingGone(self) -> None:
        """The first member of all may go before it has joined."""
        (given,) = self.join(version=4)
        (left,) = self.leave(LeavingMember(given.memberId))
        self.assertEqual(left.members, [LeftMember(given.memberId, None, 0)])
        self.assertEqual(self.state(), "Empty")


class SyncTests(GroupCase):
    """Getting one's assignment."""

    def test_assignments(self) -> None:
        """Followers wait for the leader; each gets its own, or none."""
        waiting = [self.join()]
        waiting.append(self.join())
        waiting[0] = self.join(waiting[0][0].memberId)
        leader, follower = waiting[0][0], waiting[1][0]
        theirs = self.sync(follower)
        self.assertEqual(theirs, [])
        (mine,) = self.sync(leader, assignments=[MemberAssignment(follower.memberId, b"a")])
        self.assertEqual((mine.errorCode, mine.assignment), (0, b""))
        self.assertEqual((theirs[0].assignment, theirs[0].protocolName), (b"a", "range"))
        self.assertEqual(self.sync(follower)[0].assignment, b"a")

    def test_notBeforeAppended(self) -> None:
        """No assignment is given out before its record is appended."""
        (leader,) = self.join()
        self.log.isHeld = True
        mine = self.sync(leader)
        self.assertEqual((mine, self.state()), ([], "CompletingRebalance"))
        self.log.flush()
        self.assertEqual((len(mine), self.state()), (1, "Stable"))

    def test_appendFails(self) -> None:
        """If the append fails, members are told, and join again."""
        (leader,) = self.join()
        self.log.isHeld = True
        mine = self.sync(leader)
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.assertEqual(mine[0].errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.join(leader.memberId)[0].generationId, 2)

    def test_overtaken(self) -> None:
        """An assignment that is appended after the next rebalance has begun is not given out."""
        (leader,) = self.join()
        self.log.isHeld = True
        mine = self.sync(leader)
        other = self.join()
        self.assertEqual(mine[0].errorCode, ErrorCode.REBALANCE_IN_PROGRESS)
        self.log.flush()
        self.assertEqual(self.state(), "PreparingRebalance")
        (again,) = self.join(leader.memberId)
        self.assertEqual((again.generationId, len(other)), (2, 1))

    def test_twice(self) -> None:
        """
        A leader that syncs again, while its assignment is being appended, does not change it; the
        first sync is answered.
        """
        (leader,) = self.join()
        self.log.isHeld = True
        first = self.sync(leader)
        second = self.sync(leader, assignments=[MemberAssignment(leader.memberId, b"other")])
        self.assertEqual(first[0].errorCode, ErrorCode.REBALANCE_IN_PROGRESS)
        self.log.flush()
        self.assertEqual(second[0].assignment, leader.memberId.encode())

    def test_refused(self) -> None:
        """Members of other generations, groups and protocols are told so."""
        (leader,) = self.join()
        for fields, error in (
            ({"groupId": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"groupId": "h"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"memberId": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generationId": 2}, ErrorCode.ILLEGAL_GENERATION),
            ({"protocolType": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocolName": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocolName": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ):
            self.assertEqual(self.sync(leader, **fields)[0].errorCode, error, fields)
        self.join()
        self.assertEqual(self.sync(leader)[0].errorCode, ErrorCode.REBALANCE_IN_PROGRESS)

    def test_oldVersions(self) -> None:
        """Before version 5 a sync does not name the protocol."""
        (leader,) = self.join()
        (mine,) = self.sync(leader, version=4, protocolType=None, protocolName=None)
        self.assertEqual(mine.errorCode, 0)

    def test_emptyGroup(self) -> None:
        """An empty group has no assignments."""
        (leader,) = self.stable()
        self.leave(LeavingMember(leader.memberId))
        self.assertEqual(self.sync(leader)[0].errorCode, ErrorCode.UNKNOWN_MEMBER_ID)

    def test_overdue(self) -> None:
        """A member that does not sync within the rebalance time-out is removed."""
        waiting = [self.join()]
        waiting.append(self.join())
        waiting[0] = self.join(waiting[0][0].memberId)
        leader, follower = waiting[0][0], waiting[1][0]
        self.sync(leader)
        for _ in range(6):
            self.advance(SESSION_MS - 1)
            self.assertEqual(self.heartbeat(leader), 0)
            self.assertEqual(self.heartbeat(follower), 0)
        self.advance(6)
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.memberIds(), [leader.memberId])

    def test_overdueAlone(self) -> None:
        """A leader that never assigns is removed; if it was the only member, the group is empty."""
        self.join(sessionTimeoutMs=100_000)
        self.advance(REBALANCE_MS)
        self.assertEqual(self.state(), "Empty")

    def test_tooMuch(self) -> None:
        """Assignments that are too large are refused."""
        self.coordinator = self.make(GroupSettings(initialRebalanceDelayMs=0, metadataSizeMax=100))
        (leader,) = self.join()
        (mine,) = self.sync(leader, assignments=[MemberAssignment(leader.memberId, bytes(90))])
        self.assertEqual(mine.errorCode, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.assertEqual(self.state(), "PreparingRebalance")

    def test_joinAgainIsALife(self) -> None:
        """A member that has not got the answer to its join, and asks again, keeps its session."""
        leader, follower = self.stable(2)
        self.advance(SESSION_MS - 1)
        self.heartbeat(leader)
        self.join(follower.memberId)
        self.advance(SESSION_MS - 1)
        self.assertEqual(self.heartbeat(leader), 0)
        self.assertEqual(self.heartbeat(follower), 0)

    def test_waitingIsALife(self) -> None:
        """A member that waits for the leader does not lose its session; it begins anew then."""
        waiting = [self.join()]
        waiting.append(self.join())
        waiting[0] = self.join(waiting[0][0].memberId)
        leader, follower = waiting[0][0], waiting[1][0]
        theirs = self.sync(follower)
        for _ in range(4):
            self.advance(SESSION_MS - 1)
            self.heartbeat(leader)
        self.sync(leader)
        self.assertEqual(theirs[0].errorCode, 0)
        self.advance(SESSION_MS - 1)
        self.assertEqual(len(self.memberIds()), 2)
        self.heartbeat(leader)
        self.advance(1)
        self.assertEqual(self.memberIds(), [leader.memberId])


class HeartbeatTests(GroupCase):
    """Sessions."""

    def test_errors(self) -> None:
        """A heartbeat tells a member what has become of its group and generation."""
        (leader,) = self.join()
        self.assertEqual(self.heartbeat(leader), 0)
        self.sync(leader)
        self.assertEqual(self.heartbeat(leader), 0)
        for fields, error in (
            ({"groupId": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"groupId": "h"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"memberId": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"groupInstanceId": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generationId": 7}, ErrorCode.ILLEGAL_GENERATION),
        ):
            self.assertEqual(self.heartbeat(leader, **fields), error, fields)
        self.join()
        self.assertEqual(self.heartbeat(leader), ErrorCode.REBALANCE_IN_PROGRESS)

    def test_silence(self) -> None:
        """A silent member is removed when its session ends, not before; the others rebalance."""
        _, follower = self.stable(2)
        self.advance(SESSION_MS - 1)
        self.heartbeat(follower)
        self.assertEqual(self.state(), "Stable")
        self.advance(1)
        self.assertEqual(
            (self.state(), self.memberIds()), ("PreparingRebalance", [follower.memberId])
        )
        (joined,) = self.join(follower.memberId)
        self.assertEqual((joined.leader, joined.generationId), (follower.memberId, 3))

    def test_silenceWhilePreparing(self) -> None:
        """A rebalance goes on when the last one that has not joined is removed."""
        leader, _ = self.stable(2)
        waiting = self.join(leader.memberId)
        third = self.join()
        self.advance(SESSION_MS)
        self.assertEqual((waiting[0].generationId, third[0].generationId), (3, 3))

    def test_silenceOfOneOfTwo(self) -> None:
        """A rebalance waits for the others when one that has not joined is removed."""
        leader, _, third = self.stable(3)
        waiting = self.join(leader.memberId)
        self.advance(SESSION_MS - 1)
        self.heartbeat(third)
        self.advance(1)
        self.assertEqual((waiting, len(self.memberIds())), ([], 2))

    def test_allSilent(self) -> None:
        """A group whose members have all gone silent is empty; that is appended."""
        self.stable(2)
        self.advance(SESSION_MS)
        self.assertEqual((self.state(), self.memberIds()), ("Empty", []))
        stored = decodeStoredGroup(self.log.records[-1][1][1] or b"")
        self.assertEqual((stored.generation, stored.members, stored.protocol), (3, (), None))

    def test_joinIsALife(self) -> None:
        """A member that waits in a join does not lose its session."""
        leader, follower = self.stable(2)
        waiting = self.join(leader.memberId)
        for _ in range(5):
            self.advance(SESSION_MS - 1)
            self.heartbeat(follower)
        self.assertEqual(len(self.memberIds()), 2)
        self.join(follower.memberId)
        self.assertEqual(waiting[0].generationId, 3)


class LeaveTests(GroupCase):
    """Leaving."""

    def test_leave(self) -> None:
        """A member that leaves is gone at once, and the others rebalance."""
        leader, follower = self.stable(2)
        (answer,) = self.leave(LeavingMember(leader.memberId), LeavingMember("nobody"))
        self.assertEqual(
            answer.members,
            [
                LeftMember(leader.memberId, None, 0),
                LeftMember("nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
            ],
        )
        self.assertEqual(
            (self.state(), self.memberIds()), ("PreparingRebalance", [follower.memberId])
        )

    def test_whilePreparing(self) -> None:
        """A rebalance goes on when the last one that has not joined leaves."""
        leader, follower = self.stable(2)
        waiting = self.join(leader.memberId)
        self.leave(LeavingMember(follower.memberId))
        self.assertEqual(waiting[0].generationId, 3)

    def test_whileWaiting(self) -> None:
        """A join or sync of a member that leaves is answered."""
        leader, follower = self.stable(2)
        waiting = self.join(leader.memberId)
        self.leave(LeavingMember(leader.memberId))
        self.assertEqual(waiting[0].errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
        self.join(follower.memberId)
        self.log.isHeld = True
        (again,) = self.join(follower.memberId)
        mine = self.sync(again)
        self.leave(LeavingMember(follower.memberId))
        self.assertEqual(mine[0].errorCode, ErrorCode.UNKNOWN_MEMBER_ID)

    def test_last(self) -> None:
        """When the last member leaves, the answer waits until that is appended."""
        (leader,) = self.stable()
        self.log.isHeld = True
        answers = self.leave(LeavingMember(leader.memberId))
        self.assertEqual((answers, self.state()), ([], "Empty"))
        self.log.flush()
        self.assertEqual(answers[0].errorCode, 0)

    def test_lastFails(self) -> None:
        """If that cannot be appended, the client is told; the group is empty all the same."""
        (leader,) = self.stable()
        self.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        (answer,) = self.leave(LeavingMember(leader.memberId))
        self.assertEqual(answer.errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.state(), "Empty")

    def test_oldVersions(self) -> None:
        """Up to version 2 one member leaves, and the answer has one error code."""
        (leader,) = self.stable()
        answers = [
            self.leave(version=2, memberId=memberId, groupId=groupId)[0]
            for memberId, groupId in (
                ("nobody", "g"),
                (leader.memberId, "g"),
                (leader.memberId, "h"),
            )
        ]
        self.assertEqual([each.members for each in answers], [[]] * 3)
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.assertEqual([each.errorCode for each in answers], [unknown, 0, unknown])

    def test_noGroup(self) -> None:
        """Nobody is a member of a group that is not there."""
        (answer,) = self.leave(LeavingMember("m", "i"))
        self.assertEqual(
            (answer.errorCode, answer.members),
            (0, [LeftMember("m", "i", ErrorCode.UNKNOWN_MEMBER_ID)]),
        )
        self.assertEqual(self.leave(groupId="")[0].errorCode, ErrorCode.INVALID_GROUP_ID)

    def test_nobody(self) -> None:
        """A request that names nobody changes nothing."""
        self.stable()
        self.assertEqual(self.leave()[0].members, [])
        self.assertEqual(self.state(), "Stable")


class StaticTests(GroupCase):
    """Static members."""

    def static(self, **fields: Any) -> list[JoinGroupAnswer]:
        return self.join(groupInstanceId="i", **fields)

    def test_noIdRequired(self) -> None:
        """A static member needs no id first; its id begins with its instance."""
        (joined,) = self.static(version=9)
        self.assertEqual(joined.errorCode, 0)
        self.assertTrue(joined.memberId.startswith("i-"))
        self.assertEqual(joined.members[0].groupInstanceId, "i")

    def test_replaced(self) -> None:
        """
        A static member that comes back takes its place without a rebalance, and its assignment. The
        old one is fenced.
        """
        (old,) = self.static(version=9)
        self.sync(old, groupInstanceId="i")
        (new,) = self.static(version=9)
        self.assertEqual((new.generationId, new.leader), (1, new.memberId))
        self.assertEqual((new.skipAssignment, len(new.members)), (True, 1))
        self.assertEqual(self.state(), "Stable")
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.assertEqual(self.heartbeat(old, groupInstanceId="i"), fenced)
        self.assertEqual(self.heartbeat(old), ErrorCode.UNKNOWN_MEMBER_ID)
        self.assertEqual(self.sync(old, groupInstanceId="i")[0].errorCode, fenced)
        self.assertEqual(self.commit(1, old, groupInstanceId="i"), [fenced])
        self.assertEqual(self.static(memberId=old.memberId)[0].errorCode, fenced)
        (left,) = self.leave(LeavingMember(old.memberId, "i"))
        self.assertEqual(left.members[0].errorCode, fenced)
        (mine,) = self.sync(new, groupInstanceId="i")
        self.assertEqual(mine.assignment, old.memberId.encode())
        self.assertEqual(self.heartbeat(new, groupInstanceId="i"), 0)
        self.advance(SESSION_MS - 1)
        self.assertEqual(self.state(), "Stable")

    def test_replacedBefore9(self) -> None:
        """Before version 9 it is told that the old one leads, so that it does not assign."""
        (old,) = self.static()
        self.sync(old)
        (new,) = self.static()
        self.assertEqual((new.leader, new.skipAssignment, new.members), (old.memberId, False, []))

    def test_replacedFollower(self) -> None:
        """A follower is replaced in the same way."""
        (leader,) = self.join()
        self.static(version=9)
        (leader,) = self.join(leader.memberId)
        self.sync(leader)
        (new,) = self.static(version=9)
        self.assertEqual(
            (new.leader, new.skipAssignment, new.members), (leader.memberId, False, [])
        )

    def test_replacedWithOtherProtocol(self) -> None:
        """If the protocol would be another one, the group rebalances."""
        both = (RANGE[0], ROUND_ROBIN)
        (old,) = self.static(protocols=both)
        self.sync(old)
        (new,) = self.static(protocols=both[::-1])
        self.assertEqual((new.generationId, new.protocolName), (2, "roundrobin"))

    def test_replacedWhileCompleting(self) -> None:
        """While the leader assigns, to the old id, the group rebalances; the old one is fenced."""
        (leader,) = self.join()
        waiting = self.static()
        (leader,) = self.join(leader.memberId)
        theirs = self.sync(waiting[0], groupInstanceId="i")
        new = self.static()
        self.assertEqual(theirs[0].errorCode, ErrorCode.FENCED_INSTANCE_ID)
        self.assertEqual((new, self.state()), ([], "PreparingRebalance"))
        self.assertEqual(self.join(leader.memberId)[0].generationId, 3)
        self.assertEqual(new[0].generationId, 3)

    def test_replacedWhilePreparing(self) -> None:
        """While a rebalance is prepared, the new one joins it; the old one's join is fenced."""
        (leader,) = self.join()
        waiting = self.static()
        new = self.static()
        self.assertEqual(waiting[0].errorCode, ErrorCode.FENCED_INSTANCE_ID)
        self.assertEqual(new, [])
        self.join(leader.memberId)
        self.assertEqual(new[0].generationId, 2)

    def test_replacedBeforeSync(self) -> None:
        """If the old one had not asked for its assignment yet, the new one has to in time."""
        (leader,) = self.join()
        self.static(sessionTimeoutMs=100_000)
        (leader,) = self.join(leader.memberId, sessionTimeoutMs=100_000)
        self.sync(leader)
        self.static(sessionTimeoutMs=100_000)
        self.advance(REBALANCE_MS)
        self.assertEqual(self.memberIds(), [leader.memberId])

    def test_replacementFails(self) -> None:
        """If the new id cannot be appended, the client is told, and the group rebalances."""
        both = (RANGE[0], ROUND_ROBIN)
        (old,) = self.static(protocols=both)
        self.sync(old)
        self.log.isHeld = True
        new = self.static()
        self.log.flush(ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertEqual(new[0].errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.state(), "PreparingRebalance")
        self.assertEqual(self.static()[0].generationId, 2)

    def test_replacementOvertaken(self) -> None:
        """If a rebalance begins while the new id is being appended, it takes part in it."""
        for error, code in (
            (ErrorCode.NONE, 0),
            (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        ):
            self.coordinator = self.make()
            (leader,) = self.join()
            self.static()
            (leader,) = self.join(leader.memberId)
            self.sync(leader)
            self.log.isHeld = True
            new = self.static()
            self.assertEqual((new, self.state()), ([], "Stable"))
            other = self.join()
            self.log.flush(error)
            self.join(leader.memberId)
            self.assertEqual(new[0].errorCode, code)
            self.assertEqual(
                (len(other), self.state()),
                (1, "CompletingRebalance") if not error else (0, "PreparingRebalance"),
            )
            self.log.isHeld = False

    def test_replacedAgain(self) -> None:
        """If another takes the place while the new id is being appended, only the last stays."""
        (old,) = self.static()
        self.sync(old)
        self.log.isHeld = True
        second = self.static()
        third = self.static()
        self.assertEqual(second[0].errorCode, ErrorCode.FENCED_INSTANCE_ID)
        self.log.flush()
        self.assertEqual(third, [])
        self.log.flush()
        self.assertEqual(third[0].generationId, 1)
        self.assertEqual(self.memberIds(), [third[0].memberId])

    def test_pendingWithInstance(self) -> None:
        """An id that was given to a dynamic member is not a static one's."""
        (given,) = self.join(version=4)
        (answer,) = self.static(memberId=given.memberId)
        self.assertEqual(answer.errorCode, ErrorCode.UNKNOWN_SERVER_ERROR)

    def test_removedByInstance(self) -> None:
        """An administrator removes a static member by its instance."""
        (member,) = self.static()
        self.sync(member)
        (answer,) = self.leave(
            LeavingMember("", "other"), LeavingMember("", None), LeavingMember("", "i")
        )
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.assertEqual(
            answer.members,
            [
                LeftMember("", "other", unknown),
                LeftMember("", None, unknown),
                LeftMember("", "i", 0),
            ],
        )
        self.assertEqual(self.state(), "Empty")

    def test_doesNotComeBack(self) -> None:
        """
        A static member that does not join keeps its place in the next generation; it has to ask for
        its assignment in time.
        """
        (leader,) = self.join(rebalanceTimeoutMs=5_000)
        self.static(rebalanceTimeoutMs=5_000)
        (leader,) = self.join(leader.memberId, rebalanceTimeoutMs=5_000)
        self.sync(leader)
        waiting = self.join(leader.memberId, rebalanceTimeoutMs=5_000)
        self.advance(5_000)
        self.assertEqual(len(waiting[0].members), 2)
        self.sync(waiting[0])
        self.advance(4_999)
        self.assertEqual((self.state(), len(self.memberIds())), ("Stable", 2))
        self.advance(1)
        self.assertEqual(self.memberIds(), [leader.memberId])

    def test_noneComesBack(self) -> None:
        """If only static members are left and none joins, the group waits until they are gone."""
        (leader,) = self.join()
        waiting = self.static(rebalanceTimeoutMs=0)
        (leader,) = self.join(leader.memberId, rebalanceTimeoutMs=0)
        self.sync(leader)
        self.sync(waiting[0])
        self.leave(LeavingMember(leader.memberId))
        self.advance(SESSION_MS - 1)
        self.assertEqual((self.state(), len(self.memberIds())), ("PreparingRebalance", 1))
        self.advance(1_000)
        self.assertEqual(self.state(), "Empty")


class LogTests(GroupCase):
    """What is appended."""

    def test_newGroup(self) -> None:
        """A new group is appended when its first member asks for an id."""
        self.join(version=4)
        ((_, (key, value)),) = self.log.records
        self.assertEqual(decodeKey(key), GroupMetadataKey("g"))
        stored = decodeStoredGroup(value or b"")
        self.assertEqual((stored.protocolType, stored.generation, stored.members), ("", 0, ()))
        self.assertEqual(stored.currentStateTimestampMs, self.nowMs)

    def test_newGroupFails(self) -> None:
        """Without that record there is no group."""
        self.coordinator = self.make(GroupSettings(initialRebalanceDelayMs=3_000))
        self.log.isHeld = True
        joined = self.join()
        self.log.flush(ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertEqual(joined[0].errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.state(), "Dead")
        self.assertEqual(self.coordinator.listGroups().groups, [])

    def test_newGroupFailsLate(self) -> None:
        """A group that has begun its first generation by then stays."""
        self.log.isHeld = True
        (joined,) = self.join()
        self.log.flush(ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertEqual(self.memberIds(), [joined.memberId])

    def test_reloaded(self) -> None:
        """Members, generation and assignments outlive the coordinator; sessions begin anew."""
        leader, follower = self.stable(2)
        self.advance(SESSION_MS - 1)
        self.reload()
        self.assertEqual(self.memberIds(), [leader.memberId, follower.memberId])
        self.assertEqual(self.sync(follower)[0].assignment, follower.memberId.encode())
        self.advance(SESSION_MS - 1)
        self.assertEqual(self.heartbeat(leader), 0)
        self.advance(1)
        self.assertEqual(self.memberIds(), [leader.memberId])
        self.assertEqual(self.join(leader.memberId)[0].generationId, 3)

    def test_reloadedStatic(self) -> None:
        """Static members do, too, in their places."""
        (old,) = self.join(groupInstanceId="i", version=9)
        self.sync(old)
        (new,) = self.join(groupInstanceId="i", version=9)
        self.reload()
        self.assertEqual(self.heartbeat(old, groupInstanceId="i"), ErrorCode.FENCED_INSTANCE_ID)
        self.assertEqual(self.heartbeat(new, groupInstanceId="i"), 0)

    def test_reloadedTooLarge(self) -> None:
        """A group that is larger than allowed now rebalances."""
        self.stable(2)
        self.settings = GroupSettings(initialRebalanceDelayMs=0, groupMaxSize=1)
        self.reload()
        self.assertEqual(self.state(), "PreparingRebalance")
