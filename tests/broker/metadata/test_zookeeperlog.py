"""The metadata log in ZooKeeper, with several brokers on one clock."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker import metadatamanager
from pylogbroker.broker.metadata import zookeeperlog
from pylogbroker.broker.metadata.zookeeperlog import WRITE_TIMEOUT_MS
from pylogbroker.cluster.kafka.metadatalog import (
    CONTROLLER_EPOCH,
    HEAD,
    ROOT,
    Change,
    Head,
    changePath,
    chunkPath,
    snapshotChunks,
    snapshotPath,
)
from pylogbroker.cluster.metadataimage import (
    GROUP,
    ConfigRecord,
    MetadataImage,
    Record,
    TopicRecord,
    encodeRecords,
)
from pylogbroker.errors import (
    BackpressureError,
    BadVersionException,
    MetadataError,
    MetadataUnconfirmedError,
    MultiFailedException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL, CheckOperation, CreateOperation
from tests.broker.metadata.clustercase import SESSION_MS, Cluster, Member


def createTopic(name: str, topicId: int) -> metadatamanager.Decision[None]:
    def decide(image: MetadataImage) -> tuple[list[Record], None]:
        if name in image.topics:
            raise MetadataError(f"{name} exists")
        return [TopicRecord(name, str(UUID(int=topicId)), 1)], None

    return decide


def count(image: MetadataImage) -> tuple[list[Record], int]:
    """Adds one to a number in the metadata, and gives it as it was."""
    before = counted(image)
    return [ConfigRecord(GROUP, "counter", "count", str(before + 1))], before


def counted(image: MetadataImage) -> int:
    return int(image.groupConfigs.get("counter", {}).get("count", 0))


class LogTests(SynchronousTestCase):
    """L{ZookeeperLog} under a L{MetadataManager}."""

    def setUp(self) -> None:
        self.cluster = Cluster(Random(1), latencyMs=2)
        self.first, self.second = self.cluster.member(), self.cluster.member()

    def test_oneLog(self) -> None:
        """What one broker changes, all know; the cluster has one id and one log."""
        manager = self.first.manager
        self.assertTrue(manager.image.clusterId)
        self.cluster.settle(manager.change(createTopic("a", 1)))
        self.assertIn("a", manager.image.topics)
        self.cluster.run(1)
        other = self.second.manager
        self.assertEqual(list(other.image.records()), list(manager.image.records()))
        self.assertEqual((other.position, self.cluster.head), (2, Head(2, 0)))
        error = self.assertRaises(
            MetadataError, self.cluster.settle, other.change(createTopic("a", 2))
        )
        self.assertEqual(str(error), "a exists")

    def test_together(self) -> None:
        """Decisions made at once by several brokers follow one another, each on the last image."""
        for each in (self.first, self.second):
            each.manager.change(lambda image: ([], None))
        waiting = [each.manager.change(count) for each in (self.first, self.second) * 20]
        found = sorted(self.cluster.settle(each) for each in waiting)
        self.assertEqual(found, list(range(40)))
        self.cluster.run(1)
        self.assertEqual([counted(each.manager.image) for each in self.cluster.members], [40, 40])

    def test_producerIds(self) -> None:
        """No producer id is given by two brokers."""
        self.patch(metadatamanager, "PRODUCER_ID_BLOCK_COUNT", 3)
        waiting = [
            each.manager.newProducerId() for each in (self.first, self.second) for _ in range(10)
        ]
        found = [self.cluster.settle(each) for each in waiting]
        self.assertEqual(len(set(found)), 20)

    def test_guard(self) -> None:
        """
        The guard is carried out with the change, or prevents it; the error names the operation in
        the guard. Other changes are not concerned.
        """
        manager, server = self.first.manager, self.cluster.server
        node = CreateOperation("/pylogbroker/cluster/brokers/ids/1", b"", None, EPHEMERAL)
        guarded = manager.change(createTopic("a", 1), [CheckOperation(CONTROLLER_EPOCH, 0), node])
        again = manager.change(createTopic("b", 2), [CheckOperation(CONTROLLER_EPOCH, 1), node])
        plain = manager.change(createTopic("c", 3))
        self.cluster.settle(guarded)
        error = self.assertRaises(MultiFailedException, self.cluster.settle, again)
        self.assertEqual((error.index, type(error.reason)), (0, BadVersionException))
        self.cluster.settle(plain)
        self.assertEqual(list(manager.image.topics), ["a", "c"])
        self.assertEqual(server.get(node.path)[1].ephemeralOwner, self.first.client.session_id)

    def test_answerLost(self) -> None:
        """A change whose answer is lost is found by its id, and not made twice."""
        changing = self.first.manager.change(count)
        self.cluster.clock.advance(0.001)  # it has reached the server
        self.cluster.server.disconnect(self.first.client)
        self.assertEqual(self.cluster.head.last, 2)
        self.cluster.settle(self.second.manager.change(count))
        self.cluster.server.reconnect(self.first.client)
        self.assertEqual(self.cluster.settle(changing), 0)
        self.cluster.run(1)
        self.assertEqual(counted(self.first.manager.image), 2)

    def test_requestLost(self) -> None:
        """A change that did not reach ZooKeeper is sent again."""
        self.first.manager.change(lambda image: ([], None))
        self.cluster.server.disconnect(self.first.client)
        changing = self.first.manager.change(count)
        self.cluster.run(1)
        self.cluster.settle(self.second.manager.change(count))
        self.cluster.server.reconnect(self.first.client)
        self.assertEqual(self.cluster.settle(changing), 1)
        self.assertEqual(self.cluster.head.last, 3)

    def test_neverBack(self) -> None:
        """Without ZooKeeper a change ends after a time, and says that its outcome is unknown."""
        changing = self.first.manager.change(count)
        self.cluster.clock.advance(0.001)
        self.cluster.server.stop()
        waiting = self.first.manager.change(count)
        self.assertNoResult(changing)
        seconds = WRITE_TIMEOUT_MS / 1000 + 3 * SESSION_MS / 1000
        self.assertRaises(MetadataUnconfirmedError, self.cluster.settle, changing, seconds)
        self.assertRaises(
            (MetadataUnconfirmedError, ZookeeperTimeoutException),
            self.cluster.settle,
            waiting,
            2 * seconds,
        )
        self.cluster.server.start()
        for each in self.cluster.members:
            self.cluster.server.reconnect(each.client)
        self.assertEqual(self.cluster.settle(self.second.manager.change(count)), 1)
        self.cluster.run(10)
        self.assertEqual(self.cluster.settle(self.first.manager.change(count)), 2)

    def test_contention(self) -> None:
        """A decision that always comes too late is given up."""
        self.patch(metadatamanager, "CONFLICT_COUNT_MAX", 3)
        real = self.first.client.multi

        def late(operations: Any) -> Any:
            self.cluster.settle(self.second.manager.change(count))
            return real(operations)

        self.patch(self.first.client, "multi", late)
        changing = self.first.manager.change(createTopic("a", 1))
        self.assertRaises(BackpressureError, self.cluster.settle, changing)
        self.assertEqual(counted(self.second.manager.image), 4)

    def test_tooLarge(self) -> None:
        """A change that ZooKeeper would not take is refused before it is sent."""
        record = ConfigRecord(GROUP, "g", "n", "x" * 900_000)
        changing = self.first.manager.change(lambda image: ([record], None))
        self.assertRaises(MetadataError, self.cluster.settle, changing)
        fits = ConfigRecord(GROUP, "g", "n", "x" * 899_000)
        self.cluster.settle(self.first.manager.change(lambda image: ([fits], None)))
        guard = [CreateOperation("/x", b"x" * 150_000)]
        changing = self.first.manager.change(lambda image: ([fits], None), guard)
        self.assertIn(
            "possible", str(self.assertRaises(MetadataError, self.cluster.settle, changing))
        )

    def snapshot(self, number: int, image: MetadataImage) -> None:
        """Write a snapshot, as the controller does, and remove the changes in it."""
        self.writeSnapshot(number, encodeRecords(list(image.records())))

    def writeSnapshot(self, number: int, records: bytes) -> None:
        server = self.cluster.server
        info, chunks = snapshotChunks(records)
        server.create(snapshotPath(number), info.encode(), 0, 0)
        for at, chunk in enumerate(chunks):
            server.create(chunkPath(number, at), chunk, 0, 0)
        server.set(HEAD, Head(self.cluster.head.last, number).encode(), -1)
        for each in range(1, number + 1):
            server.delete(changePath(each), -1)

    def test_snapshot(self) -> None:
        """A broker that is behind the oldest change takes the snapshot and what is behind it."""
        manager = self.first.manager
        for number in range(30):
            self.cluster.settle(manager.change(createTopic(f"t{number}", number + 1)))
        self.snapshot(25, self.cluster.imageAt(25))
        third = self.cluster.member()
        self.assertEqual(third.manager.position, 31)
        self.assertEqual(list(third.manager.image.records()), list(manager.image.records()))
        self.cluster.settle(third.manager.change(count))
        self.cluster.run(1)
        self.assertEqual(counted(manager.image), 1)

    def test_beforeFirstReading(self) -> None:
        """
        A change that is asked for before the log was read for the first time waits for that, also
        where the first changes were removed behind a snapshot: it does not write over the log.
        """
        manager = self.first.manager
        for number in range(3):
            self.cluster.settle(manager.change(createTopic(f"t{number}", number + 1)))
        self.snapshot(3, self.cluster.imageAt(3))
        third = Member(self.cluster, 7)
        self.cluster.settle(third.client.connect())
        opening = third.log.open(third.manager)
        self.cluster.settle(third.manager.change(count))
        self.assertTrue(self.cluster.settle(opening))
        self.assertEqual((third.manager.position, self.cluster.head), (5, Head(5, 3)))
        self.assertEqual(third.manager.image.clusterId, manager.image.clusterId)

    def test_lostBehindSnapshot(self) -> None:
        """
        A writer whose change is in a snapshot before the writer has seen it says that the outcome
        is unknown.
        """
        changing = self.first.manager.change(count)
        self.cluster.clock.advance(0.001)
        self.cluster.server.disconnect(self.first.client)
        self.cluster.run(1)
        self.snapshot(2, self.second.manager.image)
        self.cluster.server.reconnect(self.first.client)
        self.assertRaises(MetadataUnconfirmedError, self.cluster.settle, changing)
        self.cluster.run(1)
        self.assertEqual(counted(self.first.manager.image), 1)

    def fails(self, text: str) -> None:
        """The second broker learns of damage, and goes no further."""
        self.cluster.run(30)
        error = self.assertRaises(
            MetadataError, self.cluster.settle, self.second.manager.change(count)
        )
        self.assertIn(text, str(error))
        self.assertFalse(self.second.manager.isCurrent)

    def test_gap(self) -> None:
        """A change that is missing is an error, which names it."""
        self.cluster.server.set(HEAD, Head(5, 0).encode(), -1)
        self.fails(f"{changePath(2)} is missing")

    def test_garbage(self) -> None:
        """A change that cannot be read is an error, which names it."""
        self.cluster.server.create(changePath(2), b"?", 0, 0)
        self.cluster.server.set(HEAD, Head(2, 0).encode(), -1)
        self.fails(changePath(2))

    def test_contradiction(self) -> None:
        """So is one that does not fit to those before it."""
        again = encodeRecords(list(self.first.manager.image.records()))
        self.cluster.server.create(changePath(2), Change(9, "x", again).encode(), 0, 0)
        self.cluster.server.set(HEAD, Head(2, 0).encode(), -1)
        self.fails("change 2: a second cluster id")

    def test_goneBack(self) -> None:
        """A ZooKeeper that has forgotten changes is not believed."""
        self.cluster.settle(self.second.manager.change(count))
        self.cluster.server.set(HEAD, Head(1, 0).encode(), -1)
        self.fails("ZooKeeper has lost data")

    def test_removed(self) -> None:
        """Nor is one whose cluster was removed."""
        for path in sorted(self.cluster.server.tree(ROOT), reverse=True):
            self.cluster.server.delete(path, -1)
        self.fails("were removed")

    def test_damagedSnapshot(self) -> None:
        """A snapshot with a damaged piece is not used."""
        self.snapshot(1, self.first.manager.image)
        self.cluster.server.set(chunkPath(1, 0), b"?", -1)
        error = self.assertRaises(MetadataError, self.cluster.member)
        self.assertIn(snapshotPath(1), str(error))

    def test_newerSnapshot(self) -> None:
        """A snapshot of a later version, with records that this one does not know, is not used."""
        self.writeSnapshot(1, b'[{"kind":"planet"}]')
        error = self.assertRaises(MetadataError, self.cluster.member)
        self.assertIn(f"{snapshotPath(1)}: a record of the unknown kind", str(error))

    def test_lease(self) -> None:
        """
        A broker knows that it may have been replaced before ZooKeeper has ended its session, and
        that it has not while ZooKeeper answers.
        """
        first, server = self.first, self.cluster.server
        self.assertFalse(first.manager.isCurrent, "it is not registered")
        first.log.registeredSession = session = first.client.session_id
        for _step in range(100):
            self.cluster.run(0.5)
            self.assertTrue(first.manager.isCurrent)
        server.disconnect(first.client)
        self.cluster.run(SESSION_MS / 1000 * 0.5)
        self.assertTrue(first.manager.isCurrent)
        server.reconnect(first.client)
        self.cluster.run(0.5)
        server.disconnect(first.client)
        seen = []
        while session in server._sessions:
            seen.append(first.manager.isCurrent)
            self.cluster.run(0.1)
        self.assertEqual((seen[0], seen[-1]), (True, False))
        server.reconnect(first.client)
        self.cluster.run(20)
        self.assertFalse(first.manager.isCurrent, "it is not registered in the new session")
        first.log.registeredSession = first.client.session_id
        self.assertTrue(first.manager.isCurrent)

    def test_provedAtOnce(self) -> None:
        """A connection that is back proves its session at once."""
        first, server = self.first, self.cluster.server
        first.log.registeredSession = first.client.session_id
        self.cluster.run(2)
        server.disconnect(first.client)
        self.cluster.run(SESSION_MS / 1000 * 0.95)
        self.assertFalse(first.manager.isCurrent)
        server.reconnect(first.client)
        self.cluster.run(0.01, 0.001)
        self.assertTrue(first.manager.isCurrent)

    def test_bugs(self) -> None:
        """
        A listener that fails is logged, and the metadata are followed. If they are not, for a
        reason that was not foreseen, the broker is not current.
        """
        manager = self.second.manager

        def fails() -> None:
            raise RuntimeError("a bug")

        manager.listen(fails)
        self.cluster.settle(self.first.manager.change(createTopic("a", 1)))
        self.cluster.run(1)
        self.assertIn("a", manager.image.topics)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.second.log.registeredSession = self.second.client.session_id
        self.assertTrue(manager.isCurrent)
        self.patch(manager, "receive", lambda first, changes: fails())
        self.cluster.settle(self.first.manager.change(createTopic("b", 2)))
        self.cluster.run(1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertFalse(manager.isCurrent)
        self.assertRaises(MetadataError, self.cluster.settle, manager.change(count))

    def test_close(self) -> None:
        """What was closed waits for nothing."""
        self.cluster.server.disconnect(self.second.client)
        self.cluster.run(20)
        for each in self.cluster.members:
            each.close()
        self.cluster.run(0.1)
        self.assertEqual(self.cluster.clock.getDelayedCalls(), [])

    def test_createdTogether(self) -> None:
        """Two brokers that make the cluster at once make one."""
        cluster = Cluster(Random(2), latencyMs=2)
        members = [Member(cluster, number) for number in range(2)]
        for each in members:
            cluster.settle(each.client.connect())
            self.assertFalse(cluster.settle(each.log.open(each.manager)))
        creating = [each.log.create([each.manager.newCluster()]) for each in members]
        for each, made in zip(members, creating, strict=True):
            cluster.settle(made)
            self.assertTrue(cluster.settle(each.log.open(each.manager)))
        self.assertEqual(len({each.manager.image.clusterId for each in members}), 1)
        self.assertEqual(cluster.head, Head(1, 0))

    def test_noZookeeper(self) -> None:
        """Without an answer the start fails."""
        late = Member(self.cluster, 9)
        self.cluster.settle(late.client.connect())
        self.cluster.server.stop()
        self.assertRaises(ZookeeperError, self.cluster.settle, late.log.open(late.manager), 120)


class RandomTests(SynchronousTestCase):
    """Brokers that change the metadata while their connections are cut, from random numbers."""

    def test_seeds(self) -> None:
        """
        All brokers have equal images of equal numbers. Every change that was answered with success
        is there, once; one that failed is not there, unless the answer says that this is unknown.
        """
        self.totals = {"succeeded": 0, "unknown": 0, "failed": 0, "cut": 0}
        for seed in range(150):
            try:
                self.play(Random(seed))
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
        for name, total in self.totals.items():
            self.assertGreater(total, 20, f"{name}: the seeds do not show it")

    def play(self, random: Random) -> None:
        self.patch(zookeeperlog, "WRITE_TIMEOUT_MS", random.choice((500, 5_000, 30_000)))
        cluster = Cluster(random, random.choice((0, 2, 20)))
        for _number in range(3):
            cluster.member()
        server, clock = cluster.server, cluster.clock
        counts: list[Any] = []
        topics: dict[str, list[Any]] = {}
        for step in range(random.randrange(20, 80)):
            member = random.choice(cluster.members)
            action = random.random()
            if action < 0.3:
                outcome: list[Any] = []
                counts.append(outcome)
                member.manager.change(count).addBoth(outcome.append)
            elif action < 0.5:
                name = f"t{step}"
                outcome = topics[name] = []
                member.manager.change(createTopic(name, step + 1)).addBoth(outcome.append)
            elif action < 0.65:
                server.disconnect(member.client)
                self.totals["cut"] += 1
            elif action < 0.75:
                server.reconnect(member.client)
            elif action < 0.78:
                server.expire(member.client)
            clock.advance(random.choice((0, 0.001, 0.001, 0.005, 0.02, 0.3, 2)))
        for _second in range(80):
            for member in cluster.members:
                server.reconnect(member.client)
            cluster.run(1, 0.1)
        self.verify(cluster, counts, topics)
        for member in cluster.members:
            member.close()

    def verify(
        self, cluster: Cluster, counts: list[list[Any]], topics: dict[str, list[Any]]
    ) -> None:
        last = cluster.head.last
        self.assertEqual([each.manager.position for each in cluster.members], [last] * 3)
        image = cluster.members[0].manager.image
        succeeded = [found for (found,) in counts if not isinstance(found, Failure)]
        unknown = 0
        for (found,) in counts:
            if isinstance(found, Failure):
                unknown += self.isUnknown(found)
        self.totals["succeeded"] += len(succeeded)
        self.assertEqual(len(set(succeeded)), len(succeeded), "a number was given twice")
        self.assertTrue(len(succeeded) <= counted(image) <= len(succeeded) + unknown)
        for name, (found,) in topics.items():
            if not isinstance(found, Failure):
                self.assertIn(name, image.topics)
            elif not self.isUnknown(found):
                self.assertNotIn(name, image.topics)

    def isUnknown(self, failure: Failure) -> bool:
        failure.trap(MetadataUnconfirmedError, ZookeeperError, BackpressureError)
        isUnknown = bool(failure.check(MetadataUnconfirmedError))
        self.totals["unknown" if isUnknown else "failed"] += 1
        return isUnknown
