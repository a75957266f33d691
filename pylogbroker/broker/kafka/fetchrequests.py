"""
Fetch: slices of segment files, now or when there is enough. A module of its own, since no other
request waits for data.

A response that has fewer than C{min.bytes} waits: for the high watermark of any of its partitions
to move, or for its time, C{max.wait}. Then everything is read anew. All waits share one timer
(L{pylogbroker.broker.kafka.purgatory.Purgatory}). A wait ends with its connection.

What was appended before a request came, another client may have been told of. So a request that
would be answered without it, since it waits for nothing or begins behind the high watermark, first
waits until the watermark reaches what was the end of the log, at most L{UNREADABLE_WAIT_MS}; where
readers see the page cache, it is written at once, and nothing waits.

A fetch of another replica reads up to what is written, and waits for that. What it says, that its
log has everything below its offset, is told to the partition's C{onReplicaFetch} first, since the
high watermark may follow from it. It is answered at once if it has not been told that watermark
yet, so that followers know it soon; but neither it nor records are sent while the leader gathers
requests (L{pylogbroker.broker.logmanager}). From a broker that is no replica, or was registered
anew since, it is refused.

A replica that is behind may be throttled (KIP-73): then the answers have its other partitions.

A consumer may read from a follower, too (KIP-392), from version 11 on: what that knows to be
committed. Where a selector is set (C{replica.selector.class}), a leader tells a consumer that
names its rack which follower to ask instead, at once; and it answers a follower's fetch that waits
as soon as the high watermark has moved, not only when there are records, since others wait for that
at the follower. Kafka leaves them to C{replica.fetch.wait.max.ms} (KAFKA-9952).

A reader who names the epoch of its last record learns at once where its log, or what it has
consumed, is not the leader's any more (KIP-595).

Sizes are limits, but for one batch: the first partition that has data gives a whole batch, however
large, or its reader would never go on.

Which partitions are read for a request, and which of them are sent, is decided by its session
(L{pylogbroker.broker.kafka.fetchsessions}).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.fetchsessions import (
    FetchContext,
    FetchResult,
    FetchSessionCache,
    ReplicaReader,
    RequestedPartition,
)
from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.security.clientquotas import ClientQuotas
from pylogbroker.broker.kafka.topics import NotLeaderOrFollowerError, TopicManager, batchLog
from pylogbroker.broker.logmanager import Partition, ReplicaProgress
from pylogbroker.broker.server import Broker
from pylogbroker.cluster.acls import AclOperation, AclResourceType
from pylogbroker.cluster.metadataimage import ReachableBroker
from pylogbroker.errors import OffsetOutOfRangeError, PylogbrokerError
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.sendfile import ResponsePart, releaseSlices
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponseWriter
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.replication.replicaselector import NO_REPLICA
from pylogbroker.storage.kafka.epochs import EpochStart, divergence
from pylogbroker.storage.kafka.transactionindex import AbortedTransaction
from pylogbroker.storage.partitionlog import MarkKind

WAIT_MS_MAX = 600_000
UNREADABLE_WAIT_MS = 5_000
FOLLOWER_VERSION = 11
"""The first version whose clients know that a follower may answer (KIP-392)."""
LEADER_VERSION = 16
"""The first version whose clients want to know who leads instead (KIP-951)."""
RESPONSE_SIZE_MAX = 64 << 20
"""Bytes of records in a response; a client may ask for more."""

_READ_UNCOMMITTED = 0
_READ_COMMITTED = 1


class _Read:
    """
    One partition of a request.

    @ivar partition: L{None}: C{error} says why.
    @ivar aborted: the aborted transactions of when it was read. A compaction may forget them while
        the slice, which has their records, is held.
    @ivar slice: pinned.
    @ivar later: gives the slice, when only a worker can find or open it.
    @ivar diverging: where the reader's log is not this one's any more.
    @ivar preferred: the broker to read from instead, or L{NO_REPLICA}.
    @ivar isFollowed: another broker leads the partition, and this one follows.
    @ivar end: which the high watermark must reach before the response; 0: none.
    """

    __slots__ = (
        "aborted",
        "diverging",
        "end",
        "error",
        "isFollowed",
        "key",
        "later",
        "partition",
        "preferred",
        "slice",
        "wanted",
    )

    def __init__(self, fetched: RequestedPartition, partition: Partition | None) -> None:
        self.key = fetched.key
        self.wanted = fetched.wanted
        self.partition = partition
        self.slice = EMPTY_SLICE
        self.aborted: list[AbortedTransaction] = []
        self.error: KafkaError | None = None
        self.later: Deferred[Slice] | None = None
        self.diverging: EpochStart | None = None
        self.preferred = NO_REPLICA
        self.isFollowed = False
        self.end = 0

    @property
    def isOver(self) -> bool:
        """Whether nothing is read from it, whatever comes."""
        return self.error is not None or self.diverging is not None or self.preferred != NO_REPLICA

    @property
    def isUnreadable(self) -> bool:
        """Whether it is to be read up to where it cannot be read yet."""
        log = None if self.partition is None else self.partition.log
        return log is not None and self.end > log.highWatermark and not log.isOffline

    @property
    def leader(self) -> tuple[int, int] | None:
        """The broker that leads instead, and its epoch."""
        error = self.error
        return error.leader if isinstance(error, NotLeaderOrFollowerError) else None

    def result(self, replicaId: int) -> FetchResult:
        """
        What was read, and the partition's marks as of now.

        @param replicaId: the reader's; -1: it is a client.
        """
        if self.error is not None or self.partition is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self.error is None else self.error.code
            return FetchResult(errorCode=code)
        log = batchLog(self.partition)
        return FetchResult(
            self.slice.size,
            0,
            log.highWatermark,
            log.lastStableOffset,
            log.logStartOffset,
            self.diverging,
            self.preferred,
            replicaId >= 0
            and not self.slice.size
            and (
                self.wanted.fetchOffset < log.writtenOffset or replicaId in self.partition.outOfSync
            ),
        )


class IReadReplicas(Protocol):
    """What knows who has a partition beside this broker."""

    def preferredReadReplica(
        self, partition: Partition, rack: str, offset: int, racks: Mapping[int, str | None]
    ) -> int:
        """
        The follower from which a consumer is to read what this broker leads, or L{NO_REPLICA}.

        @param rack: the consumer's.
        @param racks: of the brokers that it can reach.
        """
        ...

    def leaderHighWatermark(self, partition: Partition) -> int:
        """What the leader of a partition that is followed has told last; -1: nothing."""
        ...

    def isReadThrottled(self, partition: Partition, replicaId: int) -> bool:
        """Whether a follower is given no records of a partition now."""
        ...

    def onReplicaRead(self, partition: Partition, size: int) -> None:
        """Count the bytes of records of a partition that are sent to a follower."""
        ...


class FetchRequests:
    """
    The handler of Fetch requests.

    @ivar sessions: of the broker's clients.
    @ivar nodes: see C{__init__}.
    @ivar authorizer: decides which topics a client may read.
    @ivar quotas: limit what a client may read.
    @ivar replicas: see C{__init__}.
    @ivar hasSelector: likewise.
    """

    def __init__(
        self,
        broker: Broker,
        topics: TopicManager,
        purgatory: Purgatory,
        counters: BrokerCounters,
        sessions: FetchSessionCache,
        nodes: Callable[[ConnectionState], dict[int, ReachableBroker]],
        authorizer: AclAuthorizer | None = None,
        quotas: ClientQuotas | None = None,
        replicas: IReadReplicas | None = None,
        hasSelector: bool = False,
    ) -> None:
        """
        @param nodes: gives the brokers that clients of a connection's listener reach, by id.
        @param authorizer: L{None}: every client may read every topic.
        @param quotas: L{None}: there are none.
        @param replicas: L{None}: there are none.
        @param hasSelector: consumers read from a replica in their rack.
        """
        self.replicas = replicas
        self.hasSelector = hasSelector and replicas is not None
        self.nodes = nodes
        self.authorizer = authorizer
        self.quotas = quotas
        self._broker = broker
        self._topics = topics
        self._purgatory = purgatory
        self._counters = counters
        self.sessions = sessions
        self.isStopping = False
        self.waiting: dict[int, Callable[[], object]] = {}  # what ends each wait

    def fetch(self, header: RequestHeader, request: FetchRequest, state: ConnectionState) -> Any:
        """Handle a request; as L{pylogbroker.broker.kafka.protocol.Handler}."""
        if request.isolationLevel not in (_READ_UNCOMMITTED, _READ_COMMITTED):
            return _refused(header, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            context = self.sessions.begin(
                request, header.apiVersion, self._nameOf, self._replicaOf(request, state)
            )
        except KafkaError as error:
            return FetchResponseWriter(
                header.apiVersion, header.correlationId, 0, errorCode=error.code
            ).finish()
        return _Fetch(self, self._broker, self._topics, self._purgatory, self._counters).begin(
            header, request, context, state
        )

    def _replicaOf(self, request: FetchRequest, state: ConnectionState) -> ReplicaReader | None:
        """The broker that asks as a replica, if it is one of the cluster."""
        brokerId = request.replicaId
        if brokerId < 0 or brokerId not in self._topics.image.brokers:
            return None
        if self.authorizer is not None and not self.authorizer.requires(
            state, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER
        ):
            return None
        return ReplicaReader(brokerId, request.replicaEpoch)

    def endWaits(self) -> None:
        """Answer the fetches that wait, and let none wait from now on: the broker stops."""
        self.isStopping = True
        for end in list(self.waiting.values()):
            end()

    def _nameOf(self, topicId: bytes) -> str | None:
        found = self._topics.topicById(topicId)
        return None if found is None else found.name


def _refused(header: RequestHeader, request: FetchRequest, error: ErrorCode) -> Any:
    """An error for the whole request; up to version 12 for each of its partitions, too."""
    topics = request.topics if header.apiVersion < 13 else []
    writer = FetchResponseWriter(
        header.apiVersion, header.correlationId, len(topics), errorCode=error
    )
    for topic in topics:
        writer.topic(topic.topic, topic.topicId, len(topic.partitions))
        for part in topic.partitions:
            writer.partition(part.partition, errorCode=error, abortedTransactions=())
    return writer.finish()


class _Fetch:
    """One request in progress."""

    __slots__ = (
        "_broker",
        "_cancels",
        "_context",
        "_counters",
        "_done",
        "_header",
        "_isEnded",
        "_isOver",
        "_key",
        "_owner",
        "_purgatory",
        "_racks",
        "_reads",
        "_request",
        "_size",
        "_sizeMax",
        "_state",
        "_topics",
        "_unreadable",
        "_waitCount",
    )

    def __init__(
        self,
        owner: FetchRequests,
        broker: Broker,
        topics: TopicManager,
        purgatory: Purgatory,
        counters: BrokerCounters,
    ) -> None:
        self._owner = owner
        self._broker = broker
        self._topics = topics
        self._purgatory = purgatory
        self._counters = counters
        self._cancels: list[Callable[[], object]] = []
        self._done: Deferred[list[ResponsePart]] | None = None
        self._key = 0
        self._isOver = self._isEnded = False
        self._waitCount = 0
        self._reads: list[_Read] = []
        self._unreadable: list[_Read] = []  # when the request came
        self._size = 0  # bytes of all slices
        self._racks: dict[int, str | None] | None = None  # of the brokers that the client reaches

    def begin(
        self,
        header: RequestHeader,
        request: FetchRequest,
        context: FetchContext,
        state: ConnectionState,
    ) -> Any:
        self._header, self._request, self._state = header, request, state
        self._context = context
        self._sizeMax = min(request.maxBytes, RESPONSE_SIZE_MAX)
        if self._owner.quotas is not None and not self._isReplica:
            self._sizeMax = self._owner.quotas.fetchSizeMax(header, state, self._sizeMax)
        self._reads = [self._find(each) for each in context.partitions]
        self._unreadable = [read for read in self._reads if read.end]
        isComplete = self._readNow()
        if isComplete and not self._mayWait():
            return self._response()
        self._done = Deferred()
        if isComplete:
            self._wait()
        else:
            self._readLater()
        return self._done

    def _find(self, fetched: RequestedPartition) -> _Read:
        topic, index = fetched.key
        if fetched.name is not None and not self._mayRead(fetched.name):
            read = _Read(fetched, None)
            read.error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return read
        if isinstance(topic, bytes):
            # Without a name the authorizer has not been asked.
            found = None if fetched.name is None else self._topics.findById(topic, index)
        else:
            found = self._topics.find(topic, index)
        isFollowed = False
        if found is None and fetched.name is not None and self._mayReadFollower:
            found = self._topics.followed(fetched.name, index)
            isFollowed = found is not None
        read = _Read(fetched, found)
        read.isFollowed = isFollowed
        if found is None:
            if fetched.name is None:
                read.error = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            elif isinstance(topic, bytes) and self._topics.find(fetched.name, index) is not None:
                # A session has outlived its topic, which was created again.
                read.error = KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
            else:
                read.error = self._unavailable(topic, index)
            return read
        log = batchLog(found)
        try:
            read.diverging = self._check(fetched.wanted, found, isFollowed)
        except PylogbrokerError as error:
            read.error = errorOf(error)
        if self._owner.hasSelector and not isFollowed and not read.isOver:
            read.preferred = self._preferred(fetched.wanted, found)
        if self._isReplica or log.isReplicated:
            return read  # no acknowledgement is ahead of the high watermark
        if log.highWatermark < log.logEndOffset and read.error is None:
            if log.isReadWhenWritten:
                found.write()
            isWaiting = self._request.maxWaitMs > 0 and self._request.minBytes > 0
            if not isWaiting or log.highWatermark < fetched.wanted.fetchOffset <= log.logEndOffset:
                read.end = log.logEndOffset
        return read

    def _unavailable(self, topic: str | bytes, index: int) -> KafkaError:
        if isinstance(topic, bytes):
            return self._topics.unavailable(self._topics.topicById(topic), index)
        return self._topics.unavailable(self._topics.image.topics.get(topic), index)

    def _mayRead(self, name: str) -> bool:
        authorizer = self._owner.authorizer
        if authorizer is None:
            return True
        if self._request.replicaId >= 0:  # a follower
            cluster = AclResourceType.CLUSTER
            return authorizer.requires(self._state, AclOperation.CLUSTER_ACTION, cluster)
        return authorizer.requires(self._state, AclOperation.READ, AclResourceType.TOPIC, name)

    @property
    def _mayReadFollower(self) -> bool:
        """Whether the client is a consumer that knows of reads from followers."""
        return self._header.apiVersion >= FOLLOWER_VERSION and not self._isReplica

    def _preferred(self, wanted: FetchPartition, partition: Partition) -> int:
        """The replica from which a consumer of another rack reads instead."""
        rack, replicas = self._request.rackId, self._owner.replicas
        if not rack or self._isReplica or replicas is None or not partition.log.isReplicated:
            return NO_REPLICA
        if self._racks is None:
            nodes = self._owner.nodes(self._state)
            self._racks = {each: node.rack for each, node in nodes.items()}
        return replicas.preferredReadReplica(partition, rack, wanted.fetchOffset, self._racks)

    def _check(
        self, wanted: FetchPartition, partition: Partition, isFollowed: bool
    ) -> EpochStart | None:
        """
        Check what the reader says of itself, in Apache's order, and hear what a replica says.

        @return: where the reader's log is not this one's any more.
        @raise PylogbrokerError: why nothing is read from the partition.
        """
        request, log = self._request, batchLog(partition)
        if wanted.partitionMaxBytes < 0 or request.maxBytes < 0:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        epoch, ours = wanted.currentLeaderEpoch, log.leaderEpoch
        if epoch >= 0 and epoch != ours:
            isOld = epoch < ours
            code = ErrorCode.FENCED_LEADER_EPOCH if isOld else ErrorCode.UNKNOWN_LEADER_EPOCH
            leader = self._topics.leaderAt(*partition.topicPartition) if isFollowed else None
            if isOld and leader is not None:
                raise NotLeaderOrFollowerError(*leader, code)
            raise KafkaError(code)
        if self._isReplica and not self._topics.isReplica(
            *partition.topicPartition, request.replicaId, request.replicaEpoch
        ):
            # With the right epoch: the broker may know of a reassignment before this one does.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if log.isOffline:  # its end is not what it was: no reader may drop records by it
            raise log.unavailableError("read")
        if wanted.lastFetchedEpoch >= 0:
            if wanted.fetchOffset < log.logStartOffset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if isFollowed and wanted.fetchOffset > log.highWatermark:
                return None  # what a follower has there may not be the leader's
            found = divergence(
                log.epochs, log.logEndOffset, wanted.fetchOffset, wanted.lastFetchedEpoch
            )
            if found is not None:
                return found
        isWithin = log.logStartOffset <= wanted.fetchOffset <= log.logEndOffset
        if self._isReplica and isWithin and partition.onReplicaFetch is not None:
            partition.onReplicaFetch(
                ReplicaProgress(
                    request.replicaId,
                    request.replicaEpoch,
                    wanted.fetchOffset,
                    wanted.logStartOffset,
                    log.logEndOffset,
                )
            )
        return None

    @property
    def _isReplica(self) -> bool:
        return self._request.replicaId >= 0

    # -- reading

    def _readNow(self) -> bool:
        """Returns whether everything could be read without waiting for a file."""
        for read in self._reads:
            if not read.isOver and not read.slice.size:
                found = self._read(read)
                if isinstance(found, Deferred):
                    read.later = found
                    return False
                self._put(read, found)
        return True

    def _put(self, read: _Read, found: Slice) -> None:
        read.slice = found
        self._size += found.size

    def _read(self, read: _Read) -> Slice | Deferred[Slice]:
        """Sets C{read.error} if the partition refuses."""
        assert read.partition is not None
        log, offset = batchLog(read.partition), read.wanted.fetchOffset
        if read.isUnreadable and offset > log.highWatermark:
            return EMPTY_SLICE
        isFirst = not self._size
        left = self._sizeMax - self._size
        if left <= 0 and not isFirst:
            return EMPTY_SLICE
        sizeMax = min(read.wanted.partitionMaxBytes, left)
        isCommitted, isReplica = self._isCommitted, self._isReplica
        if isReplica and self._isThrottled(read.partition):
            return EMPTY_SLICE
        if isCommitted:
            read.aborted = log.abortedFrom(offset)
        try:
            return self._broker.readBatches(log, offset, sizeMax, isFirst, isCommitted, isReplica)
        except PylogbrokerError as error:
            read.error = self._failure(read, error)
            return EMPTY_SLICE

    def _isThrottled(self, partition: Partition) -> bool:
        replicas = self._owner.replicas
        return replicas is not None and replicas.isReadThrottled(partition, self._request.replicaId)

    def _failure(self, read: _Read, error: PylogbrokerError) -> KafkaError:
        """Why nothing can be read: the topic may have been removed since the request came."""
        topic, index = read.key
        if isinstance(topic, bytes):
            found = self._topics.findById(topic, index)
        else:
            found = self._topics.find(topic, index)
        if found is None and read.isFollowed and read.partition is not None:
            found = self._topics.followed(*read.partition.topicPartition)
        if found is not read.partition:
            return self._unavailable(topic, index)
        if read.isFollowed and isinstance(error, OffsetOutOfRangeError):
            assert self._owner.replicas is not None and found is not None
            offset = read.wanted.fetchOffset
            committed = self._owner.replicas.leaderHighWatermark(found)
            if found.log.logEndOffset < offset <= committed:
                return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)  # it will come
        return errorOf(error)

    def _readLater(self) -> None:
        async def readAll() -> None:
            for read in self._reads:
                if read.isOver or read.slice.size:
                    continue
                later, read.later = read.later, None
                found = self._read(read) if later is None else later
                try:
                    self._put(read, await found if isinstance(found, Deferred) else found)
                except PylogbrokerError as error:
                    read.error = self._failure(read, error)

        def go(_none: None) -> None:
            if self._mayWait():
                self._wait()
            else:
                self._end()

        assert self._done is not None
        Deferred.fromCoroutine(readAll()).addCallback(go).addErrback(self._done.errback)

    def _mayWait(self) -> bool:
        """Whether the response can wait for more. Not on a connection that is lost."""
        if self._isOver or self._state.isLost or self._owner.isStopping:
            return False
        if any(read.isUnreadable for read in self._unreadable):
            return True
        return self._request.maxWaitMs > 0 and not self._isEnough()

    def _isEnough(self) -> bool:
        """
        Whether the response need not wait. Partitions that do not exist wait with the others, since
        the requests of their session would else be answered at once, again and again.
        """
        if self._isReplica and self._isGathering:
            return False
        if self._size >= min(self._request.minBytes, self._sizeMax):
            return True
        found = [read for read in self._reads if read.partition is not None]
        isEmpty = not found and not self._context.isForNews
        return isEmpty or any(map(self._isUrgent, self._reads))

    @property
    def _isGathering(self) -> bool:
        """Whether all that a replica can be told now comes from partitions that gather requests."""
        isGathering = False
        for read in self._reads:
            if read.partition is not None and read.partition.gathering is not None:
                isGathering = True
            elif read.slice.size or self._isUrgent(read):
                return False
        return isGathering

    def _isUrgent(self, read: _Read) -> bool:
        """Whether a partition has something to tell beside records."""
        if read.error is not None:
            isElsewhere = isinstance(read.error, NotLeaderOrFollowerError)
            # A follower asks again later, and soon if this broker does not know yet that it leads.
            return read.partition is not None or isElsewhere or self._isReplica
        if read.diverging is not None or read.preferred != NO_REPLICA:
            return True
        if not self._isReplica or read.partition is None:
            return False
        told = read.partition.sentWatermarks.get(self._request.replicaId, -1)
        return told < read.partition.log.highWatermark

    # -- waiting

    def _wait(self) -> None:
        if not self._key:
            waitMs = min(self._request.maxWaitMs, WAIT_MS_MAX)
            if waitMs <= 0:
                waitMs = UNREADABLE_WAIT_MS
            expire = self._expire  # one object, since thousands wait
            self._key = self._purgatory.wait(waitMs, expire)
            self._state.fetches[self._key] = self._abandon
            self._owner.waiting[self._key] = expire
        self._waitCount = turn = self._waitCount + 1
        if self._context.isForNews:
            self._cancels.append(self._context.whenNews(self._newsCame))
            self._waitBesideNews(turn)
            return
        for read in self._reads:
            if read.partition is None or (read.isOver and not read.isUnreadable):
                continue  # what has failed would end the wait at once, again and again
            log = read.partition.log
            if read.isUnreadable:
                mark, offset = MarkKind.HIGH_WATERMARK, read.end
            elif self._isReplica:
                mark, offset = MarkKind.WRITTEN, log.writtenOffset + 1
                if self._owner.hasSelector and not self._waitFor(
                    read.partition, MarkKind.HIGH_WATERMARK, log.highWatermark + 1, turn
                ):
                    return
                if read.partition.gathering is not None:
                    self._cancels.append(read.partition.whenGathered(self._gathered))
            elif self._isCommitted:
                mark, offset = MarkKind.LAST_STABLE, log.lastStableOffset + 1
            else:
                mark, offset = MarkKind.HIGH_WATERMARK, log.highWatermark + 1
            if not self._waitFor(read.partition, mark, offset, turn):
                return

    def _waitBesideNews(self, turn: int) -> None:
        """
        What is not committed waits for a flush, which begins when the first one waits for it; and
        what is gathered, for the end of that.
        """
        for read in self._reads:
            if read.partition is None or read.isOver:
                continue
            if read.partition.gathering is not None:
                self._cancels.append(read.partition.whenGathered(self._gathered))
            watermark = read.partition.log.highWatermark
            isCommitted = watermark >= read.partition.log.writtenOffset
            if self._owner.hasSelector and not isCommitted:
                mark, offset = MarkKind.HIGH_WATERMARK, watermark + 1
                if not self._waitFor(read.partition, mark, offset, turn):
                    return

    def _waitFor(self, partition: Partition, mark: MarkKind, offset: int, turn: int) -> bool:
        """@return: whether this wait goes on."""
        cancel = partition.whenReached(mark, offset, self._moved)
        if self._isEnded or turn != self._waitCount:  # that partition is out of service now
            cancel()
            return False
        self._cancels.append(cancel)
        return True

    def _abandon(self) -> None:
        """The connection is lost: a new session would not be used."""
        self._context = FetchContext(self._context.partitions)
        self._expire()

    def _expire(self) -> None:
        self._isOver = True
        if self._cancels:
            self._end()

    def _gathered(self) -> None:
        self._moved(None)

    def _moved(self, error: object) -> None:
        if self._isEnded or not self._cancels:
            return
        self._waitCount += 1
        self._stopWaiting()
        for read in self._reads:  # there may be more now
            if error is not None and read.partition is not None and not read.isFollowed:
                if batchLog(read.partition).isFollowing:
                    read.error = self._unavailable(*read.key)
            releaseSlices((read.slice,))
            read.slice = EMPTY_SLICE
        self._size = 0
        if self._readNow():
            if self._mayWait():
                self._wait()
            else:
                self._end()
        else:
            self._readLater()

    def _newsCame(self, key: tuple[str | bytes, int]) -> None:
        """
        A partition of a replica's session has news, one of those that are read or another. They
        end the wait as in a request without a session; a later log start does, too, since a
        deletion waits for the replicas.
        """
        asked = self._context.find(key)
        if self._isEnded or not self._cancels or asked is None:
            return
        topicId, index = key
        found = self._topics.findById(topicId, index) if isinstance(topicId, bytes) else None
        isLater = False
        if found is not None and not found.log.isOffline:
            isLater = -1 < asked.toldStart < found.log.logStartOffset
            hasMore = found.log.writtenOffset > asked.wanted.fetchOffset
            if not (isLater or hasMore or self._owner.hasSelector):
                return
        self._reads += [self._find(each) for each in self._context.addNews()]
        if isLater:
            self._end()
            return
        for read in self._reads:
            if read.error is None and read.partition is not None:
                log = batchLog(read.partition)
                if log.isFollowing or log.isOffline:
                    read.error = self._unavailable(*read.key)
        self._moved(None)

    def _stopWaiting(self) -> None:
        cancels, self._cancels = self._cancels, []
        for cancel in cancels:
            cancel()

    # -- the end

    def _end(self) -> None:
        """Never raises, since a mark that moves has called it: others wait for that mark, too."""
        if self._isEnded:
            return
        self._isEnded = True
        self._stopWaiting()
        if self._key:
            self._purgatory.cancel(self._key)
            self._state.fetches.pop(self._key, None)
            self._owner.waiting.pop(self._key, None)
        assert self._done is not None
        try:
            response = self._response()
        except Exception:
            releaseSlices([read.slice for read in self._reads])
            self._done.errback()
        else:
            self._done.callback(response)

    def _response(self) -> list[ResponsePart]:
        throttleMs = 0
        if self._owner.quotas is not None and not self._isReplica:
            throttleMs = self._owner.quotas.recordFetch(self._size, self._header, self._state)
        if throttleMs:  # the client must wait, and gets nothing now
            outcome, results = self._context.throttled(), [FetchResult()] * len(self._reads)
        else:
            results = [read.result(self._request.replicaId) for read in self._reads]
            outcome = self._context.finish(results)
        sent = [(self._reads[place], results[place]) for place in outcome.sent]
        sent.sort(key=lambda each: each[0].partition is not None)  # as Apache's
        for read, result in zip(self._reads, results, strict=True):
            if outcome.errorCode or not result.size:
                releaseSlices((read.slice,))
        topics = [list(group) for _, group in groupby(sent, lambda each: each[0].key[0])]
        writer = FetchResponseWriter(
            self._header.apiVersion,
            self._header.correlationId,
            len(topics),
            throttleMs,
            errorCode=outcome.errorCode,
            sessionId=outcome.sessionId,
        )
        for partitions in topics:
            topic = partitions[0][0].key[0]
            name, topicId = ("", topic) if isinstance(topic, bytes) else (topic, ZERO_UUID)
            writer.topic(name, topicId, len(partitions))
            for read, result in partitions:
                self._putPartition(writer, read, result)
        return writer.finish(self._leaders([read for read, _ in sent]))

    def _leaders(self, reads: list[_Read]) -> list[Any]:
        """The brokers that lead instead, for clients that want to know (KIP-951)."""
        found = {read.leader[0] for read in reads if read.leader is not None}
        if not found or self._header.apiVersion < LEADER_VERSION:
            return []
        made = messages.FetchResponse.NodeEndpoint
        nodes = self._owner.nodes(self._state)
        return [made(**nodes[each]._asdict()) for each in sorted(found) if each in nodes]

    def _putPartition(self, writer: FetchResponseWriter, read: _Read, result: FetchResult) -> None:
        index = read.wanted.partition
        if result.errorCode or read.partition is None:
            aborted: list[tuple[int, int]] | None = [] if read.partition is None else None
            leader = read.leader if self._header.apiVersion >= LEADER_VERSION else None
            writer.partition(
                index,
                errorCode=result.errorCode,
                logStartOffset=self._startFor(read, result.errorCode),
                abortedTransactions=aborted,
                currentLeader=leader,
            )
            return
        if result.size:
            topic = read.partition.topicPartition.topic
            if not self._isReplica:
                self._counters.topic(topic).fetchedSize += result.size
            elif self._owner.replicas is not None:
                self._owner.replicas.onReplicaRead(read.partition, result.size)
        if self._isReplica:
            read.partition.sentWatermarks[self._request.replicaId] = result.highWatermark
        writer.partition(
            index,
            read.slice if result.size else b"",
            highWatermark=result.highWatermark,
            lastStableOffset=result.lastStableOffset,
            logStartOffset=result.logStartOffset,
            abortedTransactions=self._aborted(read) if self._isCommitted else None,
            preferredReadReplica=result.preferredReadReplica,
            divergingEpoch=result.divergingEpoch,
        )

    def _startFor(self, read: _Read, errorCode: int) -> int:
        """A follower out of range is told the log start, where it may have to begin anew."""
        isTold = self._isReplica and errorCode == ErrorCode.OFFSET_OUT_OF_RANGE
        return read.partition.log.logStartOffset if isTold and read.partition else -1

    @property
    def _isCommitted(self) -> bool:
        """Whether the client is a consumer that reads committed records only."""
        return self._request.isolationLevel == _READ_COMMITTED and not self._isReplica

    @staticmethod
    def _aborted(read: _Read) -> list[tuple[int, int]]:
        if not read.slice.size or read.partition is None:
            return []
        found = batchLog(read.partition).abortedFrom(read.wanted.fetchOffset)
        both = dict.fromkeys((*read.aborted, *found))  # of then, and of now
        return [(each.producerId, each.firstOffset) for each in both]
