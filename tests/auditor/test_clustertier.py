"""
Tests for L{pylogbroker.auditor.clustertier}, at brokers without ZooKeeper.
"""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.auditor.clustertier import ClusterTier, _TierMember
from pylogbroker.auditor.messagecounter import TimedPayloads
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.errors import (
    BrokerConnectionError,
    FormatError,
    PylogbrokerError,
    RemoteUnknownError,
)
from pylogbroker.protocol.kafka07.requests import encodeFetch
from pylogbroker.protocol.kafka07.responses import encodeOffsets, fetchHeader
from pylogbroker.records.compression import GZIP
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import TopicPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import write
from tests.cli.commands import CommandCase
from tests.contracts.scriptedbroker import ScriptedBroker, ScriptedConnection


class TierReaderTests(CommandCase):
    """Every message, once."""

    def reader(self, **properties: str) -> ClusterTier:
        properties = {key.replace("_", "."): value for key, value in properties.items()}
        settings = AuditorSettings.fromProperties(
            {
                "tiers": f"live=broker:127.0.0.1:{self.broker.port}",
                "timeout.ms": "2000",
                **properties,
            },
            self.fail,
        )
        reader = ClusterTier(reactor, settings.tiers[0], settings)
        self.addCleanup(reader.close)
        return reader

    async def read(self, reader: ClusterTier, topic: str = "clicks") -> list[bytes]:
        found: list[bytes] = []

        def take(messages: TimedPayloads) -> None:
            found.extend([payload for payload, _timestamp in messages])

        await reader.open()
        await reader.read(topic, 0, take)
        return found

    async def test_onAndOn(self) -> None:
        """
        Everything up to the end, and the next time what has come since; nothing of a topic that is
        not there, which is not made by that.
        """
        await self.startBroker()
        reader = self.reader()
        self.assertEqual(await self.read(reader), [])
        self.assertEqual(await self.read(reader), [])
        await self.publish("clicks", b"one", b"two")
        self.assertEqual(await self.read(reader), [b"one", b"two"])
        self.assertEqual(await self.read(reader), [])
        await self.publish("clicks", b"three")
        self.assertEqual(await self.read(reader), [b"three"])
        self.assertEqual(reader.skippedCount, 0)

    async def test_partitions(self) -> None:
        """All partitions of a broker."""
        await self.startBroker(num_partitions="3")
        producer = SyncProducer(reactor, self.broker.endpoint)
        for partition in range(3):
            await producer.send("clicks", partition, [b"%d" % partition])
        await producer.close()
        self.assertEqual(await self.read(self.reader()), [b"0", b"1", b"2"])

    async def test_sizes(self) -> None:
        """
        Small fetches, compressed sets and messages that are larger than a fetch are read whole,
        each message once.
        """
        await self.startBroker()
        payloads = [b"%d" % number for number in range(500)]
        await self.publish("clicks", *payloads[:250], codec=GZIP)
        await self.publish("clicks", *payloads[250:])
        await self.publish("clicks", b"x" * 5000)
        self.assertEqual(await self.read(self.reader(fetch_size="300")), [*payloads, b"x" * 5000])

    async def test_tooLarge(self) -> None:
        """
        A message that is larger than may be fetched fails the reading, and is not passed over.
        """
        await self.startBroker()
        await self.publish("clicks", b"x" * 5000)
        await self.refused(
            self.read(self.reader(fetch_size="100", fetch_size_max="1000")), FormatError
        )

    async def test_retention(self) -> None:
        """
        Where data was deleted before it was read, reading goes on behind the gap, which is counted.
        """
        await self.startBroker(log_file_size="100")
        reader = self.reader()
        await self.publish("clicks", b"a" * 90)
        self.assertEqual(len(await self.read(reader)), 1)
        for letter in b"bcd":
            await self.publish("clicks", bytes((letter,)) * 90)
        log = self.broker.broker.service.directory.logs[TopicPartition("clicks", 0)]
        reader._positions = dict.fromkeys(reader._positions, 0)
        job = log.beginDelete(log.segments[:2], 0)
        assert job is not None
        job.run()
        log.finishDelete(job, None)
        self.assertEqual([payload[:1] for payload in await self.read(reader)], [b"c", b"d"])
        self.assertEqual(reader.skippedCount, 1)

    async def test_emptied(self) -> None:
        """A log that ends before where the reader was is read anew, and that is counted."""
        await self.startBroker()
        await self.publish("clicks", b"one")
        reader = self.reader()
        await self.read(reader)
        reader._positions = dict.fromkeys(reader._positions, 10_000)
        self.assertEqual(await self.read(reader), [b"one"])
        self.assertEqual(reader.skippedCount, 1)

    async def test_noOffsets(self) -> None:
        """A broker that knows of no offset of a partition has nothing in it."""
        broker = ScriptedBroker(reactor)
        self.addCleanup(broker.stop)
        asked = encodeFetch("clicks", 0, 0, 0)[4:]

        def answer(connection: ScriptedConnection) -> None:
            request = connection.requests[-1]
            connection.write(
                encodeOffsets([])
                if request[:2] != asked[:2]
                else fetchHeader(0 if request == asked else 3, 0)
            )

        broker.onRequest = answer
        settings = AuditorSettings.fromProperties(
            {"tiers": f"live=broker:127.0.0.1:{broker.port}"}, self.fail
        )
        reader = ClusterTier(reactor, settings.tiers[0], settings)
        self.addCleanup(reader.close)
        self.assertEqual(await self.read(reader), [])
        self.assertEqual(await self.read(reader), [])
        self.assertEqual(reader.skippedCount, 0)

    async def test_takeFails(self) -> None:
        """A set that cannot be counted is not passed over: the next time it is there again."""
        await self.startBroker()
        await self.publish("clicks", b"one")
        reader = self.reader()

        def take(messages: TimedPayloads) -> None:
            raise RemoteUnknownError("no")

        await self.refused(reader.read("clicks", 0, take), RemoteUnknownError)
        self.assertEqual(await self.read(reader), [b"one"])

    async def test_wrongTopic(self) -> None:
        """A topic that a broker refuses is an error."""
        await self.startBroker()
        await self.refused(self.read(self.reader(), "a/b"), RemoteUnknownError)

    async def test_brokerAway(self) -> None:
        """So is a broker that is away."""
        await self.startBroker()
        reader = self.reader(timeout_ms="300")
        await self.broker.stop()
        await self.refused(self.read(reader), BrokerConnectionError)


class SettingsTests(SynchronousTestCase):
    """What the settings of an auditor are good for."""

    def test_zookeeperClient(self) -> None:
        """They make a ZooKeeper client for a tier, though they have no C{zk.acl}."""
        settings = AuditorSettings.fromProperties({"tiers": "live=z:2181"}, self.fail)
        client = ZookeeperClient.fromSettings(reactor, settings, "z:2181")
        self.assertEqual(client.servers, "z:2181")


class ZookeeperTests(CommandCase):
    """Brokers that are found by ZooKeeper."""

    async def test_discovery(self) -> None:
        """
        Partitions of the brokers that are registered; a broker that comes later is found by the
        next opening.
        """
        double = FakeZookeeper(reactor)
        settings = AuditorSettings.fromProperties({"tiers": "live=z:2181"}, self.fail)
        reader = ClusterTier(reactor, settings.tiers[0], settings, lambda address: double.client())
        self.addCleanup(reader.close)
        await reader.open()
        self.assertEqual(await reader._partitions("clicks"), [])
        self.broker = LocalBroker(
            reactor,
            {"enable.zookeeper": "true", "zk.connect": "z", "hostname": "127.0.0.1"},
            zookeeper=lambda: double.client(),
        )
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        await self.publish("clicks", b"one")
        payloads: list[bytes] = []

        def take(messages: TimedPayloads) -> None:
            payloads.extend([payload for payload, _timestamp in messages])

        while not payloads:
            await reader.open()
            await reader.read("clicks", 0, take)
        self.assertEqual(payloads, [b"one"])

    async def registered(self, double: FakeZookeeper, number: int) -> LocalBroker:
        properties = {
            "brokerid": str(number),
            "enable.zookeeper": "true",
            "zk.connect": "z",
            "hostname": "127.0.0.1",
        }
        broker = LocalBroker(reactor, properties, zookeeper=lambda: double.client())
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    def readerOf(self, double: FakeZookeeper, tier: str = "live=z:2181") -> ClusterTier:
        settings = AuditorSettings.fromProperties({"tiers": tier}, self.fail)
        reader = ClusterTier(reactor, settings.tiers[0], settings, lambda address: double.client())
        self.addCleanup(reader.close)
        return reader

    async def lack(self, reader: ClusterTier, sinceMs: int = 1) -> str:
        """What a pass over C{clicks} says."""
        await reader.open()
        await reader.read("clicks", 0, lambda messages: None)
        return reader.lack(sinceMs)

    async def test_whatIsAway(self) -> None:
        """
        A broker that this reader has met within the horizon and that is away is missed; so is a
        partition of one that is there.
        """
        double = FakeZookeeper(reactor)
        await self.registered(double, 0)
        broker = await self.registered(double, 1)
        reader = self.readerOf(double)
        self.assertEqual(await self.lack(reader), "")
        await broker.stop()
        self.assertEqual(await self.lack(reader), "broker 1 is away")
        self.assertEqual(await self.lack(reader, int(reactor.seconds() * 1000) + 60_000), "")
        self.assertEqual(await self.lack(reader), "")
        fresh = self.readerOf(double)
        self.assertEqual(await self.lack(fresh), "")
        fresh._meet(_TierMember("0", "clicks", 1))
        self.assertEqual(await self.lack(fresh), "clicks/0-1 is away")

    async def test_whatGroupsKnow(self) -> None:
        """
        A broker that nobody has met, and of which a group has stored an offset, is missed; names
        that are none are passed over. A list counts more.
        """
        double = FakeZookeeper(reactor)
        await self.registered(double, 0)
        client = double.client()
        await client.connect()
        self.addCleanup(client.close)
        for path in (
            "/consumers/g/offsets/clicks/0-0",
            "/consumers/g/offsets/clicks/7-1",
            "/consumers/h/offsets/clicks/nonsense",
            "/consumers/i/ids",
        ):
            await write(client, path, b"5")
        self.assertEqual(await self.lack(self.readerOf(double)), "broker 7 is away")
        self.assertEqual(await self.lack(self.readerOf(double, "live=z:2181@0")), "")
        self.assertEqual(
            await self.lack(self.readerOf(double, "live=z:2181@0,3,4")),
            "broker 3, broker 4 are away",
        )

    async def test_zookeeperAway(self) -> None:
        """Without ZooKeeper, opening fails; it can be tried again."""
        double = FakeZookeeper(reactor)
        double.stop()
        settings = AuditorSettings.fromProperties(
            {"tiers": "live=z:2181", "timeout.ms": "100"}, self.fail
        )
        reader = ClusterTier(reactor, settings.tiers[0], settings, lambda address: double.client())
        await self.refused(reader.open(), PylogbrokerError)
        double.start()
        await reader.open()
        await reader.close()
