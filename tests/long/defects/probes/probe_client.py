"""Clients of a broker, and the mirror's."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.error import ConnectionAborted
from twisted.logger import LogLevel, capturedLogs, formatEvent

from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.errors import MessageTooLargeError, NoAuthException, PylogbrokerError
from pylogbroker.mirror.settings import MirrorSettings
from pylogbroker.model import BrokerPartition
from pylogbroker.producer.producer import Producer
from tests.client import test_link
from tests.integration import test_security
from tests.mirror import test_settings, test_target


class RefusalProbes(test_security.AllowListTests):
    async def test_produceRefusedEarly(self) -> None:
        """Any error of ours is awaited, for 5 s, and not only the right one."""
        await self.serve(test_security.RULES)
        producer = SyncProducer(reactor, self.endpoint("loader"), timeoutMs=5_000)

        async def produce() -> None:
            for _request in range(300):
                await producer.send("other", 0, 200 * [bytes(1_000)])
            await producer.confirm("other", 0)

        error = await self.refused(produce(), PylogbrokerError)
        await producer.close().addErrback(lambda reason: reason.trap(PylogbrokerError))
        self.assertIn("closed the connection", str(error))


class ReadableProbes(test_security.ZookeeperTests):
    async def test_readableForProducers(self) -> None:
        servers = await self.chroot()
        right = await self.client(servers, "broker:secret")
        for path in ("/brokers", "/brokers/ids", "/brokers/topics"):
            await right.create(path)
        producer = Producer(reactor, {"zk.connect": servers})
        self.addCleanup(producer.close)
        try:
            await producer.start()
        except NoAuthException as error:
            self.fail(f"refused: {error}")


class LinkProbes(test_link.LinkCase):
    def test_reportsFailure(self) -> None:
        with capturedLogs() as events:
            for _outage in range(2):
                asked = self.link.connection()
                for _attempt in range(3):
                    self.network.refuse()
                    self.clock.advance(0.05)
                line = self.network.accept()
                self.successResultOf(asked)
                self.clock.advance(20)
                line.cut(ConnectionAborted())
        error = "cannot connect to broker:9092: Connection was refused by other side."
        self.assertEqual(
            [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn],
            2 * [f"No connection to broker:9092 yet, trying again: {error}"],
        )


class TargetProbes(test_target.TargetTests):
    async def test_stuck(self) -> None:
        target = await self.connected(self.far, max_message_size="100")
        await target.provide("t")
        with capturedLogs() as events:
            for _attempt in range(3):
                await self.assertFailure(
                    target.send("t", [b"x" * 101], BrokerPartition(0, 0)), MessageTooLargeError
                )
        logged = [formatEvent(each) for each in events if each["log_level"] >= LogLevel.warn]
        self.assertEqual(logged, [])


class SettingsProbes(test_settings.MirrorSettingsTests):
    def test_encoder(self) -> None:
        producer = {**test_settings.PRODUCER, "serializer.class": "kafka.serializer.StringEncoder"}
        try:
            MirrorSettings.fromProperties(
                [test_settings.CONSUMER], producer, whitelist("a"), self.warnings.append
            )
        except PylogbrokerError as error:
            self.fail(f"refused: {error}")
        self.assertEqual(len(self.warnings), 1)
