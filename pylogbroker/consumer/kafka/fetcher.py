"""
Asks the leaders of a consumer's partitions: for offsets, for the end of a leader epoch, for
messages. A module of its own, since L{pylogbroker.consumer.kafka.consumer} is what applications
call.

What must be true:

  - A broker has one request of a consumer at a time: what the client does not know yet comes first
  (the offset of a time, whether a new leader has what was read), then the fetch.
  - Only partitions with room are asked for: at most two chunks of a partition wait, and
  C{queued.max.bytes} in all, and one more where only paused partitions have any. So a reader that
  is slow, or away, slows the brokers down.
  - Where there is no room for all, partitions and brokers have their turns.
  - A fetch waits at the broker for C{fetch.max.wait.ms}. While a partition is left out for lack of
  room, or a fetch leaves none for other brokers, it waits for L{FULL_WAIT_MS} only.
  - Before a partition is read from a leader of another epoch, the leader is asked where the epoch
  of what was read last ends (KIP-320). If that is before the position, messages that were read are
  lost, and the reader is told; also where the topic has another id, thus was made again.

B{Reads from followers} (KIP-392). With C{client.rack} a leader may name a follower in the
consumer's rack. Messages come from there for C{metadata.max.age.ms}, then the leader is asked
again; offsets and epochs always come from the leader. When the follower fails in any way, the
leader is read for L{AVOID_REPLICAS_MS}, and is not told the rack in this time, since it would name
the same one. An offset that a follower does not have proves nothing: only the leader's word resets
a position.

Fetches are sent without sessions: for a hundred partitions, the request has some kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.client.kafka.metadata import PartitionLeader
from pylogbroker.config.kafka.clientsettings import (
    EARLIEST,
    LATEST,
    NO_RESET,
    KafkaConsumerSettings,
)
from pylogbroker.consumer.kafka.assignedpartition import (
    NO_EPOCH,
    NO_OFFSET,
    NO_REPLICA,
    AssignedPartition,
    FetchedChunk,
)
from pylogbroker.errors import (
    BrokerConnectionError,
    FormatError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    UnknownPartitionError,
)
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.types import TopicPartition

NAMED_VERSION = 12
"""The last version of Fetch that names topics instead of giving their ids."""

ISOLATION_VERSION = 2
"""The first version of ListOffsets that knows of transactions."""

EPOCH_VERSION = 3
"""
The first version of OffsetForLeaderEpoch that brokers answer to whoever may read the topic; before,
only to other brokers.
"""

AVOID_REPLICAS_MS = 10_000
CHUNK_COUNT_MAX = 2
FULL_WAIT_MS = 20
ERROR_RETRY_MS = 1_000
"""After an error that does not pass a partition is asked for again so late."""

BEGINNING_TIME, END_TIME = -2, -1
RESET_TIMES: Mapping[str, int] = {EARLIEST: BEGINNING_TIME, LATEST: END_TIME}
CONSUMER_REPLICA = -1

log = Logger()


class _Node:
    """
    A broker that leads partitions.

    @ivar serving: its one request under way, or L{None}.
    """

    __slots__ = ("failureCount", "retryAtMs", "serving")

    def __init__(self) -> None:
        self.serving: Deferred[None] | None = None
        self.retryAtMs = 0.0
        self.failureCount = 0


class KafkaFetcher:
    """
    Keeps the partitions of a consumer supplied.

    @ivar partitions: those that are assigned.
    @ivar counters: of fetches and topics.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        onFetched: Callable[[AssignedPartition], None],
        onEndKnown: Callable[[], None],
        onError: Callable[[PylogbrokerError], None],
    ) -> None:
        """
        @param onFetched: called with a partition that has more messages, or an error.
        @param onEndKnown: called when a partition has got its C{endOffset}.
        @param onError: called with an error of a broker that does not pass by itself.
        """
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.counters = ConsumerCounters()
        self._clock = clock
        self._settings = settings
        self._cluster = cluster
        self._onError = onError
        self._onFetched = onFetched
        self._onEndKnown = onEndKnown
        self._nodes: dict[int, _Node] = {}
        self._pumpTimer = Timer(clock)
        self._retryTimer = Timer(clock)
        self._turnCount = 0
        self._failed: list[AssignedPartition] | None = None  # while partitions are gone through
        self._isStopped = False
        cluster.listen(self.wake)

    def wake(self) -> None:
        """Ask for what there is room for, at the end of the reactor's turn."""
        if not self._pumpTimer.isRunning and not self._isStopped:
            self._pumpTimer.start(0, self._pump)

    def stop(self) -> None:
        """Ask for nothing any more."""
        self._isStopped = True
        self._pumpTimer.stop()
        self._retryTimer.stop()
        for node in self._nodes.values():
            if node.serving is not None:
                node.serving.cancel()

    def _nowMs(self) -> float:
        return self._clock.seconds() * 1000

    # -- who is asked

    def _pump(self) -> None:
        nowMs, retryAtMs = self._nowMs(), inf
        byNode: dict[int, list[AssignedPartition]] = {}
        failed = self._failed = []
        for partition in self.partitions.values():
            leader = self._leader(partition)
            if leader is None or partition.isPaused or partition.isHeld or partition.isAsked:
                continue
            self._checkTopic(partition)
            if nowMs < partition.retryAtMs:
                retryAtMs = min(retryAtMs, partition.retryAtMs)
            elif self._isKnown(partition):
                byNode.setdefault(self._nodeFor(partition, leader, nowMs), []).append(partition)
        for number, wanted in sorted(byNode.items(), key=lambda each: _earliestTurn(each[1])):
            node = self._nodes.setdefault(number, _Node())
            if nowMs < node.retryAtMs:
                retryAtMs = min(retryAtMs, node.retryAtMs)
            elif node.serving is None:
                self._serve(number, node, wanted)
        if retryAtMs < inf:
            self._retryTimer.start(retryAtMs - nowMs, self._pump)
        self._failed = None
        for partition in failed:
            if self.partitions.get(partition.place) is partition:
                self._onFetched(partition)

    def _nodeFor(self, partition: AssignedPartition, leader: PartitionLeader, nowMs: float) -> int:
        """The broker to ask: a follower only for messages, and while it is known."""
        replica = partition.readReplica
        if replica == NO_REPLICA:
            return leader.node
        if nowMs >= partition.readReplicaEndMs or replica not in self._cluster.metadata.brokers:
            partition.readReplica = NO_REPLICA
            return leader.node
        isAsking = partition.position == NO_OFFSET or self._isDoubtful(partition)
        return leader.node if isAsking else replica

    def _avoidReplica(self, partition: AssignedPartition) -> None:
        """A follower has failed: read from the leader."""
        partition.readReplica = NO_REPLICA
        partition.avoidReplicasUntilMs = self._nowMs() + AVOID_REPLICAS_MS

    def _leader(self, partition: AssignedPartition) -> PartitionLeader | None:
        topic, number = partition.place
        known = self._cluster.topic(topic)
        code = self._cluster.metadata.errors.get(topic, 0)
        if code and ErrorPolicy.RETRY not in policyOf(code):
            self._reportOnce(partition, code, ResponseError(code, f"topic {topic}"))
        elif known is not None and number not in known.partitions:
            count = len(known.partitions)
            error = UnknownPartitionError(f"partition {number} of {topic}, which has {count}")
            self._reportOnce(partition, -1, error)
        return self._cluster.metadata.leader(topic, number)

    def _reportOnce(self, partition: AssignedPartition, code: int, error: PylogbrokerError) -> None:
        if partition.reportedCode != code:
            partition.reportedCode = code
            self._tell(partition, error)

    def _tell(self, partition: AssignedPartition, error: PylogbrokerError) -> None:
        partition.fail(error)
        if self._failed is None:
            self._onFetched(partition)
        else:  # a reader that is told may assign others at once
            self._failed.append(partition)

    def _checkTopic(self, partition: AssignedPartition) -> None:
        """Begin with the first message where the topic is another one than that which was read."""
        known = self._cluster.metadata.topics[partition.place.topic].topicId
        before, position = partition.topicId, partition.position
        if ZERO_UUID in (known, before) or known == before:
            return
        partition.moveTo(0)
        if position > 0:
            text = (
                f"{partition.place} was read up to offset {position}, and its topic was made again"
            )
            self._tell(partition, LogTruncatedError(text, position, 0))

    def _isKnown(self, partition: AssignedPartition) -> bool:
        """Whether there is a position, or a way to find one."""
        if partition.position == NO_OFFSET and partition.resetTime is None:
            policy = self._settings.autoOffsetReset
            if policy == NO_RESET:
                text = f"{partition.place} has no position, and auto.offset.reset=none"
                self._reportOnce(partition, 1, OffsetOutOfRangeError(text))
                return False
            partition.resetTime = RESET_TIMES[policy]
        return True

    def _serve(self, number: int, node: _Node, wanted: list[AssignedPartition]) -> None:
        resets = [each for each in wanted if each.position == NO_OFFSET]
        checks = [each for each in wanted if each.position != NO_OFFSET and self._isDoubtful(each)]
        if resets or checks:
            work = self._find(number, resets, checks)
        else:
            chosen, isPartial = self._select(wanted)
            if not chosen:
                return
            work = self._fetch(number, chosen, isPartial)
        serving = node.serving = Deferred.fromCoroutine(work)
        serving.addBoth(self._served, node, number)

    def _served(self, result: Failure | None, node: _Node, number: int) -> None:
        node.serving = None
        if self._isStopped:
            return
        if not isinstance(result, Failure):
            node.failureCount = 0
        else:
            error = result.value
            if not isinstance(error, PylogbrokerError):
                log.failure("Asking a broker failed unexpectedly", result)
            elif not isinstance(error, BrokerConnectionError) and not getattr(
                error, "isRetriable", False
            ):
                self._onError(error)
            self.counters.fetches.failedCount += 1
            node.failureCount += 1
            node.retryAtMs = self._nowMs() + self._cluster.backoffMs(node.failureCount)
            self._cluster.refreshSoon()
            for partition in self.partitions.values():
                if partition.readReplica == number:
                    self._avoidReplica(partition)
        self.wake()

    async def _connection(self, number: int) -> NegotiatedConnection:
        client = self._cluster.broker(number)
        return client.current or await client.connection()

    # -- messages

    def _select(self, wanted: Sequence[AssignedPartition]) -> tuple[list[AssignedPartition], bool]:
        """The partitions with room, in turn, and whether room is wanted by others."""
        settings = self._settings
        leftSize = settings.queuedMaxBytes - sum(
            each.queuedSize + (settings.maxPartitionFetchBytes if each.isAsked else 0)
            for each in self.partitions.values()
        )
        # What waits for paused partitions is not read soon: the others get one chunk in any case.
        isEmpty = not any(
            each.isAsked or each.queuedSize
            for each in self.partitions.values()
            if not (each.isPaused or each.isHeld)
        )
        chosen: list[AssignedPartition] = []
        for each in sorted(wanted, key=lambda each: (len(each.chunks), each.turn)):
            if len(each.chunks) < CHUNK_COUNT_MAX and (
                leftSize >= settings.maxPartitionFetchBytes or (isEmpty and not chosen)
            ):
                leftSize -= settings.maxPartitionFetchBytes
                self._turnCount += 1
                each.turn = self._turnCount
                chosen.append(each)
        return chosen, len(chosen) < len(wanted) or leftSize < settings.maxPartitionFetchBytes

    async def _fetch(
        self, number: int, wanted: Sequence[AssignedPartition], isPartial: bool
    ) -> None:
        generations = {each.place: (each, each.generation) for each in wanted}
        for each in wanted:
            each.isAsked = True
        try:
            connection = await self._connection(number)
            startedAt = self._clock.seconds()
            body, names = self._fetchRequest(wanted, isPartial)
            isNamed = any(topic.topicId == ZERO_UUID for topic in body.topics)
            response = await connection.request(
                ApiKey.FETCH,
                body,
                body.maxWaitMs,
                NAMED_VERSION if isNamed else ApiKey.FETCH.lastVersion,
            )
        finally:
            for each in wanted:
                each.isAsked = False
        if response.errorCode:
            raise ResponseError(response.errorCode, f"fetch from {connection.name}")
        self.counters.fetches.fetched(self._clock.seconds() - startedAt)
        for topic in response.responses:
            name = topic.topic or names.get(topic.topicId, "")
            for part in topic.partitions:
                found = generations.pop(TopicPartition(name, part.partitionIndex), None)
                if found is not None and found[0].generation == found[1]:
                    self._onPart(number, found[0], part, response.nodeEndpoints)
        self._onMissing(generations.values())

    def _fetchRequest(
        self, wanted: Iterable[AssignedPartition], isPartial: bool
    ) -> tuple[Any, dict[bytes, str]]:
        settings, metadata = self._settings, self._cluster.metadata
        cls = messages.FetchRequest
        topics: dict[str, Any] = {}
        for each in wanted:
            name, number = each.place
            topic = topics.get(name)
            if topic is None:
                known = metadata.topics.get(name)
                topicId = ZERO_UUID if known is None else known.topicId
                topic = topics[name] = cls.FetchTopic(topic=name, topicId=topicId)
            each.topicId = topic.topicId
            leader = metadata.leader(name, number)
            topic.partitions.append(
                cls.FetchPartition(
                    partition=number,
                    currentLeaderEpoch=NO_EPOCH if leader is None else leader.epoch,
                    fetchOffset=each.fetchOffset,
                    partitionMaxBytes=settings.maxPartitionFetchBytes,
                )
            )
        body = cls(
            maxWaitMs=min(settings.fetchMaxWaitMs, FULL_WAIT_MS)
            if isPartial
            else settings.fetchMaxWaitMs,
            minBytes=settings.fetchMinBytes,
            maxBytes=settings.fetchMaxBytes,
            isolationLevel=int(settings.isolationLevel),
            topics=list(topics.values()),
            rackId=self._rackFor(wanted),
        )
        return body, {topic.topicId: name for name, topic in topics.items()}

    def _rackFor(self, wanted: Iterable[AssignedPartition]) -> str:
        """What the leader is told, which may then name a follower for each partition."""
        rack = self._settings.clientRack
        if rack and any(each.avoidReplicasUntilMs > self._nowMs() for each in wanted):
            return ""
        return rack

    def _onPart(self, number: int, partition: AssignedPartition, part: Any, endpoints: Any) -> None:
        if part.errorCode:
            isReplica = partition.readReplica == number
            if isReplica:
                self._avoidReplica(partition)
            self._onRefusal(partition, part, endpoints, isReplica)
            return
        if part.preferredReadReplica != NO_REPLICA:
            partition.readReplica = part.preferredReadReplica
            partition.readReplicaEndMs = self._nowMs() + self._settings.metadataMaxAgeMs
            if partition.readReplica not in self._cluster.metadata.brokers:
                self._avoidReplica(partition)
                self._cluster.refreshSoon()
            return
        isCommitted = self._settings.isolationLevel
        aborted = part.abortedTransactions if isCommitted else None
        begins = [(each.firstOffset, each.producerId) for each in aborted or ()]
        try:
            chunk = FetchedChunk(bytes(part.records or b""), begins)
        except FormatError as error:
            self._fail(partition, type(error)(f"{partition.place}: {error.reason}", error.position))
            return
        partition.put(chunk)
        partition.counters.fetchedSize += chunk.size
        wasEndKnown = partition.endOffset != NO_OFFSET
        partition.endOffset = part.highWatermark
        if isCommitted and part.lastStableOffset != NO_OFFSET:  # brokers that know transactions
            partition.endOffset = part.lastStableOffset
        if chunk.size:
            self._onFetched(partition)
        if not wasEndKnown:
            self._onEndKnown()

    def _onRefusal(
        self, partition: AssignedPartition, part: Any, endpoints: Any, isReplica: bool
    ) -> None:
        policy = policyOf(part.errorCode)
        if ErrorPolicy.RESET in policy:
            if not isReplica:
                self._onOutOfRange(partition)
            return
        if part.errorCode == ErrorCode.CORRUPT_MESSAGE:  # on the broker's disk: it does not pass
            text = f"{partition.place}, batch at offset {partition.fetchOffset}"
            self._fail(partition, FormatError(f"{text}: the broker says that it is damaged"))
            return
        if ErrorPolicy.REFRESH in policy:
            leader = PartitionLeader(part.currentLeader.leaderId, part.currentLeader.leaderEpoch)
            if not self._cluster.metadata.moveLeader(*partition.place, leader, endpoints):
                self._cluster.refreshSoon()
        if ErrorPolicy.RETRY in policy:
            self._retryLater(partition)
        else:
            self._fail(partition, ResponseError(part.errorCode, str(partition.place)))

    def _retryLater(self, partition: AssignedPartition) -> None:
        partition.failureCount += 1
        partition.retryAtMs = self._nowMs() + self._cluster.backoffMs(partition.failureCount)

    def _onMissing(self, asked: Iterable[tuple[AssignedPartition, int]]) -> None:
        """
        A response lacks partitions that were asked for.

        @param asked: each with its generation.
        """
        for partition, generation in asked:
            if partition.generation == generation:
                self._retryLater(partition)

    def _fail(self, partition: AssignedPartition, error: PylogbrokerError) -> None:
        partition.retryAtMs = self._nowMs() + ERROR_RETRY_MS
        self._tell(partition, error)

    def _onOutOfRange(self, partition: AssignedPartition) -> None:
        offset, policy = partition.fetchOffset, self._settings.autoOffsetReset
        text = f"{partition.place} has no offset {offset}: its log begins or ends elsewhere"
        if policy == NO_RESET:
            self._fail(partition, OffsetOutOfRangeError(text))
            return
        if partition.chunks or partition.current is not None:  # they are read first
            self._retryLater(partition)
            return
        log.warn("{reason}. It is read from its {policy} offset on", reason=text, policy=policy)
        partition.mustReset(RESET_TIMES[policy])

    # -- offsets and epochs

    def _isDoubtful(self, partition: AssignedPartition) -> bool:
        """Whether the leader must be asked if it has what was read."""
        leader = self._cluster.metadata.leader(*partition.place)
        if leader is None or leader.epoch <= partition.checkedEpoch:
            return False
        if partition.fetchEpoch == NO_EPOCH:
            partition.checkedEpoch = leader.epoch
            return False
        return True

    async def _find(
        self,
        number: int,
        resets: Sequence[AssignedPartition],
        checks: Sequence[AssignedPartition],
    ) -> None:
        asked = [(each, each.generation) for each in (*resets, *checks)]
        for each, _generation in asked:
            each.isAsked = True
        try:
            connection = await self._connection(number)
            # Those that were moved meanwhile have another question now, or none.
            places = {each for each, generation in asked if each.generation == generation}
            if places.intersection(resets):
                await self._reset(connection, [each for each in resets if each in places])
            places = {each for each, generation in asked if each.generation == generation}
            if places.intersection(checks):
                await self._check(connection, [each for each in checks if each in places])
        finally:
            for each, _generation in asked:
                each.isAsked = False

    async def _reset(
        self, connection: NegotiatedConnection, partitions: Sequence[AssignedPartition]
    ) -> None:
        generations = {each.place: (each, each.generation) for each in partitions}
        times = {each.place: each.resetTime or END_TIME for each in partitions}
        for place, (code, offset, _timestamp, epoch) in (
            await self.listOffsets(connection, times)
        ).items():
            found = generations.pop(place, None)
            if found is None or found[0].generation != found[1]:
                continue
            if code:
                self._refused(found[0], code)
            else:
                leader = self._cluster.metadata.leader(*place)
                found[0].locate(offset, epoch, NO_EPOCH if leader is None else leader.epoch)
        self._onMissing(generations.values())

    def _refused(self, partition: AssignedPartition, code: int) -> None:
        policy = policyOf(code)
        if ErrorPolicy.REFRESH in policy:
            self._cluster.refreshSoon()
        if ErrorPolicy.RETRY in policy:
            self._retryLater(partition)
        else:
            self._fail(partition, ResponseError(code, str(partition.place)))

    async def listOffsets(
        self, connection: NegotiatedConnection, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int, int, int]]:
        """
        Ask a leader for offsets by time.

        @param times: L{BEGINNING_TIME}, L{END_TIME} or milliseconds since the epoch, for each.
        @return: error code, offset, timestamp and leader epoch; offset and timestamp are -1 where
            no message is so young.
        """
        key, metadata = ApiKey.LIST_OFFSETS, self._cluster.metadata
        cls = messages.ListOffsetsRequest
        topics: dict[str, Any] = {}
        for (name, number), time in times.items():
            topic = topics.setdefault(name, cls.ListOffsetsTopic(name=name))
            leader = metadata.leader(name, number)
            topic.partitions.append(
                cls.ListOffsetsPartition(
                    partitionIndex=number,
                    currentLeaderEpoch=NO_EPOCH if leader is None else leader.epoch,
                    timestamp=time,
                )
            )
        isCommitted = connection.version(key) >= ISOLATION_VERSION and self._settings.isolationLevel
        body = cls(
            replicaId=CONSUMER_REPLICA,
            isolationLevel=int(isCommitted),
            topics=list(topics.values()),
            timeoutMs=self._settings.requestTimeoutMs,
        )
        response = await connection.request(key, body)
        return {
            TopicPartition(topic.name, part.partitionIndex): (
                part.errorCode,
                part.offset,
                part.timestamp,
                part.leaderEpoch,
            )
            for topic in response.topics
            for part in topic.partitions
        }

    async def _check(
        self, connection: NegotiatedConnection, partitions: Sequence[AssignedPartition]
    ) -> None:
        metadata = self._cluster.metadata
        leaders = {each.place: metadata.leader(*each.place) for each in partitions}
        generations = {each.place: (each, each.generation) for each in partitions}
        if not connection.supports(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION):
            for each in partitions:
                each.fetchEpoch = NO_EPOCH  # an old broker: nothing can be found out
            return
        cls = messages.OffsetForLeaderEpochRequest
        topics: dict[str, Any] = {}
        for each in partitions:
            name, number = each.place
            topic = topics.setdefault(name, cls.OffsetForLeaderTopic(topic=name))
            leader = leaders[each.place]
            topic.partitions.append(
                cls.OffsetForLeaderPartition(
                    partition=number,
                    currentLeaderEpoch=NO_EPOCH if leader is None else leader.epoch,
                    leaderEpoch=each.fetchEpoch,
                )
            )
        body = cls(replicaId=CONSUMER_REPLICA, topics=list(topics.values()))
        response = await connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, body)
        for topic in response.topics:
            for part in topic.partitions:
                place = TopicPartition(topic.topic, part.partition)
                found, leader = generations.pop(place, None), leaders.get(place)
                if found is None or leader is None or found[0].generation != found[1]:
                    continue
                if part.errorCode:
                    self._refused(found[0], part.errorCode)
                else:
                    self._compare(found[0], leader, part.leaderEpoch, part.endOffset)
        self._onMissing(generations.values())

    def _compare(
        self, partition: AssignedPartition, leader: PartitionLeader, epoch: int, end: int
    ) -> None:
        """
        Compare what was fetched with where the leader's log of that epoch ends.

        @param epoch: the last one of the leader's that is not later; L{NO_EPOCH}: it has none.
        @param end: where that epoch ends; L{NO_OFFSET}: nowhere.
        """
        partition.checkedEpoch = leader.epoch
        if epoch == NO_EPOCH:
            end = NO_OFFSET
        if end == NO_OFFSET and partition.isUnread:  # no message that was read can be lost
            partition.readAgain()
            partition.fetchEpoch = NO_EPOCH
            return
        if end != NO_OFFSET and end >= partition.fetchOffset:
            return
        position = partition.position
        if end != NO_OFFSET and end >= position:  # only what was not handed out yet
            partition.moveTo(position, epoch)
            partition.checkedEpoch = leader.epoch
            return
        if end == NO_OFFSET:
            partition.mustReset()
            where = "somewhere before"
        else:
            partition.moveTo(end, epoch)
            partition.checkedEpoch = leader.epoch
            where = f"from offset {end} on"
        text = f"{partition.place} was read up to offset {position}, and its log differs {where}"
        diverging = None if end == NO_OFFSET else end
        self._tell(partition, LogTruncatedError(text, position, diverging))


def _earliestTurn(partitions: Sequence[AssignedPartition]) -> int:
    return min(each.turn for each in partitions)
