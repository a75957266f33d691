"""
Consumer groups of L{KafkaConsumer} on a real broker: members that come and go, static ones, slow
ones, and another client in the same group.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from pylogbroker.cluster.kafka.assignors import IPartitionAssignor
from pylogbroker.cluster.kafka.taskassignor import TaskAssignor, TaskState
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.consumer.offsetstores import MemoryOffsetStore
from pylogbroker.errors import CommitFailedError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import OffsetAndMetadata, TopicPartition

T0 = TopicPartition("t", 0)
COUNT = 4

OTHER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest",
    "partition.assignment.strategy": sys.argv[2], "enable.auto.commit": False,
})
consumer.subscribe(["t"])
values = []
while len(values) < int(sys.argv[3]):
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        values.append(message.value().decode())
        consumer.commit(message, asynchronous=False)
print(" ".join(values))
consumer.close()
"""


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, set[TopicPartition]]] = []

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", set(partitions)))

    async def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", set(partitions)))

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", set(partitions)))


class GroupCase(TestCase):
    """
    A topic of four partitions.

    @cvar protocol: C{group.protocol} of the members.
    @ivar assignor: of the next member; L{None}: those of its settings.
    """

    timeout = 120
    protocol = "classic"
    assignor: IPartitionAssignor | None = None

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(
            reactor,
            {
                "num.partitions": str(COUNT),
                "group.min.session.timeout.ms": "100",
                "group.consumer.heartbeat.interval.ms": "50",
                "group.consumer.assignment.interval.ms": "0",
            },
        )
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.producer = KafkaProducer(
            reactor, {"bootstrap.servers": self.broker.bootstrapServers, "linger.ms": "0"}
        )
        self.addCleanup(self.producer.close)
        self.sentCount = 0
        self.broken: list[Any] = []
        self.found: Counter[bytes] = Counter()

    async def send(self, count: int, topic: str = "t") -> None:
        """More numbers, dealt to the partitions in turn."""
        for _message in range(count):
            value = b"%d" % self.sentCount
            await self.producer.send(topic, value, partition=self.sentCount % COUNT)
            self.sentCount += 1

    def member(self, **settings: str) -> KafkaConsumer:
        """A member that is not subscribed yet."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = KafkaConsumer(
            reactor,
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": "50",
                "retry.backoff.ms": "10",
                "group.protocol": self.protocol,
                **given,
            },
            assignor=self.assignor,
        )
        self.addCleanup(made.close)
        return made

    def read(self, consumer: KafkaConsumer) -> None:
        """Count what a consumer reads, to its end."""

        async def readAll() -> None:
            async for record in consumer:
                self.found[record.value or b""] += 1

        Deferred.fromCoroutine(readAll()).addErrback(self.broken.append)

    async def until(self, isSo: Callable[[], bool]) -> None:
        """Wait for something."""
        while not isSo():
            self.assertEqual(self.broken, [])
            await deferLater(reactor, 0.01)

    async def exchange(self, **settings: str) -> None:
        """Two join, one after the other, and one leaves."""
        await self.send(40)
        first, second = self.member(**settings), self.member(**settings)
        first.subscribe(["t"])
        self.read(first)
        await self.until(lambda: len(self.found) == 40)
        self.assertEqual(len(first.assignment()), COUNT)
        second.subscribe(re.compile("t"))
        self.read(second)
        await self.until(lambda: len(second.assignment()) == 2 == len(first.assignment()))
        self.assertEqual({*first.assignment()} & {*second.assignment()}, set())
        await self.send(40)
        await self.until(lambda: len(self.found) == 80)
        await first.close()
        await self.until(lambda: len(second.assignment()) == COUNT)
        await self.send(40)
        await self.until(lambda: len(self.found) == 120)
        await second.close()
        self.assertEqual(set(self.found.values()), {1})

    def addPartitions(self) -> None:
        """Two more; waits for the broker, in a thread."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrapServers})
        admin.create_partitions([NewPartitions("t", COUNT + 2)])["t"].result(30)


class GroupTests(GroupCase):
    """What holds in groups of both protocols; here in classic ones."""

    async def test_committed(self) -> None:
        """Positions are committed with their text, and a reader goes on behind them."""
        await self.send(8)
        first = self.member(enable_auto_commit="false")
        first.subscribe(["t"])
        self.read(first)
        await self.until(lambda: len(self.found) == 8)
        await first.commitOffsets({T0: OffsetAndMetadata(1, 0, "half")})
        self.assertEqual(await first.committed([T0]), {T0: OffsetAndMetadata(1, 0, "half")})
        await first.close()
        second = self.member()
        second.subscribe(["t"])
        self.read(second)
        await self.until(lambda: sum(self.found.values()) == 15)
        await second.close()
        third = self.member()
        found = await third.committed([T0, TopicPartition("t", 9)])
        stored = found[T0]
        assert stored is not None
        self.assertEqual((stored.offset, len(found)), (2, 2))

    async def test_inHand(self) -> None:
        """A message that the reader has not come back from is not committed by itself."""
        await self.send(1)
        first = self.member()
        first.subscribe(["t"])
        self.assertEqual((await first.__anext__()).value, b"0")
        await first.close()
        second = self.member()
        second.subscribe(["t"])
        self.assertEqual((await second.__anext__()).value, b"0")
        await second.commitOffsets()
        await second.close()
        third = self.member()
        third.subscribe(["t"])
        await self.send(1)
        self.assertEqual((await third.__anext__()).value, b"1")

    async def test_slowReader(self) -> None:
        """One that takes nothing for too long has left, is told so, and joins with a take."""
        await self.send(8)
        listener = Listener()
        slow = self.member(max_poll_interval_ms="200")
        slow.subscribe(["t"], listener)
        await slow.__anext__()
        await self.until(lambda: ("lost", {*listener.told[0][1]}) in listener.told)
        self.assertEqual(slow.assignment(), [])
        self.assertEqual(slow.groupMetadata().generationId, -1)
        with self.assertRaises(CommitFailedError) as caught:
            await slow.commitOffsets({T0: 1})
        self.assertIn("nothing was committed", str(caught.exception))
        self.read(slow)
        await self.until(lambda: len(self.found) == 8)

    async def test_isOwning(self) -> None:
        """It owns its partitions when they are there, and until they were given up."""
        member = self.member()
        seen: list[tuple[str, bool]] = []

        class Watcher(Listener):
            def partitionsAssigned(self, _partitions: Collection[TopicPartition]) -> None:
                seen.append(("assigned", member.isOwning))

            async def partitionsRevoked(self, _partitions: Collection[TopicPartition]) -> None:
                seen.append(("revoked", member.isOwning))

        await self.send(4)
        member.subscribe(["t"], Watcher())
        self.read(member)
        await self.until(lambda: member.isOwning)
        self.assertEqual(len(member.assignment()), COUNT)
        await member.unsubscribe()
        self.assertEqual(seen, [("assigned", False), ("revoked", True)])
        self.assertFalse(member.isOwning)

    async def lose(self, member: KafkaConsumer, listener: Listener) -> None:
        """Let a member lose its partitions, and join again."""
        request = "Heartbeat" if self.protocol == "classic" else "ConsumerGroupHeartbeat"
        self.broker.injectError(request, "UNKNOWN_MEMBER_ID")
        await self.until(lambda: listener.told[1:2] == [("lost", listener.told[0][1])])
        await self.until(lambda: member.isOwning)

    async def test_lostInHand(self) -> None:
        """
        A member that lost its partitions and is one again commits nothing of what its reader had
        before, by hand or in a transaction: others may have handled it.
        """
        await self.send(4)
        listener = Listener()
        member = self.member(session_timeout_ms="300", enable_auto_commit="false")
        member.subscribe(["t"], listener)
        message = await member.__anext__()
        place = TopicPartition(message.topic, message.partition)
        await self.lose(member, listener)
        writer = KafkaProducer(
            reactor,
            {"bootstrap.servers": self.broker.bootstrapServers, "transactional.id": "x"},
        )
        self.addCleanup(writer.close)
        for offsets in ({place: 1}, None):
            with self.assertRaises(CommitFailedError):
                await member.commitOffsets(offsets)
        with self.assertRaises(CommitFailedError):
            async with writer.transaction() as transaction:
                await transaction.sendOffsets({place: 1}, member.groupMetadata())
        self.assertEqual(await member.committed([place]), {place: None})
        again = await member.__anext__()
        place = TopicPartition(again.topic, again.partition)
        self.assertGreaterEqual(member.groupMetadata().generationId, 0)
        async with writer.transaction() as transaction:
            await transaction.sendOffsets({place: 1}, member.groupMetadata())
        self.assertEqual(await member.committed([place]), {place: OffsetAndMetadata(1)})

    async def test_lostWhileCommitting(self) -> None:
        """A commit that is tried again is not carried out for a later membership."""
        await self.send(4)
        listener = Listener()
        member = self.member(session_timeout_ms="300", enable_auto_commit="false")
        member.subscribe(["t"], listener)
        message = await member.__anext__()
        place = TopicPartition(message.topic, message.partition)
        refusing = self.broker.injectError(
            "OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", count=None
        )
        committing = member.commitOffsets({place: 1})
        await self.until(lambda: refusing.hitCount > 0)
        await self.lose(member, listener)
        refusing.clear()
        with self.assertRaises(CommitFailedError):
            await committing
        self.assertEqual(await member.committed([place]), {place: None})

    async def test_closedTwice(self) -> None:
        """The second call waits for the first one, which commits and leaves."""
        await self.send(8)
        first, second = self.member(), self.member()
        first.subscribe(["t"])
        self.read(first)
        await self.until(lambda: len(self.found) == 8)
        first.close()
        await first.close()
        await first.close()
        second.subscribe(["t"])
        self.read(second)
        await self.until(lambda: len(second.assignment()) == COUNT)
        await self.send(8)
        await self.until(lambda: len(self.found) == 16)
        self.assertEqual(set(self.found.values()), {1})

    async def test_closeCancelled(self) -> None:
        """Cancelled while a listener works, it closes the connections all the same."""
        await self.send(4)
        opened = self.broker.broker.service.connections.open
        before = len(opened)

        class Waiting(Listener):
            def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> Any:
                self.told.append(("revoked", set(partitions)))
                return Deferred()

        member, listener = self.member(), Waiting()
        member.subscribe(["t"], listener)
        self.read(member)
        await self.until(lambda: len(self.found) == 4)
        closing = member.close()
        await self.until(lambda: listener.told[-1][0] == "revoked")
        closing.cancel()
        await self.assertFailure(closing, CancelledError)
        await member.close()
        await self.until(lambda: len(opened) == before)

    async def test_unsubscribed(self) -> None:
        """One that wants no topics any more gives its partitions up, and may assign some."""
        await self.send(4)
        listener = Listener()
        member = self.member()
        member.subscribe(["t"], listener)
        self.assertEqual(member.subscription(), {"t"})
        self.read(member)
        await self.until(lambda: len(self.found) == 4)
        await member.unsubscribe()
        self.assertEqual([name for name, _places in listener.told], ["assigned", "revoked"])
        self.assertEqual((member.subscription(), member.assignment()), (frozenset(), []))
        member.assign([T0])
        await self.send(4)
        await self.until(lambda: len(self.found) == 5)

    async def test_assignedInstead(self) -> None:
        """One that unsubscribes before it takes anything may assign partitions, and commit."""
        await self.send(4)
        member = self.member()
        member.subscribe(["t"])
        await self.until(lambda: member.isOwning)
        await member.unsubscribe()
        member.assign([T0])
        await member.commitOffsets({T0: 1})
        self.assertEqual(await member.committed([T0]), {T0: OffsetAndMetadata(1)})

    async def test_store(self) -> None:
        """Positions can be kept elsewhere."""
        await self.send(4)
        store = MemoryOffsetStore()
        for count in (4, 8):
            reader = KafkaConsumer(
                reactor,
                {
                    "bootstrap.servers": self.broker.bootstrapServers,
                    "auto.offset.reset": "earliest",
                },
                offsetStore=store,
            )
            reader.assign([TopicPartition("t", number) for number in range(COUNT)])
            self.read(reader)
            await self.until(lambda: len(self.found) == count)  # noqa: B023
            await reader.close()
            await self.send(4)
        self.assertEqual(set(self.found.values()), {1})

    async def test_morePartitions(self) -> None:
        """The leader sees new partitions, and they get a reader."""
        await self.send(4)
        member = self.member(metadata_max_age_ms="100")
        member.subscribe(["t"])
        self.read(member)
        await self.until(lambda: len(self.found) == 4)
        await deferToThread(self.addPartitions)
        await self.until(lambda: len(member.assignment()) == COUNT + 2)


class ClassicProtocolTests(GroupCase):
    """A member assigns the partitions."""

    async def test_eager(self) -> None:
        """Members that come and go have each partition once, and read each message once."""
        await self.exchange()

    async def test_cooperative(self) -> None:
        """The same, where members keep partitions during a rebalance."""
        await self.exchange(partition_assignment_strategy="cooperative-sticky")

    async def test_cooperativeKeeps(self) -> None:
        """With the cooperative assignor only what moves is revoked."""
        await self.send(4)
        listener = Listener()
        settings = {"partition_assignment_strategy": "cooperative-sticky"}
        first, second = self.member(**settings), self.member(**settings)
        first.subscribe(["t"], listener)
        self.read(first)
        await self.until(lambda: len(self.found) == 4)
        second.subscribe(["t"])
        self.read(second)
        await self.until(lambda: len(second.assignment()) == 2)
        self.assertEqual([name for name, _places in listener.told], ["assigned", "revoked"])
        self.assertEqual(listener.told[1][1], {*second.assignment()})

    async def test_static(self) -> None:
        """A static member that comes back has its partitions again, in the same generation."""
        await self.send(8)
        members = [self.member(group_instance_id=name) for name in ("a", "b")]
        for each in members:
            each.subscribe(["t"])
            self.read(each)
        await self.until(lambda: all(len(each.assignment()) == 2 for each in members))
        before = members[1].groupMetadata().generationId
        places = {*members[0].assignment()}
        await members[0].close()
        again = self.member(group_instance_id="a")
        again.subscribe(["t"])
        self.read(again)
        await self.until(lambda: bool(again.assignment()))
        self.assertEqual({*again.assignment()}, places)
        self.assertEqual(members[1].groupMetadata().generationId, before)

    async def test_otherClient(self) -> None:
        """Ours and librdkafka's share a group, by each assignor that both know."""
        for strategy in ("range", "roundrobin", "cooperative-sticky"):
            await self.send(20)
            ours = self.member(partition_assignment_strategy=strategy)
            ours.subscribe(["t"])
            self.read(ours)
            await self.until(lambda: sum(self.found.values()) >= self.sentCount)
            other = getProcessOutputAndValue(
                sys.executable,
                ["-c", OTHER, self.broker.bootstrapServers, strategy, "10"],
                dict(os.environ),
            )
            await self.until(lambda: len(ours.assignment()) == 2)  # noqa: B023
            await self.send(20)
            out, err, code = await other
            self.assertEqual(code, 0, err)
            self.found.update(out.split())
            await self.until(lambda: len(self.found) == self.sentCount)
            await ours.close()
            self.assertEqual(set(self.found.values()), {1})


class ConsumerProtocolTests(GroupTests):
    """The same tests, and more, where the coordinator assigns the partitions (KIP-848)."""

    protocol = "consumer"

    async def test_exchange(self) -> None:
        """Members that come and go have each partition once, and read each message once."""
        await self.exchange(group_remote_assignor="range")

    async def test_keeps(self) -> None:
        """Only what moves is revoked."""
        await self.send(4)
        listener = Listener()
        first, second = self.member(), self.member()
        first.subscribe(["t"], listener)
        self.read(first)
        await self.until(lambda: len(self.found) == 4)
        second.subscribe(["t"])
        self.read(second)
        await self.until(lambda: len(second.assignment()) == 2)
        self.assertEqual([name for name, _places in listener.told], ["assigned", "revoked"])
        self.assertEqual(listener.told[1][1], {*second.assignment()})

    async def test_static(self) -> None:
        """A static member that comes back has its partitions again; others keep theirs."""
        await self.send(8)
        members = [self.member(group_instance_id=name) for name in ("a", "b")]
        for each in members:
            each.subscribe(["t"])
            self.read(each)
        await self.until(lambda: all(len(each.assignment()) == 2 for each in members))
        places = {*members[0].assignment()}
        await members[0].close()
        again = self.member(group_instance_id="a")
        again.subscribe(["t"])
        self.read(again)
        await self.until(lambda: bool(again.assignment()))
        self.assertEqual({*again.assignment()}, places)
        self.assertEqual(len(members[1].assignment()), 2)

    async def test_fenced(self) -> None:
        """A member that the coordinator has removed has lost its partitions, and joins again."""
        await self.send(4)
        listener = Listener()
        member = self.member()
        member.subscribe(["t"], listener)
        self.read(member)
        await self.until(lambda: len(self.found) == 4)
        self.broker.injectError("ConsumerGroupHeartbeat", "FENCED_MEMBER_EPOCH")
        await self.until(lambda: len(listener.told) >= 3)
        self.assertEqual(
            [name for name, _places in listener.told[:3]], ["assigned", "lost", "assigned"]
        )
        await self.send(4)
        await self.until(lambda: len(self.found) == 8)

    async def test_retried(self) -> None:
        """Every error that passes, and a lost connection, cost no partition and no message."""
        await self.send(4)
        listener = Listener()
        member = self.member()
        member.subscribe(["t"], listener)
        self.read(member)
        for error in (
            "COORDINATOR_LOAD_IN_PROGRESS",
            "COORDINATOR_NOT_AVAILABLE",
            "NOT_COORDINATOR",
        ):
            fault = self.broker.injectError("ConsumerGroupHeartbeat", error)
            await self.until(lambda: fault.hitCount == 1)  # noqa: B023
        fault = self.broker.injectDisconnect("ConsumerGroupHeartbeat")
        await self.until(lambda: fault.hitCount == 1)
        stale = self.broker.injectError("OffsetCommit", "STALE_MEMBER_EPOCH")
        await self.until(lambda: len(self.found) == 4)
        await member.commitOffsets()
        self.assertEqual(stale.hitCount, 1)
        self.assertEqual([name for name, _places in listener.told], ["assigned"])

    async def test_refused(self) -> None:
        """What does not pass is the reader's to know: an unknown assignor, an older broker."""
        await self.send(4)
        member = self.member(group_remote_assignor="none")
        member.subscribe(["t"])
        with self.assertRaises(ResponseError) as caught:
            await member.__anext__()
        self.assertIn("UNSUPPORTED_ASSIGNOR", str(caught.exception))


class TaskGroupTests(GroupCase):
    """Members that share the tasks of a job which reads two topics."""

    def tasksOf(self, *members: KafkaConsumer) -> list[set[int]]:
        """
        The tasks of each member.

        @raise AssertionError: two members have parts of one.
        """
        found = [{place.partition for place in each.assignment()} for each in members]
        self.assertEqual(sum(map(len, found)), len(set().union(*found)))
        return found

    async def untilShared(self, sizes: list[int], *members: KafkaConsumer) -> list[set[int]]:
        """Wait until members have numbers of tasks, and all their partitions."""

        def isSo() -> bool:
            tasks = self.tasksOf(*members)
            return (
                sorted(map(len, tasks)) == sizes
                and sum(len(each.assignment()) for each in members) == 2 * COUNT
                and all(each.isOwning for each in members)
            )

        await self.until(isSo)
        for each, tasks in zip(members, self.tasksOf(*members), strict=True):
            self.assertEqual(
                sorted(each.assignment()),
                sorted(TopicPartition(topic, task) for topic in "tu" for task in tasks),
            )
        return self.tasksOf(*members)

    async def test_tasks(self) -> None:
        """
        Partitions with the same number go together, also while members come and go. Members keep
        their tasks, but for what a third one gets: a task whose state it has on its disk.
        """
        await self.send(20)
        await self.send(20, "u")
        disks: list[set[int]] = [set(), set(), set()]
        members = []
        for disk in disks:
            self.assignor = TaskAssignor(partial(TaskState, onDisk=disk))
            members.append(self.member())
        first, second, third = members
        first.subscribe(["t", "u"])
        self.read(first)
        await self.untilShared([4], first)
        second.subscribe(["t", "u"])
        self.read(second)
        before = await self.untilShared([2, 2], first, second)
        disks[2] |= {min(each) for each in before}
        third.subscribe(["t", "u"])
        self.read(third)
        after = await self.untilShared([1, 1, 2], *members)
        self.assertLess(after[2], disks[2])
        self.assertTrue(after[0] <= before[0] and after[1] <= before[1])
        disks[0] |= after[2]
        disks[1] |= after[2]
        await third.close()
        last = await self.untilShared([2, 2], first, second)
        self.assertEqual(last, before)
        await self.until(lambda: len(self.found) == 40)
