"""
What the author of a job writes and calls: Samza's low-level API, typed in Python. A module of its
own, since job files import it.

A L{StreamTask} reads the messages of one partition of each of its inputs, one at a time::

    class CountWords(StreamTask):
        def init(self, config, context):
            self.store = context.getStore("word-counts")

        def process(self, envelope, collector, coordinator):
            word = envelope.getKey()
            count = self.store.get(word) or 0
            self.store.put(word, count + envelope.getMessage())

What must be true:

  - A task handles one message at a time, and each partition's messages in the order of the log.
  - What a task sent and stored is confirmed before its position is committed.
  - C{process} that is no coroutine runs on a worker thread, so it may block: it holds up the tasks
  of its container only. A coroutine runs on the reactor's thread and may await Deferreds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from pylogbroker.tasks.state.keyvaluestore import KeyValueStore

Config: TypeAlias = Mapping[str, str]
"""The properties of a job, as its author gave them."""

KAFKA = "kafka"
"""The name of the one system there is."""


class SystemStream(NamedTuple):
    """
    A topic, as Samza names one.

    @ivar system: L{KAFKA}.
    @ivar stream: the topic.
    """

    system: str
    stream: str

    def getSystem(self) -> str:
        return self.system

    def getStream(self) -> str:
        return self.stream


class SystemStreamPartition(NamedTuple):
    """A partition of a topic, as Samza names one."""

    system: str
    stream: str
    partition: int

    def getSystemStream(self) -> SystemStream:
        return SystemStream(self.system, self.stream)

    def getStream(self) -> str:
        return self.stream

    def getPartition(self) -> int:
        return self.partition


class IncomingMessageEnvelope(NamedTuple):
    """
    A message that a task gets. Java's getters are here for code that follows the paper.

    @ivar topic: where it comes from.
    @ivar timestamp: milliseconds since the epoch; -1: none.
    @ivar key: decoded; L{None}: none.
    @ivar message: decoded; L{None}: a tombstone.
    @ivar headers: pairs of name and bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    message: Any
    headers: Iterable[tuple[str, bytes | None]] = ()

    def getSystemStreamPartition(self) -> SystemStreamPartition:
        return SystemStreamPartition(KAFKA, self.topic, self.partition)

    def getOffset(self) -> int:
        return self.offset

    def getKey(self) -> Any:
        return self.key

    def getMessage(self) -> Any:
        return self.message


class OutgoingMessageEnvelope:
    """
    A message that a task sends.

    @ivar topic: where it goes: an output of the job.
    """

    __slots__ = ("headers", "key", "message", "partition", "timestamp", "topic")

    def __init__(
        self,
        systemStream: SystemStream | str,
        key: Any,
        message: Any,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None:
        """
        @param systemStream: or the name of the topic.
        @param key: L{None}: none.
        @param message: L{None}: a tombstone.
        @param partition: in place of the one that the key has.
        @param timestamp: milliseconds since the epoch; by default that of the message that is being
            handled.
        """
        self.topic = systemStream if isinstance(systemStream, str) else systemStream.stream
        self.key = key
        self.message = message
        self.partition = partition
        self.timestamp = timestamp
        self.headers = headers

    def __repr__(self) -> str:
        return f"<OutgoingMessageEnvelope to {self.topic}, key {self.key!r}>"


class MessageCollector(Protocol):
    """Takes what a task sends."""

    def send(self, envelope: OutgoingMessageEnvelope) -> None:
        """
        Send a message, once the call of the task that sends it has ended.

        @raise TaskOutputError: the topic is no output of the job.
        @raise EncodingError: key or message is nothing that the output's serdes encode; headers,
            partition or timestamp cannot be any.
        """
        ...


class TaskCoordinator(Protocol):
    """What a task asks of its container."""

    def commit(self) -> None:
        """Commit the positions of all tasks of the container, behind the message in hand."""
        ...

    def shutdown(self) -> None:
        """Commit, and end the whole container, behind the message in hand."""
        ...


class Counter:
    """
    A number that a task counts, for people. It is no state: when a message raises, its counts
    stay.

    @ivar count: since the task began.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def increment(self, count: int = 1) -> None:
        self.count += count


class TaskContext(Protocol):
    """
    What a task knows of itself.

    @ivar taskName: C{job-N}.
    @ivar partition: the number N of the partitions that it reads.
    """

    taskName: str
    partition: int

    def getStore(self, name: str) -> KeyValueStore[Any, Any]:
        """@raise ConfigurationError: the job has no store of this name."""
        ...

    def getCounter(self, name: str) -> Counter:
        """A counter of the task, which its container's status and metrics show."""
        ...


class StreamTask:
    """
    The base of an author's task; C{process} must be there. Each method may be a coroutine function:
    then all are run on the reactor's thread.
    """

    def init(self, config: Config, context: TaskContext) -> Any:
        """Once, when the stores are restored, and before the first message."""

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> Any:
        """For each message. What it raises is handled as the job's C{onError} says."""
        raise NotImplementedError(f"{type(self).__name__} has no process()")

    def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        """Each C{task.window.ms}, if that is set."""

    def close(self) -> Any:
        """Once, when the task is given up, behind its last commit."""
