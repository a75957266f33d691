"""
What the operators of a high-level job's steps have in common, and what surrounds them in a task.

An operator has a function for each parent of its step, or one, if there is none. It takes what the
parent gives, and gives results to the operators behind it. A stream
gives C{(key, message, timestamp)}, and a table C{(key, value, hadValue, timestamp)}: C{hadValue} is
false if the operators behind cannot have a value of this key yet, so that they need not be told of
a removal. Timestamps are milliseconds since the epoch; -1: none.

What must be true: what an operator remembers beside its stores is forgotten when a message fails,
since its stores are taken back then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pylogbroker.tasks.api import (
    Counter,
    MessageCollector,
    OutgoingMessageEnvelope,
    TaskContext,
)
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.streams.steps import PlanStep
from pylogbroker.tasks.streams.stores import (
    STREAM_TIMES,
    StreamTime,
    TimeIndex,
    ValueAndTimestamp,
)

Take: TypeAlias = Callable[..., Any]
"""Takes what a parent gives."""

Getter: TypeAlias = Callable[[Any], ValueAndTimestamp | None]
"""What a table has for a key."""


class Surroundings:
    """
    What a task gives to its operators.

    @ivar collector: takes what is sent.
    @ivar headers: of the message in hand; none for what comes of the passing of time.
    """

    collector: MessageCollector

    def __init__(self, context: TaskContext) -> None:
        self.headers: Iterable[tuple[str, bytes | None]] = ()
        self._context = context
        self._remembering: list[StreamTime | TimeIndex] = []

    def storeOf(self, step: PlanStep, number: int = 0) -> KeyValueStore[Any, Any]:
        """One of the stores of a step."""
        return self._context.getStore(step.stores[number])

    def droppedOf(self, step: PlanStep) -> Counter:
        """Counts the messages that lack the key, or what else a step needs."""
        return self._context.getCounter(f"dropped-{step.name}")

    def lateOf(self, step: PlanStep) -> Counter:
        """Counts the messages whose window is closed."""
        return self._context.getCounter(f"late-{step.name}")

    def streamTimeOf(self, step: PlanStep) -> StreamTime:
        """The stream time of a step."""
        found = StreamTime(self._context.getStore(STREAM_TIMES), step.name)
        self._remembering.append(found)
        return found

    def indexed(self, index: TimeIndex) -> TimeIndex:
        """An index that is told when a message fails."""
        self._remembering.append(index)
        return index

    def forget(self) -> None:
        """A message has failed."""
        for each in self._remembering:
            each.forget()

    def sender(self, topic: str) -> Take:
        """Sends what a stream gives to an output or a repartition."""

        def send(key: Any, message: Any, timestamp: int) -> None:
            given = None if timestamp < 0 else timestamp
            self.collector.send(
                OutgoingMessageEnvelope(topic, key, message, timestamp=given, headers=self.headers)
            )

        return send

    def withoutHeaders(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do what the passing of time asks for: it is of no message."""
        headers, self.headers = self.headers, ()
        work(*arguments)
        self.headers = headers
