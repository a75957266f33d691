"""
Tests for L{pylogbroker.consumer.avromessages}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.consumer.avromessages import AvroMessages, toTopic
from pylogbroker.consumer.stream import Chunk, ConsumedMessage, MessageStream
from pylogbroker.errors import (
    InvalidPayloadError,
    PylogbrokerError,
    RegistryRefusalError,
    RemoteUnknownError,
    SchemaError,
    SchemaNotFoundError,
)
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.schemas.avro import AvroEncoder
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.types import BrokerPartition, PartitionId
from tests.syncclient.registryend import RegistryEnd

PLACE, OTHER = (
    PartitionId("clicks", BrokerPartition(0, 0)),
    PartitionId("clicks", BrokerPartition(0, 1)),
)
LONG = AvroEncoder(1, '"long"')
TEXT = AvroEncoder(2, '"string"')


class AvroMessagesTests(TestCase):
    """A stream's messages, decoded."""

    timeout = 60

    def setUp(self) -> None:
        self.end = RegistryEnd()
        self.addCleanup(self.end.close)
        self.end.schema(1, LONG.text)
        self.end.schema(2, TEXT.text)
        self.registry = RegistryClient(reactor, self.end.url)

    def messages(self, *payloads: bytes, **arguments: Any) -> AvroMessages:
        self.positions = {PLACE: 0}
        self.stream = MessageStream("thread", reactor, self.positions)
        self.put(PLACE, *payloads)
        return AvroMessages(self.stream, self.registry, **arguments)

    def put(self, place: PartitionId, *payloads: bytes) -> None:
        data = encodeSet(payloads)
        self.stream.put(Chunk(place, MessageSet(data, 0), len(data), len(data)))

    async def test_values(self) -> None:
        """Values come as they were written; a schema is asked for when it is first met."""
        messages = self.messages(LONG(1), TEXT("a"), LONG(-1))
        self.assertEqual([(await messages.__anext__()).value for _ in range(3)], [1, "a", -1])
        self.assertEqual(len(self.end.asked), 2)

    async def test_readersSchema(self) -> None:
        """Or as the reader's schema wants them."""
        async for message in self.messages(LONG(1), readerSchema='"double"'):
            self.assertEqual(
                (message.value, type(message.value), message.topic), (1.0, float, "clicks")
            )
            break

    async def test_raised(self) -> None:
        """What nobody can read is raised, and the stream goes on behind it."""
        self.end.answers["GET", "/schemas/ids/9"] = (
            404,
            {"error_code": 40403, "message": "Schema 9 not found"},
        )
        messages = self.messages(b"rubbish", AvroEncoder(9, '"int"')(1), LONG(5) + b"x", LONG(5))
        for kind in (InvalidPayloadError, SchemaNotFoundError, InvalidPayloadError):
            await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), kind)
        self.assertEqual((await messages.__anext__()).value, 5)

    async def test_deadLetters(self) -> None:
        """Or it is given to somebody, as it came, who is waited for; and nothing stops."""
        sent: list[tuple[str, bytes]] = []
        waiting: list[Deferred[None]] = []

        def send(topic: str, payload: bytes) -> Deferred[None]:
            sent.append((topic, payload))
            waiting.append(Deferred())
            return waiting[-1]

        messages = self.messages(b"rubbish", LONG(5), onInvalid=toTopic(send, "clicks-broken"))
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.assertEqual((sent, asking.called), ([("clicks-broken", b"rubbish")], False))
        waiting[0].callback(None)
        self.assertEqual(((await asking).value, messages.invalidCount), (5, 1))

    async def test_deadLettersFail(self) -> None:
        """
        A message that could not be put aside is not lost: it is raised why, and the next call tries
        again.
        """
        met: list[tuple[bytes, str]] = []

        def onInvalid(message: ConsumedMessage, error: SchemaError) -> None:
            met.append((message.value, type(error).__name__))
            if len(met) == 1:
                raise PylogbrokerError("the topic is away")

        messages = self.messages(b"rubbish", LONG(5), onInvalid=onInvalid)
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), PylogbrokerError)
        self.assertEqual((await messages.__anext__()).value, 5)
        self.assertEqual(met, [(b"rubbish", "InvalidPayloadError")] * 2)

    async def test_apart(self) -> None:
        """
        A schema that is new is looked at elsewhere, and once, whether it can be used or not; the
        message is held meanwhile, even if nobody waits.
        """
        worker, waiting = ManualWorker(), [Deferred[None]()]

        def apart(work: Callable[[], Any]) -> Deferred[Any]:
            given = waiting.pop()
            waiting.append(Deferred())
            reactor.callLater(0, given.callback, None)
            return worker.submit(work)

        self.end.schema(2, "{")
        met: list[bytes] = []
        messages = self.messages(
            LONG(1),
            TEXT("a"),
            TEXT("b"),
            LONG(2),
            onInvalid=lambda message, error: met.append(message.value),
            runInThread=apart,
        )
        given = Deferred.fromCoroutine(messages.__anext__())
        await waiting[0]
        given.cancel()
        worker.jobs.clear()
        self.failureResultOf(given, CancelledError)
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.assertEqual((asking.called, len(worker.jobs)), (False, 1))
        worker.perform()
        self.assertEqual(self.successResultOf(asking).value, 1)
        asking = Deferred.fromCoroutine(messages.__anext__())
        await waiting[0]
        self.assertEqual(met, [])
        worker.perform()
        self.assertEqual(
            (self.successResultOf(asking).value, met, len(worker.jobs)),
            (2, [TEXT("a"), TEXT("b")], 0),
        )

    async def test_registryAway(self) -> None:
        """
        While the registry cannot be asked the message is held: nothing is skipped, nothing is taken
        for broken.
        """
        self.end.answers["GET", "/schemas/ids/1"] = (
            503,
            {"error_code": 50301, "message": "not yet"},
        )
        messages = self.messages(
            LONG(5), onInvalid=lambda message, error: self.fail("it is not broken")
        )
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), RegistryRefusalError)
        self.end.schema(1, LONG.text)
        self.assertEqual((await messages.__anext__()).value, 5)

    async def test_position(self) -> None:
        """
        A message that is held is not committed: its position moves when its value is handed out.
        """
        self.end.answers["GET", "/schemas/ids/1"] = (
            503,
            {"error_code": 50301, "message": "not yet"},
        )
        messages = self.messages(LONG(5), LONG(6))
        for _time in range(2):
            await self.assertFailure(
                Deferred.fromCoroutine(messages.__anext__()), RegistryRefusalError
            )
            self.assertEqual(self.positions, {PLACE: 0})
        self.end.schema(1, LONG.text)
        for value in (5, 6):
            message = await messages.__anext__()
            self.assertEqual((message.value, self.positions), (value, {PLACE: message.nextOffset}))

    async def test_positionOfBroken(self) -> None:
        """Nor is one that is being put aside, or could not be."""
        waiting: list[Deferred[None]] = [Deferred(), Deferred()]
        waits = iter(waiting)
        messages = self.messages(b"rubbish", onInvalid=lambda message, error: next(waits))
        asking = Deferred.fromCoroutine(messages.__anext__())
        waiting[0].errback(PylogbrokerError("the topic is away"))
        await self.assertFailure(asking, PylogbrokerError)
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.assertEqual(self.positions, {PLACE: 0})
        waiting[1].callback(None)
        self.assertEqual(self.positions, {PLACE: len(encodeSet([b"rubbish"]))})
        self.stream.end()
        await self.assertFailure(asking, StopAsyncIteration)

    async def test_positionOfRaised(self) -> None:
        """One that was raised is done with."""
        messages = self.messages(b"rubbish")
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), InvalidPayloadError)
        self.assertEqual(self.positions, {PLACE: len(encodeSet([b"rubbish"]))})

    async def test_dropped(self) -> None:
        """
        A partition that goes to another member takes the message that is held with it, also while
        the registry is asked; the others go on.
        """
        messages = self.messages(LONG(5), LONG(6))
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.stream.drop((PLACE,))
        self.put(OTHER, LONG(7), AvroEncoder(9, '"int"')(8))
        message = await asking
        self.assertEqual(
            (message.value, self.positions), (7, {PLACE: 0, OTHER: message.nextOffset})
        )
        self.end.answers["GET", "/schemas/ids/9"] = (
            503,
            {"error_code": 50301, "message": "not yet"},
        )
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), RegistryRefusalError)
        self.stream.drop((OTHER,))
        self.put(PLACE, TEXT("mine again"))
        self.assertEqual((await messages.__anext__()).value, "mine again")
        self.assertEqual(self.positions[OTHER], message.nextOffset)

    async def test_shutDown(self) -> None:
        """
        Nor is a message handed out when the consumer was shut down, which has committed without it.
        """
        messages = self.messages(LONG(5))
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.stream.end()
        await self.assertFailure(asking, StopAsyncIteration)
        self.assertEqual(self.positions, {PLACE: 0})

    async def test_streamFails(self) -> None:
        """What is wrong with a partition comes out as it does of the stream."""
        messages = self.messages()
        self.stream.fail(PLACE, RemoteUnknownError())
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), RemoteUnknownError)
