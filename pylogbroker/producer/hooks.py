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

from pylogbroker.producer.batching import QueueItem
from pylogbroker.producer.confirmation import Carrier
from pylogbroker.producer.encoding import Encoder


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

    def handle(self, batch: Sequence[QueueItem], carrier: Carrier, encoder: Encoder) -> Any:
        """
        Send a batch.

        @param carrier: to the broker; see L{Carrier.send} and L{Carrier.multiSend}.
        @return: L{None}, or a L{Deferred} that fires when it is done; if it fails, or this raises, the batch has failed: as unknown if it is an
            L{pylogbroker.errors.UnknownOutcomeError}.
        """
        ...

    def close(self) -> None:
        """The producer is closed."""
        ...
