"""
What an application can put into the way of its messages in async mode: seven hooks, and an event sender of its own (spec-0.7 producer §5).

Names and order are 0.7's, with one change: C{close} comes last (gotcha 34), after C{lastBatchBeforeClose} and after everything is sent. Where 0.7
calls C{init} and C{close} once for each broker, here they are called once.

A hook that returns other messages than it was given changes what is sent. A message that it does not return is the hook's own from then on: its C{send} is
taken to be done. What it returns in addition is sent like any other, and nobody is told of it but the counters and the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError
from pylogbroker.producer.batches import QueueItem, sizeOf
from pylogbroker.producer.brokersender import ConfirmingSender
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoder
from pylogbroker.producer.inflight import InFlightLimiter

log = Logger()


class Hooks:
    """
    0.7's C{CallbackHandler}, doing nothing: to be inherited from.
    """

    def init(self, properties: Mapping[str, str]) -> None:
        """The producer is made."""

    def beforeEnqueue(self, item: QueueItem) -> QueueItem:
        """A message was given to C{send}. Returns what to enqueue."""
        return item

    def afterEnqueue(self, item: QueueItem, isAdded: bool) -> None:
        """It was enqueued, or there was no room for it."""

    def afterDequeuingExistingData(self, item: QueueItem | None) -> Sequence[QueueItem]:
        """The queue was polled, and gave a message, or none in time. Returns what is to be added to the batch."""
        return [] if item is None else [item]

    def beforeSendingData(self, batch: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """A batch is about to be sent. Returns what to send."""
        return batch

    def lastBatchBeforeClose(self) -> Sequence[QueueItem]:
        """The producer is closing. Returns what is to be sent besides; asked once for each broker that anything was sent to."""
        return []

    def close(self) -> None:
        """The producer is closed; nothing comes after this."""


class IEventSender(Protocol):
    """
    Sends batches instead of what is built in: it encodes, and calls C{beforeSendingData} if there are hooks, itself.
    """

    def init(self, properties: Mapping[str, str]) -> None:
        """The producer is made."""
        ...

    def handle(
        self, batch: Sequence[QueueItem], carrier: ConfirmingSender, encoder: Encoder
    ) -> Any:
        """
        Send a batch.

        @param carrier: to the broker; see L{ConfirmingSender.send} and L{ConfirmingSender.multiSend}.
        @return: L{None}, or a L{Deferred} that fires when it is done; if it fails, or this raises, the batch has failed: as unknown if it is an
            L{pylogbroker.errors.UnknownOutcomeError}.
        """
        ...

    def close(self) -> None:
        """The producer is closed."""
        ...


class HookRunner:
    """
    Asks the application's hooks, and keeps the books of what they take and give. What a hook raises holds up nobody but the messages it was asked about.
    """

    def __init__(self, hooks: Hooks, queue: InFlightLimiter, outcomes: Completions) -> None:
        self._hooks = hooks
        self._queue = queue
        self._outcomes = outcomes

    def beforeEnqueue(self, item: QueueItem) -> QueueItem:
        """
        @return: what stands for the message from now on; who waited for it waits for that.
        @raise Exception: whatever the hook raises.
        """
        hooked = self._hooks.beforeEnqueue(item)
        if hooked is not item:
            hooked.waiter, hooked.size = item.waiter, item.size
        return hooked

    def afterEnqueue(self, items: Sequence[QueueItem], isAdded: bool) -> None:
        """They went in, or there was no room."""
        for item in items:
            try:
                self._hooks.afterEnqueue(item, isAdded)
            except Exception:  # the application's own
                log.failure("The hook afterEnqueue failed")

    def poll(self, item: QueueItem | None) -> list[QueueItem]:
        """A lane has a message, or none in time. Returns what it is to collect."""
        given = [] if item is None else [item]
        try:
            return self._exchange(given, self._hooks.afterDequeuingExistingData(item))
        except Exception:  # the application's own
            log.failure("The hook afterDequeuingExistingData failed")
            return given

    def beforeSending(self, items: list[QueueItem]) -> list[QueueItem]:
        """A batch is about to be sent. Returns what to send; if the hook fails, nothing, and the batch has failed."""
        try:
            return self._exchange(
                items, self._hooks.beforeSendingData(list(items))
            )  # a hook may change what it is given
        except Exception as error:  # the application's own
            log.failure("A hook failed")
            self._outcomes.settle(
                items, Failure(PylogbrokerError(f"the hook beforeSendingData failed: {error!r}"))
            )
            return []

    def lastBatch(self) -> list[QueueItem]:
        """The producer is closing. Returns what is to be sent besides."""
        try:
            return self._exchange((), self._hooks.lastBatchBeforeClose())
        except Exception:  # the application's own
            log.failure("A hook failed")
            return []

    def _exchange(self, before: Sequence[QueueItem], after: Sequence[QueueItem]) -> list[QueueItem]:
        """A hook took some messages, and gave others."""
        after = list(after)
        kept = {id(item) for item in after}
        had = {id(item) for item in before}
        new = [item for item in after if id(item) not in had]
        if new:
            for item in new:
                item.size = item.size or sizeOf(item.value)
            self._outcomes.counters.acceptedCount += len(new)
            self._queue.add(len(new), sum([item.size for item in new]))
        gone = [item for item in before if id(item) not in kept]
        if gone:
            self._outcomes.settle(gone)
        return after
