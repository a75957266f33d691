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
from pylogbroker.errors import BrokenPayloadError, PylogbrokerError, RegistryError, SchemaError, UnknownSchemaError
from pylogbroker.formats.messageset import MessageSet, encodeSet
from pylogbroker.model import BrokerPartition, Place
from pylogbroker.schemas.avro import AvroEncoder
from pylogbroker.testing.worker import LeadWorker
from tests.blocking.registryend import RegistryEnd

PLACE = Place("clicks", BrokerPartition(0, 0))
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
        stream = MessageStream("thread", reactor, {}, lambda: None)
        data = encodeSet(payloads)
        stream.reserve(len(data))
        stream.put(Chunk(PLACE, MessageSet(data, 0), len(data)))
        return AvroMessages(stream, self.registry, **arguments)

    async def test_values(self) -> None:
        """Values come as they were written; a schema is asked for when it is first met."""
        messages = self.messages(LONG(1), TEXT("a"), LONG(-1))
        self.assertEqual([(await messages.__anext__()).value for _ in range(3)], [1, "a", -1])
        self.assertEqual(len(self.end.asked), 2)

    async def test_readersSchema(self) -> None:
        """Or as the reader's schema wants them."""
        async for message in self.messages(LONG(1), readerSchema='"double"'):
            self.assertEqual((message.value, type(message.value), message.topic), (1.0, float, "clicks"))
            break

    async def test_raised(self) -> None:
        """What nobody can read is raised, and the stream goes on behind it."""
        self.end.answers["GET", "/schemas/ids/9"] = (404, {"error_code": 40403, "message": "Schema 9 not found"})
        messages = self.messages(b"rubbish", AvroEncoder(9, '"int"')(1), LONG(5) + b"x", LONG(5))
        for kind in (BrokenPayloadError, UnknownSchemaError, BrokenPayloadError):
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

        messages = self.messages(b"rubbish", LONG(5), onBroken=toTopic(send, "clicks-broken"))
        asking = Deferred.fromCoroutine(messages.__anext__())
        self.assertEqual((sent, asking.called), ([("clicks-broken", b"rubbish")], False))
        waiting[0].callback(None)
        self.assertEqual(((await asking).value, messages.brokenCount), (5, 1))

    async def test_deadLettersFail(self) -> None:
        """A message that could not be put aside is not lost: it is raised why, and the next call tries again."""
        met: list[tuple[bytes, str]] = []

        def onBroken(message: ConsumedMessage, error: SchemaError) -> None:
            met.append((message.value, type(error).__name__))
            if len(met) == 1:
                raise PylogbrokerError("the topic is away")

        messages = self.messages(b"rubbish", LONG(5), onBroken=onBroken)
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), PylogbrokerError)
        self.assertEqual((await messages.__anext__()).value, 5)
        self.assertEqual(met, [(b"rubbish", "BrokenPayloadError")] * 2)

    async def test_apart(self) -> None:
        """A schema that is new is looked at elsewhere, and once, whether it can be used or not; the message is held meanwhile, even if nobody waits."""
        worker, waiting = LeadWorker(), [Deferred[None]()]

        def apart(work: Callable[[], Any]) -> Deferred[Any]:
            given = waiting.pop()
            waiting.append(Deferred())
            reactor.callLater(0, given.callback, None)
            return worker.do(work)

        self.end.schema(2, "{")
        met: list[bytes] = []
        messages = self.messages(LONG(1), TEXT("a"), TEXT("b"), LONG(2), onBroken=lambda message, error: met.append(message.value), apart=apart)
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
        self.assertEqual((self.successResultOf(asking).value, met, len(worker.jobs)), (2, [TEXT("a"), TEXT("b")], 0))

    async def test_registryAway(self) -> None:
        """While the registry cannot be asked the message is held: nothing is skipped, nothing is taken for broken."""
        self.end.answers["GET", "/schemas/ids/1"] = (503, {"error_code": 50301, "message": "not yet"})
        messages = self.messages(LONG(5), onBroken=lambda message, error: self.fail("it is not broken"))
        await self.assertFailure(Deferred.fromCoroutine(messages.__anext__()), RegistryError)
        self.end.schema(1, LONG.text)
        self.assertEqual((await messages.__anext__()).value, 5)
