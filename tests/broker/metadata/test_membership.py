"""Brokers that register in a cluster, and the controller among them, on one clock."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.metadata import controllerservice, snapshots
from pylogbroker.broker.metadata.clusterregistration import ClusterRegistration
from pylogbroker.broker.metadata.controllerservice import ControllerService, LeaderBalance
from pylogbroker.cluster.kafka import metadatalog
from pylogbroker.cluster.kafka.metadatalog import (
    CHANGES,
    CONTROLLER,
    CONTROLLER_EPOCH,
    SNAPSHOTS,
    brokerPath,
    decodeController,
)
from pylogbroker.cluster.metadataimage import (
    GROUP,
    ConfigRecord,
    Endpoint,
    MetadataImage,
    PartitionImage,
    Record,
    TopicRecord,
    decodeRecords,
)
from pylogbroker.errors import ConfigurationError, MetadataError, ZookeeperError
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.replication.controller import NO_LOSSES, LogState
from tests.broker.metadata.clustercase import SESSION_MS, Cluster, ImmediateWorker, Member

BALANCE_MS = 30_000


class Broker:
    """A broker as far as it is in the cluster."""

    def __init__(self, cluster: Cluster, brokerId: int, previousEpoch: int = -1) -> None:
        self.cluster = cluster
        self.cluster.brokers.append(self)
        self.brokerId = brokerId
        self.member = Member(cluster, brokerId)
        self.client, self.manager = self.member.client, self.member.manager
        self.manager.listen(lambda: cluster.compare(self.manager))
        self.registration = ClusterRegistration(
            cluster.clock,
            self.member.log,
            self.manager,
            brokerId,
            [Endpoint("PLAINTEXT", f"b{brokerId}", 9092, "PLAINTEXT")],
            "r1",
            LogState.INTACT,
            previousEpoch,
            self.keepEpoch,
            lambda image: NO_LOSSES,
        )
        self.controller = ControllerService(
            cluster.clock,
            self.member.log,
            self.manager,
            brokerId,
            ImmediateWorker(),
            LeaderBalance(BALANCE_MS, 10),
        )

    def keepEpoch(self, epoch: int) -> Deferred[None]:
        self.kept = epoch
        return succeed(None)

    async def _start(self) -> None:
        await self.client.connect()
        if not await self.member.log.open(self.manager):
            await self.member.log.create([self.manager.newCluster()])
            await self.member.log.open(self.manager)
        await self.registration.start()
        self.controller.start()

    def begin(self) -> Deferred[None]:
        """Start; fires when it is registered."""
        return Deferred.fromCoroutine(self._start())

    def start(self) -> Broker:
        self.cluster.settle(self.begin())
        return self

    def stop(self) -> None:
        """End it, with its session."""
        self.controller.stop()
        self.registration.stop()
        self.member.close()

    def die(self) -> None:
        """End it without a word: its session goes on for its time-out."""
        self.cluster.server.disconnect(self.client)
        self.controller.stop()
        self.registration.stop()
        self.member.log.close()


class ClusterCase(SynchronousTestCase):
    """Three brokers."""

    def setUp(self) -> None:
        self.cluster = Cluster(Random(1), latencyMs=2)
        self.server = self.cluster.server
        self.brokers = [Broker(self.cluster, number).start() for number in (1, 2, 3)]
        self.cluster.run(1)
        self.addCleanup(self.end)

    def end(self) -> None:
        """A broker that is stopped leaves nothing behind."""
        for each in self.cluster.brokers:
            each.stop()
        self.cluster.run(0.1)
        self.assertEqual(self.cluster.clock.getDelayedCalls(), [])

    @property
    def image(self) -> MetadataImage:
        return self.cluster.imageAt(self.cluster.head.last)

    def topic(self, name: str, *replicas: int) -> None:
        """A topic with one partition for each of some brokers, which has it alone."""
        topicId = UUID(int=len(self.image.topics) + 1)
        records: list[Record] = [TopicRecord(name, str(topicId), len(replicas))]
        records += [
            PartitionImage(each, 0, 0, (each,), (each,)).record(topicId, at)
            for at, each in enumerate(replicas)
        ]
        self.cluster.settle(self.brokers[1].manager.change(lambda image: (records, None)))

    def leaders(self, name: str) -> list[tuple[int, int]]:
        return [(each.leader, each.leaderEpoch) for each in self.image.topics[name].partitions]


class RegistrationTests(ClusterCase):
    """L{ClusterRegistration}."""

    def test_registered(self) -> None:
        """A broker has a node of its session, and its epoch is the number of its registration."""
        broker = self.brokers[1]
        node = self.server.get(brokerPath(2))
        self.assertEqual(node[1].ephemeralOwner, broker.client.session_id)
        found = self.image.brokers[2]
        self.assertEqual(found.epoch, broker.registration.epoch)
        self.assertEqual(found.endpoints[0].host, "b2")
        self.assertEqual((found.rack, found.isFenced), ("r1", False))
        before = self.cluster.imageAt(found.epoch - 1)
        self.assertNotIn(2, before.brokers)
        self.assertTrue(broker.manager.isCurrent)
        self.assertEqual(broker.kept, found.epoch)

    def test_expired(self) -> None:
        """With a new session a broker registers anew; meanwhile it serves nothing."""
        broker = self.brokers[1]
        epoch = broker.registration.epoch
        self.server.disconnect(broker.client)
        self.cluster.run(SESSION_MS / 1000 + 2)
        self.assertTrue(self.image.brokers[2].isFenced)
        self.assertFalse(broker.manager.isCurrent)
        self.server.reconnect(broker.client)
        self.assertFalse(broker.manager.isCurrent)
        self.cluster.run(5)
        self.assertTrue(broker.manager.isCurrent)
        self.assertGreater(broker.registration.epoch, epoch)
        self.assertFalse(self.image.brokers[2].isFenced)

    def test_told(self) -> None:
        """When a broker is registered again, its parts are told so at once, without a change."""
        broker = self.brokers[1]
        seen: list[tuple[int, bool]] = []
        broker.manager.listen(
            lambda: seen.append((broker.manager.position, broker.manager.isCurrent))
        )
        self.server.expire(broker.client)
        self.cluster.run(2)
        epoch = self.image.brokers[2].epoch
        self.assertIn((epoch, False), seen)
        self.assertTrue(seen[-1][1])

    def test_nodeRemoved(self) -> None:
        """A node that an operator removes is created again, with a new registration."""
        epoch = self.brokers[1].registration.epoch
        self.server.delete(brokerPath(2), -1)
        self.cluster.run(5)
        self.assertGreater(self.brokers[1].registration.epoch, epoch)
        self.assertIn(brokerPath(2), self.server.tree())
        self.assertFalse(self.image.brokers[2].isFenced)
        self.assertTrue(self.brokers[1].manager.isCurrent)

    def test_fastRestart(self) -> None:
        """A broker that is back before its old session has ended waits for that."""
        self.topic("t", 2)
        self.brokers[1].die()
        again = Broker(self.cluster, 2, self.brokers[1].registration.epoch)
        starting = again.begin()
        self.cluster.run(SESSION_MS / 1000 - 1)
        self.assertNoResult(starting)
        self.cluster.settle(starting)
        self.assertGreater(again.registration.epoch, self.brokers[1].registration.epoch)
        self.cluster.run(2)
        self.assertEqual(self.leaders("t")[0][0], 2)
        self.assertGreater(self.leaders("t")[0][1], 0, "it leads in a new epoch")

    def test_answerLost(self) -> None:
        """A registration whose answer is lost is found, and not made twice."""
        self.brokers[1].stop()
        again = Broker(self.cluster, 2)
        starting = again.begin()
        while brokerPath(2) not in self.server.tree():
            self.cluster.clock.advance(0.0005)
        last = self.cluster.head.last
        self.server.disconnect(again.client)
        self.cluster.run(1)
        self.server.reconnect(again.client)
        self.cluster.settle(starting)
        self.assertEqual(again.registration.epoch, self.image.brokers[2].epoch)
        self.assertLessEqual(again.registration.epoch, last)

    def test_duplicate(self) -> None:
        """Another broker with the same id is refused, and the error names what has the id."""
        other = Broker(self.cluster, 2)
        error = self.assertRaises(ConfigurationError, self.cluster.settle, other.begin())
        self.assertIn("another broker of the cluster has this id", str(error))
        self.assertIn("b2", str(error))
        self.assertTrue(self.brokers[1].manager.isCurrent)

    def test_noZookeeper(self) -> None:
        """A start without ZooKeeper's answers fails."""
        other = Broker(self.cluster, 9)
        self.cluster.settle(other.client.connect())
        self.assertTrue(self.cluster.settle(other.member.log.open(other.manager)))
        self.server.stop()
        self.assertRaises(ZookeeperError, self.cluster.settle, other.registration.start())

    def test_largeCluster(self) -> None:
        """What must be changed before a registration may need several changes."""
        self.topic("t", *[2] * 60)
        self.patch(metadatalog, "RECORDS_SIZE_MAX", 3_000)
        self.brokers[1].die()
        again = Broker(self.cluster, 2, self.brokers[1].registration.epoch)
        self.cluster.settle(again.begin())
        self.cluster.run(5)
        self.assertEqual({leader for leader, _epoch in self.leaders("t")}, {2})
        self.assertEqual(again.registration.epoch, self.image.brokers[2].epoch)


class ControllerTests(ClusterCase):
    """L{ControllerService}."""

    def controllers(self) -> list[int]:
        return [each.brokerId for each in self.brokers if each.controller.epoch]

    def test_one(self) -> None:
        """One broker is the controller; when it dies another one is, in the next epoch."""
        self.assertEqual(self.controllers(), [1])
        self.assertEqual(decodeController(self.server.get(CONTROLLER)[0]), 1)
        self.assertEqual(self.server.get(CONTROLLER_EPOCH)[0], b"1")
        self.brokers[0].die()
        self.cluster.run(SESSION_MS / 1000 + 1)
        found = self.controllers()
        self.assertIn(found, ([2], [3]))
        self.assertEqual(self.server.get(CONTROLLER_EPOCH)[0], b"2")
        self.assertTrue(self.image.brokers[1].isFenced)

    def test_fenced(self) -> None:
        """What a broker led has no leader when it is gone, and the same one when it is back."""
        self.topic("t", 3, 2)
        self.brokers[2].stop()
        self.cluster.run(1)
        self.assertEqual(self.leaders("t"), [(-1, 1), (2, 0)])
        Broker(self.cluster, 3, self.brokers[2].registration.epoch).start()
        self.cluster.run(1)
        self.assertEqual(self.leaders("t"), [(3, 2), (2, 0)])

    def test_deposed(self) -> None:
        """A controller that was replaced while it decided changes nothing any more."""
        real = metadatalog.beginningOf

        def deposes(records: list[Record]) -> list[Record]:
            if records and self.server.get(CONTROLLER_EPOCH)[0] == b"1":
                self.server.set(CONTROLLER_EPOCH, b"2", -1)
            return real(records)

        self.patch(controllerservice, "beginningOf", deposes)
        self.brokers[2].stop()
        self.cluster.run(0.5)
        self.assertEqual(self.server.get(CONTROLLER_EPOCH)[0], b"2")
        self.assertFalse(self.image.brokers[3].isFenced)
        self.assertEqual(self.controllers(), [])
        self.cluster.run(5)
        self.assertEqual([each.controller.epoch for each in self.brokers], [2, 0, 0])
        self.assertTrue(self.image.brokers[3].isFenced, "in the new epoch it does it")

    def test_another(self) -> None:
        """A controller whose node is that of another broker now steps back."""
        self.server.delete(CONTROLLER, -1)
        self.server.create(CONTROLLER, b"{}", EPHEMERAL, self.brokers[1].client.session_id)
        self.server.set(CONTROLLER_EPOCH, b"2", -1)
        self.cluster.run(5)
        self.assertEqual([each.controller.epoch for each in self.brokers], [0, 2, 0])

    def test_lateList(self) -> None:
        """
        A broker that registers and dies while the controller reads an earlier list is fenced all
        the same; one that has registered behind the list is not.
        """
        for _round in range(30):
            late = Broker(self.cluster, 9)
            late.start()
            self.cluster.clock.advance(self.cluster.random.random() * 0.02)
            self.assertFalse(self.image.brokers[9].isFenced)
            late.stop()
            self.cluster.clock.advance(self.cluster.random.random() * 0.02)
        self.cluster.run(1)
        self.assertTrue(self.image.brokers[9].isFenced)

    def test_manyPartitions(self) -> None:
        """A fencing that needs several changes is continued, also by the next controller."""
        self.topic("t", *[3] * 60)
        self.patch(metadatalog, "RECORDS_SIZE_MAX", 3_000)
        real = metadatalog.beginningOf
        calls: list[int] = []

        def dies(records: list[Record]) -> list[Record]:
            calls.append(len(records))
            if len(calls) == 3:
                self.cluster.clock.callLater(0, self.brokers[0].die)
            return real(records)

        self.patch(controllerservice, "beginningOf", dies)
        self.brokers[2].stop()
        self.cluster.run(SESSION_MS / 1000 + 5)
        self.assertEqual({leader for leader, _epoch in self.leaders("t")}, {-1})
        self.assertTrue(self.image.brokers[1].isFenced)

    def test_balance(self) -> None:
        """Partitions go back to their preferred leaders, at the interval, in pieces."""
        self.patch(controllerservice, "ELECTION_COUNT_MAX", 2)
        topicId = UUID(int=50)
        records: list[Record] = [TopicRecord("t", str(topicId), 5)]
        records += [
            PartitionImage(2, 0, 0, (3, 2), (2, 3)).record(topicId, index) for index in range(5)
        ]
        self.cluster.settle(self.brokers[1].manager.change(lambda image: (records, None)))
        self.cluster.run(BALANCE_MS / 1000 - 10)
        self.assertEqual(self.leaders("t"), [(2, 0)] * 5)
        before = self.cluster.head.last
        self.cluster.run(15)
        self.assertEqual(self.leaders("t"), [(3, 1)] * 5)
        self.assertEqual(self.cluster.head.last, before + 3)
        self.cluster.run(BALANCE_MS / 1000 + 5)
        self.assertEqual(self.cluster.head.last, before + 3)

    def test_unreadable(self) -> None:
        """A controller that cannot follow the metadata gives its office to another broker."""
        self.brokers[0].manager.refuse(ConfigurationError("it cannot read them"))
        self.brokers[0].controller._metadata = Unfollowed()  # type: ignore[assignment]
        self.brokers[2].stop()
        self.cluster.run(5)
        self.assertEqual(self.controllers(), [2])
        self.assertTrue(self.image.brokers[3].isFenced)


class Unfollowed:
    """Metadata that were refused."""

    position = 0
    image = MetadataImage()

    def change(self, _decide: Any, _guard: Any) -> Any:
        raise MetadataError("they cannot be understood")


class SnapshotTests(ClusterCase):
    """The controller's snapshots."""

    def setUp(self) -> None:
        self.patch(snapshots, "SNAPSHOT_COUNT", 40)
        self.patch(snapshots, "KEPT_COUNT", 10)
        self.patch(metadatalog, "CHUNK_SIZE", 500)
        super().setUp()

    def work(self, count: int) -> None:
        manager = self.brokers[2].manager
        for _change in range(count):
            self.cluster.settle(
                manager.change(
                    lambda image: (
                        [TopicRecord(f"t{manager.position}", str(UUID(int=manager.position)), 1)],
                        None,
                    )
                )
            )

    def test_written(self) -> None:
        """
        Old changes go, some behind the snapshot stay; a broker that starts later, and one that was
        cut off for long, have the same image.
        """
        self.server.disconnect(self.brokers[1].client)
        self.work(150)
        self.cluster.run(5)
        head = self.cluster.head
        self.assertGreater(head.snapshot, 100)
        self.assertEqual(self.server.children(SNAPSHOTS), [f"{head.snapshot:010d}"])
        self.assertGreater(len(self.server.children(f"{SNAPSHOTS}/{head.snapshot:010d}")), 3)
        changes = [int(each) for each in self.server.children(CHANGES)]
        self.assertEqual(changes, list(range(head.snapshot - 9, head.last + 1)))
        late = Broker(self.cluster, 4).start()
        self.server.reconnect(self.brokers[1].client)
        self.cluster.run(10)
        expected = sorted(map(repr, self.brokers[0].manager.image.records()))
        for each in (late, self.brokers[1]):
            self.assertEqual(sorted(map(repr, each.manager.image.records())), expected)

    def test_large(self) -> None:
        """Few changes that are large are a reason for a snapshot, too, and do not stay long."""
        self.patch(snapshots, "SNAPSHOT_COUNT", 10_000)
        self.patch(snapshots, "SNAPSHOT_SIZE", 20_000)
        self.patch(snapshots, "KEPT_SIZE", 5_000)
        record = ConfigRecord(GROUP, "g", "n", "x" * 3_000)
        for _change in range(9):
            change = self.brokers[2].manager.change(lambda image: ([record], None))
            self.cluster.settle(change)
        self.cluster.run(5)
        head = self.cluster.head
        self.assertGreater(head.snapshot, 6)
        kept = [int(each) for each in self.server.children(CHANGES)]
        self.assertEqual(kept, list(range(head.snapshot, head.last + 1)))
        self.work(1)
        Broker(self.cluster, 4).start()

    def test_interrupted(self) -> None:
        """What an interrupted controller has left is removed; the next one writes a snapshot."""
        for steps in range(1, 12):
            self.server.create(f"{SNAPSHOTS}/0000009{steps:03d}", b"rubbish", 0, 0)
            self.server.create(f"{SNAPSHOTS}/0000009{steps:03d}/0000", b"rubbish", 0, 0)
        self.server.delete(f"{SNAPSHOTS}/0000009001/0000", -1)
        for round_ in range(6):
            self.work(30)
            controller = next(each for each in self.brokers if each.controller.epoch)
            self.cluster.clock.advance(self.cluster.random.random() * 0.1)
            self.server.expire(controller.client)
            self.cluster.run(5 if round_ % 2 else 0.5)
        self.cluster.run(10)
        head = self.cluster.head
        self.assertGreater(head.snapshot, 100)
        self.assertEqual(self.server.children(SNAPSHOTS), [f"{head.snapshot:010d}"])
        Broker(self.cluster, 4).start()


class RandomTests(SynchronousTestCase):
    """Brokers that come, go and are cut off, from random numbers."""

    def test_seeds(self) -> None:
        """
        A broker that says it is current is registered, and not fenced, in the latest change that
        there is, whatever it knows of that. When all is quiet, one is the controller, who lives is
        registered, who is gone is fenced, and what has a living replica has a leader.
        """
        self.patch(snapshots, "SNAPSHOT_COUNT", 30)
        self.patch(snapshots, "KEPT_COUNT", 10_000)
        self.currentCount = 0
        for seed in range(60):
            try:
                Play(self, Random(seed)).run()
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
        self.assertGreater(self.currentCount, 1_000)


class Play:
    """One seed."""

    def __init__(self, case: RandomTests, random: Random) -> None:
        self.case = case
        self.random = random
        self.cluster = Cluster(random, random.choice((0, 2, 20)))
        self.server = self.cluster.server
        self.brokers = {each: Broker(self.cluster, each).start() for each in (1, 2, 3)}
        self.epochs = {each: broker.registration.epoch for each, broker in self.brokers.items()}
        self.truth = MetadataImage()
        self.position = 0

    def verify(self) -> None:
        for number in range(self.position + 1, self.cluster.head.last + 1):
            path = metadatalog.changePath(number)
            change = metadatalog.Change.decode(path, self.server.get(path)[0])
            for record in decodeRecords(change.records):
                self.truth.apply(record)
            self.position = number
        for each, broker in self.brokers.items():
            if broker.manager.isCurrent:
                self.case.currentCount += 1
                found = self.truth.brokers[each]
                self.case.assertEqual(found.epoch, broker.registration.epoch)
                self.case.assertFalse(found.isFenced)

    def act(self, step: int) -> None:
        random, server = self.random, self.server
        brokerId = random.choice((1, 2, 3))
        broker = self.brokers.get(brokerId)
        action = random.random()
        if broker is None:
            if action < 0.3:
                made = Broker(self.cluster, brokerId, self.epochs[brokerId])
                made.begin().addErrback(lambda _failure: None)
                self.brokers[brokerId] = made
        elif action < 0.25 and broker.manager.position:
            topicId = UUID(int=step + 1)
            records: list[Record] = [
                TopicRecord(f"t{step}", str(topicId), 1),
                PartitionImage(brokerId, 0, 0, (brokerId,), (brokerId,)).record(topicId, 0),
            ]

            def decide(image: MetadataImage) -> tuple[list[Record], None]:
                found = image.brokers.get(brokerId)
                return records if found is not None and found.mayLead else [], None

            broker.manager.change(decide).addErrback(lambda _failure: None)
        elif action < 0.4:
            server.disconnect(broker.client)
        elif action < 0.6:
            server.reconnect(broker.client)
        elif action < 0.65:
            if broker.client.connected:  # else it would end sooner than after its time-out
                server.expire(broker.client)
        elif action < 0.7:
            self.epochs[brokerId] = broker.registration.epoch
            del self.brokers[brokerId]
            random.choice((broker.stop, broker.die))()

    def run(self) -> None:
        for step in range(self.random.randrange(20, 60)):
            self.act(step)
            wait = self.random.choice((0, 0.001, 0.005, 0.02, 0.3, 2, 4))
            for _part in range(10):
                self.cluster.clock.advance(wait / 10)
                self.verify()
        for _second in range(60):
            for broker in self.brokers.values():
                self.server.reconnect(broker.client)
            self.cluster.run(1, 0.1)
            self.verify()
        self.verifyQuiet()
        for broker in self.brokers.values():
            broker.stop()

    def verifyQuiet(self) -> None:
        case, truth = self.case, self.truth
        alive = {each for each, broker in self.brokers.items() if broker.manager.isCurrent}
        isKnown = {each for each in self.brokers if self.brokers[each].manager.position}
        case.assertEqual(alive, isKnown, "who lives is registered")
        if not alive:
            return
        case.assertEqual(
            {each for each in truth.brokers if not truth.brokers[each].isFenced}, alive
        )
        case.assertEqual(
            [self.brokers[each].manager.position for each in alive], [self.position] * len(alive)
        )
        controllers = [each for each in alive if self.brokers[each].controller.epoch]
        case.assertEqual(len(controllers), 1)
        for topic in truth.topics.values():
            for part in topic.partitions:
                (replica,) = part.replicas
                case.assertEqual(part.leader, replica if replica in alive else -1)
