"""
Tests for L{pylogbroker.mirror.target}, with whole brokers.
"""

from __future__ import annotations

from twisted.logger import LogLevel, capturedLogs

from pylogbroker.client.discovery import ZookeeperDiscovery
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import MessageTooLargeError, NoBrokersError, TimedOutError
from pylogbroker.mirror import target as module
from pylogbroker.mirror.target import TargetCluster
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper.ephemeral import write
from tests.mirror.clusters import Cluster, MirrorCase, reactor


class TargetTests(MirrorCase):
    """A cluster of two brokers."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.far = self.cluster("target", 2)
        await self.far.start()
        self.target = await self.connected(self.far)

    async def connected(
        self, cluster: Cluster, producerCount: int = 1, **changes: str
    ) -> TargetCluster:
        properties = {
            "zk.connect": "double",
            "confirm": "true",
            "zk.read.num.retries": "0",
            **{key.replace("_", "."): value for key, value in changes.items()},
        }
        target = TargetCluster(
            reactor, ProducerSettings.fromProperties(properties), producerCount, cluster.client
        )
        await target.connect()
        self.addCleanup(target.close)
        return target

    async def test_send(self) -> None:
        """Payloads go in one request, to any partition, or to the one that is named."""
        await self.target.ensureTopic("t")
        await self.target.send("t", [b"a", b"b"], BrokerPartition(1, 1))
        await self.target.send("t", [b"c"], None)
        found = await self.far.read("t")
        self.assertEqual(found["1-1"][:2], [b"a", b"b"])
        self.assertEqual(sum(map(len, found.values())), 3)

    async def test_homeAway(self) -> None:
        """
        A partition whose broker is gone is nobody else's: what is to go there fails, and can be
        sent when it is back.
        """
        await self.target.ensureTopic("t")
        await self.far.stopBroker(1)
        await self.until(lambda: 1 not in self.discovery().brokers)
        await self.assertFailure(
            self.target.send("t", [b"a"], BrokerPartition(1, 1)), NoBrokersError
        )
        await self.far.startBroker(1)
        await self.until(lambda: BrokerPartition(1, 1) in self.discovery().partitions("t"))
        await self.target.send("t", [b"a"], BrokerPartition(1, 1))
        self.assertEqual(await self.far.read("t"), {"1-1": [b"a"]})

    def discovery(self) -> ZookeeperDiscovery:
        assert self.target._discovery is not None
        return self.target._discovery

    async def test_ends(self) -> None:
        """
        Where all partitions end; of a broker that does not answer, where they last did; of an
        unknown topic, nothing.
        """
        self.assertEqual(await self.target.ends(["none"]), {"none": {}})
        partitions = await self.target.ensureTopic("t")
        self.assertEqual(
            partitions, [BrokerPartition(broker, index) for broker in (0, 1) for index in (0, 1)]
        )
        await self.until(lambda: len(self.discovery().partitions("t")) == 4)
        await self.target.send("t", [b"12345"], BrokerPartition(0, 1))
        expected = {"t": {each: 15 if each == BrokerPartition(0, 1) else 0 for each in partitions}}
        self.assertEqual(await self.target.ends(["t"]), expected)
        broker = self.far.brokers[0]
        assert broker is not None
        await broker.broker.service._closePorts()  # it is registered still, and has gone already
        for connection in list(broker.broker.service.connections.open):
            connection.transport.abortConnection()
        (await self.target._offsets.consumer(0))._timeoutMs = 100
        self.assertEqual(await self.target.ends(["t"]), expected)

    async def test_provide(self) -> None:
        """
        A topic that is new is created on all brokers, and its partitions are all known; one that is
        there is left alone.
        """
        self.assertIs(self.far.node("/brokers/topics/t"), None)
        first = await self.target.ensureTopic("t")
        self.assertEqual(len(first), 4)
        self.assertEqual(await self.target.ensureTopic("t"), first)
        self.assertEqual(await self.far.read("t"), {})

    async def test_provideGarbage(self) -> None:
        """What somebody has written into ZooKeeper that is no broker, or no number, is left out."""
        session = self.far.zookeeper.client()
        await session.connect()
        await write(session, "/brokers/topics/u/x", b"1")
        await write(session, "/brokers/topics/u/0", b"many")
        await write(session, "/brokers/topics/u/1", b"2")
        await session.close()
        self.assertEqual(
            await self.target.ensureTopic("u"), [BrokerPartition(1, 0), BrokerPartition(1, 1)]
        )

    async def test_provideNobody(self) -> None:
        """If nobody enters the topic in time, that is an error, and can be tried again."""
        self.patch(module, "TOPIC_TIMEOUT_MS", 200)
        for number in (0, 1):
            await self.far.stopBroker(number)
        await self.until(lambda: not self.discovery().brokers)
        try:
            await self.target.ensureTopic("t")
        except TimedOutError as error:
            self.assertIn("topic t", str(error))
        else:
            self.fail("somebody has")

    async def test_room(self) -> None:
        """
        There is room for each producer's queue; a compressed batch is small enough to be one
        message.
        """
        target = await self.connected(
            self.far, 3, queue_size="100", compression_codec="gzip", max_message_size="5000"
        )
        for _message in range(299):
            target.inFlight.add(1, 1)
        self.assertTrue(target.inFlight.isReady)
        target.inFlight.add(1, 1)
        self.assertFalse(target.inFlight.isReady)
        self.assertEqual((target.batchCountMax, target.batchSizeMax), (200, 5000))
        self.assertIn("double", repr(target))

    async def test_stuck(self) -> None:
        """
        A message that the target does not take is the route's to log, once: the producer logs none
        of the attempts.
        """
        target = await self.connected(self.far, max_message_size="100")
        await target.ensureTopic("t")
        with capturedLogs() as events:
            for _attempt in range(3):
                await self.assertFailure(
                    target.send("t", [b"x" * 101], BrokerPartition(0, 0)), MessageTooLargeError
                )
        self.assertEqual([event for event in events if event["log_level"] >= LogLevel.warn], [])

    async def test_list(self) -> None:
        """Brokers may be given by name; then nothing is known of partitions."""
        brokers = ",".join(
            f"{number}:127.0.0.1:{self.far.endpoint(number).rpartition(':')[2]}"
            for number in (0, 1)
        )
        target = await self.connected(self.far, zk_connect="", broker_list=brokers)
        await target.send("t", [b"a"], None)
        self.assertEqual(await self.far.messages("t"), [b"a"])
        self.assertEqual(await target.ends(["t"]), {})
        self.assertIn("127.0.0.1:", repr(target))
