"""Members of KIP-848's groups: what they are told, and what is in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pylogbroker.cluster.metadataimage import GROUP as CONFIGURED
from pylogbroker.cluster.metadataimage import ConfigRecord
from pylogbroker.coordinator import grouptable
from pylogbroker.coordinator.consumergroups.topicregex import PATTERN_SIZE_MAX
from pylogbroker.coordinator.groupconfigs import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
)
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    LeavingMember,
    TxnOffsetCommit,
)
from pylogbroker.coordinator.offsetstopic import encodeGroupMetadataKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.consumergroups.consumercase import (
    INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    A,
    B,
    C,
    ConsumerCase,
)
from tests.coordinator.groupcase import GROUP, Log

JOIN: Any = {
    "memberEpoch": 0,
    "subscribedTopicNames": ["t"],
    "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
    "owned": {},
}


class RequestTests(ConsumerCase):
    """What is wrong with a request by itself."""

    def test_invalid(self) -> None:
        """Each mistake has Kafka's text, and changes nothing."""
        for fields, text in (
            ({"groupId": ""}, "GroupId can't be empty."),
            ({"instanceId": ""}, "InstanceId can't be empty."),
            ({"rackId": ""}, "RackId can't be empty."),
            ({"rebalanceTimeoutMs": -1}, "RebalanceTimeoutMs must be provided in first request."),
            ({"owned": {"t": [0]}}, "TopicPartitions must be empty when (re-)joining."),
            ({"owned": None}, "TopicPartitions must be empty when (re-)joining."),
            (
                {"subscribedTopicNames": None},
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining.",
            ),
            ({"memberId": "x" * 32_768}, "An id or a pattern has more than 32767 bytes."),
        ):
            answer = self.enter(**{"memberId": A, **fields})  # type: ignore[arg-type]
            self.assertEqual(answer.errorCode, ErrorCode.INVALID_REQUEST)
            self.assertEqual(answer.errorMessage, text)
        for memberId, epoch, text in (
            ("", 0, "MemberId can't be empty."),
            ("", 1, "MemberId can't be empty."),
            (A, -2, "InstanceId can't be null."),
            (A, -3, "MemberEpoch is invalid."),
        ):
            self.assertEqual(self.beat(memberId, epoch).errorMessage, text)
        self.assertEqual(self.log.records, [])
        self.assertEqual(self.coordinator.listGroups().groups, [])

    def test_assignor(self) -> None:
        """An assignor that is not there is refused."""
        answer = self.enter(A, "t", serverAssignor="none")
        self.assertEqual(answer.errorCode, ErrorCode.UNSUPPORTED_ASSIGNOR)
        self.assertEqual(
            answer.errorMessage,
            "ServerAssignor none is not supported. Supported assignors: uniform, range.",
        )

    def test_notServed(self) -> None:
        """While the group is loaded, members try again."""
        self.coordinator.beginLoading(self.coordinator._table.partitionOf(GROUP))
        self.coordinator.unload(self.coordinator._table.partitionOf(GROUP))
        self.assertEqual(self.enter(A, "t").errorCode, ErrorCode.NOT_COORDINATOR)
        self.assertEqual(self.described().errorCode, ErrorCode.NOT_COORDINATOR)

    def test_ownId(self) -> None:
        """In version 0 the coordinator makes the id of a member that has none."""
        made = self.enter("", "t", version=0)
        self.assertEqual(len(made.memberId or ""), 22)
        self.assertEqual(self.epochs(), {made.memberId: 2})


class MemberTests(ConsumerCase):
    """Members come, go on and go."""

    def test_one(self) -> None:
        """A member gets all partitions at once; the group is as Kafka shows it."""
        answer = self.enter(A, "t", rackId="r")
        self.assertEqual(self.given(answer), {"t": [0, 1]})
        self.assertEqual(
            (answer.memberId, answer.memberEpoch, answer.heartbeatIntervalMs), (A, 2, 5_000)
        )
        group = self.described()
        self.assertEqual(
            (group.groupState, group.groupEpoch, group.assignmentEpoch, group.assignorName),
            ("Stable", 2, 2, "uniform"),
        )
        (member,) = group.members
        self.assertEqual(
            (member.clientId, member.clientHost, member.rackId, member.subscribedTopicNames),
            ("client", "/host", "r", ("t",)),
        )
        (listed,) = self.coordinator.listGroups(["stable"], ["Consumer"]).groups
        self.assertEqual(tuple(listed), (GROUP, "consumer", "Stable", "consumer"))
        self.assertEqual(self.coordinator.listGroups([], ["classic"]).groups, [])
        self.assertEqual(self.coordinator.listGroups(["empty"]).groups, [])
        self.assertIsNone(self.given(self.beat(A, 2, owned={"t": [0, 1]})))
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})

    def test_two(self) -> None:
        """A second member gets its part when the first one has given it up, and not before."""
        self.enter(A, "t")
        self.assertEqual(self.given(self.enter(B, "t")), {})
        self.assertEqual(self.described().groupState, "Assigning")
        self.assertIsNone(self.given(self.beat(A, 2, owned={"t": [0, 1]})))
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 2)), {"t": [0]})
        self.assertEqual(self.targets(), {A: {"t": [0]}, B: {"t": [1]}})
        self.assertEqual(self.owned(), {A: {"t": [0, 1]}, B: {}})
        self.assertIsNone(self.given(self.beat(B, 2, owned={})))
        self.assertEqual(self.described().groupState, "Reconciling")
        self.assertIsNone(self.given(self.beat(A, 2)))
        self.assertIsNone(self.given(self.beat(A, 2, owned={"t": [0, 1]})))
        answer = self.beat(A, 2, owned={"t": [0]})
        self.assertEqual(answer.memberEpoch, 3)
        self.assertEqual(self.given(self.beat(B, 3, owned={})), {"t": [1]})
        self.assertEqual(self.described().groupState, "Stable")

    def test_fullRequest(self) -> None:
        """Whoever tells everything about itself is told everything."""
        self.enter(A, "t")
        full = {"rebalanceTimeoutMs": 5, "owned": {"t": [0]}}
        answer = self.beat(A, 2, subscribedTopicNames=["t"], **full)
        self.assertEqual(self.given(answer), {"t": [0, 1]})
        answer = self.beat(A, 2, subscribedTopicRegex="", **full)
        self.assertEqual(self.given(answer), {"t": [0, 1]})
        self.assertIsNone(self.given(self.beat(A, 2, **full)))

    def test_epochs(self) -> None:
        """A wrong epoch fences. The one before is good for one that has lost an answer."""
        self.pair()
        for epoch, owned in ((4, None), (1, {}), (2, None), (2, {"t": [1]}), (2, {"u": [0]})):
            relation = "greater" if epoch > 3 else "smaller"
            answer = self.beat(A, epoch, owned=owned)
            self.assertEqual(answer.errorCode, ErrorCode.FENCED_MEMBER_EPOCH)
            self.assertEqual(
                answer.errorMessage,
                f"The consumer group member has a {relation} member epoch ({epoch}) than the one"
                " known by the group coordinator (3). The member must abandon all its partitions"
                " and rejoin.",
            )
        self.assertEqual(self.beat(A, 2, owned={"t": [0]}).memberEpoch, 3)

    def test_unknown(self) -> None:
        """Groups and members that are not there."""
        self.assertEqual(self.beat(A, 5).errorMessage, f"Consumer group {GROUP} not found.")
        self.assertEqual(self.beat(A, -1).errorMessage, f"Group {GROUP} not found.")
        self.assertEqual(self.described().errorMessage, f"Group {GROUP} not found.")
        self.assertEqual(self.described("").errorCode, ErrorCode.INVALID_GROUP_ID)
        self.enter(A, "t")
        for epoch in (5, -1):
            answer = self.beat(B, epoch)
            self.assertEqual(answer.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
            self.assertEqual(answer.errorMessage, f"Member B is not a member of group {GROUP}.")

    def test_leave(self) -> None:
        """Who leaves gives its partitions to the others, with the next heartbeat."""
        self.pair()
        answer = self.beat(B, -1)
        self.assertEqual((answer.memberId, answer.memberEpoch), (B, -1))
        self.assertEqual(answer.heartbeatIntervalMs, 0)
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 3, owned={"t": [0]})), {"t": [0, 1]})
        self.beat(A, -1)
        self.assertEqual(self.described().groupState, "Empty")
        self.assertEqual(self.described().groupEpoch, 5)

    def test_silent(self) -> None:
        """Who is silent for too long is removed."""
        self.pair()
        self.advance(SESSION_TIMEOUT_MS - 1)
        self.beat(A, 3)
        self.advance(1)
        self.assertEqual(list(self.epochs()), [A])
        self.reload()
        self.assertEqual(list(self.epochs()), [A])

    def test_ownSettings(self) -> None:
        """A group's own settings hold for it from the next heartbeat on, the others' for others."""
        for name, value in (
            (HEARTBEAT_INTERVAL, "6000"),
            (SESSION_TIMEOUT, "50000"),
            (ASSIGNMENT_INTERVAL, "2000"),
        ):
            self.image.apply(ConfigRecord(CONFIGURED, GROUP, name, value))
        self.assertEqual(self.enter(A, "t").heartbeatIntervalMs, 6000)
        self.enter(B, "t")
        self.advance(1999)
        self.assertIsNone(self.given(self.beat(A, 2, owned={"t": [0, 1]})))
        self.advance(1)
        self.assertEqual(self.given(self.beat(A, 2, owned={"t": [0, 1]})), {"t": [0]})
        self.beat(A, 2, owned={"t": [0]})
        self.beat(B, 2)
        self.advance(SESSION_TIMEOUT_MS)
        self.assertEqual(list(self.epochs()), [A, B])
        self.advance(50_000 - SESSION_TIMEOUT_MS)
        self.assertEqual(self.described().groupState, "Empty")
        self.assertEqual(self.enter(A, "t", groupId="h").heartbeatIntervalMs, 5000)

    def test_keepsTooLong(self) -> None:
        """Who does not give up partitions in its time is removed, even though it lives."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2)
        self.advance(REBALANCE_TIMEOUT_MS - 1)
        self.beat(A, 2)
        self.beat(B, 2)
        self.assertEqual(list(self.epochs()), [A, B])
        self.advance(1)
        self.assertEqual(list(self.epochs()), [B])
        self.assertEqual(self.given(self.beat(B, 3)), {"t": [0, 1]})

    def test_givesUpInTime(self) -> None:
        """Who gives partitions up keeps its place."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2)
        self.beat(A, 2, owned={"t": [0]})
        self.advance(REBALANCE_TIMEOUT_MS)
        self.assertEqual(list(self.epochs()), [A, B])

    def test_givesUpTwice(self) -> None:
        """A member that then has to give up other partitions has the whole time for these."""
        self.enter(A, "u")
        self.enter(B, "u")
        self.advance(INTERVAL_MS)
        kept = self.given(self.beat(A, 2, owned={"u": [0, 1, 2]}))
        assert kept is not None
        self.assertEqual(len(kept["u"]), 2)
        self.enter(C, "u")
        self.advance(REBALANCE_TIMEOUT_MS - 1)
        less = self.given(self.beat(A, 2, owned=kept))
        assert less is not None
        self.assertEqual(len(less["u"]), 1)
        self.advance(REBALANCE_TIMEOUT_MS - 1)
        self.assertIn(A, self.epochs())
        self.advance(1)
        self.assertNotIn(A, self.epochs())

    def test_full(self) -> None:
        """A group, and the coordinator, have limits."""
        small = replace(self.settings, consumerGroupMaxSize=1)
        self.coordinator = self.make(small)
        self.enter(A, "t")
        answer = self.enter(B, "t")
        self.assertEqual(answer.errorCode, ErrorCode.GROUP_MAX_SIZE_REACHED)
        self.assertEqual(
            answer.errorMessage,
            "The consumer group has reached its maximum capacity of 1 members.",
        )
        self.assertEqual(self.enter(A, "t").errorCode, 0)
        for settings in (
            replace(self.settings, groupCountMax=0),
            replace(self.settings, memberCountMax=0),
            replace(self.settings, memberMetadataSizeMax=1),
            replace(self.settings, metadataSizeMax=1),
        ):
            self.coordinator = self.make(settings)
            answer = self.enter(A, "t")
            self.assertEqual(answer.errorCode, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.assertEqual(self.coordinator.listGroups().groups, [])

    def test_assignors(self) -> None:
        """The assignor that most members prefer assigns."""
        self.enter(A, "t", serverAssignor="range")
        self.assertEqual(self.described().assignorName, "range")
        self.enter(B, "t")
        self.assertEqual(self.described().assignorName, "range")
        self.enter(B, "t", serverAssignor="uniform")
        self.assertEqual(self.described().assignorName, "uniform")


class StaticTests(ConsumerCase):
    """Members with an instance id."""

    def test_comesBack(self) -> None:
        """One that goes for a while has its partitions back, in another process too."""
        self.enter(A, "t", instanceId="i")
        answer = self.beat(A, -2, instanceId="i")
        self.assertEqual((answer.memberId, answer.memberEpoch), (A, -2))
        self.assertEqual(self.epochs(), {A: -2})
        self.assertEqual(self.described().groupState, "Reconciling")
        back = self.enter(B, "t", instanceId="i")
        self.assertEqual(self.given(back), {"t": [0, 1]})
        self.assertEqual(self.epochs(), {B: 2})
        self.beat(B, -2, instanceId="i")
        self.assertEqual(self.given(self.enter(B, "t", instanceId="i")), {"t": [0, 1]})
        self.reload()
        self.assertEqual(self.epochs(), {B: 2})
        self.assertEqual(self.owned(), {B: {"t": [0, 1]}})

    def test_comesBackAtOnce(self) -> None:
        """One that goes before it was assigned anything, and comes back."""
        self.coordinator = self.make(replace(self.settings, consumerAssignmentIntervalMs=10_000))
        self.enter(A, "t")
        self.enter(B, "t", instanceId="i")
        self.beat(B, -2, instanceId="i")
        self.assertEqual(self.given(self.enter(C, "t", instanceId="i")), {})
        self.assertEqual(self.epochs(), {A: 2, C: 2})

    def test_owned(self) -> None:
        """An instance has one owner; a process whose place was taken is fenced."""
        self.enter(A, "t", instanceId="i")
        answer = self.enter(B, "t", instanceId="i")
        self.assertEqual(answer.errorCode, ErrorCode.UNRELEASED_INSTANCE_ID)
        self.assertEqual(
            answer.errorMessage,
            "Static member B with instance id i cannot join the group because the instance id is"
            " owned by A member.",
        )
        self.beat(A, -2, instanceId="i")
        self.enter(B, "t", instanceId="i")
        for epoch in (2, -1, -2):
            answer = self.beat(A, epoch, instanceId="i")
            self.assertEqual(answer.errorCode, ErrorCode.FENCED_INSTANCE_ID)
            self.assertEqual(
                answer.errorMessage,
                "Static member A with instance id i was fenced by member B.",
            )
        answer = self.beat(B, 2, instanceId="j")
        self.assertEqual(answer.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
        self.assertEqual(answer.errorMessage, "Instance id j is unknown.")
        self.assertEqual(self.beat(B, 2, instanceId="i").errorCode, 0)
        self.assertEqual(self.beat(B, -1, instanceId="i").errorCode, 0)

    def test_getsInstance(self) -> None:
        """A member may get an instance id, and another one."""
        self.enter(A, "t")
        self.assertEqual(self.enter(A, "t", instanceId="i").errorCode, 0)
        self.assertEqual(self.enter(A, "t", instanceId="j").errorCode, 0)
        self.assertEqual(self.beat(A, -2, instanceId="j").errorCode, 0)
        self.assertEqual(self.beat(A, -2, instanceId="i").errorCode, ErrorCode.UNKNOWN_MEMBER_ID)


class TopicTests(ConsumerCase):
    """What members subscribe to."""

    def test_more(self) -> None:
        """A topic more, and a topic less, which is given up at once."""
        self.enter(A, "t")
        self.assertIsNone(self.given(self.beat(A, 2, subscribedTopicNames=["u", "t"])))
        self.advance(INTERVAL_MS)
        answer = self.beat(A, 2)
        self.assertEqual(self.given(answer), {"t": [0, 1], "u": [0, 1, 2]})
        answer = self.beat(A, 3, subscribedTopicNames=["u"])
        self.assertEqual(self.given(answer), {"u": [0, 1, 2]})
        self.assertEqual(self.owned(), {A: {"u": [0, 1, 2], "t": [0, 1]}})
        self.assertIsNone(self.given(self.beat(A, 3, subscribedTopicNames=["u", "t"])))
        self.advance(INTERVAL_MS)
        self.beat(A, 3, owned={"u": [0, 1, 2]})
        self.assertEqual(self.owned(), {A: {"t": [0, 1], "u": [0, 1, 2]}})

    def test_less(self) -> None:
        """Who says that it has given a topic up already waits for nothing."""
        self.enter(A, "t", "u")
        answer = self.beat(A, 2, subscribedTopicNames=["u"], owned={"u": [0, 1, 2]})
        self.assertEqual(self.given(answer), {"u": [0, 1, 2]})
        self.assertEqual(self.owned(), {A: {"u": [0, 1, 2]}})

    def test_lessWhileBehind(self) -> None:
        """One that is behind the assignment does not get what it does not want any more."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.enter(C, "t", "u")
        self.assertEqual(self.given(self.beat(B, 2, subscribedTopicNames=["u"])), None)
        self.assertEqual(self.owned()[B], {})

    def test_comesAndGoes(self) -> None:
        """Topics and partitions that come later are assigned; topics that go are given up."""
        self.assertEqual(self.given(self.enter(A, "later")), {})
        self.addTopic("later", 1)
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 2)), {"later": [0]})
        self.addTopic("later", 2)
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 3)), {"later": [0, 1]})
        self.removeTopic("later")
        self.advance(INTERVAL_MS)
        answer = self.beat(A, 4)
        self.assertEqual(self.given(answer), {})
        self.assertEqual(self.owned(), {A: {}})
        self.assertEqual(self.beat(A, 4, owned={}).memberEpoch, 5)

    def test_otherTopics(self) -> None:
        """Topics that nobody subscribes to change nothing."""
        self.enter(A, "t")
        self.addTopic("v", 1)
        self.beat(A, 2)
        self.assertEqual(self.described().groupEpoch, 2)


class PatternTests(ConsumerCase):
    """Members that subscribe by a pattern."""

    def match(self, memberId: str, pattern: str, **fields: Any) -> Any:
        """A member joins."""
        return self.enter(
            memberId, **{"subscribedTopicNames": None, "subscribedTopicRegex": pattern, **fields}
        )

    def test_otherTopicsWhileGivingUp(self) -> None:
        """A member that still gives up a partition of a topic that it leaves holds all of it."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 2, owned={"t": [0, 1]})), {"t": [0]})
        self.beat(A, 2, owned={"t": [0, 1]}, subscribedTopicNames=["u"])
        self.advance(INTERVAL_MS)
        self.assertFalse(self.given(self.beat(B, 2, owned={})))
        self.beat(A, self.epochs()[A], owned={})
        self.beat(B, self.epochs()[B], owned={})
        self.assertEqual(self.owned()[B], {"t": [0, 1]})

    def test_pattern(self) -> None:
        """A pattern is matched behind the answer; partitions come with the next one."""
        answer = self.match(A, "[tu]")
        self.assertEqual((answer.memberEpoch, self.given(answer)), (1, {}))
        self.advance(0)
        self.assertEqual(self.described().groupState, "Assigning")
        self.assertEqual(self.given(self.beat(A, 1)), {"t": [0, 1], "u": [0, 1, 2]})
        self.assertEqual(self.described().members[0].subscribedTopicRegex, "[tu]")
        self.reload()
        self.assertEqual(self.owned(), {A: {"t": [0, 1], "u": [0, 1, 2]}})
        self.assertIsNone(self.given(self.beat(A, 2)))
        self.assertEqual(self.described().groupEpoch, 2)

    def test_same(self) -> None:
        """A pattern that another member has is known already."""
        self.match(A, "t")
        self.advance(0)
        self.beat(A, 1)
        self.match(B, "t")
        self.assertEqual(self.described().groupEpoch, 3)
        self.beat(B, -1)
        self.assertTrue(self.coordinator._table.groups[GROUP].isSubscribedTo("t"))
        self.assertFalse(self.coordinator._table.groups[GROUP].isSubscribedTo("u"))
        self.beat(A, 2, subscribedTopicRegex="")
        self.assertFalse(self.coordinator._table.groups[GROUP].isSubscribedTo("t"))

    def test_dropped(self) -> None:
        """A member that drops a pattern loses its topics, though others have the pattern, too."""
        self.match(A, "t")
        self.advance(0)
        self.beat(A, 1)
        self.match(B, "t")
        self.advance(INTERVAL_MS)
        self.assertEqual(self.given(self.beat(A, 2)), {"t": [0]})
        self.beat(A, 2, owned={"t": [0]})
        self.beat(B, 2, owned={})
        self.assertEqual(self.owned(), {A: {"t": [0]}, B: {"t": [1]}})
        self.advance(INTERVAL_MS)
        self.beat(B, 3, subscribedTopicRegex="")
        self.assertEqual(self.targets(), {A: {"t": [0, 1]}, B: {}})

    def test_replaced(self) -> None:
        """So does a member whose other pattern matches nothing."""
        self.match(A, "t")
        self.advance(0)
        self.beat(A, 1)
        self.match(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2)
        self.beat(B, 2, subscribedTopicRegex="x")
        self.advance(INTERVAL_MS)
        self.beat(A, 2, owned={"t": [0]})
        self.assertEqual(self.targets(), {A: {"t": [0, 1]}, B: {}})

    def test_topicsOfOthers(self) -> None:
        """A new pattern counts, too, if it matches only topics that the group has already."""
        self.enter(A, "t")
        self.match(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2, owned={"t": [0, 1]})
        self.assertEqual(self.targets(), {A: {"t": [0]}, B: {"t": [1]}})

    def test_nothing(self) -> None:
        """A pattern that matches nothing changes nothing; so does an empty one."""
        self.match(A, "x")
        self.match(B, "")
        self.advance(0)
        self.assertEqual(self.described().groupEpoch, 1)
        self.assertEqual(self.described().groupState, "Stable")

    def test_bad(self) -> None:
        """What is no pattern is refused, and makes no group."""
        answer = self.match(A, "(")
        self.assertEqual(answer.errorCode, ErrorCode.INVALID_REGULAR_EXPRESSION)
        self.assertEqual(
            answer.errorMessage,
            "SubscribedTopicRegex `(` is not a valid regular expression: missing closing ).",
        )
        self.assertEqual(
            self.match(A, "x" * (PATTERN_SIZE_MAX + 1)).errorCode,
            ErrorCode.INVALID_REGULAR_EXPRESSION,
        )
        self.assertEqual(self.described().errorCode, ErrorCode.GROUP_ID_NOT_FOUND)

    def test_newTopics(self) -> None:
        """New topics are matched after a while."""
        self.match(A, ".+")
        self.advance(0)
        self.beat(A, 1)
        self.addTopic("v", 1)
        self.advance(INTERVAL_MS)
        self.assertIsNone(self.given(self.beat(A, 2)))
        self.advance(10_000)
        self.assertIsNone(self.given(self.beat(A, 2)))
        self.advance(0)
        answer = self.beat(A, 2)
        self.assertEqual(self.given(answer), {"t": [0, 1], "u": [0, 1, 2], "v": [0]})
        self.addTopic("w", 1)
        self.removeTopic("w")
        self.advance(10_000)
        self.beat(A, 3)
        self.advance(0)
        self.assertEqual(self.described().groupEpoch, 3)

    def test_hidden(self) -> None:
        """A pattern does not show topics of which the client may not know."""
        self.match(A, ".+", sees=lambda name: name == "u")
        self.advance(0)
        self.assertEqual(self.given(self.beat(A, 1)), {"u": [0, 1, 2]})

    def test_hiddenLater(self) -> None:
        """What the client may know of is looked at again after a while, with the same topics."""
        seen = ["t", "u"]
        sees = seen.__contains__
        self.match(A, "[tu]", sees=sees)
        self.advance(0)
        self.assertEqual(self.given(self.beat(A, 1, sees=sees)), {"t": [0, 1], "u": [0, 1, 2]})
        seen.remove("u")
        for _ in range(15):
            self.advance(39_999)
            self.assertIsNone(self.given(self.beat(A, 2, sees=sees)))
        self.advance(15)
        self.beat(A, 2, sees=sees)
        self.advance(0)
        self.assertEqual(self.given(self.beat(A, 2, sees=sees)), {"t": [0, 1]})

    def test_beforeItWasMatched(self) -> None:
        """A pattern that the broker had no time to match is matched after a start."""
        self.match(A, "t")
        self.reload()
        self.beat(A, 1)
        self.advance(0)
        self.assertEqual(self.given(self.beat(A, 1)), {"t": [0, 1]})


class LogTests(ConsumerCase):
    """What is in the log, and what is not."""

    def test_answersWait(self) -> None:
        """No member is told what is not in the log; who changes nothing waits for the others."""
        self.log.isHeld = True
        fields: dict[str, Any] = {"memberEpoch": 0, "rebalanceTimeoutMs": 5, "owned": {}}
        first = self.send(memberId=A, subscribedTopicNames=["t"], **fields)
        second = self.send(memberId=A, subscribedTopicNames=["t"], **fields)
        third = self.send(memberId=A, memberEpoch=2)
        self.assertEqual((first, second, third), ([], [], []))
        self.log.flush()
        self.assertEqual([len(each) for each in (first, second, third)], [1, 1, 1])

    def test_failedAppend(self) -> None:
        """What was not appended is appended with the next step; nobody is told before."""
        self.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        for _ in range(2):
            answer = self.enter(A, "t")
            self.assertEqual(answer.errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.assertIsNotNone(answer.errorMessage)
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})
        self.reload()
        self.assertEqual(self.owned(), {A: {"t": [0, 1]}})

    def test_refusedBehindRefusal(self) -> None:
        """What waits behind an append that is refused is refused, too, and appended with it."""
        self.log.isHeld = True
        answers = [self.send(memberId=each, **JOIN) for each in (A, B, C)]
        self.assertEqual(len(self.log.waiting), 1)
        self.log.flush(ErrorCode.MESSAGE_TOO_LARGE)
        self.assertEqual(self.log.waiting, [])
        codes = [each.errorCode for (each,) in answers]
        behind = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.assertEqual(codes, [ErrorCode.UNKNOWN_SERVER_ERROR, behind, behind])
        self.reload()
        self.assertEqual(self.coordinator._table.groups, {})

    def test_memberBehindRefusal(self) -> None:
        """The log never has a member without the one before, whose append was refused."""
        self.log.isHeld = True
        for each in (A, B):
            self.send(memberId=each, **JOIN)
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.log.isHeld = False
        self.assertEqual(self.enter(C, "t").errorCode, 0)
        epochs = self.epochs()
        self.assertEqual(list(epochs), [A, B, C])
        self.reload()
        self.assertEqual(self.epochs(), epochs)

    def test_appendedTogether(self) -> None:
        """What waits for the same append is one append, up to a size."""
        size = self._sizeOfJoin()
        for count, sizeMax in ((2, 2 * size), (1, 2 * size - 1), (1, 0)):
            self.log = Log()
            self.coordinator = self.make()
            self.patch(grouptable, "APPEND_SIZE_MAX", sizeMax)
            self.log.isHeld = True
            answers = [self.send(memberId=each, **JOIN) for each in (A, B, C)]
            self.log.flush()
            self.log.flush()
            self.assertEqual(list(map(len, answers)), [1, *[1] * count, *[0] * (2 - count)])
            self.log.flush()
            self.assertEqual(list(map(len, answers)), [1, 1, 1])
            epochs = self.epochs()
            self.reload()
            self.assertEqual(self.epochs(), epochs)
        self.assertEqual(self.coordinator._table._waitingSize, 0)

    def _sizeOfJoin(self) -> int:
        """Bytes of the records of a join that is not the first one."""
        self.enter(A, "t")
        before = len(self.log.records)
        self.enter(B, "t")
        return sum(len(key) + len(value or b"") for _, (key, value) in self.log.records[before:])

    def test_waitingLimit(self) -> None:
        """More than may wait is refused at once, and appended with what comes later."""
        size = self._sizeOfJoin()
        self.log = Log()
        self.coordinator = self.make()
        self.patch(grouptable, "WAITING_SIZE_MAX", 2 * size)
        self.enter("first", "t")
        self.log.isHeld = True
        answers = [self.send(memberId=each, **JOIN) for each in (A, B, C, "D")]
        self.assertEqual([len(each) for each in answers], [0, 0, 0, 1])
        self.assertEqual(self.codes(answers[3]), [ErrorCode.COORDINATOR_NOT_AVAILABLE])
        for _ in range(2):
            self.log.flush()
        self.assertEqual(self.codes(*answers[:3]), [0, 0, 0])
        self.log.isHeld = False
        self.assertEqual(self.enter("D", "t").errorCode, 0)
        epochs = self.epochs()
        self.assertEqual(list(epochs), ["first", A, B, C, "D"])
        self.reload()
        self.assertEqual(self.epochs(), epochs)

    def codes(self, *answers: Sequence[Any]) -> list[int]:
        """Error codes of answers."""
        return [each.errorCode for (each,) in answers]

    def test_patternLikeMember(self) -> None:
        """A pattern without a member is deleted, though it is the id of a member."""
        self.enter(A, "t", subscribedTopicRegex=A)
        self.advance(0)
        self.beat(A, self.epochs()[A], subscribedTopicRegex="x")
        before = self.described()
        self.reload()
        self.assertEqual(self.described(), before)

    def test_reload(self) -> None:
        """Another coordinator knows the same, at each step."""
        steps: tuple[Any, ...] = (
            lambda: self.enter(A, "t"),
            lambda: self.enter(B, "t", instanceId="i", serverAssignor="range"),
            lambda: self.advance(INTERVAL_MS),
            lambda: self.beat(A, 2),
            lambda: self.beat(B, 2),
            lambda: self.beat(A, 2, owned={"t": [0]}),
            lambda: self.beat(B, 3),
            lambda: self.beat(B, -2, instanceId="i"),
            lambda: self.beat(A, -1),
        )
        for step in steps:
            step()
            before = self.described()
            self.reload()
            self.assertEqual(self.described(), before)

    def test_sessionsGoOn(self) -> None:
        """Sessions, and the time to give up partitions, begin anew behind a start."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2)
        self.reload()
        self.advance(REBALANCE_TIMEOUT_MS)
        self.assertEqual(list(self.epochs()), [B])
        self.advance(SESSION_TIMEOUT_MS)
        self.assertEqual(self.epochs(), {})

    def test_unload(self) -> None:
        """A group whose log has failed is not there any more, nor are its deadlines."""
        self.pair()
        self.coordinator.unload(self.coordinator._table.partitionOf(GROUP))
        totals = self.coordinator._table.totals
        self.assertEqual((totals.memberCount, totals.metadataSize), (0, 0))
        self.advance(SESSION_TIMEOUT_MS)
        self.assertEqual(self.coordinator._table.groups, {})

    def test_strangeRecords(self) -> None:
        """Deletions of what is not there, and states of later versions, are passed over."""
        replay = self.coordinator.replay
        self.assertTrue(replay(b"\0\3\0\1g", None))
        self.assertTrue(replay(b"\0\6\0\1g", bytes.fromhex("00000000000700")))
        for keyType in (5, 6, 7, 8, 16):
            name = b"" if keyType == 6 else b"\0\1x"
            self.assertTrue(replay(bytes((0, keyType)) + b"\0\1g" + name, None))
        self.assertTrue(replay(b"\0\3\0\1g", bytes.fromhex("00000000000900")))
        current = bytes.fromhex("0000000000010000000009010100")
        self.assertTrue(replay(b"\0\x08\0\1g\0\1x", current))
        member = bytes.fromhex("00000000026302680101000075300001000100")
        self.assertTrue(replay(b"\0\5\0\1g\0\1x", member))
        self.assertTrue(replay(b"\0\x08\0\1g\0\1x", current))
        self.assertEqual(self.described().groupEpoch, 9)
        self.assertEqual(self.epochs(), {"x": 1})
        self.assertTrue(replay(b"\0\x08\0\1g\0\1x", None))
        self.assertEqual(self.epochs(), {"x": -1})
        self.assertTrue(replay(b"\0\5\0\1g\0\1x", None))
        self.assertTrue(replay(b"\0\5\0\1g\0\1x", member))
        self.assertFalse(replay(b"\0\x0b\0\1g", None))
        self.assertTrue(replay(b"\0\4\0\1g", b"whatever"))

    def test_strayPattern(self) -> None:
        """A pattern that no member has any more goes with its group."""
        pattern = bytes.fromhex("0000020374310000000000000070000001a205229eb400")
        self.log.append(0, [(b"\0\x10\0\1g\0\1x", pattern)], lambda error: None)
        self.reload()
        self.coordinator.deleteGroups([GROUP], lambda _: None)
        self.assertIn((b"\0\x10\0\1g\0\1x", None), [record for _, record in self.log.records])


class OffsetTests(ConsumerCase):
    """Who may commit, fetch and delete offsets."""

    def test_commit(self) -> None:
        """A member commits with its epoch, or an older one at which the partition was its own."""
        self.pair()
        self.assertEqual(self.commitAs(A, 3), 0)
        self.assertEqual(self.commitAs(A, 3, 1), 0)
        self.assertEqual(self.commitAs(A, 2, 0), 0)
        stale = ErrorCode.STALE_MEMBER_EPOCH
        for memberId, epoch, partition in ((A, 2, 1), (A, 1, 0), (A, 4, 0), (B, 2, 1), (B, -1, 1)):
            self.assertEqual(self.commitAs(memberId, epoch, partition), stale)
        for memberId in (C, ""):
            self.assertEqual(self.commitAs(memberId, -1), ErrorCode.UNKNOWN_MEMBER_ID)
        self.assertEqual(self.commitAs(A, 3, version=8), ErrorCode.UNSUPPORTED_VERSION)

    def test_commitWhatIsGivenUp(self) -> None:
        """A member may commit what it has to give up."""
        self.enter(A, "t")
        self.enter(B, "t")
        self.advance(INTERVAL_MS)
        self.beat(A, 2)
        self.beat(A, 2, owned={"t": [0]})
        self.enter(C, "t")
        self.advance(INTERVAL_MS)
        self.beat(C, 3)
        self.assertEqual(self.commitAs(A, 2, 0), 0)

    def test_transaction(self) -> None:
        """A producer commits in a member's name, or in nobody's; then its transaction counts."""
        self.enter(A, "t")
        for memberId, epoch, code in (
            (A, 2, 0),
            ("", -1, 0),
            (A, 3, ErrorCode.STALE_MEMBER_EPOCH),
            ("", 2, ErrorCode.UNKNOWN_MEMBER_ID),
            (B, -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            answers: list[Any] = []
            topics = [CommitTopic("t", [CommitPartition(0, 8)])]
            request = TxnOffsetCommit(GROUP, topics, 5, 0, epoch, memberId)
            self.coordinator.offsetCommit(ClientContext(3), request, answers.append)
            (answer,) = answers
            self.assertEqual(answer.topics[0].partitions[0].errorCode, code)
        self.assertEqual(self.position(), -1)
        self.coordinator.transactionEnded(self.coordinator.partitionOf(GROUP), 5, True)
        self.assertEqual(self.position(), 8)

    def test_empty(self) -> None:
        """In a group without members, anybody commits who names no epoch."""
        self.enter(A, "t")
        self.beat(A, -1)
        self.assertEqual(self.commitAs("", -1), 0)
        self.assertEqual(self.commitAs(A, 2), ErrorCode.UNKNOWN_MEMBER_ID)
        self.assertEqual(self.position(), 5)

    def test_fetch(self) -> None:
        """A member fetches with its epoch, others without any."""
        self.pair()
        for memberId, epoch, code in (
            (None, -1, 0),
            (A, 3, 0),
            (A, 2, ErrorCode.STALE_MEMBER_EPOCH),
            (C, 3, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            self.assertEqual(self.fetchAs(memberId, epoch), code)

    def test_delete(self) -> None:
        """Offsets of topics that a member subscribes to are kept; a group with members, too."""
        self.enter(A, "t")
        self.commitAs(A, 2)
        self.assertTrue(self.coordinator._table.groups[GROUP].isSubscribedTo("t"))
        answers: list[Any] = []
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.assertEqual(answers[0][0].errorCode, ErrorCode.NON_EMPTY_GROUP)
        self.beat(A, -1)
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.assertEqual(answers[1][0].errorCode, 0)
        self.assertEqual(self.position(), -1)
        self.assertEqual(self.described().errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.reload()
        self.assertEqual(self.coordinator._table.groups, {})

    def test_deleting(self) -> None:
        """While a group is being deleted, it is dead; if that fails, it is there again."""
        self.enter(A, "t")
        self.beat(A, 2, subscribedTopicRegex="u")
        self.advance(0)
        self.commitAs(A, 2)
        self.beat(A, -1)
        self.log.isHeld = True
        answers: list[Any] = []
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.assertEqual(self.described().groupState, "Dead")
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.assertEqual(self.enter(A, "t").errorCode, gone)
        self.assertEqual(self.commitAs("", -1), gone)
        (joined,) = self.join()
        self.assertEqual(joined.errorCode, gone)
        (left,) = self.leave(LeavingMember(A))
        self.assertEqual(left.errorCode, gone)
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.assertEqual(answers[0][0].errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.assertEqual(answers[1][0].errorCode, gone)
        self.log.isHeld = False
        self.assertEqual(self.described().groupState, "Empty")
        self.assertEqual(self.position(), 5)
        self.advance(INTERVAL_MS)
        self.enter(A, "t")
        self.reload()
        self.assertEqual(self.owned(), {A: {"t": [0, 1]}})

    def test_deletedBehindRefusal(self) -> None:
        """A deletion behind a member's removal that is refused is refused; another deletes both."""
        self.enter(A, "t")
        self.beat(A, 2, subscribedTopicRegex="u")
        self.advance(0)
        self.log.isHeld = True
        self.send(memberId=A, memberEpoch=-1)
        answers: list[Any] = []
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.log.flush()
        codes = [each.errorCode for (each,) in answers]
        self.assertEqual(codes, [ErrorCode.COORDINATOR_NOT_AVAILABLE, 0])
        self.compact()
        self.assertEqual(self.log.records, [])

    def test_deletedWhileUnloaded(self) -> None:
        """The end of a deletion after its log has failed finds nothing."""
        self.enter(A, "t")
        self.beat(A, -1)
        self.log.isHeld = True
        self.coordinator.deleteGroups([GROUP], lambda _: None)
        self.coordinator.unload(self.coordinator._table.partitionOf(GROUP))
        self.log.flush()
        self.assertEqual(self.coordinator._table.groups, {})

    def test_expiry(self) -> None:
        """Offsets of topics that nobody subscribes to expire; then a group without members goes."""
        self.enter(A, "u")
        self.commitAs(A, 2)
        step = SESSION_TIMEOUT_MS - 1
        for _ in range(700_000 // step):
            self.advance(step)
            self.beat(A, 2)
        self.assertEqual(self.position(), -1)
        self.beat(A, -1)
        self.advance(700_000)
        self.assertEqual(self.coordinator._table.groups, {})


class MigrationTests(ConsumerCase):
    """Groups that go on with the other protocol, only when they have no members."""

    settings = replace(ConsumerCase.settings, mayUpgrade=False, mayDowngrade=False)

    def test_toClassic(self) -> None:
        """A group without members goes on as a classic one; its offsets stay."""
        self.pair()
        self.commitAs(A, 3)
        (refused,) = self.join()
        self.assertEqual(refused.errorCode, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self.assertEqual(refused.memberId, "")
        self.beat(A, -1)
        self.beat(B, -1)
        (refused,) = self.join("somebody")
        self.assertEqual(refused.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
        joined = self.stable()[0]
        self.assertEqual(joined.generationId, 1)
        self.assertEqual(self.position(), 5)
        self.assertEqual(self.described().errorMessage, f"Group {GROUP} is not a consumer group.")
        refused_ = self.beat(A, 3)
        self.assertEqual(refused_.errorMessage, f"Group {GROUP} is not a consumer group.")
        self.assertEqual(self.beat(A, -1).errorMessage, refused_.errorMessage)
        self.reload()
        self.assertEqual(self.state(), "Stable")
        self.assertEqual(self.position(), 5)

    def test_toClassicBeforePatternsMatch(self) -> None:
        """A pattern that is matched only then brings nothing of the old group into the log."""
        self.enter(A, subscribedTopicNames=[], subscribedTopicRegex="t")
        self.log.isHeld = True
        self.send(memberId=A, memberEpoch=-1)
        (joined,) = self.join()
        removal, *others = self.log.waiting
        self.log.waiting = [removal]
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.log.waiting += others
        self.log.flush()
        self.log.isHeld = False
        self.sync(joined)
        self.advance(1)
        self.reload()
        self.assertEqual(self.memberIds(), [joined.memberId])

    def test_toClassicFails(self) -> None:
        """If the records that end it fail, the first generation ends it."""
        self.enter(A, "t")
        self.commitAs(A, 2)
        self.beat(A, -1)
        self.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        (joined,) = self.join()
        self.assertEqual(joined.errorCode, 0)
        self.assertEqual(self.position(), 5)
        self.log.error = ErrorCode.NONE
        self.sync(joined)
        self.assertEqual(self.state(), "Stable")
        self.reload()
        self.assertEqual(self.state(), "Stable")
        self.assertEqual(self.position(), 5)

    def failToClassic(self) -> str:
        """
        A group goes on with the classic protocol; the records that end it fail.

        @return: the id of a member that is about to join.
        """
        self.enter(A, "t")
        self.beat(A, 2, subscribedTopicRegex="u")
        self.advance(0)
        self.log.isHeld = True
        self.send(memberId=A, memberEpoch=-1)
        (joined,) = self.join(version=4)
        self.log.flush(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.log.isHeld = False
        return joined.memberId

    def test_backFails(self) -> None:
        """If the records that end it fail, and it goes back, they are deleted by then."""
        self.failToClassic()
        self.enter(B, subscribedTopicNames=None, subscribedTopicRegex="x")
        before = self.described()
        for _ in range(2):
            self.reload()
            self.assertEqual(self.described(), before)
            self.compact()

    def test_deletedAsClassic(self) -> None:
        """If the records that end it fail, the deletion of the classic group has them."""
        self.failToClassic()
        answers: list[Any] = []
        self.coordinator.deleteGroups([GROUP], answers.append)
        self.assertEqual(answers[0][0].errorCode, 0)
        self.compact()
        self.assertEqual(self.log.records, [])

    def test_endedByGeneration(self) -> None:
        """If the records that end it fail, the first generation has them, the second has not."""
        (joined,) = self.join(self.failToClassic())
        self.sync(joined)
        count = len(self.log.records)
        self.join(joined.memberId)
        self.sync(joined._replace(generationId=2))
        self.assertEqual(len(self.log.records), count + 1)
        self.compact()
        self.assertEqual([key for _, (key, _) in self.log.records], [encodeGroupMetadataKey(GROUP)])

    def test_membersInTheLog(self) -> None:
        """A record of a classic group ends one of the new protocol, whatever members it has."""
        self.enter(A, "t", subscribedTopicRegex="u")
        self.advance(0)
        self.coordinator = self.make()
        self.stable()
        self.reload()
        self.assertEqual(self.state(), "Stable")
        self.leave(LeavingMember(self.memberIds()[0]))
        self.compact()
        self.assertEqual([key for _, (key, _) in self.log.records], [encodeGroupMetadataKey(GROUP)])

    def test_toConsumer(self) -> None:
        """A classic group without members goes on with the new protocol; its offsets stay."""
        joined = self.stable()[0]
        self.commit(5, joined)
        answer = self.enter(A, "t")
        self.assertEqual(answer.errorCode, ErrorCode.GROUP_ID_NOT_FOUND)
        self.assertEqual(
            answer.errorMessage,
            f"Cannot upgrade classic group {GROUP} to consumer group because online upgrade is"
            " disabled.",
        )
        self.leave(LeavingMember(joined.memberId))
        self.join(version=4)
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})
        self.assertEqual(self.position(), 5)
        end = encodeGroupMetadataKey(GROUP), None
        self.assertIn(end, [record for _, record in self.log.records])
        (group,) = self.coordinator.describeGroups(ClientContext(6), [GROUP])
        self.assertEqual(group.errorMessage, f"Group {GROUP} is not a classic group.")
        self.reload()
        self.assertEqual(self.owned(), {A: {"t": [0, 1]}})
        self.assertEqual(self.position(), 5)

    def test_offsetsOnly(self) -> None:
        """Offsets of nobody become those of the group."""
        self.commit(7)
        self.assertEqual(self.given(self.enter(A, "t")), {"t": [0, 1]})
        self.assertEqual(self.position(), 7)

    def test_commitOnItsWay(self) -> None:
        """A commit whose append ends behind the change of protocols counts."""
        self.log.isHeld = True
        codes = self.commit(7)
        self.send(
            memberId=A, memberEpoch=0, subscribedTopicNames=["t"], rebalanceTimeoutMs=5, owned={}
        )
        self.log.flush()
        self.assertEqual(codes, [0])
        self.assertEqual(self.position(), 7)

    def test_dying(self) -> None:
        """A classic group that is being deleted does not go on."""
        self.commit(7)
        self.log.isHeld = True
        self.coordinator.deleteGroups([GROUP], lambda _: None)
        self.assertEqual(self.enter(A, "t").errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def test_classicRequests(self) -> None:
        """Requests of classic members find none in such a group; an administrator removes them."""
        self.enter(A, "t", instanceId="i")
        self.enter(B, "t")
        (joined,) = self.join()
        self.assertEqual(self.heartbeat(joined), ErrorCode.UNKNOWN_MEMBER_ID)
        (synced,) = self.sync(joined, protocolType="consumer", protocolName="range")
        self.assertEqual(synced.errorCode, ErrorCode.UNKNOWN_MEMBER_ID)
        (answer,) = self.leave(
            LeavingMember("", "i"),
            LeavingMember(A, "i"),
            LeavingMember(C, "i"),
            LeavingMember(B),
            LeavingMember(B),
            LeavingMember(C),
            LeavingMember("", "j"),
        )
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        self.assertEqual(
            [each.errorCode for each in answer.members],
            [0, unknown, unknown, 0, unknown, unknown, unknown],
        )
        self.assertEqual(self.epochs(), {})
        self.enter(A, "t", instanceId="i")
        (answer,) = self.leave(LeavingMember(C, "i"), LeavingMember(C))
        self.assertEqual(
            [each.errorCode for each in answer.members], [ErrorCode.FENCED_INSTANCE_ID, unknown]
        )
        self.assertEqual(list(self.epochs()), [A])
