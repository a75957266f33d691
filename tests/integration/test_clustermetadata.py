"""
Brokers with C{metadata.store=zookeeper}, on real sockets: with a ZooKeeper in memory, and with a
real one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent

from pylogbroker.broker.kafka.topics import OtherProtocolError
from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.cluster.kafka.metadatalog import (
    CONTROLLER,
    HEAD,
    ROOT,
    Change,
    Head,
    brokerPath,
    changePath,
)
from pylogbroker.errors import ConfigurationError, StorageError, ZookeeperTimeoutException
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.contracts.zookeeper import CONNECT_MS
from tests.integration.test_registering import RegisteringCase
from tests.integration.zookeeperprocess import sharedZookeeper

reactor: Any = _reactor


class ClusterCase(RegisteringCase):
    """Brokers in a cluster."""

    properties = {
        **RegisteringCase.properties,
        "metadata.store": "zookeeper",
        "broker.rack": "r1",
    }

    async def cluster(self, count: int = 2) -> list[LocalBroker]:
        brokers = [self.broker(self.mktemp(), brokerid=str(each)) for each in range(count)]
        for each in brokers:
            await each.start()
        return brokers

    def image(self, broker: LocalBroker) -> Any:
        return broker.broker.service.kafka.metadata.image

    async def create(self, broker: LocalBroker, name: str) -> Any:
        return await broker.broker.service.kafka.topics.create(name, 2)


class StoreTests(ClusterCase):
    """With a ZooKeeper in memory."""

    async def test_oneCluster(self) -> None:
        """Brokers have one cluster id, know one another, and what one creates, all know."""
        first, second = await self.cluster()
        clusterId = self.image(first).clusterId
        self.assertEqual(self.image(second).clusterId, clusterId)
        self.assertEqual(Path(second.directory, "meta.properties").read_text().count(clusterId), 1)
        self.assertFalse(os.path.exists(f"{first.directory}/metadata.journal"))
        await self.until(lambda: set(self.image(first).brokers) == {0, 1})
        found = self.image(first).brokers[1]
        self.assertEqual((found.rack, found.endpoints[0].port), ("r1", second.port))
        topic = await self.create(first, "t")
        await self.until(lambda: "t" in self.image(second).topics)
        self.assertEqual(self.image(second).topics["t"], topic)
        for each in (first, second):
            self.assertTrue(each.broker.service.kafka.metadata.isCurrent)
        self.assertEqual(self.server.tree()["/brokers/ids/1"][1], self.clients[1].session_id)

    async def test_restarted(self) -> None:
        """A broker that comes back has its topics, in a new broker epoch."""
        first, second = await self.cluster()
        await self.create(first, "t")
        epoch = self.image(first).brokers[1].epoch
        await second.stop()
        self.assertNotIn(brokerPath(1), self.server.tree())
        await self.until(lambda: self.image(first).brokers[1].isFenced)
        again = self.broker(second.directory, brokerid="1")
        await again.start()
        self.assertIn("t", self.image(again).topics)
        self.assertGreater(self.image(again).brokers[1].epoch, epoch)
        kept = Path(second.directory, "broker-epoch-checkpoint").read_text().split()
        self.assertEqual(int(kept[-2]), self.image(again).brokers[1].epoch)

    async def test_nameOf2011(self) -> None:
        """A topic of 2011 on another broker keeps its name, whichever broker is asked."""
        first, second = await self.cluster()
        await self.produce(first, "old")
        await self.until(lambda: "/brokers/topics/old" in self.server.tree())
        with self.assertRaises(OtherProtocolError) as caught:
            await self.create(second, "old")
        self.assertIn("/brokers/topics/old in ZooKeeper", str(caught.exception))
        self.assertNotIn("old", self.image(second).topics)

    async def test_fileDefaults(self) -> None:
        """
        What the first broker's file says of settings that hold for the whole cluster, holds for it;
        another broker is told that its own has no effect. The topic of transactions has its own.
        """
        first = self.broker(self.mktemp(), brokerid="0", min_insync_replicas="2")
        await first.start()
        with capturedLogs() as events:
            changes = {
                "min.insync.replicas": "3",
                "unclean.leader.election.enable": "true",
                "transaction.state.log.replication.factor": "2",
            }
            second = LocalBroker(
                reactor,
                {**self.properties, **changes, "brokerid": "1"},
                self.mktemp(),
                zookeeper=self.client,
            )
            self.addCleanup(second.stop)
            await second.start()
        self.assertEqual(
            self.image(second).brokerConfigs,
            {"": {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}},
        )
        lines = [formatEvent(each) for each in events]
        expected = "min.insync.replicas=3 of this broker's file has no effect"
        self.assertEqual(sum(expected in each for each in lines), 1)
        await self.until(lambda: len(self.image(first).brokers) == 2)
        transactions = second.broker.service.kafka.transactions
        self.assertTrue(await transactions.awaitTopic())
        configs = self.image(second).topics["__transaction_state"].configs
        self.assertEqual(configs["min.insync.replicas"], "2")

    async def test_controllerFails(self) -> None:
        """When the controller stops, another broker is the controller, and fences it."""
        first, second = await self.cluster()
        await self.until(lambda: CONTROLLER in self.server.tree())
        await first.stop()
        await self.until(lambda: self.image(second).brokers[0].isFenced)

    async def test_status(self) -> None:
        """One broker is the controller; each tells who is gone, and what lacks a leader then."""
        first, second = await self.cluster()
        await self.create(first, "t")

        def status(broker: LocalBroker) -> Any:
            return broker.broker.service.picture().cluster

        await self.until(lambda: status(first).isController)
        await self.until(lambda: status(first).metadataChange == status(second).metadataChange)
        self.assertFalse(status(second).isController)
        for each in (first, second):
            self.assertEqual((status(each).leaderCount, status(each).metadataLag), (1, 0))
        await first.stop()
        await self.until(lambda: status(second).isController)
        await self.until(lambda: status(second).fencedCount == 1)
        self.assertEqual((status(second).offlineCount, status(second).brokerCount), (1, 1))
        shown = second.broker.service.kafka.clusterStatus.map()
        assert shown is not None
        self.assertEqual([each["state"] for each in shown["brokers"]], ["gone", "running"])
        self.assertEqual(shown["partitions"][0]["replicas"], {"0": "offline"})

    async def test_ownMetadata(self) -> None:
        """
        A directory with metadata of its own is refused, as is one of a cluster with a journal of
        its own; the texts say what to do. The directory stays as it was.
        """
        local = self.broker(self.mktemp(), metadata_store="local")
        await local.start()
        await local.stop()
        await self.refused(local.directory, "pylogbroker metadata move")
        (first,) = await self.cluster(1)
        await first.stop()
        await self.refused(
            first.directory, "metadata.store=zookeeper must be set", metadata_store="local"
        )

    async def test_anotherCluster(self) -> None:
        """A directory of another cluster is refused, and so is a ZooKeeper that has lost it."""
        (first,) = await self.cluster(1)
        await first.stop()
        for path in sorted(self.server.tree("/pylogbroker"), reverse=True):
            self.server.delete(path, -1)
        await self.refused(first.directory, "has none: check zk.connect")
        self.assertNotIn(HEAD, self.server.tree())
        (other,) = await self.cluster(1)
        await self.refused(first.directory, "and the metadata cluster", brokerid="5")
        self.assertNotIn(5, self.image(other).brokers)

    async def test_newerLayout(self) -> None:
        """A broker does not start in a cluster that a later version has made, and says so."""
        (first,) = await self.cluster(1)
        await first.stop()
        self.server.set(ROOT, b'{"version":2}', -1)
        error = await self.failed(self.broker(first.directory))
        self.assertIn(ROOT, str(error))
        self.assertIn("version 2", str(error))

    async def test_newerChange(self) -> None:
        """
        A broker that meets what only a later version can read leads nothing any more, says which
        change it is, and does not start again; nothing in ZooKeeper is changed.
        """
        (first,) = await self.cluster(1)
        await self.create(first, "t")
        with capturedLogs() as logged:
            last = self.position(first) + 1
            change = Change(7, "0" * 32, b'[{"kind":"planet"}]')
            self.server.create(changePath(last), change.encode(), 0, 0)
            self.server.set(HEAD, Head(last, 0).encode(), -1)
            await self.until(lambda: not first.broker.service.kafka.metadata.isCurrent)
            await self.until(lambda: any(self.said(logged, "cannot be changed any more")))
        (text,) = self.said(logged, "cannot be changed any more")
        self.assertIn(f"change {last}: a record of the unknown kind 'planet'", text)
        await first.stop()
        tree = self.server.tree("/pylogbroker")
        error = await self.failed(self.broker(first.directory))
        self.assertIn(f"change {last}: a record of the unknown kind 'planet'", str(error))
        self.assertEqual(self.server.tree("/pylogbroker"), tree)

    def said(self, logged: Iterable[Any], text: str) -> list[str]:
        """The log lines with a text."""
        return [line for line in map(formatEvent, logged) if text in line]

    def position(self, broker: LocalBroker) -> int:
        """The last change that a broker knows."""
        found: int = broker.broker.service.kafka.metadata.position
        return found

    async def refused(self, directory: str, text: str, **changes: str) -> None:
        before = {each: Path(directory, each).stat().st_mtime for each in os.listdir(directory)}
        broker = self.broker(directory, **changes)
        with self.assertRaises(StorageError) as caught:
            await broker.start()
        self.assertIn(text, str(caught.exception))
        after = {each: Path(directory, each).stat().st_mtime for each in os.listdir(directory)}
        self.assertEqual(after, before)
        self.assertTrue(self.clients[-1].isClosed)

    async def test_duplicate(self) -> None:
        """A second broker with an id is refused, with either registration."""
        await self.cluster(1)
        other = self.broker(self.mktemp())
        with self.assertRaises(ConfigurationError):
            await other.start()

    async def test_noZookeeper(self) -> None:
        """Without ZooKeeper the start fails, and leaves nothing behind."""
        self.server.stop()
        broker = self.broker(self.mktemp(), zk_connectiontimeout_ms="300")
        with self.assertRaises(ZookeeperTimeoutException):
            await broker.start()

    async def test_stoppedWhileItStarts(self) -> None:
        """A stop ends a start that waits for ZooKeeper."""
        self.server.stop()
        broker = self.broker(self.mktemp(), zk_connectiontimeout_ms="60000")
        starting = Deferred.fromCoroutine(self.failed(broker))
        await broker.stop()
        self.assertIn("was stopped while it started", str(await starting))

    async def failed(self, broker: LocalBroker) -> BaseException:
        try:
            await broker.start()
        except Exception as error:
            return error
        raise AssertionError("it has started")

    async def test_sessionLost(self) -> None:
        """A broker without its session is not current, and is again when it has registered anew."""
        first, second = await self.cluster()
        epoch = self.image(first).brokers[1].epoch
        self.server.disconnect(self.clients[1])
        await self.until(lambda: self.image(first).brokers[1].isFenced)
        self.assertFalse(second.broker.service.kafka.metadata.isCurrent)
        self.server.reconnect(self.clients[1])
        await self.until(lambda: second.broker.service.kafka.metadata.isCurrent)
        self.assertGreater(self.image(second).brokers[1].epoch, epoch)

    def test_needsZookeeper(self) -> None:
        """The setting without ZooKeeper is refused."""
        with self.assertRaises(ConfigurationError) as caught:
            self.broker(self.mktemp(), enable_zookeeper="false")
        self.assertIn("metadata.store=zookeeper needs", str(caught.exception))

    async def test_noListener(self) -> None:
        """So is a broker whose listeners do not speak the current protocol."""
        broker = self.broker(self.mktemp(), listener_dialect="kafka07")
        with self.assertRaises(ConfigurationError) as caught:
            await broker.start()
        self.assertIn("no listener", str(caught.exception))


class LossTests(ClusterCase):
    """Brokers that have lost what they had of a partition, while they were away (rule 13)."""

    async def lastInSync(
        self, configs: dict[str, str | None] | None = None
    ) -> tuple[LocalBroker, LocalBroker]:
        """
        The partitions C{t} on two brokers, of which the first was the last one in sync.

        @return: the brokers, stopped.
        """
        first, second = await self.cluster()
        topics = first.broker.service.kafka.topics
        assignment = [(0, 1)] * 2
        await topics.change(
            lambda image: (topics.newTopic(image, "t", 2, configs or {}, 2, assignment), None)
        )
        directory = Path(second.directory, "t-1")
        await self.until(directory.exists)
        await second.stop()
        await self.until(lambda: self.states(first, "inSync") == [(0,), (0,)])
        await first.stop()
        return (
            self.broker(first.directory, brokerid="0"),
            self.broker(second.directory, brokerid="1"),
        )

    def states(self, broker: LocalBroker, field: str) -> list[Any]:
        found = self.image(broker).topics["t"].partitions
        return [getattr(each, field) for each in found]

    async def test_intact(self) -> None:
        """With all it had, the last one in sync leads, and the other one follows."""
        first, second = await self.lastInSync()
        await first.start()
        await second.start()
        await self.until(lambda: self.states(first, "inSync") == [(0, 1), (0, 1)])
        self.assertEqual(self.states(first, "leader"), [0, 0])

    async def test_removed(self) -> None:
        """
        A partition whose directory is gone has no leader; a start that fails before it is
        registered forgets nothing. The other partition goes on.
        """
        first, second = await self.lastInSync()
        shutil.rmtree(Path(first.directory, "t-0"))
        self.server.stop()
        failing = self.broker(first.directory, brokerid="0", zk_connectiontimeout_ms="300")
        with self.assertRaises(ZookeeperTimeoutException):
            await failing.start()
        self.server.start()
        await first.start()
        self.assertEqual(self.states(first, "leader"), [-1, 0])
        self.assertEqual(self.states(first, "lastKnownLeader"), [-1, -1])
        await second.start()
        await self.until(lambda: self.states(first, "inSync") == [(), (0, 1)])
        self.assertTrue(Path(first.directory, "t-0").exists())

    async def test_wiped(self) -> None:
        """
        The last one in sync does not lead with an empty disk, also when a start on it has ended
        before it was registered.
        """
        first, second = await self.lastInSync()
        shutil.rmtree(first.directory)
        failing = self.broker(first.directory, brokerid="0", listener_dialect="kafka07")
        with self.assertRaises(ConfigurationError):
            await failing.start()
        self.assertTrue(Path(first.directory, "meta.properties").exists())
        await first.start()
        await second.start()
        self.assertEqual(self.states(first, "leader"), [-1, -1])
        self.assertEqual(self.states(first, "lastKnownLeader"), [-1, -1])

    async def test_neverCreated(self) -> None:
        """
        What a broker had no time to create before it was killed is not lost: it has had nothing
        there that was acknowledged.
        """
        first, _second = await self.lastInSync()
        shutil.rmtree(Path(first.directory, "t-0"))
        Path(first.directory, "replication-offset-checkpoint").write_text("0\n1\nt 1 0\n")
        await first.start()
        self.assertEqual(self.states(first, "leader"), [0, 0])
        found = first.broker.service.directory
        await self.until(lambda: found.isRemembered(TopicPartition("t", 0)))

    async def test_damaged(self) -> None:
        """A partition that cannot be loaded is given up; the broker serves the others."""
        first, second = await self.lastInSync()
        await second.start()
        Path(first.directory, "t-0", "partition.metadata").write_text("nonsense")
        await first.start()
        await self.until(lambda: self.states(first, "inSync")[1] == (0, 1))
        self.assertEqual(self.states(first, "leader"), [-1, 0])
        self.assertEqual(self.states(first, "eligibleLeaders"), [(), ()])

    async def acknowledged(self, before: str) -> list[int]:
        """
        The leaders of partitions that wait for two replicas, when the one with all records has
        stopped uncleanly and starts with durable acknowledgements.

        @param before: C{log.flush.acks.all} until then.
        """
        self.properties = {**ClusterCase.properties, "log.flush.acks.all": before}
        first, _second = await self.lastInSync({"min.insync.replicas": "2"})
        Path(first.directory, ".kafka_cleanshutdown").unlink()
        again = self.broker(first.directory, brokerid="0", log_flush_acks_all="true")
        await again.start()
        return self.states(again, "leader")

    async def test_flushedBefore(self) -> None:
        """After an unclean stop all is there that was acknowledged behind a flush."""
        self.assertEqual(await self.acknowledged("true"), [0, 0])

    async def test_unflushedBefore(self) -> None:
        """
        What was acknowledged before a flush may be lost by an unclean stop, also when the broker
        flushes from the next start on: another eligible leader is waited for.
        """
        self.assertEqual(await self.acknowledged("false"), [-1, -1])


class DeleteRecordsTests(ClusterCase):
    """Records that are deleted on all replicas."""

    async def test_deleted(self) -> None:
        """
        The answer comes when the follower has deleted them, too, or is in sync no more.
        """
        first, second = await self.cluster()
        topics = first.broker.service.kafka.topics
        await topics.change(lambda image: (topics.newTopic(image, "t", 1, {}, 2, [(0, 1)]), None))
        producer = KafkaProducer(reactor, {"bootstrap.servers": first.bootstrapServers})
        admin = AdminClient(reactor, {"bootstrap.servers": first.bootstrapServers})
        self.addCleanup(producer.close)
        self.addCleanup(admin.close)
        await gatherAll([producer.send("t", b"%d" % number) for number in range(5)])
        place = TopicPartition("t", 0)
        self.assertEqual(await admin.deleteRecords({place: 3}), {place: 3})
        for each in (first, second):
            log = each.broker.service.directory.logs[place]
            self.assertEqual(log.logStartOffset, 3)
        await gatherAll([producer.send("t", b"%d" % number) for number in range(5)])
        self.assertEqual(await admin.deleteRecords({place: 7}), {place: 7})
        await second.stop()
        self.assertEqual(await admin.deleteRecords({place: 8}), {place: 8})


class RealTests(ClusterCase):
    """With a real ZooKeeper."""

    timeout = 120

    async def test_cluster(self) -> None:
        """Two brokers with a real ZooKeeper are one cluster; one that stops is fenced."""
        servers = sharedZookeeper().servers
        client = ZookeeperClient(reactor, servers)
        await client.connect(CONNECT_MS)
        await client.create("/clustermetadata")
        self.addCleanup(client.close)
        brokers = []
        for each in range(2):
            changes = {
                "zk.connect": f"{servers}/clustermetadata",
                "zk.sessiontimeout.ms": "6000",
                "brokerid": str(each),
            }
            broker = LocalBroker(reactor, {**self.properties, **changes}, self.mktemp())
            self.addCleanup(broker.stop)
            await broker.start()
            brokers.append(broker)
        first, second = brokers
        topics = [f"t{each}" for each in range(10)]
        for name in topics[:5]:
            await self.create(first, name)
        for name in topics[5:]:
            await self.create(second, name)
        await self.until(
            lambda: all(set(self.image(each).topics) == set(topics) for each in brokers)
        )
        await first.stop()
        await self.until(lambda: self.image(second).brokers[0].isFenced)
        self.assertTrue(second.broker.service.kafka.metadata.isCurrent)
        data, _stat = await client.get(f"/clustermetadata{HEAD}")
        self.assertEqual(Head.decode(data).last, second.broker.service.kafka.metadata.position)
