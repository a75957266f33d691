"""
One suite for both simple consumers, on Twisted and blocking, with a broker that misbehaves on
demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import TestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    TimedOutError,
    WireError,
)
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeMultiFetch, encodeOffsets
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.protocol.kafka07.responses import fetchHeader, multiFetchHeader
from pylogbroker.records.messageset import encodeSet
from tests.contracts.clients import BlockingClients, Clients, TwistedClients, failure
from tests.contracts.scriptedbroker import ScriptedBroker, ScriptedConnection

HELLO = encodeSet([b"hello", b"there"])
ANSWER = fetchHeader(0, len(HELLO)) + HELLO
MESSAGES = [(b"hello", 55), (b"there", 70)]


class SimpleConsumerPromises:
    """What holds for a simple consumer. A subclass says which, and mixes in a L{TestCase}."""

    timeout = 60
    kind: Callable[..., Clients]
    addCleanup: Any
    assertEqual: Any
    assertIn: Any
    assertIsNone: Any
    assertIsInstance: Any
    assertRaises: Any

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.broker = ScriptedBroker(reactor)
        self.addCleanup(self.broker.stop)
        self.clients = self.kind(reactor, self)
        self.consumer = self.build()

    def build(self, **arguments: Any) -> Any:
        return self.clients.consumer(self.broker.host, self.broker.port, **arguments)

    async def test_fetch(self) -> None:
        """A fetch asks what it is told to, and gives messages with the offsets to go on from."""
        self.broker.onRequest = lambda connection: connection.write(ANSWER)
        messages = await self.consumer.fetch("topic", 2, 40, 1000)
        self.assertEqual(list(messages.payloads()), MESSAGES)
        self.assertEqual((messages.validSize, messages.nextOffset), (30, 70))
        self.assertEqual(
            self.broker.connections[0].requests, [encodeFetch("topic", 2, 40, 1000)[4:]]
        )

    async def test_byteByByte(self) -> None:
        """It does not matter how the answer is cut up."""

        def answer(connection: ScriptedConnection) -> None:
            for each in ANSWER:
                connection.write(bytes([each]))

        self.broker.onRequest = answer
        self.assertEqual(
            list((await self.consumer.fetch("topic", 2, 40, 1000)).payloads()), MESSAGES
        )

    async def test_largeAnswer(self) -> None:
        """Nor how large it is, within the limit."""
        large = encodeSet([bytes([each % 256]) * 1000 for each in range(20_000)])
        self.broker.onRequest = lambda connection: connection.write(
            fetchHeader(0, len(large)) + large
        )
        self.assertEqual((await self.consumer.fetch("topic", 2, 40, len(large))).data, large)

    async def test_errorWaits(self) -> None:
        """
        A fetch that the broker refuses gives a set that has the error, and raises it when it is
        read, each time.
        """
        self.broker.onRequest = lambda connection: connection.write(fetchHeader(1, 0))
        messages = await self.consumer.fetch("topic", 2, 40, 1000)
        self.assertIsInstance(messages.error, RemoteOffsetOutOfRangeError)
        for _ in range(2):
            self.assertRaises(RemoteOffsetOutOfRangeError, list, messages)
            self.assertRaises(RemoteOffsetOutOfRangeError, lambda: messages.validSize)

    async def test_multifetch(self) -> None:
        """
        Several fetches go in one request; each set has its own offset and its own error; the outer
        code says nothing.
        """
        body = multiFetchHeader([30, 0]) + ANSWER + fetchHeader(3, 0)
        self.broker.onRequest = lambda connection: connection.write(
            body[:4] + b"\xff\xff" + body[6:]
        )
        first, second = await self.consumer.multifetch(
            [("topic", 0, 40, 1000), ("other", 9, 5, 500)]
        )
        self.assertEqual(list(first.payloads()), MESSAGES)
        self.assertIsInstance(second.error, RemotePartitionError)
        self.assertEqual(second.baseOffset, 5)
        self.assertEqual(
            self.broker.connections[0].requests,
            [encodeMultiFetch([("topic", 0, 40, 1000), ("other", 9, 5, 500)])[4:]],
        )

    async def test_getOffsetsBefore(self) -> None:
        """Offsets come in descending order, as the broker sent them."""
        self.broker.onRequest = lambda connection: connection.write(offsetsAnswer([240, 216, 0]))
        self.assertEqual(await self.consumer.getOffsetsBefore("topic", 0, 1234, 10), [240, 216, 0])
        self.assertEqual(
            self.broker.connections[0].requests, [encodeOffsets("topic", 0, 1234, 10)[4:]]
        )

    async def test_oneConnection(self) -> None:
        """One call after the other goes over one connection."""
        self.broker.onRequest = lambda connection: connection.write(ANSWER)
        for _ in range(5):
            await self.consumer.fetch("topic", 2, 40, 1000)
        self.assertEqual(len(self.broker.connections), 1)

    async def test_reconnects(self) -> None:
        """
        When the connection is lost under a call, in the middle of the answer even, the call is
        repeated once over a new one.
        """
        for lose in (ScriptedConnection.end, ScriptedConnection.cut):
            first = len(self.broker.connections) or 1

            def answer(
                connection: ScriptedConnection,
                first: int = first,
                lose: Callable[[ScriptedConnection], None] = lose,
            ) -> None:
                if connection.index < first:
                    connection.write(ANSWER[:20])
                    lose(connection)
                else:
                    connection.write(ANSWER)

            self.broker.onRequest = answer
            self.assertEqual(
                list((await self.consumer.fetch("topic", 2, 40, 1000)).payloads()), MESSAGES
            )
        question = encodeFetch("topic", 2, 40, 1000)[4:]
        self.assertEqual(
            [connection.requests for connection in self.broker.connections],
            [[question], [question, question], [question]],
        )

    async def test_lostTwice(self) -> None:
        """When that is lost, too, it fails; the text says that a refusal may look like that."""
        self.broker.onRequest = ScriptedConnection.end
        error = await failure(
            self.consumer.getOffsetsBefore("no/topic", 0, -1, 1), BrokerConnectionError
        )
        self.assertEqual(len(self.broker.connections), 2)
        self.assertIn("refuses a request", str(error))

    async def test_usableAfterFailure(self) -> None:
        """After that, the next call connects anew."""
        self.broker.onRequest = ScriptedConnection.end
        await failure(self.consumer.fetch("topic", 2, 40, 1000), BrokerConnectionError)
        self.broker.onRequest = lambda connection: connection.write(ANSWER)
        self.assertEqual(
            list((await self.consumer.fetch("topic", 2, 40, 1000)).payloads()), MESSAGES
        )

    async def test_endedWhileIdle(self) -> None:
        """
        A connection that the broker ended between two calls, as one does that was restarted, costs
        nothing.
        """

        def answer(connection: ScriptedConnection) -> None:
            connection.write(ANSWER)
            connection.end()

        self.broker.onRequest = answer
        for _ in range(4):
            self.assertEqual(
                list((await self.consumer.fetch("topic", 2, 40, 1000)).payloads()), MESSAGES
            )

    async def test_noBroker(self) -> None:
        """Where nobody listens, it fails with the reason."""
        await self.broker.stopListening()
        consumer = self.build(connectTimeoutMs=50)
        self.assertIn(
            "refused",
            str(await failure(consumer.fetch("topic", 2, 40, 1000), BrokerConnectionError)),
        )

    async def test_timeout(self) -> None:
        """
        A broker that does not answer is given up after C{timeoutMs}; the call is not repeated.
        """
        consumer = self.build(timeoutMs=1000)  # long enough to connect on any machine
        await failure(consumer.fetch("topic", 2, 40, 1000), TimedOutError)
        self.assertEqual(sum(len(connection.requests) for connection in self.broker.connections), 1)

    async def test_lateAnswer(self) -> None:
        """An answer that comes too late is not taken for that of the next call."""
        consumer = self.build(timeoutMs=300)
        await failure(consumer.fetch("topic", 0, 0, 1000), TimedOutError)
        late = fetchHeader(0, 0)

        def answer(connection: ScriptedConnection) -> None:
            connection.write(b"".join([late] * (len(connection.requests) - 1)) + ANSWER)

        self.broker.onRequest = answer
        self.assertEqual(list((await consumer.fetch("topic", 2, 40, 1000)).payloads()), MESSAGES)

    async def test_tooLarge(self) -> None:
        """An answer that announces more than is accepted is refused when its size is there."""
        consumer = self.build(responseSizeMax=1000)
        self.broker.onRequest = lambda connection: connection.write(fetchHeader(0, 999))
        await failure(consumer.fetch("topic", 2, 40, 998), WireError)

    async def test_nonsense(self) -> None:
        """
        An answer that is none is an error, and its connection is not used any more; the call is not
        repeated.
        """
        for answer in (b"\0\0\0\1x", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xff\xff\xff"):
            before = len(self.broker.connections)
            self.broker.onRequest = lambda connection, answer=answer: connection.write(answer)  # type: ignore[misc]
            await failure(self.consumer.fetch("topic", 2, 40, 1000), WireError)
            self.assertEqual(len(self.broker.connections), before + 1)

    async def test_values(self) -> None:
        """What cannot be asked is refused before anything is sent."""
        consumer = self.build(responseSizeMax=1000)
        await failure(consumer.fetch("topic", 0, 0, -1), ValueError)
        await failure(consumer.fetch("topic", 0, 0, 999), ValueError)
        await failure(consumer.multifetch([("topic", 0, 0, 500), ("topic", 0, 0, 500)]), ValueError)
        await failure(consumer.multifetch([("topic", 0, 0, 0)] * 32_768), ValueError)
        await failure(consumer.getOffsetsBefore("topic", 0, -1, -1), ValueError)
        self.assertEqual(self.broker.connections, [])

    async def test_close(self) -> None:
        """
        Closed, the next call connects again, as with 0.7.2; closing twice, or what was never
        connected, does nothing.
        """
        await self.consumer.close()
        self.broker.onRequest = lambda connection: connection.write(ANSWER)
        for _ in range(2):
            await self.consumer.fetch("topic", 2, 40, 1000)
            await self.consumer.close()
            await self.consumer.close()
        self.assertEqual(len(self.broker.connections), 2)


class TwistedSimpleConsumerTests(SimpleConsumerPromises, TestCase):
    """L{pylogbroker.client.simpleconsumer.SimpleConsumer} keeps the promises."""

    kind = TwistedClients


class BlockingSimpleConsumerTests(SimpleConsumerPromises, TestCase):
    """L{pylogbroker.syncclient.SimpleConsumer} keeps the promises."""

    kind = BlockingClients
