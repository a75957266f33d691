"""
Tests of L{pylogbroker.consumer.kafka.consumermembership}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.kafka.consumermembership import ConsumerMembershipManager, ConsumerStep
from pylogbroker.consumer.kafka.groupmembership import NO_GENERATION, Phase
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import TopicPartition

T, U = b"t" * 16, b"u" * 16
NAMES = {T: "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CODES = (
    0,
    0,
    0,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def answer(
    epoch: int = 1, places: dict[bytes, list[int]] | None = None, code: int = 0, text: str = ""
) -> Any:
    """A response; without places it says nothing of an assignment."""
    cls = messages.ConsumerGroupHeartbeatResponse
    assignment = None
    if places is not None:
        assignment = cls.Assignment(
            topicPartitions=[
                cls.TopicPartitions(topicId=topicId, partitions=numbers)
                for topicId, numbers in places.items()
            ]
        )
    return cls(
        errorCode=code,
        errorMessage=text or None,
        memberId="m",
        memberEpoch=epoch,
        heartbeatIntervalMs=700,
        assignment=assignment,
    )


class MembershipTests(SynchronousTestCase):
    """L{ConsumerMembershipManager}."""

    def member(self, instanceId: str | None = None) -> ConsumerMembershipManager:
        """It subscribes to C{t}."""
        made = ConsumerMembershipManager(
            "g", instanceId, maxPollIntervalMs=100, rackId="r", assignor="range"
        )
        made.subscribe(["t"])
        return made

    def beat(self, member: ConsumerMembershipManager, **given: Any) -> Any:
        """A heartbeat and its answer; returns the request."""
        request = member.request()
        member.beaten(request, answer(**given))
        return request

    def adopt(self, member: ConsumerMembershipManager) -> None:
        """Take in what comes."""
        member.beginAdoption(member.coming(NAMES))
        member.endAdoption(True)

    def owned(self, request: Any) -> list[list[int]]:
        """The partitions that a request names."""
        return [each.partitions for each in request.topicPartitions]

    def test_joins(self) -> None:
        """It joins with epoch 0 and everything, and learns of its epoch and interval."""
        member = ConsumerMembershipManager("g", None, maxPollIntervalMs=100)
        self.assertIs(member.step(0, NAMES), ConsumerStep.REST)
        member = self.member()
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        request = self.beat(member, epoch=5)
        self.assertEqual(
            (request.memberEpoch, request.subscribedTopicNames, request.topicPartitions),
            (0, ["t"], []),
        )
        self.assertEqual(
            (request.rebalanceTimeoutMs, request.serverAssignor, request.rackId),
            (100, "range", "r"),
        )
        self.assertEqual((member.generation, member.intervalMs, member.memberId), (5, 700, "m"))
        self.assertIs(member.step(0, NAMES), ConsumerStep.REST)
        request = self.beat(member, epoch=5)
        self.assertEqual(request.memberEpoch, 5)
        for field in ("subscribedTopicNames", "topicPartitions", "serverAssignor", "rackId"):
            self.assertIsNone(getattr(request, field))
        member.subscribe(["t", "u"])
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        self.assertEqual(self.beat(member).subscribedTopicNames, ["t", "u"])

    def test_reconciles(self) -> None:
        """It gives up, says so, and only then takes in; each partition by its topic's id."""
        member = self.member()
        self.beat(member, places={T: [0]})
        self.assertIs(member.step(0, NAMES), ConsumerStep.ADOPT)
        self.assertEqual(member.coming(NAMES), {T0: T})
        self.adopt(member)
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        [told] = self.beat(member).topicPartitions
        self.assertEqual((told.topicId, told.partitions), (T, [0]))
        self.beat(member, epoch=2, places={T: [1]})
        self.assertIs(member.step(0, NAMES), ConsumerStep.REVOKE)
        self.assertEqual(member.leaving(), [T0])
        member.revoked([T0])
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        self.assertEqual(self.beat(member, epoch=2).topicPartitions, [])
        self.assertIs(member.step(0, NAMES), ConsumerStep.ADOPT)
        self.assertEqual(member.coming(NAMES), {T1: T})

    def test_takenAwayAtOnce(self) -> None:
        """
        A partition is assigned, and taken away again before the member has it: it says that it does
        not have it. Else the coordinator would keep the partition for it for good.
        """
        member = self.member()
        self.beat(member, places={T: [0]})
        self.adopt(member)
        self.beat(member)
        self.beat(member, epoch=2, places={T: [0, 1]})
        self.assertEqual(self.owned(self.beat(member, epoch=2, places={T: [0]})), [[0]])
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        self.assertEqual(self.owned(self.beat(member, epoch=2)), [[0]])
        self.assertIs(member.step(0, NAMES), ConsumerStep.REST)
        self.assertIsNone(self.beat(member, epoch=2).topicPartitions)

    def test_givenBackUntold(self) -> None:
        """
        A partition was taken in, and is taken away again in the answer to a heartbeat from before:
        the member says that it has given it up.
        """
        member = self.member()
        self.beat(member, places={T: [0]})
        self.adopt(member)
        self.beat(member)
        self.beat(member, epoch=2, places={T: [0, 1]})
        request = member.request()
        self.adopt(member)
        member.beaten(request, answer(2, {T: [0]}))
        self.assertIs(member.step(0, NAMES), ConsumerStep.REVOKE)
        member.revoked([T1])
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        self.assertEqual(self.owned(self.beat(member, epoch=2)), [[0]])

    def test_beingAdopted(self) -> None:
        """
        A heartbeat names partitions that are being taken in. One that is taken away meanwhile is
        given up afterwards.
        """
        member = self.member()
        self.beat(member, places={T: [0]})
        member.beginAdoption(member.coming(NAMES))
        request = self.beat(member, epoch=2, places={T: [1]})
        self.assertEqual((self.owned(request), member.isAdopting), ([[0]], True))
        member.endAdoption(True)
        self.assertIs(member.step(0, NAMES), ConsumerStep.REVOKE)
        member.revoked([T0])
        self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
        self.assertEqual(self.owned(self.beat(member, epoch=2)), [])

    def test_notAdopted(self) -> None:
        """Partitions that could not be taken in are not its own."""
        member = self.member()
        self.beat(member, places={T: [0]})
        member.beginAdoption(member.coming(NAMES))
        member.endAdoption(False)
        self.assertEqual(member.held, {})
        self.assertIs(member.step(0, NAMES), ConsumerStep.ADOPT)

    def test_lostWhileAdopting(self) -> None:
        """
        A member that is removed while it takes partitions in does not have them: when they are
        assigned to it again, it takes them in anew.
        """
        member = self.member()
        self.beat(member, places={T: [0]})
        member.beginAdoption(member.coming(NAMES))
        with self.assertRaises(ResponseError):
            self.beat(member, code=ErrorCode.FENCED_MEMBER_EPOCH)
        member.endAdoption(True)
        self.assertEqual(member.held, {})
        member.isLost = False
        self.assertEqual(self.owned(self.beat(member, places={T: [0]})), [])
        self.assertIs(member.step(0, NAMES), ConsumerStep.ADOPT)

    def test_unknownTopic(self) -> None:
        """A partition of a topic without a name waits for the name."""
        member = self.member()
        self.beat(member, places={U: [0]})
        self.assertTrue(member.hasUnknown(NAMES))
        self.assertIs(member.step(0, NAMES), ConsumerStep.REST)
        self.assertIs(member.step(0, {U: "u"}), ConsumerStep.ADOPT)
        self.assertFalse(member.hasUnknown({U: "u"}))

    def test_lost(self) -> None:
        """A member that is removed has lost everything, and joins with epoch 0 again."""
        for code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            member = self.member()
            self.beat(member, places={T: [0]})
            self.adopt(member)
            with self.assertRaisesRegex(ResponseError, "group g: .*why"):
                self.beat(member, code=code, text="why")
            self.assertEqual((member.held, member.generation), ({}, NO_GENERATION))
            self.assertIs(member.step(0, NAMES), ConsumerStep.LOSE)
            member.isLost = False
            self.assertIs(member.step(0, NAMES), ConsumerStep.BEAT)
            self.assertEqual(self.beat(member).memberEpoch, 0)

    def test_error(self) -> None:
        """Behind an error that passes nothing is lost, and the next heartbeat names everything."""
        member = self.member()
        self.beat(member, places={T: [0]})
        self.adopt(member)
        self.beat(member)
        with self.assertRaises(ResponseError):
            self.beat(member, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.assertEqual(member.held, {T0: T})
        request = self.beat(member)
        self.assertEqual((request.memberEpoch, request.subscribedTopicNames), (1, ["t"]))
        self.assertEqual(len(request.topicPartitions), 1)

    def test_leaves(self) -> None:
        """It leaves when the reader is away or wants nothing; a static one may come back."""
        member = self.member()
        self.beat(member)
        self.assertIs(member.step(100, NAMES), ConsumerStep.LEAVE)
        member.polledAtMs = 100
        self.assertIs(member.step(100, NAMES), ConsumerStep.REST)
        member.subscribe([])
        self.assertIs(member.step(100, NAMES), ConsumerStep.LEAVE)
        self.assertEqual(member.leaveRequest().memberEpoch, -1)
        self.assertEqual(self.member("i").leaveRequest().memberEpoch, -2)
        member.lose()
        member.isLost = False
        self.assertIs(member.step(100, NAMES), ConsumerStep.REST)

    def test_anyOrder(self) -> None:
        """
        Whatever is answered, in any order: it has a generation only as a member, holds nothing when
        it is none, takes in nothing before it has told what it gave up, and settles at last.
        """
        for seed in range(300):
            random = Random(seed)
            member = self.member()
            for _turn in range(40):
                self.turn(member, random)
                self.assertEqual(member.phase is Phase.STABLE, member.generation >= 0, seed)
                if member.phase is Phase.OUT:
                    self.assertEqual(member.held, {}, seed)
            member.subscribe(["t"])
            member.polledAtMs = 0
            for _turn in range(20):
                step = member.step(0, NAMES)
                if step is ConsumerStep.REST and set(member.held) == {T0, T1}:
                    break
                self.act(member, step, answer(9, {T: [0, 1]}))  # at rest, when it is time
            self.assertIs(member.step(0, NAMES), ConsumerStep.REST, seed)
            self.assertEqual(set(member.held), {T0, T1}, seed)

    def turn(self, member: ConsumerMembershipManager, random: Random) -> None:
        """One step, or other topics."""
        if random.random() < 0.1:
            member.subscribe(random.choice((["t"], ["t", "u"], [])))
        places = {T: random.sample([0, 1, 2], random.randrange(4))}
        given = answer(random.randrange(1, 9), random.choice((None, places)), random.choice(CODES))
        self.act(member, member.step(0, NAMES), given)

    def act(self, member: ConsumerMembershipManager, step: ConsumerStep, given: Any) -> None:
        """Carry a step out."""
        if step is ConsumerStep.LOSE:
            member.isLost = False
        elif step is ConsumerStep.LEAVE:
            member.lose()
        elif step is ConsumerStep.REVOKE:
            member.revoked(member.leaving())
        elif step is ConsumerStep.ADOPT:
            self.assertEqual(member.leaving(), [])
            self.adopt(member)
        else:
            request = member.request()
            try:
                member.beaten(request, given)
            except ResponseError:
                self.assertNotEqual(given.errorCode, 0)
