"""
What tasks have sent and stored, on its way to the brokers, and the commits. A module of its own,
since it is where at least once and exactly once differ.

What must be true:

  - Positions are committed only when all that was sent and stored before them is confirmed. A
  commit has three steps: the brokers confirm the outputs, then the changes of the stores; these
  go into the stores, with the changelogs' positions behind them; the positions of the inputs are
  committed. What dies in between is done again from the last positions: at least once.
  - With C{exactly_once_v2} outputs, changes and positions are one transaction, which the generation
  of the group fences. The stores follow it, so they have nothing of an aborted one; a store that
  did not follow is restored from its changelog.
  - A producer that has lost its transaction to C{transaction.timeout.ms}, or does not know its end,
  is replaced by one of the same C{transactional.id}, which ends the transaction for certain; then
  the tasks begin anew from the positions that the group has. Only where no other container can have
  the id: to take it from another one would end that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import (
    ClosedError,
    CommitFailedError,
    PylogbrokerError,
    TimedOutError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownOutcomeError,
    describeError,
)
from pylogbroker.net.workers import IWorker
from pylogbroker.producer.completion import FailureWaiter
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.producer.kafka.transactions import Transaction
from pylogbroker.records.batchbuilder import RECORD_OVERHEAD_MAX, recordSizeMax
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import Entry, KeyValueStore
from pylogbroker.tasks.taskinstance import IncomingRecord, OutgoingRecord, TaskInstance
from pylogbroker.types import TopicPartition, formatCount

LOST_TRANSACTION_COUNT_MAX = 5
"""
Transactions in a row that may lose messages: the tasks begin anew behind each, and might send what
brokers never take, such as a message that is too large, for ever.
"""

TOLD_SIZE = 4_096
"""Bytes; of a message that has as many an error tells exactly which it was."""

log = Logger()

Changed = list[tuple[TaskInstance, KeyValueStore[Any, Any], list[Entry]]]
"""Stores with what is not committed in them, and their tasks."""


class _Sent(FailureWaiter):
    """What a task has sent, until it is confirmed: one message, or several small ones."""

    __slots__ = ("_onLost", "_text")

    def __init__(self, onLost: Callable[[str, bool], None], task: TaskInstance, what: str) -> None:
        """
        @param onLost: called when it is lost, with a text for people that says what and why. The
            second argument is L{False} if the loss follows from that of the transaction.
        """
        self._onLost = onLost
        self._text = f"task {task.taskName}: {what}"

    def errback(self, failure: Failure) -> None:
        assert failure.value is not None
        isReason = not isinstance(failure.value, TransactionAbortedError)
        self._onLost(f"{self._text}: {describeError(failure.value)}", isReason)


def _told(record: OutgoingRecord) -> str:
    """A message that was sent, for people."""
    size = recordSizeMax(record.key, record.value, record.headers)
    text, source = f"a message of {size:,} bytes for {record.topic}", record.source
    return text if source is None else f"{text}, for {_placeOf(source)}"


def _toldOf(records: Sequence[OutgoingRecord]) -> str:
    """One of the small messages that were sent, for people."""
    sources = [each.source for each in (records[0], records[-1]) if each.source is not None]
    text = f"one of {formatCount(len(records), 'message')}"
    return f"{text}, for {' to '.join(map(_placeOf, sources))}" if sources else text


def _placeOf(source: IncomingRecord) -> str:
    return f"offset {source.offset} of partition {source.partition} of {source.topic}"


class OutputCommitter:
    """
    Sends what tasks have sent, and commits. One call at a time.

    @ivar topicIds: of the changelogs, 16 bytes each.
    @ivar commitCount: commits so far.
    @ivar committed: positions of the container's partitions that it has committed.
    """

    def __init__(
        self,
        clock: IReactorTime,
        job: Job,
        newProducer: Callable[[], KafkaProducer],
        consumer: KafkaConsumer,
        worker: IWorker,
        isExactlyOnce: bool,
        isIdOwn: bool,
        beginnings: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        """
        @param newProducer: makes a producer, always of the same C{transactional.id}, which it has
            for C{isExactlyOnce}.
        @param worker: what the stores' engines run on.
        @param isIdOwn: whether no other container can have the C{transactional.id}.
        @param beginnings: gives the offset of the first message of each partition that the tasks
            have got or will get, as far as it is known.
        """
        self.topicIds: Mapping[str, bytes] = {}
        self.commitCount = 0
        self.committed: dict[TopicPartition, int] = {}
        self._job = job
        self._clock = clock
        self._newProducer = newProducer
        self._producer = newProducer()
        self._consumer = consumer
        self._worker = worker
        self._isExactlyOnce = isExactlyOnce
        self._isIdOwn = isIdOwn
        self._beginnings = beginnings
        self._beganAtMs = 0.0  # the last transaction
        self._replacedCount = 0  # producers, since the last commit
        self._changelogs = {each.name: job.changelogOf(each) for each in job.stores}
        self._storeRanks = {each.name: rank for rank, each in enumerate(job.stores)}
        self._transaction: Transaction | None = None
        self._lossCount = 0  # messages that were not confirmed, as far as that was dealt with
        self._lossReason = ""  # of the first of those that were not dealt with
        self._isReasonKnown = False
        self._lossCounts: Counter[TopicPartition] = Counter()  # transactions lost, in a row

    async def send(self, instances: Iterable[TaskInstance]) -> None:
        """
        Send what tasks have sent, as soon as the producer has room.

        @raise PylogbrokerError: no transaction can be begun: the container must end.
        """
        producer = self._producer
        for instance in instances:
            outputs = instance.takeOutputs()
            if not outputs:
                continue
            await self._begin()
            # An object for each message would cost more than the rest of this.
            common = _Sent(self._lost, instance, _toldOf(outputs))
            for each in outputs:
                await producer.whenReady()
                topic, value, key, headers, timestamp, partition, _source = each
                waiter = common
                if len(value or b"") + len(key or b"") >= TOLD_SIZE:
                    waiter = _Sent(self._lost, instance, _told(each))
                producer.sendNoWait(topic, value, key, headers, timestamp, partition, waiter)

    def _lost(self, text: str, isReason: bool) -> None:
        if not self._lossReason or (isReason and not self._isReasonKnown):
            self._lossReason, self._isReasonKnown = text, isReason

    async def _begin(self) -> None:
        if self._isExactlyOnce and self._transaction is None:
            transaction = self._producer.transaction()
            await transaction.__aenter__()
            self._transaction = transaction
            self._beganAtMs = self._nowMs()

    def _nowMs(self) -> float:
        return self._clock.seconds() * 1000

    async def commit(self, instances: Iterable[TaskInstance]) -> None:
        """
        Commit what tasks have done so far. Nothing may be handled meanwhile.

        @raise TransactionAbortedError: nothing was committed: the tasks must begin anew.
        @raise PylogbrokerError: the container must end.
        """
        instances = list(instances)
        for instance in instances:
            instance.isCommitAsked = False
        positions = {
            place: offset
            for instance in instances
            for place, offset in instance.positions.items()
            if self.committed.get(place) != offset
        }
        changed = [
            (instance, store, entries)
            for instance in instances
            for store in instance.stores.values()
            if (entries := store.changes())
        ]
        if not positions and not changed and self._transaction is None:
            return
        # One store behind the other, in the job's order.
        changed.sort(key=lambda each: self._storeRanks[each[1].name])
        await self._begin()
        lasts = await self._sendChanges(changed, positions)
        await self._confirm(positions)
        if self._transaction is not None:
            # Positions that have not changed, too: with them comes the group's generation, without
            # which a container that has lost its tasks could commit what C{window} did.
            fence = positions or self._heldPositions(instances)
            await self._commitTransaction(self._transaction, fence)
        marks = [
            self._markOf(store, last) for (_, store, _), last in zip(changed, lasts, strict=True)
        ]
        await self._worker.submit(partial(_apply, changed, marks))
        if not self._isExactlyOnce and positions:
            try:
                await self._consumer.commitOffsets(positions)
            except CommitFailedError as error:
                # The next commit has them, or another container, which handles them again.
                log.info("Job {job}: {error}", job=self._job.name, error=error)
                return
        self.committed.update(positions)
        self.commitCount += 1
        self._replacedCount = 0
        for place in positions:
            self._lossCounts.pop(place, None)

    def _heldPositions(self, instances: Iterable[TaskInstance]) -> Mapping[TopicPartition, int]:
        """
        Of the tasks; where they have handled nothing yet, where they begin.

        @raise TransactionAbortedError: not even that is known.
        """
        held = {place: at for each in instances for place, at in each.positions.items()}
        found = held or self._beginnings()
        if not found:
            raise TransactionAbortedError("no position is known that the group could refuse")
        return found

    async def _sendChanges(
        self, changed: Changed, positions: Iterable[TopicPartition]
    ) -> list[list[RecordMetadata]]:
        """
        Send the changes of stores. At least once, what a change rests on is confirmed before it:
        the outputs, and the stores in front of its own. A store that is ahead of an output would
        keep it from being sent when the messages are handled again.

        @return: for each store, where its last change is, once that is confirmed.
        """
        lasts: list[list[RecordMetadata]] = []
        producer = self._producer
        before = ""
        for instance, store, entries in changed:
            topic = self._changelogs[store.name]
            if topic != before and not self._isExactlyOnce:
                await self._confirm(positions)
            before = topic
            # Which message a change is of is not known: a later one may have changed the key again.
            handled = [f"{at} of {place}" for place, at in sorted(instance.positions.items())]
            behind = f"of messages before offset {', '.join(handled)}" if handled else "of a window"
            common = _Sent(self._lost, instance, f"a change of store {store.name}, {behind}")
            found: list[RecordMetadata] = []
            lasts.append(found)
            for number, (key, value) in enumerate(entries, 1):
                waiter = common
                size = RECORD_OVERHEAD_MAX + len(key) + len(value or b"")  # all are bytes here
                if size >= TOLD_SIZE:
                    what = f"a change of store {store.name} of {size:,} bytes for {topic}, {behind}"
                    waiter = _Sent(self._lost, instance, what)
                await producer.whenReady()
                given = (topic, value, key, (), None, instance.partition)
                if number < len(entries):
                    producer.sendNoWait(*given, waiter)
                else:
                    producer.send(*given).addCallbacks(found.append, waiter.errback)
        return lasts

    def _markOf(self, store: KeyValueStore[Any, Any], last: list[RecordMetadata]) -> ChangelogMark:
        topicId = self.topicIds[self._changelogs[store.name]]
        if last and last[0].offset >= 0:
            return ChangelogMark(topicId, last[0].offset + 1)
        # The broker does not tell where a batch is that it had already. Then a restart reads what
        # the store has, once more.
        return store.mark or ChangelogMark(topicId, 0)

    async def _confirm(self, positions: Iterable[TopicPartition]) -> None:
        """
        Wait until all that was sent is confirmed.

        @param positions: of whose messages it is.
        """
        producer = self._producer
        await producer.flush()
        count = self._losses() - self._lossCount
        if producer.fatalError is not None:
            raise self._asAborted(producer.fatalError)
        if not count:
            return
        text = (
            f"job {self._job.name}: {formatCount(count, 'message')} that tasks sent "
            f"{'was' if count == 1 else 'were'} not confirmed: {self._lossReason}"
        )
        if self._transaction is not None:
            self._lossCounts.update(list(positions))  # a mapping's values would be added
            if max(self._lossCounts.values(), default=0) < LOST_TRANSACTION_COUNT_MAX:
                raise TransactionAbortedError(text)
        raise UnknownOutcomeError(text)

    def _losses(self) -> int:
        counters = self._producer.counters
        return counters.failedCount + counters.unknownCount

    async def _commitTransaction(
        self, transaction: Transaction, positions: Mapping[TopicPartition, int]
    ) -> None:
        try:
            await transaction.sendOffsets(positions, self._consumer.groupMetadata())
        except PylogbrokerError as error:
            raise TransactionAbortedError(str(error)) from error
        self._transaction = None
        try:
            await transaction.__aexit__(None, None, None)
        except PylogbrokerError as error:
            raise self._asAborted(error) from error

    def _asAborted(self, error: PylogbrokerError) -> PylogbrokerError:
        """What follows from an error of the producer: that the tasks begin anew, if it may."""
        if self._producer.fatalError is None or not self._mayReplace:
            return error
        return TransactionAbortedError(str(error))

    @property
    def _mayReplace(self) -> bool:
        """Whether another producer can go on where this one cannot any more."""
        isLate = self._nowMs() - self._beganAtMs >= self._producer.settings.transactionTimeoutMs
        # What is not known of a transaction is, from then on, the state of its producer.
        isUncertain = isinstance(
            self._producer.fatalError, (TransactionStateError, TimedOutError, UnknownOutcomeError)
        )
        return (
            self._isExactlyOnce
            and self._isIdOwn
            and (isLate or isUncertain)
            and self._replacedCount < LOST_TRANSACTION_COUNT_MAX
        )

    async def abort(self, isEnd: bool = False) -> None:
        """
        Abort the transaction, if one is open, so that another one may begin.

        @param isEnd: none will.
        @raise PylogbrokerError: the producer cannot be used any more.
        """
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            reason = ClosedError("the transaction is given up")
            await transaction.__aexit__(ClosedError, reason, None)
        error = self._producer.fatalError
        if error is not None:
            if isEnd or not self._mayReplace:
                raise error
            self._replacedCount += 1
            log.info(
                "Job {job}: another producer goes on, since {error}",
                job=self._job.name,
                error=error,
            )
            try:
                await self._producer.close(0)
            except PylogbrokerError:
                pass  # nothing of it counts any more
            self._producer = self._newProducer()
            await self.takeOver()
        self._lossCount, self._lossReason = self._losses(), ""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions have gone, with the positions that were committed."""
        for place in partitions:
            self.committed.pop(place, None)

    async def takeOver(self) -> None:
        """
        With exactly once, end what an earlier container of the same id has left open: its messages
        would be waited for.

        @raise PylogbrokerError: the producer cannot be used.
        """
        await self._begin()
        await self.abort()

    def close(self, timeoutMs: float) -> Deferred[None]:
        """Let the producer go; see L{KafkaProducer.close}."""
        return self._producer.close(timeoutMs)


def _apply(changed: Changed, marks: list[ChangelogMark]) -> None:
    for (_instance, store, entries), mark in zip(changed, marks, strict=True):
        store.commit(entries, mark)
