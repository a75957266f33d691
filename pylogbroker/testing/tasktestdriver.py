"""
Tests of tasks without a broker: records and a clock go in by hand, outputs and stores are read.
Names are those of Kafka Streams' C{TopologyTestDriver}::

    with TaskTestDriver(job) as driver:
        driver.pipeInput("lines", None, "to be or not to be")
        driver.readOutput("words")  # [("to", 1), ("be", 1), …]
        driver.getStore("word-counts").get("be")  # 2
        driver.commit()
        driver.readOutput("word-counts")  # the store's changelog

Serdes, stores, limits and C{onError} are those of a container; stores are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.cluster.kafkapartitioner import KEY_PARTITIONERS, MURMUR2
from pylogbroker.errors import ConfigurationError, ConsumerStateError, TaskFailedError
from pylogbroker.records.recordbatch import BATCH_OVERHEAD
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.serdes import BYTES, Serde
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.tasks.taskinstance import InputRecord, OutgoingRecord, TaskInstance
from pylogbroker.types import formatCount

UNSETTLED_MAX = 10 << 20

RECORD_SIZE_MAX = 2**20 - BATCH_OVERHEAD
"""Bytes of a record that a producer takes, by the default of C{max.request.size}."""

_MARK = ChangelogMark(bytes(16), 0)

Headers = Iterable[tuple[str, bytes | None]]


class SentRecord(NamedTuple):
    """
    A message that was sent, decoded.

    @ivar timestamp: milliseconds since the epoch; L{None}: the time at which it is sent.
    @ivar partition: that its task gave; L{None}: the key's.
    """

    key: Any
    message: Any
    timestamp: int | None
    headers: Headers
    partition: int | None


class TaskTestDriver:
    """
    Runs all tasks of a job.

    @ivar nowMs: the clock, in milliseconds since the epoch.
    @ivar leftOut: the failures of messages that were left out.
    """

    def __init__(self, job: Job, partitionCount: int = 1, nowMs: int = 0) -> None:
        """
        @param partitionCount: of each input.
        @raise Exception: what a task's C{init} raises.
        """
        self.nowMs = nowMs
        self.leftOut: list[TaskFailedError] = []
        self._job = job
        self._offsets: dict[tuple[str, int], int] = {}
        self._outputs: dict[str, list[SentRecord]] = {}
        self._repartitioned: deque[OutgoingRecord] = deque()
        self._windowAtMs = nowMs + job.windowMs
        self._inputs = {each.topic: each for each in job.inputs}
        self._serdes: dict[str, tuple[Serde, Serde]] = {
            job.topicOf(each): (each.key, each.message) for each in job.outputs
        }
        self._repartitions = {job.repartitionTopicOf(each) for each in job.repartitions}
        self._serdes[job.deadLetters] = (BYTES, BYTES)
        self._changelogs = {each.name: job.changelogOf(each) for each in job.stores}
        for store in job.stores:
            self._serdes[job.changelogOf(store)] = (store.key, store.value)
        self._tasks = [self._newTask(number) for number in range(partitionCount)]

    def _newTask(self, number: int) -> TaskInstance:
        stores = {
            each.name: KeyValueStore[Any, Any](
                each.name, each.key, each.value, MemoryEngine(), UNSETTLED_MAX, RECORD_SIZE_MAX
            )
            for each in self._job.stores
        }
        task = TaskInstance(
            self._job, number, stores, UNSETTLED_MAX, self.leftOut.append, RECORD_SIZE_MAX
        )
        self._call(task.init)
        return task

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pipeInput(
        self,
        topic: str,
        key: Any,
        message: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """
        Hand a message to the task of its partition.

        @param timestamp: milliseconds since the epoch; by default L{nowMs}.
        @param partition: by default the key's; without a key, 0.
        @raise TaskFailedError: the task could not handle it, and C{onError} is C{stop}.
        @raise ConfigurationError: the topic is no input of the job, or has no such partition.
        @raise EncodingError: key or message is nothing that the input's serdes encode.
        """
        given = self._inputs.get(topic)
        if given is None:
            known = ", ".join(sorted(self._inputs))
            raise ConfigurationError(f"topic {topic} is no input of the job; it has: {known}")
        keyData = None if key is None else given.key.encode(key)
        data = None if message is None else given.message.encode(message)
        if timestamp is None:
            timestamp = self.nowMs
        sent = OutgoingRecord(topic, data, keyData, headers, timestamp, partition)
        self._deliver(sent, self._tasks if given.isBroadcast else None)
        self._deliverRepartitioned()

    def _deliverRepartitioned(self) -> None:
        while self._repartitioned:
            self._deliver(self._repartitioned.popleft())

    def _deliver(self, sent: OutgoingRecord, tasks: Iterable[TaskInstance] | None = None) -> None:
        topic, partition = sent.topic, sent.partition
        if partition is None:
            count = len(self._tasks)
            partition = 0 if sent.key is None else KEY_PARTITIONERS[MURMUR2](sent.key, count)
        offset = self._offsets.get((topic, partition), 0)
        taken = [self._taskOf(partition)] if tasks is None else tasks
        self._offsets[topic, partition] = offset + 1
        timestamp = self.nowMs if sent.timestamp is None else sent.timestamp
        record = InputRecord(
            topic, partition, offset, timestamp, sent.key, sent.value, sent.headers
        )
        for task in taken:
            self._process(task, record)
            self._collect(task)

    def _process(self, task: TaskInstance, record: InputRecord) -> None:
        if task.isAsync:
            self._call(lambda: task.processAsync([record]))
        else:
            task.process([record])

    def advanceWallClockTime(self, ms: int) -> None:
        """Move the clock, and call C{window} of all tasks each time that it is due."""
        end = self.nowMs + ms
        while self._job.windowMs and self._windowAtMs <= end:
            self.nowMs = self._windowAtMs
            self._windowAtMs += self._job.windowMs
            for task in self._tasks:
                self._call(task.window)
                self._collect(task)
            self._deliverRepartitioned()
        self.nowMs = end

    def commit(self) -> None:
        """
        Commit, as containers do in between: the changes of stores go to their changelogs, where
        they can be read as outputs, and into their engines.
        """
        for task in self._tasks:
            task.isCommitAsked = False
            for store in task.stores.values():
                changes = store.changes()
                topic = self._changelogs[store.name]
                self._sent(
                    OutgoingRecord(topic, value, key, (), None, task.partition)
                    for key, value in changes
                )
                store.commit(changes, _MARK)

    def _collect(self, task: TaskInstance) -> None:
        isFull = task.isFull
        sent = task.takeOutputs()
        self._repartitioned += (each for each in sent if each.topic in self._repartitions)
        self._sent(each for each in sent if each.topic not in self._repartitions)
        if isFull:
            self.commit()

    def _sent(self, records: Iterable[OutgoingRecord]) -> None:
        for each in records:
            keySerde, messageSerde = self._serdes[each.topic]
            self._outputs.setdefault(each.topic, []).append(
                SentRecord(
                    None if each.key is None else keySerde.decode(each.key),
                    None if each.value is None else messageSerde.decode(each.value),
                    each.timestamp,
                    each.headers,
                    each.partition,
                )
            )

    def readRecords(self, topic: str) -> list[SentRecord]:
        """
        What was sent to a topic since the last call.

        @param topic: an output, the dead letters' or a changelog.
        @raise ConfigurationError: the topic is none of the job's.
        """
        if topic not in self._serdes:
            known = ", ".join(sorted(self._serdes))
            raise ConfigurationError(f"topic {topic} is none of the job's; it has: {known}")
        return self._outputs.pop(topic, [])

    def readOutput(self, topic: str) -> list[tuple[Any, Any]]:
        """As L{readRecords}, only keys and messages."""
        return [(each.key, each.message) for each in self.readRecords(topic)]

    def getStore(self, name: str, partition: int = 0) -> KeyValueStore[Any, Any]:
        """
        A store of a task.

        @raise ConfigurationError: the job has none of this name, or no such partition.
        """
        return self._taskOf(partition).getStore(name)

    def _taskOf(self, partition: int) -> TaskInstance:
        count = len(self._tasks)
        if not 0 <= partition < count:
            raise ConfigurationError(
                f"partition {partition} where there are {formatCount(count, 'partition')}"
            )
        return self._tasks[partition]

    def countOf(self, counter: str) -> int:
        """What all tasks together have counted; 0 if there is no such counter."""
        counted = (each.counters.get(counter) for each in self._tasks)
        return sum(each.count for each in counted if each is not None)

    @property
    def isShutdownAsked(self) -> bool:
        """Whether a task asked its container to end."""
        return any(each.isShutdownAsked for each in self._tasks)

    def close(self) -> None:
        """Call C{close} of all tasks."""
        for task in self._tasks:
            self._call(task.close)

    def _call(self, work: Callable[[], Any]) -> None:
        result = work()
        if not isinstance(result, Awaitable):
            return
        outcome: list[Any] = []

        async def wait() -> Any:
            return await result

        Deferred.fromCoroutine(wait()).addBoth(outcome.append)
        if not outcome:
            raise ConsumerStateError(
                "a task waits for something outside: this driver has no reactor"
            )
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
