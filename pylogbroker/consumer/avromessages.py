"""
A stream's messages, with values that schemas of a registry explain.

A decoder that is called in a stream cannot wait. Here it can: a message with a schema that is new
is held until the registry has told it, and the stream behind it fills up and pushes back, as with
any reader that takes its time. While the registry is away the message stays held: asking again goes
on with it, and nothing is lost or left out.

A schema that is new takes some tenths of a second if it is large, and anybody may have registered
it: it is looked at on a thread, once.

A message that no schema explains is given to whoever said so (C{onBroken}), and the stream goes on
behind it; without, it is raised, and the stream goes on behind it when it is asked again.

A message's position moves when its value is handed out, or when it was given to whoever takes what
is broken: no commit covers one that is held. When its partition goes to another member, it is the
next owner's, and is handed out by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.consumer.stream import ConsumedMessage, MessageStream, PolledBatch
from pylogbroker.errors import SchemaError
from pylogbroker.schemas.avro import AvroDecoder
from pylogbroker.schemas.framing import schemaIdOf
from pylogbroker.types import PartitionId

OnBroken = Callable[[ConsumedMessage, SchemaError], Any]
Apart = Callable[[Callable[[], Any]], Deferred[Any]]
"""Does on a thread what takes time; the Deferred fires with what it returns."""


class AvroMessages:
    """
    An asynchronous iterator over a stream, with decoded values.

    @ivar brokenCount: messages that were given to C{onBroken}.
    """

    def __init__(
        self,
        stream: MessageStream,
        registry: RegistryClient,
        readerSchema: str | None = None,
        onBroken: OnBroken | None = None,
        apart: Apart | None = None,
    ) -> None:
        """
        @param stream: one without a C{decode} of its own.
        @param readerSchema: how values are wanted, whoever wrote them; L{None}: as they were
            written.
        @param onBroken: called with a message, whose value is the payload, and what is wrong with
            it; may return a Deferred, which is waited for: send it to a topic for later, say. What
            it raises is raised, and the message is held.
        @param apart: where new schemas are looked at; by default, on a thread of the registry
            client's reactor.
        @raise InvalidSchemaError: C{readerSchema} cannot be used.
        """
        self.brokenCount = 0
        self._stream = stream
        self._registry = registry
        self._decoder = AvroDecoder(readerSchema)
        self._onBroken = onBroken
        self._apart = registry.apart if apart is None else apart
        self._held: PolledBatch | None = None  # one message

    def __aiter__(self) -> AvroMessages:
        return self

    async def __anext__(self) -> ConsumedMessage:
        """
        The next message.

        @raise SchemaError: no schema explains it, and there is no C{onBroken}; the next call goes
            on behind it.
        @raise PylogbrokerError: the registry could not be asked: the next call asks again for the
            same message; or see L{MessageStream}.
        """
        while True:
            if self._held is None or self._isGone(self._held):
                self._held = await self._take()
            held, message = self._held, self._held.messages[0]
            value, error = await self._explained(message.value)
            if self._isGone(held):
                continue
            if error is not None and self._onBroken is not None:
                await maybeDeferred(self._onBroken, message, error)
                self.brokenCount += 1
            self._held = None
            self._stream.acknowledge(held)
            if error is None:
                return message._replace(value=value)
            if self._onBroken is None:
                raise error

    async def _take(self) -> PolledBatch:
        stream = self._stream
        while not (ahead := stream.poll(1)).messages:
            if ahead.error is not None:
                raise ahead.error
            if stream.isEnded:
                raise StopAsyncIteration
            await stream.wait()
        return ahead

    def _isGone(self, held: PolledBatch) -> bool:
        """
        Whether a message is no longer ours to hand out: the consumer was shut down, or its
        partition is another member's.
        """
        message = held.messages[0]
        return self._stream.isEnded or self._stream.wasDropped(
            PartitionId(message.topic, message.partition), held.epoch
        )

    async def _explained(self, payload: bytes) -> tuple[Any, SchemaError | None]:
        try:
            return await self._decoded(payload), None
        except SchemaError as error:
            return None, error

    async def _decoded(self, payload: bytes) -> Any:
        schemaId = schemaIdOf(payload)
        if self._decoder.isNew(schemaId):
            text = await self._registry.schema(schemaId)
            self._decoder.take(schemaId, await self._apart(lambda: self._decoder.look(text)))
        return self._decoder.decode(payload)


def toTopic(send: Callable[[str, bytes], Deferred[Any]], topic: str) -> OnBroken:
    """
    An C{onBroken} that sends the payload, as it came, to a topic for what nobody could read.

    @param send: a producer's method.
    """
    return lambda message, error: send(topic, message.value)
