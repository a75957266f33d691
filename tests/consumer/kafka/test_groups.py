"""
Tests of L{KafkaConsumer} as a member of a group, on a clock, with brokers in memory.
"""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs, formatEvent

from pylogbroker.cluster.kafka.taskassignor import (
    TaskAssignor,
    TaskStandbys,
    TaskState,
    decodeTaskState,
)
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.consumer.kafka.groupoffsets import storedPartition
from pylogbroker.consumer.offsetstores import MemoryOffsetStore
from pylogbroker.errors import (
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    InvalidTopicError,
    UnsupportedVersionError,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import (
    decodeAssignmentAndUserData,
    decodeSubscription,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata
from tests.client.kafka.fakekafka import CUT, SILENCE
from tests.consumer.kafka.test_consumer import T0, T1, ConsumerCase

GROUP = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT,
)


def refusal(key: ApiKey, code: int) -> Any:
    """A response with an error."""
    if key is ApiKey.FIND_COORDINATOR:
        found = messages.FindCoordinatorResponse
        return found(coordinators=[found.Coordinator(key="g", errorCode=code)])
    if key is ApiKey.OFFSET_FETCH:
        group = messages.OffsetFetchResponse.OffsetFetchResponseGroup(groupId="g", errorCode=code)
        return messages.OffsetFetchResponse(groups=[group])
    if key is ApiKey.OFFSET_COMMIT:
        cls = messages.OffsetCommitResponse
        part = cls.OffsetCommitResponsePartition(partitionIndex=0, errorCode=code)
        topic = cls.OffsetCommitResponseTopic(name="t", partitions=[part])
        return cls(topics=[topic])
    return getattr(messages, f"{key.apiName}Response")(errorCode=code)


class Listener:
    """Writes down what it is told, and answers with C{answers}."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[Any]]] = []
        self.answers: dict[str, Any] = {}

    def _tell(self, name: str, partitions: list[Any]) -> Any:
        self.told.append((name, sorted(partitions)))
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def partitionsAssigned(self, partitions: Any) -> Any:
        return self._tell("assigned", partitions)

    def partitionsRevoked(self, partitions: Any) -> Any:
        return self._tell("revoked", partitions)

    def partitionsLost(self, partitions: Any) -> Any:
        return self._tell("lost", partitions)


class GroupCase(ConsumerCase):
    """A group of one member."""

    def join(self, listener: Listener | None = None, **settings: str) -> KafkaConsumer:
        consumer = self.make(**{"group_id": "g", **settings})
        consumer.subscribe(["t"], listener)
        return consumer


class MemberTests(GroupCase):
    """Joining, leaving, rebalances."""

    def test_joins(self) -> None:
        """It gets the partitions of its topics, begins at the group's positions, and leaves."""
        self.kafka.put("t", 0, b"a", b"b")
        self.kafka.committed["t", 0] = 1
        listener = Listener()
        consumer = self.join(listener)
        self.assertEqual(self.read(consumer), [b"b"])
        self.assertEqual(listener.told, [("assigned", [T0, T1])])
        self.assertEqual(consumer.groupMetadata(), ConsumerGroupMetadata("g", 1, "m", None))
        self.end(consumer)
        self.assertEqual(self.kafka.committed["t", 0], 2)
        self.assertEqual(listener.told[1:], [("revoked", [T0, T1])])
        [left] = self.kafka.asked(ApiKey.LEAVE_GROUP)
        self.assertEqual([each.memberId for each in left.members], ["m"])

    def test_oldBroker(self) -> None:
        """Brokers with the first versions of the requests serve, too."""
        for key in GROUP:
            self.kafka.versions[key] = (key.firstVersion, key.firstVersion)
        self.kafka.versions[ApiKey.LEAVE_GROUP] = (0, 0)
        self.kafka.put("t", 0, b"a")
        consumer = self.join()
        self.assertEqual(self.read(consumer), [b"a"])
        self.end(consumer)
        self.assertEqual(self.kafka.committed["t", 0], 1)
        self.assertEqual(self.kafka.asked(ApiKey.LEAVE_GROUP)[0].memberId, "m")

    def test_withoutNewProtocol(self) -> None:
        """A broker that has no groups of the new protocol is named to the reader."""
        del self.kafka.versions[ApiKey.CONSUMER_GROUP_HEARTBEAT]
        error = self.error(self.join(group_protocol="consumer"), UnsupportedVersionError)
        self.assertIn("does not have ConsumerGroupHeartbeat", str(error))

    def test_everyRetriableError(self) -> None:
        """Each error that passes, and a lost connection, at each step."""
        self.kafka.put("t", 0, b"a")
        for code in [each for each in ErrorCode if each.isRetriable]:
            for key in GROUP:
                self.kafka.answers[key] += [refusal(key, code), CUT]
            self.kafka.committed.clear()
            consumer = self.join(auto_commit_interval_ms="200", heartbeat_interval_ms="100")
            self.assertEqual(self.read(consumer, 4), [b"a"], code)
            self.later(4)
            self.assertEqual(self.kafka.committed["t", 0], 1)
            self.end(consumer)
            self.kafka.answers.clear()

    def test_refused(self) -> None:
        """What does not pass is raised to the reader, which may go on."""
        self.kafka.put("t", 0, b"a")
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        for key in GROUP[:5]:
            if key is ApiKey.HEARTBEAT:
                continue
            self.kafka.answers[key].append(refusal(key, code))
            consumer = self.join()
            self.assertEqual(self.error(consumer, ResponseError).code, code)
            self.assertEqual(self.read(consumer, 3), [b"a"])
            self.end(consumer)
            self.kafka.committed.clear()

    def test_fenced(self) -> None:
        """A static member whose name another one took has lost its partitions, and is told."""
        self.kafka.put("t", 0, b"a")
        listener = Listener()
        consumer = self.join(listener, group_instance_id="i")
        self.assertEqual(self.read(consumer), [b"a"])
        code = ErrorCode.FENCED_INSTANCE_ID
        self.kafka.answers[ApiKey.HEARTBEAT].append(refusal(ApiKey.HEARTBEAT, code))
        self.assertEqual(self.error(consumer, ResponseError, 5).code, code)
        self.assertEqual(listener.told[1], ("lost", [T0, T1]))
        self.end(consumer)
        self.assertEqual(self.kafka.asked(ApiKey.LEAVE_GROUP), [])

    def test_forgotten(self) -> None:
        """A member that the coordinator has forgotten tells of lost partitions, and joins anew."""
        for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            listener = Listener()
            consumer = self.join(listener)
            self.read(consumer)
            self.kafka.answers[ApiKey.HEARTBEAT].append(refusal(ApiKey.HEARTBEAT, code))
            self.read(consumer, 5)
            self.assertEqual([name for name, _ in listener.told], ["assigned", "lost", "assigned"])
            self.end(consumer)

    def rebalance(self) -> None:
        """The next heartbeat says that the group rebalances."""
        code = ErrorCode.REBALANCE_IN_PROGRESS
        self.kafka.answers[ApiKey.HEARTBEAT].append(refusal(ApiKey.HEARTBEAT, code))

    def test_isOwning(self) -> None:
        """It owns partitions from the end of an assignment until they were given up."""
        listener = Listener()
        listener.answers["assigned"] = assigned = Deferred[None]()
        listener.answers["revoked"] = revoked = Deferred[None]()
        consumer = self.join(listener)
        self.assertFalse(consumer.isOwning)
        self.later(1)
        self.assertEqual((consumer.groupMetadata().generationId, consumer.isOwning), (1, False))
        assigned.callback(None)
        self.later(1)
        self.assertTrue(consumer.isOwning)
        self.rebalance()
        self.later(5)
        self.assertEqual((listener.told[-1][0], consumer.isOwning), ("revoked", True))
        listener.answers["assigned"] = Deferred()
        revoked.callback(None)
        self.later(1)
        self.assertEqual((listener.told[-1][0], consumer.isOwning), ("assigned", False))

    def test_waitsForReader(self) -> None:
        """Partitions go when the reader has come back, behind a commit; nothing more is given."""
        self.kafka.put("t", 0, b"a", b"b")
        listener = Listener()
        consumer = self.join(listener)
        self.later(1)
        record = consumer.take()
        assert record is not None
        self.rebalance()
        self.later(10)
        self.assertEqual(len(listener.told), 1)
        self.assertGreater(len(self.kafka.asked(ApiKey.HEARTBEAT)), 2)
        self.assertIsNone(consumer.take())
        self.later(1)
        self.assertEqual([name for name, _ in listener.told], ["assigned", "revoked", "assigned"])
        self.assertEqual(self.kafka.committed, {("t", 0): 1, ("t", 1): 0})
        self.assertEqual(self.read(consumer), [b"b"])

    def test_away(self) -> None:
        """A reader that does not come back loses its partitions until its next take."""
        self.kafka.put("t", 0, b"a", b"b")
        listener = Listener()
        consumer = self.join(listener, max_poll_interval_ms="10000")
        self.later(1)
        consumer.take()
        self.rebalance()
        with capturedLogs() as logs:
            self.later(12)
        self.assertIn("max.poll.interval.ms", "".join(map(str, map(formatEvent, logs))))
        self.assertEqual(listener.told[1], ("lost", [T0, T1]))
        self.failureResultOf(consumer.commitOffsets(), CommitFailedError)
        self.assertEqual(self.read(consumer), [b"a", b"b"])

    def test_listenerFails(self) -> None:
        """What a listener raises, or its silence, does not hold up the group."""
        for answer in (ValueError("no"), fail(ValueError("no")), Deferred(), succeed(None)):
            listener = Listener()
            listener.answers["revoked"] = answer
            consumer = self.join(listener, max_poll_interval_ms="10000")
            self.read(consumer)
            self.rebalance()
            for _second in range(16):
                self.read(consumer)
            self.assertEqual(consumer.assignment(), [T0, T1])
            self.assertIn("revoked", [name for name, _places in listener.told])
            self.flushLoggedErrors(ValueError)
            self.end(consumer)

    def test_pattern(self) -> None:
        """A pattern takes the topics whose whole name matches, also later ones."""
        consumer = self.make(group_id="g", metadata_max_age_ms="1000")
        self.kafka.answers[ApiKey.METADATA].append(CUT)
        consumer.subscribe(re.compile("[tu]"))
        self.kafka.addTopic("tt", 1)
        self.later(3)
        self.assertEqual(consumer.subscription(), {"t"})
        self.kafka.addTopic("u", 1)
        self.later(5)
        self.assertEqual(consumer.subscription(), {"t", "u"})
        self.assertEqual(len(consumer.assignment()), 3)
        leaving = consumer.unsubscribe()
        self.later(1)
        self.successResultOf(leaving)
        self.assertEqual(consumer.assignment(), [])

    def test_leaveUnanswered(self) -> None:
        """A coordinator that does not answer holds a close up for some seconds only."""
        consumer = self.join()
        self.read(consumer)
        self.kafka.answers[ApiKey.LEAVE_GROUP].append(SILENCE)
        self.end(consumer)

    def test_leaveRetried(self) -> None:
        """What a member says when it leaves is said again if it was lost, or refused for now."""
        answer = messages.LeaveGroupResponse
        busy = answer(errorCode=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        gone = answer(errorCode=ErrorCode.UNKNOWN_MEMBER_ID)
        denied = answer(errorCode=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for answers, count, isLogged in (
            ([busy], 2, False),
            ([CUT], 2, False),
            ([CUT, gone], 2, False),
            ([gone], 1, True),
            ([denied], 1, True),
            ([busy] * 5, 3, True),
        ):
            consumer = self.join()
            self.read(consumer)
            self.kafka.answers[ApiKey.LEAVE_GROUP].extend(answers)
            before = len(self.kafka.asked(ApiKey.LEAVE_GROUP))
            with capturedLogs() as logs:
                closing = consumer.close()
                self.later(2)
            self.successResultOf(closing)
            self.kafka.answers[ApiKey.LEAVE_GROUP].clear()
            self.assertEqual(len(self.kafka.asked(ApiKey.LEAVE_GROUP)), before + count)
            said = "".join(map(str, map(formatEvent, logs)))
            self.assertEqual("Not left" in said, isLogged, answers)

    def test_staticLeader(self) -> None:
        """A static leader that came back leaves the assignment, and sees new partitions."""
        first = self.join(group_instance_id="i")
        self.read(first)
        assignment = bytes(self.kafka.asked(ApiKey.SYNC_GROUP)[-1].assignments[0].assignment)

        def back(kafka: Any, header: Any, body: Any) -> Any:
            made = kafka.usual(header, body)
            made.skipAssignment = True
            return made

        self.end(first)
        self.kafka.answers[ApiKey.JOIN_GROUP].append(back)
        self.kafka.answers[ApiKey.SYNC_GROUP].append(
            messages.SyncGroupResponse(assignment=assignment)
        )
        again = self.join(group_instance_id="i", metadata_max_age_ms="1000")
        self.read(again)
        self.assertEqual(self.kafka.asked(ApiKey.SYNC_GROUP)[-1].assignments, [])
        self.assertEqual(again.assignment(), [T0, T1])
        self.kafka.addTopic("t", 1, 2, 1)
        self.read(again, 4)
        self.assertEqual(len(again.assignment()), 3)

    def test_misuse(self) -> None:
        """What cannot be: no group, two ways at once, after the end, wrong names."""
        alone = self.make()
        self.assertRaises(ConsumerStateError, alone.subscribe, ["t"])
        self.assertRaises(ConsumerStateError, alone.commitOffsets)
        alone.assign([T0])
        consumer = self.make(group_id="g")
        self.assertRaises(TypeError, consumer.subscribe, "t")
        self.assertRaises(InvalidTopicError, consumer.subscribe, ["a b"])
        consumer.assign([T0])
        self.assertRaises(ConsumerStateError, consumer.subscribe, ["t"])
        consumer.assign([])
        consumer.subscribe(["t"])
        self.assertRaises(ConsumerStateError, consumer.assign, [T0])
        self.end(consumer)
        self.assertRaises(ConsumerStateError, consumer.subscribe, ["t"])
        for settings in (
            {"heartbeat_interval_ms": "45000"},
            {"partition_assignment_strategy": "best"},
            {"partition_assignment_strategy": ","},
            {"group_instance_id": "i"},
            {"group_remote_assignor": "range"},
        ):
            self.assertRaises(ConfigurationError, self.make, **settings)

    def test_ownAssignor(self) -> None:
        """
        An assignor of the application assigns in place of C{partition.assignment.strategy}, and
        what it tells the leader is asked at each JoinGroup. What the leader tells the members is
        handed to theirs before they adopt partitions.
        """
        onDisk = [1]
        told: list[Any] = []
        self.assignor = TaskAssignor(
            lambda: TaskState(b"f" * 16, [], onDisk),
            1,
            lambda *given: told.append((*given, len(consumer.assignment()))),
        )
        consumer = self.make(
            group_id="g", partition_assignment_strategy="range", metadata_max_age_ms="1000"
        )
        consumer.subscribe(["t"])
        self.read(consumer)
        self.assertEqual(consumer.assignment(), [T0, T1])
        onDisk.append(0)
        self.kafka.addTopic("t", 1, 2, 1)
        self.read(consumer, 4)
        self.assertEqual(len(consumer.assignment()), 3)
        self.assertEqual(told[0], ({0, 1}, TaskStandbys(), 0))
        self.assertEqual(told[-1], ({0, 1, 2}, TaskStandbys(), 2))
        [part] = self.kafka.asked(ApiKey.SYNC_GROUP)[0].assignments
        self.assertEqual(decodeAssignmentAndUserData(part.assignment), ([T0, T1], bytes(5)))
        said = []
        for request in self.kafka.asked(ApiKey.JOIN_GROUP):
            [protocol] = request.protocols
            self.assertEqual(protocol.name, "pylogbroker-tasks")
            data = decodeSubscription(bytes(protocol.metadata), "m").userData
            said.append(decodeTaskState(data).onDisk)
        self.assertEqual((said[0], said[-1]), ({1}, {0, 1}))

    def test_enforceRebalance(self) -> None:
        """A member may ask for a rebalance, unless the coordinator assigns."""
        consumer = self.join()
        consumer.enforceRebalance()
        self.read(consumer)
        count = len(self.kafka.asked(ApiKey.JOIN_GROUP))
        consumer.enforceRebalance()
        self.read(consumer)
        self.assertEqual(len(self.kafka.asked(ApiKey.JOIN_GROUP)), count + 1)
        other = self.make(group_id="h", group_protocol="consumer")
        self.assertRaises(ConsumerStateError, other.enforceRebalance)

    def test_assignorOfCoordinator(self) -> None:
        """With the new protocol the coordinator assigns: an assignor of the client is refused."""
        self.assignor = TaskAssignor()
        error = self.assertRaises(
            ConfigurationError, self.make, group_id="g", group_protocol="consumer"
        )
        self.assertIn("pylogbroker-tasks needs group.protocol=classic", str(error))


class CommitTests(GroupCase):
    """Positions."""

    def test_byTime(self) -> None:
        """What the reader has come back from is committed, and nothing else."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer = self.join()
        self.later(1)
        consumer.takeMany(2)
        self.later(6)
        self.assertEqual(self.kafka.committed["t", 0], 0)
        consumer.take()
        self.later(6)
        self.assertEqual(self.kafka.committed["t", 0], 2)
        done = consumer.commitOffsets()
        self.kafka.run()
        self.successResultOf(done)
        self.assertEqual(self.kafka.committed["t", 0], 3)

    def test_byHand(self) -> None:
        """Offsets, epochs and texts are committed; a part of what is in hand may be."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer = self.join()
        self.later(1)
        consumer.takeMany()
        done = consumer.commitOffsets({T0: OffsetAndMetadata(2, 5, "x")})
        self.kafka.run()
        self.successResultOf(done)
        [part] = self.kafka.asked(ApiKey.OFFSET_COMMIT)[-1].topics[0].partitions
        self.assertEqual((part.committedLeaderEpoch, part.committedMetadata), (5, "x"))
        self.end(consumer)
        self.assertEqual(self.kafka.committed["t", 0], 2)

    def test_fenced(self) -> None:
        """A commit of one that is no member any more fails, and says what happened."""
        consumer = self.join()
        self.read(consumer)
        for code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self.kafka.answers[ApiKey.OFFSET_COMMIT].append(refusal(ApiKey.OFFSET_COMMIT, code))
            done = consumer.commit({T0: 1})
            self.kafka.run()
            self.assertIn(code.name, str(self.failureResultOf(done, CommitFailedError)))
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        self.kafka.answers[ApiKey.OFFSET_COMMIT].append(refusal(ApiKey.OFFSET_COMMIT, code))
        done = consumer.commit({T0: 1})
        self.kafka.run()
        self.failureResultOf(done, ResponseError)

    def test_logged(self) -> None:
        """Commits by time that fail are logged once, and so is their end."""
        self.kafka.put("t", 0, b"a")
        consumer = self.join()
        self.read(consumer)
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        with capturedLogs() as logs:
            self.kafka.answers[ApiKey.OFFSET_COMMIT] += [
                refusal(ApiKey.OFFSET_COMMIT, code) for _time in range(2)
            ]
            self.read(consumer, 18)
        texts = [str(formatEvent(event)) for event in logs]
        self.assertEqual(sum("not committed" in text for text in texts), 1)
        self.assertEqual(sum("committed again" in text for text in texts), 1)

    def test_assigned(self) -> None:
        """Partitions that are assigned by hand have the group's positions, too."""
        self.kafka.put("t", 0, b"a", b"b")
        self.kafka.committed["t", 0] = 1
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        self.kafka.answers[ApiKey.OFFSET_FETCH].append(refusal(ApiKey.OFFSET_FETCH, code))
        consumer = self.make(group_id="g")
        consumer.assign([T0])
        self.error(consumer, ResponseError)
        self.assertEqual(self.read(consumer, 3), [b"b"])
        asking = consumer.committed([T0, T1])
        self.kafka.run()
        self.assertEqual(self.successResultOf(asking), {T0: OffsetAndMetadata(1), T1: None})
        self.end(consumer)
        self.assertEqual(self.kafka.committed["t", 0], 2)

    def test_store(self) -> None:
        """Positions may be kept in a store; what it does not take is an error."""
        self.kafka.put("t", 0, b"a", b"b")
        store = MemoryOffsetStore({storedPartition(T0): 1})
        consumer = KafkaConsumer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers, "group.id": "g"},
            offsetStore=store,
        )
        self.addCleanup(self.end, consumer)
        consumer.subscribe(["t"])
        self.assertEqual(self.read(consumer), [b"b"])
        done = consumer.commitOffsets()
        self.successResultOf(done)
        self.assertEqual(store.offsets[storedPartition(T0)], 2)
        self.assertEqual(self.kafka.committed, {})
        self.patch(store, "commit", lambda offsets: succeed({}))
        self.assertIn("t-0", str(self.failureResultOf(consumer.commit({T0: 1}), CommitFailedError)))
