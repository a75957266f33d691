"""
Application code inside a producer: named by settings, and called at 0.7's places (spec-0.7 producer
§§1, 5).

In async mode, a L{CallbackHandler} (C{callback.handler}) sees messages on their way; an
L{IEventHandler} (C{event.handler}) sends the batches itself. A L{HandlerRunner} serves both. The
values in a L{PartitionBatch} are then L{QueueItem}s, in the order of the calls, and are grouped by
partition afterwards.

Names and order of the calls are 0.7's, except that C{close} comes last (gotcha 34). C{init} and
C{close} are called once; 0.7 calls them for each broker.

A callback handler that returns other messages changes what is sent. C{send} succeeds for a message
left out. Only the counters and the log report the outcome of an added message.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import CancelledError, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import ConfigurationError, PylogbrokerError, UnknownOutcomeError
from pylogbroker.producer.accumulator import PartitionBatch, sizeOf
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoder
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.types import RANDOM_PARTITION

if TYPE_CHECKING:
    from pylogbroker.producer.sender import BrokerSender, RequestWriter

log = Logger()


# -- what settings name


def loadPlugin(key: str, name: str, builtIn: Mapping[str, Any], method: str | None = None) -> Any:
    """
    Import the object that a property names. A class is instantiated without arguments.

    @param key: the property's, for texts.
    @param builtIn: objects that need no import, by name.
    @param method: for a function, or an object with this method; the function is returned.
    @raise ConfigurationError: it cannot be imported or made, or is of another kind.
    """
    if name in builtIn:
        return builtIn[name]
    known = f" (built in: {', '.join(builtIn)})" if builtIn else ""
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise ConfigurationError(
            f"{key}={name}: a dotted name is needed, package.module.Class{known}"
        )
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the application may raise anything
        raise ConfigurationError(f"{key}={name}: cannot be imported: {error}{known}") from error
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"{key}={name}: cannot be made without arguments: {error}"
            ) from error
    return found if method is None else callableOf(key, found, method)


def callableOf(key: str, found: Any, method: str) -> Callable[..., Any]:
    """
    A function, or the named method of an object.

    @raise ConfigurationError: it is neither.
    """
    named = getattr(found, method, None)
    chosen = named if callable(named) else found
    if not callable(chosen):
        raise ConfigurationError(
            f"{key}: {found!r} is neither a function nor has it a method {method}"
        )
    return chosen  # type: ignore[no-any-return]


# -- handlers


class QueueItem:
    """
    A message as handlers see it.

    @ivar partition: the broker's partition; -1 lets the broker pick one.
    """

    __slots__ = ("key", "partition", "topic", "value")

    def __init__(
        self, topic: str, value: Any, key: Any = None, partition: int = RANDOM_PARTITION
    ) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition

    def __repr__(self) -> str:
        return f"<QueueItem for {self.topic}-{self.partition}>"


class CallbackHandler:
    """
    0.7's C{CallbackHandler}: a base class whose methods change nothing.
    """

    def init(self, properties: Mapping[str, str]) -> None:
        """The producer is made."""

    def beforeEnqueue(self, item: QueueItem) -> QueueItem:
        """A message was given to C{send}. Returns the message to enqueue."""
        return item

    def afterEnqueue(self, item: QueueItem, isAdded: bool) -> None:
        """A message was enqueued, or refused for want of capacity."""

    def afterDequeuingExistingData(self, item: QueueItem | None) -> Sequence[QueueItem]:
        """
        A poll of the queue gave a message, or L{None} when C{queue.time} has passed. Returns the
        messages to add to the batch.
        """
        return [] if item is None else [item]

    def beforeSendingData(self, batch: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """A batch is about to be sent. Returns the messages to send."""
        return batch

    def lastBatchBeforeClose(self) -> Sequence[QueueItem]:
        """
        The producer is closing; called once per broker that was sent to. Returns messages to send.
        """
        return []

    def close(self) -> None:
        """The producer is closed. No call follows."""


class IEventHandler(Protocol):
    """
    0.7's C{EventHandler}: sends batches in place of the producer. It encodes, and calls
    C{beforeSendingData} of a callback handler, itself.
    """

    def init(self, properties: Mapping[str, str]) -> None:
        """The producer is made."""
        ...

    def handle(self, batch: Sequence[QueueItem], sender: RequestWriter, encoder: Encoder) -> Any:
        """
        Send a batch.

        @param sender: to the broker; see its C{send} and C{multiSend}.
        @return: L{None}, or a L{Deferred} that fires when the batch is sent. If it fails, or this
            method raises, the batch has failed; after an L{pylogbroker.errors.UnknownOutcomeError}
            its outcome is unknown.
        """
        ...

    def close(self) -> None:
        """The producer is closed."""
        ...


def itemEncoder(encoder: Encoder) -> Encoder:
    """An encoder for L{QueueItem}s."""
    return lambda item: encoder(item.value)


def groupByPartition(items: Iterable[QueueItem]) -> list[list[int]]:
    """The indexes of messages by topic and partition, in order of first appearance."""
    groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[item.topic, item.partition].append(index)
    return list(groups.values())


class HandlerRunner:
    """
    Calls a producer's handlers, and accounts for the messages that they add and leave out. A
    handler's exception affects only the messages of the call.

    @ivar isPolling: whether a handler is told that C{queue.time} has passed.
    """

    def __init__(
        self,
        callbackHandler: CallbackHandler | None,
        eventHandler: IEventHandler | None,
        encoder: Encoder,
        limiter: InFlightMessageLimiter,
        completions: Completions,
    ) -> None:
        self.isPolling = callbackHandler is not None
        self._callbackHandler = CallbackHandler() if callbackHandler is None else callbackHandler
        self._eventHandler = eventHandler
        self._encoder = encoder
        self._limiter = limiter
        self._completions = completions

    def beforeEnqueue(self, batch: PartitionBatch) -> list[PartitionBatch]:
        """
        Replace values by L{QueueItem}s. Messages whose topic and key stay alike stay together.

        @raise Exception: the handler's.
        """
        before = self._callbackHandler.beforeEnqueue
        items = [
            before(QueueItem(batch.topic, value, key))
            for value, key in zip(batch.values, batch.keys, strict=True)
        ]
        batch.values = items
        first, indexes = items[0], range(len(items))
        if all(item.topic == first.topic and item.key is first.key for item in items):
            return [_ofItems(batch, indexes)]
        return [_ofItems(batch, [index]) for index in indexes]

    def afterEnqueue(self, batches: Sequence[PartitionBatch], isAdded: bool) -> None:
        for batch in batches:
            for item in batch.values:
                try:
                    self._callbackHandler.afterEnqueue(item, isAdded)
                except Exception:  # the application's own
                    log.failure("The handler's afterEnqueue failed")

    def collect(self, sender: BrokerSender, batch: PartitionBatch) -> None:
        afterDequeuing = self._callbackHandler.afterDequeuingExistingData
        for index, item in enumerate(batch.values):
            item.partition = batch.partition
            self._add(sender, batch.select([index]), afterDequeuing, item)

    def poll(self, sender: BrokerSender) -> None:
        afterDequeuing = self._callbackHandler.afterDequeuingExistingData
        self._add(sender, PartitionBatch(""), afterDequeuing, None)

    def addLastBatch(self, sender: BrokerSender) -> None:
        self._add(sender, PartitionBatch(""), self._callbackHandler.lastBatchBeforeClose)

    def _add(
        self,
        sender: BrokerSender,
        batch: PartitionBatch,
        exchange: Callable[..., Sequence[QueueItem]],
        *arguments: QueueItem | None,
    ) -> None:
        """Add messages to the sender's batch as the handler's method exchanges them."""
        try:
            batch = self._exchange(batch, exchange(*arguments))
        except Exception:  # the application's own
            log.failure("The handler's {method} failed", method=exchange.__name__)
        batch.topic, batch.partition = "", RANDOM_PARTITION
        if batch.values:
            sender.accumulator.addWhole(batch)

    def ungroup(self, batches: Iterable[PartitionBatch]) -> list[PartitionBatch]:
        return [
            _ofItems(batch, indexes)
            for batch in batches
            for indexes in groupByPartition(batch.values)
        ]

    async def beforeSending(
        self, sender: BrokerSender, batches: Sequence[PartitionBatch]
    ) -> list[PartitionBatch]:
        """
        Pass a batch to the handlers.

        @return: the messages left to send, by topic and partition; none after an event handler.
        """
        mixed = PartitionBatch("")
        for batch in batches:
            if batch.topic:
                for item in batch.values:
                    item.partition = batch.partition
            mixed.extend(batch)
        if self._eventHandler is not None:
            await self._send(self._eventHandler, sender, mixed)
            return []
        try:
            items = self._callbackHandler.beforeSendingData(list(mixed.values))
            return self.ungroup([self._exchange(mixed, items)])
        except Exception as error:  # the application's own
            log.failure("The handler's beforeSendingData failed")
            text = f"the handler's beforeSendingData failed: {error!r}"
            self._completions.complete([mixed], Failure(PylogbrokerError(text)))
            return []

    async def _send(
        self, eventHandler: IEventHandler, sender: BrokerSender, batch: PartitionBatch
    ) -> None:
        self._completions.counters.batchCount += 1
        failure = None
        try:
            await maybeDeferred(
                eventHandler.handle, list(batch.values), sender.requests, self._encoder
            )
        except CancelledError:
            text = "the event handler did not finish in time"
            failure = Failure(UnknownOutcomeError(text))
        except Exception as error:  # the application's own
            failure = Failure(error)
        self._completions.complete([batch], failure)

    def _exchange(self, before: PartitionBatch, after: Iterable[QueueItem]) -> PartitionBatch:
        """Messages of C{before} that the handler left out succeed."""
        rows: defaultdict[int, list[int]] = defaultdict(list)
        for index, item in enumerate(before.values):
            rows[id(item)].append(index)
        exchanged = PartitionBatch(before.topic, before.partition)
        addedSizes = []
        for item in list(after):
            indexes = rows[id(item)]
            if indexes:
                index = indexes.pop(0)
                size, waiter = before.sizes[index], before.waiters[index]
            else:
                size, waiter = sizeOf(item.value), None
                addedSizes.append(size)
            exchanged.values.append(item)
            exchanged.keys.append(item.key)
            exchanged.sizes.append(size)
            exchanged.waiters.append(waiter)
        if addedSizes:
            self._completions.counters.acceptedCount += len(addedSizes)
            self._limiter.add(len(addedSizes), sum(addedSizes))
        left = [index for indexes in rows.values() for index in indexes]
        if left:
            self._completions.complete([before.select(left)])
        return exchanged


def _ofItems(batch: PartitionBatch, indexes: Iterable[int]) -> PartitionBatch:
    chosen = batch.select(indexes)
    first = chosen.values[0]
    chosen.topic, chosen.partition = first.topic, first.partition
    chosen.keys = [item.key for item in chosen.values]
    return chosen
