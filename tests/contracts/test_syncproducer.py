"""
One suite for both sync producers, on Twisted and blocking, at a real broker: what a confirmation
proves, and what cannot be known.

0.7.2's own scenarios for the clients are in C{tests/integration}.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from ipaddress import IPv4Address
from traceback import walk_tb
from typing import Any

from twisted.python.filepath import FilePath
from twisted.trial.unittest import TestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.errors import BrokerConnectionError, ClosedError
from pylogbroker.records.messageset import MessageSet, encodeMessage
from pylogbroker.testing.localbroker import LocalBroker
from tests.contracts.clients import BlockingClients, Clients, TwistedClients, failure

SIZE_MAX = 1 << 20


def payloads(messages: MessageSet) -> list[bytes]:
    """What was sent."""
    return [payload for payload, _ in messages.payloads()]


class SyncProducerPromises:
    """What holds for a sync producer. A subclass says which, and mixes in a L{TestCase}."""

    timeout = 120
    kind: Callable[..., Clients]
    addCleanup: Any
    assertEqual: Any
    assertIn: Any
    mktemp: Any

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor = reactor
        self.clients = self.kind(reactor, self)

    async def serve(
        self, properties: dict[str, str] | None = None, directory: str | None = None
    ) -> LocalBroker:
        """A broker, which is stopped after the test at the latest."""
        broker = LocalBroker(self.reactor, properties, directory)
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    async def test_afterTheEnd(self) -> None:
        """
        Whoever goes on after C{close} is told so each time, by an error of its own, so that no
        traceback grows with each time.
        """
        broker = await self.serve()
        producer = self.clients.producer(broker.host, broker.port)
        await producer.close()
        found = [
            await failure(call(), ClosedError)
            for call in 3
            * [lambda: producer.send("test", 0, b""), lambda: producer.confirm("test", 0)]
        ]
        self.assertEqual(len({id(error) for error in found}), 6)
        depths = [sum(1 for _frame in walk_tb(error.__traceback__)) for error in found]
        self.assertEqual(depths[:2], depths[4:])

    async def test_confirmed(self) -> None:
        """
        A confirmation tells the end behind what was sent; from there on is read what is sent next.
        """
        broker = await self.serve()
        producer, consumer = (
            self.clients.producer(broker.host, broker.port),
            self.clients.consumer(broker.host, broker.port),
        )
        self.assertEqual(await producer.confirm("test", 0), 0)
        await producer.send("test", 0, [b"hello"])
        self.assertEqual(await producer.confirm("test", 0), 15)
        await producer.multiSend([("test", 0, [b"there"]), ("other", 0, [b"x"])])
        self.assertEqual(
            (await producer.confirm("test", 0), await producer.confirm("other", 0)), (30, 11)
        )
        self.assertEqual(payloads(await consumer.fetch("test", 0, 15, SIZE_MAX)), [b"there"])

    async def test_droppedIsUnknown(self) -> None:
        """
        What the broker drops without a word, since it is too large for it, is never confirmed; the
        producer goes on over a new connection.
        """
        broker = await self.serve({"max.message.size": "100"})
        producer = self.clients.producer(broker.host, broker.port)
        await producer.send("test", 0, [b"x" * 101])
        await failure(producer.confirm("test", 0), BrokerConnectionError)
        await producer.send("test", 0, [b"good"])
        self.assertEqual(await producer.confirm("test", 0), 14)

    async def test_refusedIsUnknown(self) -> None:
        """
        What the broker refuses by closing the connection is unknown to the producer, which goes on
        over a new one.
        """
        broker = await self.serve()
        producer = self.clients.producer(broker.host, broker.port)
        for topic, partition, messages in (
            ("no/topic", 0, [b"x"]),
            ("test", 7, [b"x"]),
            ("test", 0, encodeMessage(b"x")[:-1] + b"y"),
        ):
            await producer.send(topic, partition, messages)
            await failure(producer.confirm("test", 0), BrokerConnectionError)
        await producer.send("test", 0, [b"good"])
        self.assertEqual(await producer.confirm("test", 0), 14)

    async def test_brokerRestarts(self) -> None:
        """
        Clients go on by themselves when their broker was restarted; but the producer says of what
        it had not confirmed before that it is unknown.
        """
        directory = self.mktemp()
        os.mkdir(directory)
        broker = await self.serve({}, directory)
        again = {"port": str(broker.port)}
        producer, consumer = (
            self.clients.producer(broker.host, broker.port),
            self.clients.consumer(broker.host, broker.port),
        )
        await producer.send("test", 0, [b"before"])
        await producer.confirm("test", 0)
        await producer.send("test", 0, [b"not confirmed"])
        self.assertIn(b"before", payloads(await consumer.fetch("test", 0, 0, SIZE_MAX)))
        await broker.stop()
        await self.serve(again, directory)
        self.assertIn(b"before", payloads(await consumer.fetch("test", 0, 0, SIZE_MAX)))
        await producer.send("test", 0, [b"after"])
        self.assertIn(
            "unknown", str(await failure(producer.confirm("test", 0), BrokerConnectionError))
        )
        await producer.confirm("test", 0)
        self.assertIn(b"after", payloads(await consumer.fetch("test", 0, 0, SIZE_MAX)))

    async def test_reconnecting(self) -> None:
        """
        With a new connection for every few requests, the order is kept and nothing is in doubt.
        """
        broker = await self.serve()
        producer, consumer = (
            self.clients.producer(broker.host, broker.port, reconnectIntervalCount=3),
            self.clients.consumer(broker.host, broker.port),
        )
        for each in range(20):
            await producer.send("test", 0, [b"%d" % each])
        await producer.confirm("test", 0)
        self.assertEqual(
            payloads(await consumer.fetch("test", 0, 0, SIZE_MAX)),
            [b"%d" % each for each in range(20)],
        )


class TwistedSyncProducerTests(SyncProducerPromises, TestCase):
    """L{pylogbroker.client.syncproducer.SyncProducer} keeps the promises."""

    kind = TwistedClients

    async def test_notAwaited(self) -> None:
        """
        Sends that nobody waits for, and a close behind them, keep their order and lose nothing,
        though there was no connection to begin with.
        """
        broker = await self.serve()
        producer = SyncProducer(self.reactor, broker.endpoint)
        for each in range(1000):
            producer.send("test", 0, [b"%d" % each])
        await producer.close()
        messages = await self.clients.consumer(broker.host, broker.port).fetch(
            "test", 0, 0, SIZE_MAX
        )
        self.assertEqual(payloads(messages), [b"%d" % each for each in range(1000)])

    async def test_overTls(self) -> None:
        """Over TLS all is the same; what is sent before closing is kept."""
        key, certificate = writeCertificate(FilePath(self.mktemp()))
        broker = await self.serve(
            {"listeners": f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={certificate}"}
        )
        endpoint = f"ssl:127.0.0.1:{broker.port}"
        producer, consumer = (
            SyncProducer(self.reactor, endpoint),
            SimpleConsumer(self.reactor, endpoint),
        )
        self.addCleanup(consumer.close)
        await producer.send("test", 0, [b"x" * 300_000])
        self.assertEqual(await producer.confirm("test", 0), 300_010)
        producer.send("test", 0, [b"y" * 300_000])
        await producer.close()
        self.assertEqual(
            payloads(await consumer.fetch("test", 0, 0, SIZE_MAX)), [b"x" * 300_000, b"y" * 300_000]
        )


class BlockingSyncProducerTests(SyncProducerPromises, TestCase):
    """L{pylogbroker.syncclient.SyncProducer} keeps the promises."""

    kind = BlockingClients


def writeCertificate(directory: FilePath[str]) -> tuple[str, str]:
    """A key and a certificate for the loopback interface. Returns their paths."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    directory.makedirs()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    keyPath, certificatePath = directory.child("key.pem"), directory.child("certificate.pem")
    keyPath.setContent(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificatePath.setContent(certificate.public_bytes(serialization.Encoding.PEM))
    return keyPath.path, certificatePath.path
