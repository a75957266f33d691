"""
A stream's messages, decoded with the schemas of a registry.

A stream's C{decode} cannot wait; this iterator can. It holds a message with an unknown schema until
the registry has answered, while the stream fills up and pushes back. A failed request is retried by
the next call. A thread prepares new schemas: large ones take tenths of a second.

A position moves when the value is handed out, or when C{onInvalid} has taken the message: no commit
covers a held message. Only the partition's current owner hands it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.consumer.stream import ConsumedMessage, MessageStream, PolledBatch
from pylogbroker.errors import SchemaError
from pylogbroker.schemas.avro import AvroDecoder, schemaIdOf
from pylogbroker.types import PartitionId

OnInvalid = Callable[[ConsumedMessage, SchemaError], Any]
RunInThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""Calls a function in a thread; the Deferred fires with its result."""


class AvroMessages:
    """
    An asynchronous iterator over a stream, with decoded values.

    @ivar invalidCount: messages given to C{onInvalid}.
    """

    def __init__(
        self,
        stream: MessageStream,
        registry: RegistryClient,
        readerSchema: str | None = None,
        onInvalid: OnInvalid | None = None,
        runInThread: RunInThread | None = None,
    ) -> None:
        """
        @param stream: one without C{decode}.
        @param readerSchema: converts values to this schema; L{None} keeps the writer's.
        @param onInvalid: takes a message that no schema explains, with its payload, and the error.
            May return a Deferred. While C{onInvalid} fails, the message is held.
        @param runInThread: prepares new schemas; by default a thread of the registry client's
            reactor.
        @raise InvalidSchemaError: C{readerSchema} cannot be used.
        """
        self.invalidCount = 0
        self._stream = stream
        self._registry = registry
        self._decoder = AvroDecoder(readerSchema)
        self._onInvalid = onInvalid
        self._runInThread = registry.apart if runInThread is None else runInThread
        self._held: PolledBatch | None = None  # one message

    def __aiter__(self) -> AvroMessages:
        return self

    async def __anext__(self) -> ConsumedMessage:
        """
        @raise SchemaError: no schema explains the message, and there is no C{onInvalid}; the next
            call goes on.
        @raise PylogbrokerError: the registry failed, and the next call retries the same message; or
            see L{MessageStream}.
        """
        while True:
            if self._held is None or self._isGone(self._held):
                self._held = await self._stream.nextBatch(1)
            held = self._held
            if not held.messages:
                self._held = None
                raise held.error or StopAsyncIteration
            [message] = held.messages
            value, error = await self._explain(message.value)
            if self._isGone(held):
                continue
            if error is not None and self._onInvalid is not None:
                await maybeDeferred(self._onInvalid, message, error)
                self.invalidCount += 1
            self._held = None
            self._stream.acknowledge(held)
            if error is None:
                return message._replace(value=value)
            if self._onInvalid is None:
                raise error

    def _isGone(self, held: PolledBatch) -> bool:
        """Whether the consumer was shut down, or another member has the partition."""
        [message] = held.messages
        partition = PartitionId(message.topic, message.partition)
        return self._stream.isEnded or self._stream.wasDropped(partition, held.epoch)

    async def _explain(self, payload: bytes) -> tuple[Any, SchemaError | None]:
        try:
            schemaId = schemaIdOf(payload)
            if not self._decoder.isCached(schemaId):
                text = await self._registry.schema(schemaId)
                schema = await self._runInThread(lambda: self._decoder.prepare(text))
                self._decoder.cache(schemaId, schema)
            return self._decoder.decode(payload), None
        except SchemaError as error:
            return None, error


def toTopic(send: Callable[[str, bytes], Deferred[Any]], topic: str) -> OnInvalid:
    """
    An C{onInvalid} that sends the payload unchanged to a topic for invalid messages.

    @param send: a producer's method.
    """
    return lambda message, error: send(topic, message.value)
