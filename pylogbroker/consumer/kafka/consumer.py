"""
The consumer of today's protocol, for partitions that the application assigns, or that its group
does. A module of its own, since applications import it.

What must be true:

  - A partition's messages come in the order of its log, each once, from its position on; the
  position moves behind a message when it is handed out.
  - With a group, L{pylogbroker.consumer.kafka.groupreader} says when a message counts as handled,
  and in which order partitions are given up.
  - A reader that does not read has a bounded queue: L{pylogbroker.consumer.kafka.fetcher}.
  - An error of one partition is raised once, in its turn; the next call goes on with the others. A
  partition whose position is not in the log follows C{auto.offset.reset}; one that was truncated
  (L{LogTruncatedError}) is read on from where its log differs.

The ways to read are those of L{pylogbroker.consumer.stream.MessageStream}: C{async for} over
messages, or over lists (C{batches}), a Twisted push producer (C{pipeTo}), or C{take}. There is one
reader at a time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from random import Random, SystemRandom
from typing import Any, Self

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from pylogbroker.client.kafka.cluster import ClusterClient, checkTopic
from pylogbroker.cluster.kafka.assignors import IPartitionAssignor
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.assignedpartition import (
    NO_EPOCH,
    NO_OFFSET,
    AssignedPartition,
    ConsumerRecord,
)
from pylogbroker.consumer.kafka.fetcher import (
    BEGINNING_TIME,
    END_TIME,
    ERROR_RETRY_MS,
    KafkaFetcher,
)
from pylogbroker.consumer.kafka.groupreader import GroupReader, IRebalanceListener
from pylogbroker.consumer.kafka.offsetquestions import OffsetAndTimestamp, OffsetQuestions
from pylogbroker.consumer.offsetstores import IOffsetStore
from pylogbroker.consumer.stream import BATCH_COUNT_MAX, PipeProducer
from pylogbroker.errors import (
    ClosedError,
    ConsumerStateError,
    ConsumerTimeoutError,
    FormatError,
    LogTruncatedError,
    PylogbrokerError,
)
from pylogbroker.metrics.clientmetrics import consumerFamilies
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.metrics.exposition import Family
from pylogbroker.net.deferreds import Waiters, asDeferred
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = ["ConsumerRecord", "KafkaConsumer", "LogTruncatedError", "OffsetAndTimestamp"]

log = Logger()


class KafkaConsumer:
    """
    Reads partitions; the module states its promises.

    @ivar settings: a L{KafkaConsumerSettings}.
    @ivar isEnded: whether it was closed.
    @ivar counters: a L{ConsumerCounters}.
    """

    def __init__(
        self,
        reactor: Any,
        settings: KafkaConsumerSettings | Mapping[str, str],
        *,
        offsetStore: IOffsetStore | None = None,
        assignor: IPartitionAssignor | None = None,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param settings: or properties.
        @param offsetStore: keeps the positions, by default the group's coordinator. Its partitions
            are L{storedPartition<pylogbroker.consumer.kafka.groupoffsets.storedPartition>}s.
        @param assignor: of the application, in place of C{partition.assignment.strategy}; all
            members of the group must have it.
        @param random: numbers from 0 up to, not including, 1.
        @raise ConfigurationError: the settings are wrong; an assignor with
            C{group.protocol=consumer}, where the coordinator assigns.
        """
        if not isinstance(settings, KafkaConsumerSettings):
            settings = KafkaConsumerSettings.fromProperties(settings, _logWarning)
        if random is None:
            random = Random(SystemRandom().getrandbits(64)).random
        self.settings = settings
        self.isEnded = False
        self._clock = reactor
        self._cluster = ClusterClient(
            reactor,
            settings,
            isCreatingTopics=settings.allowAutoCreateTopics,
            random=random,
        )
        self._fetcher = KafkaFetcher(
            reactor, settings, self._cluster, self._onFetched, self._onEndKnown, self._onError
        )
        self._cluster.listenErrors(self._onError)
        self._partitions = self._fetcher.partitions
        self._questions = OffsetQuestions(
            reactor, self._cluster, self._fetcher, settings.defaultApiTimeoutMs
        )
        self._group = GroupReader(
            reactor,
            settings,
            self._cluster,
            self._fetcher,
            offsetStore,
            self._onGroupError,
            self._drop,
            lambda: self._wakeReader is not None,
            random,
            assignor,
        )
        self._inHand = self._group.inHand
        self.counters: ConsumerCounters = self._fetcher.counters
        self._turns: deque[AssignedPartition] = deque()  # those with messages, in turn
        # Raised by the next call: behind messages that were handed out, or of the whole cluster.
        self._unreported: PylogbrokerError | None = None
        self._topics: set[str] = set()
        self._wakeReader: Callable[[], None] | None = None
        self._isForLags = False
        self._isClosed = False
        self._closed: Waiters[None] = Waiters()

    def __repr__(self) -> str:
        ended = ", ended" if self.isEnded else ""
        return f"<KafkaConsumer of {len(self._partitions)} partitions{ended}>"

    # -- what is read

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """
        Read these partitions, and no others. Those that were assigned before keep their position.
        With C{group.id} or an offset store, the others begin where it has a position.

        @param partitions: (topic, partition) of each; a mapping gives the offsets to begin with.
            Without one, C{auto.offset.reset} says where a partition begins.
        @raise ConsumerStateError: after C{close}; while it is subscribed.
        @raise InvalidTopicError: no topic can have one of the names.
        """
        self._checkOpen()
        if self._group.subscribed is not None:
            raise ConsumerStateError("the group assigns the partitions; unsubscribe first")
        offsets = partitions if isinstance(partitions, Mapping) else {}
        wanted = {TopicPartition(*each): None for each in partitions}
        for place in wanted:
            checkTopic(place.topic)
        for place in [each for each in self._partitions if each not in wanted]:
            self._drop(self._partitions.pop(place))
        new = []
        for place in wanted:
            if place not in self._partitions:
                counters = self.counters.topic(place.topic)
                self._partitions[place] = AssignedPartition(place, counters)
                if place not in offsets:
                    new.append(self._partitions[place])
            if place in offsets:
                self.seek(place, offsets[place])
        topics = {place.topic for place in wanted}
        for name in self._topics - topics:
            self._cluster.forgetTopic(name)
        self._topics = topics
        if self._group.hasOffsets:
            self._group.load(new)
        self._fetcher.wake()

    def _checkOpen(self) -> None:
        if self.isEnded:
            raise ConsumerStateError("the consumer was closed")

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        listener: IRebalanceListener | None = None,
    ) -> None:
        """
        Share the partitions of topics with the other members of C{group.id}. Another call changes
        the topics.

        @param topics: names; or a pattern, which a topic's whole name matches, also one that is
            made later (it is found within C{metadata.max.age.ms}).
        @param listener: is told of partitions that come and go.
        @raise ConsumerStateError: after C{close}; without C{group.id}; while partitions
            are assigned by hand.
        @raise InvalidTopicError: no topic can have one of the names.
        """
        self._checkOpen()
        if self._topics:
            raise ConsumerStateError("partitions are assigned by hand; assign none of them first")
        self._group.subscribe(topics, listener)

    @asDeferred
    async def unsubscribe(self) -> None:
        """
        Leave the group: positions are committed by C{enable.auto.commit}, and the listener is told.

        @return: fires with L{None} when this is no member any more.
        """
        await self._group.unsubscribe()

    def enforceRebalance(self) -> None:
        """
        Let the group rebalance, since the assignor would assign otherwise now. What is not
        subscribed to joins no group by this.

        @raise ConsumerStateError: with C{group.protocol=consumer} the coordinator decides that.
        """
        self._group.member.rejoin()

    def subscription(self) -> frozenset[str]:
        """The topics whose partitions it shares."""
        return frozenset(self._group.member.membership.topics)

    @property
    def isOwning(self) -> bool:
        """
        Whether it is a member of its group and has all partitions that are assigned to it, as far
        as it knows: their positions are loaded, and the listener was told. It still has them while
        the listener is told that they are revoked.
        """
        return self._group.member.isOwning

    def groupMetadata(self) -> ConsumerGroupMetadata:
        """
        As the coordinator knows this member: for a transaction with its positions. While the reader
        has messages of partitions that were lost, it has no generation, and
        L{sendOffsets<pylogbroker.producer.kafka.transactions.Transaction.sendOffsets>} refuses it.
        """
        return self._group.metadata

    def _drop(self, partition: AssignedPartition) -> None:
        self._inHand.pop(partition, None)
        partition.mustReset()
        if partition in self._turns:
            self._turns.remove(partition)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._partitions)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """
        The next offset of each partition, as far as it is known: behind the last message that was
        handed out. To be stored by an application that keeps offsets itself.
        """
        return {
            place: each.position
            for place, each in self._partitions.items()
            if each.position != NO_OFFSET
        }

    def position(self, partition: TopicPartition) -> int | None:
        """
        As L{positions}, of one partition.

        @return: L{None}: not known yet.
        @raise ConsumerStateError: the partition is not assigned.
        """
        found = self._of(partition).position
        return None if found == NO_OFFSET else found

    def currentLag(self, partition: TopicPartition) -> int | None:
        """
        How many offsets a partition's position is behind the end of its log, as of the last fetch;
        with C{read_committed}, behind the first open transaction. No request is sent.

        @return: L{None}: not known yet.
        @raise ConsumerStateError: the partition is not assigned.
        """
        found = self._of(partition)
        if NO_OFFSET in (found.endOffset, found.position):
            return None
        return max(found.endOffset - found.position, 0)

    def topicId(self, topic: str) -> bytes:
        """
        Which topic of the name there is now, as far as is known: one that is created again has
        another id.

        @return: 16 bytes; zeros: unknown.
        """
        known = self._cluster.metadata.topics.get(topic)
        return ZERO_UUID if known is None else known.topicId

    def _of(self, place: TopicPartition) -> AssignedPartition:
        found = self._partitions.get(TopicPartition(*place))
        if found is None:
            raise ConsumerStateError(f"{TopicPartition(*place)} is not assigned")
        return found

    def _some(self, places: Iterable[TopicPartition] | None) -> list[AssignedPartition]:
        if places is None:
            return list(self._partitions.values())
        return [self._of(place) for place in places]

    def seek(self, partition: TopicPartition, offset: int, leaderEpoch: int = NO_EPOCH) -> None:
        """
        Read a partition from an offset on. What was fetched and not handed out is discarded.

        @param leaderEpoch: of the message before the offset, if it is known
            (L{ConsumerRecord.leaderEpoch}): then a log that was truncated meanwhile is noticed.
        @raise ConsumerStateError: the partition is not assigned.
        @raise ValueError: the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"offset {offset}")
        found = self._of(partition)
        self._drop(found)
        found.moveTo(offset, leaderEpoch)
        self._fetcher.wake()

    def seekToBeginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """
        Read partitions from their first message on.

        @param partitions: L{None}: all that are assigned.
        @raise ConsumerStateError: one is not assigned.
        """
        self._seekToTime(partitions, BEGINNING_TIME)

    def seekToEnd(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """
        Read partitions from the next message on; with C{read_committed}, from the first open
        transaction on.

        @param partitions: as of L{seekToBeginning}.
        @raise ConsumerStateError: one is not assigned.
        """
        self._seekToTime(partitions, END_TIME)

    def _seekToTime(self, places: Iterable[TopicPartition] | None, time: int) -> None:
        for found in self._some(places):
            self._drop(found)
            found.mustReset(time)
        self._fetcher.wake()

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """
        Hand out nothing of partitions, and ask for nothing, until L{resume}. What was fetched
        stays.

        @param partitions: L{None}: all that are assigned.
        @raise ConsumerStateError: one is not assigned.
        """
        for found in self._some(partitions):
            found.isPaused = True
        self._fetcher.wake()  # the others may have room now

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """
        Go on with partitions.

        @param partitions: L{None}: all that are assigned.
        @raise ConsumerStateError: one is not assigned.
        """
        for found in self._some(partitions):
            if found.isPaused:
                found.isPaused = False
                if found.hasMessages and found not in self._turns:
                    self._turns.append(found)
        self._wake()
        self._fetcher.wake()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [place for place, each in self._partitions.items() if each.isPaused]

    # -- questions

    def partitionsFor(self, topic: str) -> Deferred[list[TopicPartition]]:
        """
        A topic's partitions, in order.

        @return: fails as L{ClusterClient.findTopic} after C{default.api.timeout.ms}. Can be
            cancelled.
        """
        finding = self._cluster.findTopic(topic, self.settings.defaultApiTimeoutMs)
        return finding.addCallback(
            lambda found: [TopicPartition(topic, number) for number in found.partitions]
        )

    def beginningOffsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Deferred[dict[TopicPartition, int]]:
        """
        The first offset of each partition.

        @return: fails as L{offsetsForTimes}.
        """
        times = dict.fromkeys(partitions, BEGINNING_TIME)
        return self._questions.ask(times).addCallback(_offsetsAlone)

    def endOffsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Deferred[dict[TopicPartition, int]]:
        """
        The offset of the next message of each partition; with C{read_committed}, where the first
        open transaction begins.

        @return: fails as L{offsetsForTimes}.
        """
        times = dict.fromkeys(partitions, END_TIME)
        return self._questions.ask(times).addCallback(_offsetsAlone)

    def offsetsForTimes(
        self, times: Mapping[TopicPartition, int]
    ) -> Deferred[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """
        The first message of each partition with a timestamp, or a later one.

        @param times: milliseconds since the epoch.
        @return: L{None} for a partition without such a message. Fails with L{ResponseError} when a
            broker refuses; with L{TimedOutError}, whose text has the last reason, after
            C{default.api.timeout.ms}; with L{ClosedError} soon after C{close}. Can be cancelled.
        """
        return self._questions.ask(times).addCallback(
            lambda found: {
                place: each if each.offset != NO_OFFSET else None for place, each in found.items()
            }
        )

    # -- offsets of the group

    def commitOffsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> Deferred[None]:
        """
        Store positions.

        @param offsets: of the next messages; L{None}: L{positions}, thus behind all messages that
            were handed out.
        @return: fires when they are stored. Fails with L{CommitFailedError} when this is no member
            of the group any more, or was none since the reader took its last messages, or the group
            rebalances: others may read the messages again. With
            L{ResponseError} when the coordinator refuses; with L{TimedOutError} after
            C{default.api.timeout.ms}. Can be cancelled.
        @raise ConsumerStateError: there is neither C{group.id} nor an offset store.
        """
        self._checkGroup()
        given = (
            None
            if offsets is None
            else {
                TopicPartition(*place): each
                if isinstance(each, OffsetAndMetadata)
                else OffsetAndMetadata(each)
                for place, each in offsets.items()
            }
        )
        return Deferred.fromCoroutine(self._group.commit(given))

    commit = commitOffsets

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Deferred[dict[TopicPartition, OffsetAndMetadata | None]]:
        """
        What the group has committed.

        @return: L{None} for a partition without a position. Fails as L{commitOffsets}, without
            L{CommitFailedError}. Can be cancelled.
        @raise ConsumerStateError: as L{commitOffsets}.
        """
        self._checkGroup()
        places = [TopicPartition(*each) for each in partitions]
        return Deferred.fromCoroutine(self._group.offsets.load(places))

    def _checkGroup(self) -> None:
        self._checkOpen()
        if not self._group.hasOffsets:
            raise ConsumerStateError("there is neither group.id nor an offset store")

    # -- reading

    def _onFetched(self, partition: AssignedPartition) -> None:
        if partition not in self._turns:
            self._turns.append(partition)
        self._wake()

    def _onEndKnown(self) -> None:
        if self._isForLags:
            self._wake()

    def _onError(self, error: PylogbrokerError) -> None:
        """An error that concerns no single partition: a password that is refused."""
        if self._partitions or self._group.subscribed is not None:
            self._onGroupError(error)

    def _onGroupError(self, error: PylogbrokerError) -> None:
        if not self.isEnded:
            self._unreported = self._unreported or error
            self._wake()

    def _wake(self) -> None:
        if self._wakeReader is not None:
            self._wakeReader()

    def take(self) -> ConsumerRecord | None:
        """
        The next message, if there is one now. Its partition's position moves behind it.

        @raise PylogbrokerError: a partition cannot be read; the next call goes on with the others.
            L{pylogbroker.errors.OffsetOutOfRangeError} and L{LogTruncatedError}: its position is
            not in the log, or what was read is not. L{pylogbroker.errors.FormatError}: a batch is
            damaged; the application may seek behind it.
            L{ResponseError<pylogbroker.protocol.kafka.errorcodes.ResponseError>}: the broker
            refuses it, the group, or the password.
        """
        self._group.polled()
        return self._take()

    def _take(self) -> ConsumerRecord | None:
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error
        turns = self._turns
        while turns:
            turn = turns[0]
            if not (turn.isPaused or turn.isHeld):
                if turn.current is None:  # a chunk is begun: there is room for another
                    self._fetcher.wake()
                try:
                    record = turn.take(self.settings.checkCrcs)
                except FormatError:
                    turn.retryAtMs = self._clock.seconds() * 1000 + ERROR_RETRY_MS
                    raise
                if record is not None:
                    if turn not in self._inHand:
                        self._inHand[turn] = record.offset
                    return record
            turns.popleft()
            if turn.hasMessages:  # the others come first
                turns.append(turn)
        return None

    def takeMany(self, countMax: int = BATCH_COUNT_MAX) -> list[ConsumerRecord]:
        """
        The messages that there are now, at most C{countMax}.

        @raise PylogbrokerError: as L{take}; behind messages, the next call raises it.
        """
        self._group.polled()
        found: list[ConsumerRecord] = []
        try:
            while len(found) < countMax and (record := self._take()) is not None:
                found.append(record)
        except PylogbrokerError as error:
            if not found:
                raise
            self._unreported = error
        return found

    def attach(self, wake: Callable[[], None], isForLags: bool = False) -> None:
        """
        Become the one reader of this consumer.

        @param wake: called for a message, an error or the end.
        @param isForLags: call it when the L{currentLag} of a partition becomes known, too.
        @raise ConsumerStateError: another reader is attached.
        """
        if self._wakeReader is not None:
            raise ConsumerStateError("another reader is attached to this consumer")
        self._wakeReader = wake
        self._isForLags = isForLags

    def detach(self, wake: Callable[[], None]) -> bool:
        """Let go, if this is the reader. Returns whether it was."""
        isAttached = self._wakeReader == wake
        if isAttached:
            self._wakeReader = None
        return isAttached

    async def wait(self) -> None:
        """
        Wait for a message, an error or the end.

        @raise ConsumerTimeoutError: none came within C{consumer.timeout.ms}; the reader may wait
            again.
        @raise ConsumerStateError: another reader is attached.
        """
        waiting: Deferred[None] = Deferred()

        def wake() -> None:
            self.detach(wake)
            waiting.callback(None)

        self.attach(wake)
        timeoutMs = self.settings.consumerTimeoutMs
        if timeoutMs >= 0:

            def late(_result: object, _seconds: float) -> None:
                raise ConsumerTimeoutError(f"no message within {timeoutMs} ms")

            waiting.addTimeout(timeoutMs / 1000, self._clock, late)
        try:
            await waiting
        finally:
            self.detach(wake)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """
        The next message; see L{take}.

        @raise StopAsyncIteration: the consumer was closed.
        @raise ConsumerTimeoutError: none came in time; the reader may ask again.
        """
        while True:
            record = self.take()
            if record is not None:
                return record
            if self.isEnded:
                raise StopAsyncIteration
            await self.wait()

    async def batches(self, countMax: int = BATCH_COUNT_MAX) -> AsyncIterator[list[ConsumerRecord]]:
        """
        Non-empty lists of the messages available, until the consumer is closed.

        @raise PylogbrokerError: as L{take}, behind the messages before the error; then call it
            again.
        @raise ConsumerTimeoutError: none came in time; likewise.
        @raise ValueError: C{countMax} is less than 1.
        """
        if countMax < 1:
            raise ValueError(f"{countMax} messages at a time: at least 1 is possible")
        while True:
            found = self.takeMany(countMax)
            if found:
                yield found
            elif self.isEnded:
                return
            else:
                await self.wait()

    def pipeTo(self, receiver: Any) -> Deferred[None]:
        """
        Push messages into a receiver.

        @param receiver: a L{twisted.internet.interfaces.IConsumer} that takes L{ConsumerRecord}s
            and may pause its producer.
        @return: fires with L{None} when the consumer was closed, or the receiver wants no more.
            Fails with a partition's error or what C{write} raised: it can be piped again. Fails
            with L{ConsumerStateError} or what C{registerProducer} raised: the receiver gets
            nothing.
        """
        return maybeDeferred(PipeProducer(self, receiver, self._clock).start)

    def metricFamilies(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """
        Metrics for L{pylogbroker.console.service.MetricsService}.

        @param labels: distinguish this consumer from others in the process.
        """
        return consumerFamilies(self.counters, len(self._partitions), labels)

    # -- the end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @asDeferred
    async def close(self) -> None:
        """
        Stop reading, and close the connections. Readers come to their end. With a group, handled
        positions are committed by C{enable.auto.commit}, and the member leaves; a static one does
        not, so that it can come back.

        @return: fires with L{None} when the connections are gone, for each call.
        """
        if self.isEnded:  # the first call may be committing still
            if not self._isClosed:
                await self._closed.wait()
            return
        self.isEnded = True
        self._questions.isEnded = True
        self._turns.clear()
        self._unreported = None
        self._wake()
        try:
            await self._group.close()
        finally:  # also when it is cancelled: the connections go in any case
            self._fetcher.stop()
            self._cluster.abort()
            self._wake()
            try:
                await self._cluster.close()
            except ClosedError:
                pass  # requests under way were cut
            finally:
                self._isClosed = True
                self._closed.fire(None)


def _offsetsAlone(
    found: Mapping[TopicPartition, OffsetAndTimestamp],
) -> dict[TopicPartition, int]:
    return {place: each.offset for place, each in found.items()}


def _logWarning(message: str) -> None:
    log.warn("{sentence}", sentence=message)
