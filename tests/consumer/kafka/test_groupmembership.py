"""
Tests of L{pylogbroker.consumer.kafka.groupmembership}.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka.assignors import assignorOf
from pylogbroker.consumer.kafka.groupmembership import GroupMembership, Phase, Step
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.consumerprotocol import decodeSubscription
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import TopicPartition

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
CODES = (
    0,
    0,
    0,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def make(*assignors: str, instanceId: str | None = None) -> GroupMembership:
    return GroupMembership(
        "g",
        instanceId,
        [assignorOf(name) for name in assignors or ("range",)],
        sessionTimeoutMs=1000,
        maxPollIntervalMs=100,
        rackId="r",
    )


def joined(code: int = 0, generation: int = 1) -> messages.ApiMessage:
    return messages.JoinGroupResponse(
        errorCode=code, memberId="m", leader="m", generationId=generation, protocolName="range"
    )


class MembershipTests(SynchronousTestCase):
    """L{GroupMembership}."""

    def test_joins(self) -> None:
        """It joins with the id that the coordinator gives it, and has a generation then."""
        member = make()
        self.assertIs(member.step(0), Step.REST)
        member.subscribe(["t"])
        self.assertIs(member.step(0), Step.JOIN)
        self.assertEqual(member.joinRequest([]).memberId, "")
        member.joined(joined(ErrorCode.MEMBER_ID_REQUIRED))
        self.assertIs(member.step(0), Step.JOIN)
        request = member.joinRequest([T0])
        self.assertEqual((request.memberId, request.rebalanceTimeoutMs), ("m", 100))
        told = decodeSubscription(bytes(request.protocols[0].metadata), "m")
        self.assertEqual((told.topics, told.ownedPartitions, told.rackId), (("t",), (T0,), "r"))
        member.joined(joined())
        self.assertIs(member.step(0), Step.SYNC)
        self.assertEqual(member.syncRequest({"m": b"x"}).generationId, 1)
        member.synced(0)
        self.assertIs(member.step(0), Step.REST)
        member.subscribe(["t", "u"])
        self.assertIs(member.step(0), Step.JOIN)

    def test_givesUp(self) -> None:
        """Eager members give all up before they join; cooperative ones what they do not want."""
        eager, cooperative = make("range", "cooperative-sticky"), make("cooperative-sticky")
        for member in (eager, cooperative):
            member.subscribe(["t"])
        self.assertEqual(eager.givenUp([T0, U0]), [T0, U0])
        self.assertEqual(cooperative.givenUp([T0, U0]), [U0])

    def test_readerAway(self) -> None:
        """Without a reader it leaves, and joins again when there is one."""
        member = make()
        member.subscribe(["t"])
        member.joinRequest([])
        member.joined(joined())
        member.synced(0)
        self.assertIs(member.step(100), Step.LEAVE)
        member.lose()
        self.assertIs(member.step(100), Step.LOSE)
        member.isLost = False
        self.assertIs(member.step(100), Step.REST)
        member.polledAtMs = 100
        self.assertIs(member.step(100), Step.JOIN)

    def test_oldAnswer(self) -> None:
        """The answer to a heartbeat of an earlier generation says nothing."""
        member = make()
        member.subscribe(["t"])
        member.joinRequest([])
        member.joined(joined(generation=2))
        member.synced(0)
        member.beaten(1, ErrorCode.ILLEGAL_GENERATION)
        self.assertIs(member.step(0), Step.REST)
        member.beaten(2, ErrorCode.REBALANCE_IN_PROGRESS)
        self.assertIs(member.step(0), Step.JOIN)

    def test_anyOrder(self) -> None:
        """
        Whatever is answered, in any order: it has a generation only as a member, what it has lost
        is dropped before it joins, a static member is told by its name, and in the end it joins.
        """
        for seed in range(300):
            random = Random(seed)
            member = make(instanceId=random.choice((None, "i")))
            member.subscribe(["t"])
            nowMs = generation = 0
            for _turn in range(60):
                nowMs += random.choice((0, 0, 10, 60))
                if random.random() < 0.7:
                    member.polledAtMs = nowMs
                self._go(member, random, nowMs, generation := generation + 1)
                self.assertEqual(member.isLost, member.step(nowMs) is Step.LOSE)
                if member.phase is Phase.OUT:
                    self.assertEqual(member.generation, -1)
                if member.step(nowMs) in (Step.JOIN, Step.SYNC):
                    self.assertLess(nowMs - member.polledAtMs, 100)
            self._finish(member, nowMs)

    def _go(self, member: GroupMembership, random: Random, nowMs: int, generation: int) -> None:
        code, step = random.choice(CODES), member.step(nowMs)
        try:
            if step is Step.LOSE:
                member.isLost = False
            elif step is Step.LEAVE:
                member.lose()
            elif step is Step.JOIN:
                self.assertEqual(member.joinRequest([]).groupInstanceId, member.instanceId)
                member.joined(joined(code, generation))
            elif step is Step.SYNC:
                member.synced(code)
            else:
                member.beaten(member.generation - random.choice((0, 1)), code)
        except ResponseError as error:
            self.assertEqual(error.code, code)

    def _finish(self, member: GroupMembership, nowMs: int) -> None:
        member.polledAtMs = nowMs
        steps = []
        while (step := member.step(nowMs)) is not Step.REST:
            steps.append(step)
            self.assertLess(len(steps), 5, steps)
            if step is Step.LOSE:
                member.isLost = False
            elif step is Step.JOIN:
                member.joinRequest([])
                member.joined(joined())
            else:
                member.synced(0)
        self.assertIs(member.phase, Phase.STABLE)
