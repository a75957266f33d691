"""
Incremental fetch sessions (KIP-227): a client names all of its partitions once, and then only what
changes; the responses leave out partitions without news. A module of its own, since it decides only
what is read and what is sent, and reads and sends nothing.

A request without a session (epoch 0) creates one when it is answered, if the cache has room. The
epoch of the next requests counts up from 1, and after the largest number from 1 again. Epoch -1
ends a session, and none begins.

A session belongs to no connection, and is not removed with one. A full cache gives up the session
that was not used for the longest time, if that is longer than two minutes; or else the one with the
fewest partitions that is older than two minutes, if the new one has more. Without room a client is
told session 0, and goes on to name all of its partitions.

B{Replicas} have thousands of partitions without news. A replica's session knows which have some
(L{FetchSessionCache.tell}), and only those, and those that the request names, are looked at. There
is one such session for each other broker, beside those of clients; a new one replaces it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.fetch import FetchPartition, FetchRequest
from pylogbroker.replication.replicaselector import NO_REPLICA

EVICTION_SECONDS = 120.0
NAME_LENGTH_MAX = 249
"""Characters of a topic's name. No topic has a longer one, so such a partition is in no session."""

PARTITION_COUNT_MAX = 250_000
"""Of all sessions together; Kafka has no such limit. One takes a few hundred bytes."""

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = SESSION_ID_MAX = 2**31 - 1

_TOPIC_ID_VERSION = 13
_NO_MARK = -1

PartitionKey = tuple[str | bytes, int]
"""A topic's id, or in requests before version 13 its name; and the partition's number."""


class FetchResult(NamedTuple):
    """
    What the broker has read of a partition; with an error, all marks are -1.

    @ivar size: bytes of records.
    @ivar divergingEpoch: epoch and end offset, if the reader's log is not this one's up to where it
        reads.
    @ivar preferredReadReplica: the broker from which to read instead (KIP-392); -1: this one.
    @ivar isBehind: whether a replica is not in sync, or there are records that it is not given with
        this response.
    """

    size: int = 0
    errorCode: int = 0
    highWatermark: int = _NO_MARK
    lastStableOffset: int = _NO_MARK
    logStartOffset: int = _NO_MARK
    divergingEpoch: tuple[int, int] | None = None
    preferredReadReplica: int = NO_REPLICA
    isBehind: bool = False


class RequestedPartition:
    """
    A partition that a client reads; in a session, together with what the client was told last.

    @ivar name: the topic's; L{None}: the broker knows no topic with the id.
    @ivar wanted: as the client has asked for it last.
    """

    __slots__ = ("_told", "key", "name", "wanted")

    def __init__(self, key: PartitionKey, name: str | None, wanted: FetchPartition) -> None:
        self.key = key
        self.name = name
        self.wanted = wanted
        self._told = (_NO_MARK, _NO_MARK, _NO_MARK)

    def tell(self, result: FetchResult) -> bool:
        """
        Remember what the client is told.

        @return: whether it is news: records, an error, an epoch that diverges, another replica to
            read from, or another mark.
        """
        marks = result[2:5]
        isNews = (
            result.size > 0
            or result.errorCode != 0
            or result.divergingEpoch is not None
            or result.preferredReadReplica != NO_REPLICA
            or marks != self._told
        )
        # After an error, the marks of a partition that is well again are news.
        self._told = marks if not result.errorCode else (_NO_MARK, _NO_MARK, _NO_MARK)
        return isNews

    @property
    def toldStart(self) -> int:
        """The log start that the client was told last; -1: none."""
        return self._told[2]

    def forget(self) -> None:
        """What the client was told last is news again."""
        self._told = (_NO_MARK, _NO_MARK, _NO_MARK)


class FetchOutcome(NamedTuple):
    """
    What a response says.

    @ivar sent: the places of the partitions that it has, among those that were read.
    """

    sessionId: int
    errorCode: int
    sent: Sequence[int]


class FetchContext:
    """
    One request: what to read for it, and then what to send. This one is without a session.

    @ivar partitions: to be read, in this order. They may change while the request waits.
    """

    __slots__ = ("partitions",)

    def __init__(self, partitions: list[RequestedPartition]) -> None:
        self.partitions = partitions

    @property
    def isForNews(self) -> bool:
        """
        Whether further partitions may come to those to be read while the request waits:
        L{whenNews} tells.
        """
        return False

    def whenNews(self, call: Callable[[PartitionKey], object]) -> Callable[[], object]:
        """
        Call a function, perhaps several times, when a partition of the session has news.

        @return: what ends the calls.
        """
        raise NotImplementedError

    def find(self, key: PartitionKey) -> RequestedPartition | None:
        """A partition of a replica's session."""
        return None

    def addNews(self) -> list[RequestedPartition]:
        """The partitions with news that C{partitions} did not have; from now on it has them."""
        return []

    def finish(self, results: Sequence[FetchResult]) -> FetchOutcome:
        """
        Decide what to send; to be called once, when the response is made.

        @param results: of each of C{partitions}.
        """
        return FetchOutcome(NO_SESSION, 0, range(len(results)))

    def throttled(self) -> FetchOutcome:
        """What to send to a client that must wait instead; C{finish} is not called then."""
        return FetchOutcome(NO_SESSION, 0, ())


class _FullFetch(FetchContext):
    """All partitions are sent, and a session begins."""

    __slots__ = ("_cache", "_replica", "_usesTopicIds")

    def __init__(
        self,
        partitions: list[RequestedPartition],
        cache: FetchSessionCache,
        usesTopicIds: bool,
        replica: ReplicaReader | None,
    ) -> None:
        super().__init__(partitions)
        self._cache = cache
        self._usesTopicIds = usesTopicIds
        self._replica = replica

    def finish(self, results: Sequence[FetchResult]) -> FetchOutcome:
        for partition, result in zip(self.partitions, results, strict=True):
            partition.tell(result)
        sessionId = NO_SESSION
        if _areKeepable(self.partitions):
            news = [
                partition.key
                for partition, result in zip(self.partitions, results, strict=True)
                if _hasMore(result)
            ]
            sessionId = self._cache.create(self.partitions, self._usesTopicIds, self._replica, news)
        return FetchOutcome(sessionId, 0, range(len(results)))


class _IncrementalFetch(FetchContext):
    """Partitions with news are sent; those with records are read last the next time."""

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: _FetchSession) -> None:
        super().__init__(list(session.partitions.values()))
        self._session = session
        self._epoch = session.epoch

    def finish(self, results: Sequence[FetchResult]) -> FetchOutcome:
        session = self._session
        if session.epoch != self._epoch:
            # The client has sent another request of the session, and does not wait for this one.
            return FetchOutcome(session.sessionId, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        sent = []
        for place, (partition, result) in enumerate(zip(self.partitions, results, strict=True)):
            if partition.tell(result):
                sent.append(place)
                if result.size:
                    session.partitions[partition.key] = session.partitions.pop(partition.key)
        return FetchOutcome(session.sessionId, 0, sent)

    def throttled(self) -> FetchOutcome:
        session = self._session
        isOther = session.epoch != self._epoch
        code = ErrorCode.INVALID_FETCH_SESSION_EPOCH if isOther else ErrorCode.NONE
        return FetchOutcome(session.sessionId, code, ())


class _ReplicaFetch(FetchContext):
    """
    Partitions with news are read, and sent. Those that are read completely have no news then.
    """

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: _FetchSession) -> None:
        known = session.partitions
        super().__init__([known[key] for key in session.news])
        self._session = session
        self._epoch = session.epoch

    @property
    def isForNews(self) -> bool:
        return True

    def find(self, key: PartitionKey) -> RequestedPartition | None:
        return self._session.partitions.get(key)

    def whenNews(self, call: Callable[[PartitionKey], object]) -> Callable[[], object]:
        session = self._session
        session.onNews = call

        def end() -> None:
            if session.onNews is call:
                session.onNews = None

        return end

    def addNews(self) -> list[RequestedPartition]:
        session, read = self._session, {each.key for each in self.partitions}
        added = [session.partitions[key] for key in session.news if key not in read]
        self.partitions += added
        return added

    def finish(self, results: Sequence[FetchResult]) -> FetchOutcome:
        session = self._session
        if session.epoch != self._epoch:
            return FetchOutcome(session.sessionId, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        sent = []
        for place, (partition, result) in enumerate(zip(self.partitions, results, strict=True)):
            if partition.tell(result):
                sent.append(place)
            if not _hasMore(result):
                session.news.pop(partition.key, None)
        return FetchOutcome(session.sessionId, 0, sent)


class ReplicaReader(NamedTuple):
    """
    Another broker that reads as a replica.

    @ivar brokerEpoch: of its registration; -1: it does not say.
    """

    brokerId: int
    brokerEpoch: int


class _FetchSession:
    """
    @ivar epoch: of the next request.
    @ivar size: the number of partitions, as of the last request.
    @ivar isOld: whether it was older than L{EVICTION_SECONDS} at its last request.
    @ivar replica: whose session it is; L{None}: a client's.
    @ivar news: of a replica's session: the partitions to look at, in the order in which they are
        read.
    @ivar onNews: called when a partition has news.
    """

    __slots__ = (
        "createdAt",
        "epoch",
        "isOld",
        "news",
        "onNews",
        "partitions",
        "replica",
        "sessionId",
        "size",
        "usedAt",
        "usesTopicIds",
    )

    def __init__(
        self,
        sessionId: int,
        partitions: dict[PartitionKey, RequestedPartition],
        usesTopicIds: bool,
        now: float,
        replica: ReplicaReader | None = None,
        news: Iterable[PartitionKey] = (),
    ) -> None:
        self.replica = replica
        self.news = dict.fromkeys(news)
        self.onNews: Callable[[PartitionKey], object] | None = None
        self.sessionId = sessionId
        self.partitions = partitions
        self.usesTopicIds = usesTopicIds
        self.createdAt = self.usedAt = now
        self.epoch = 1
        self.size = len(partitions)
        self.isOld = False

    @property
    def evictionKey(self) -> tuple[int, int]:
        return self.size, self.sessionId


class FetchSessionCache:
    """The sessions of a broker; the module states its rules."""

    def __init__(
        self,
        slotCount: int,
        seconds: Callable[[], float],
        random: Random,
        partitionCountMax: int = PARTITION_COUNT_MAX,
    ) -> None:
        """
        @param slotCount: the largest number of sessions; 0: there are none.
        @param seconds: a clock.
        @param random: for session ids, which must be hard to guess.
        @param partitionCountMax: of all sessions together.
        """
        self._slotCount = slotCount
        self._seconds = seconds
        self._random = random
        self._partitionCountMax = partitionCountMax
        self._partitionCount = 0
        self._sessions: dict[int, _FetchSession] = {}  # the least recently used first
        self._evictable: list[tuple[int, int]] = []  # sizes and ids of old sessions, in order
        self._replicas: dict[int, _FetchSession] = {}  # by broker; none of C{_sessions}

    def __len__(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    @property
    def partitionCount(self) -> int:
        """The partitions of all sessions."""
        return self._partitionCount

    def tell(self, key: PartitionKey) -> None:
        """
        A partition may have news for replicas.

        @param key: with the topic's id.
        """
        for session in self._replicas.values():
            if key in session.partitions:
                session.news[key] = None
                if session.onNews is not None:
                    session.onNews(key)

    def begin(
        self,
        request: FetchRequest,
        version: int,
        nameOf: Callable[[bytes], str | None],
        replica: ReplicaReader | None = None,
    ) -> FetchContext:
        """
        Take a request: end the session that it ends, or change the one that it uses.

        @param nameOf: gives the name of the topic with an id.
        @param replica: who asks, a broker that is known; L{None}: a client. A broker that is not
            known yet gets no session, since a client's would cost it too much.
        @raise KafkaError: the session does not exist, or is not in the state that the client
            believes. It stays as it is.
        """
        usesTopicIds = version >= _TOPIC_ID_VERSION
        sessionId, epoch = request.sessionId, request.sessionEpoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            ended = self._sessions.get(sessionId)
            if ended is not None:
                self._remove(ended)
            partitions = list(_asked(request, usesTopicIds, nameOf).values())
            isUnknown = usesTopicIds and request.replicaId >= 0 and replica is None
            if epoch == FINAL_EPOCH or isUnknown:
                return FetchContext(partitions)
            return _FullFetch(partitions, self, usesTopicIds, replica if usesTopicIds else None)
        session = self._sessions.get(sessionId)
        if session is None and replica is not None:
            found = self._replicas.get(replica.brokerId)
            if found is not None and (found.replica, found.sessionId) == (replica, sessionId):
                session = found
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.usesTopicIds != usesTopicIds:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        asked = _asked(request, usesTopicIds, nameOf)
        session.epoch = epoch % EPOCH_MAX + 1  # a request before, which waits, is outdated
        self._change(session, asked, request, nameOf)
        if session.replica is not None:
            if len(session.partitions) > self._partitionCountMax:
                del self._replicas[session.replica.brokerId]
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return _ReplicaFetch(session)
        if not session.partitions:
            self._remove(session)
            return FetchContext(list(asked.values()))
        self._touch(session)
        if self._partitionCount > self._partitionCountMax or not _areKeepable(asked.values()):
            # The client makes a new one, for which room is looked for.
            self._remove(session)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return _IncrementalFetch(session)

    @staticmethod
    def _change(
        session: _FetchSession,
        asked: dict[PartitionKey, RequestedPartition],
        request: FetchRequest,
        nameOf: Callable[[bytes], str | None],
    ) -> None:
        known = session.partitions
        for key, new in asked.items():
            known.setdefault(key, new).wanted = new.wanted
        for topic in request.forgottenTopicsData:
            name = bytes(topic.topicId) if session.usesTopicIds else topic.topic
            for index in topic.partitions:
                known.pop((name, index), None)
                session.news.pop((name, index), None)
        looked: Iterable[RequestedPartition] = known.values()
        if session.replica is not None:
            for key in asked.keys() & known.keys():
                known[key].forget()
                session.news.pop(key, None)  # those that were waiting are read first
            session.news.update(dict.fromkeys(key for key in asked if key in known))
            looked = [known[key] for key in session.news]
        for each in looked:
            if each.name is None and isinstance(each.key[0], bytes):
                each.name = nameOf(each.key[0])

    # -- the cache

    def create(
        self,
        partitions: Sequence[RequestedPartition],
        usesTopicIds: bool,
        replica: ReplicaReader | None = None,
        news: Iterable[PartitionKey] = (),
    ) -> int:
        """
        Make a session, if there is room. For a replica there is.

        @param news: of a replica's session: the partitions that have some now.
        @return: its id; 0: there is no room.
        """
        now = self._seconds()
        if replica is None and not self._makeRoom(len(partitions), now):
            return NO_SESSION
        sessionId = NO_SESSION
        while sessionId == NO_SESSION or sessionId in self._sessions:
            sessionId = self._random.randint(1, SESSION_ID_MAX)
        byKey = {each.key: each for each in partitions}
        if replica is not None:
            self._replicas[replica.brokerId] = _FetchSession(
                sessionId, byKey, usesTopicIds, now, replica, news
            )
            return sessionId
        self._sessions[sessionId] = session = _FetchSession(sessionId, byKey, usesTopicIds, now)
        self._partitionCount += session.size
        return sessionId

    def _makeRoom(self, size: int, now: float) -> bool:
        """Returns whether there is room for a session with C{size} partitions."""
        if len(self._sessions) >= self._slotCount:
            evicted = self._findEvictable(size, now)
            if evicted is None:
                return False
            self._remove(evicted)
        while self._partitionCount + size > self._partitionCountMax:
            evicted = self._findStale(now)
            if evicted is None:
                return False
            self._remove(evicted)
        return True

    def _findStale(self, now: float) -> _FetchSession | None:
        found = next(iter(self._sessions.values()), None)
        return found if found is not None and now - found.usedAt > EVICTION_SECONDS else None

    def _findEvictable(self, size: int, now: float) -> _FetchSession | None:
        found = self._findStale(now)
        if found is None and self._evictable and self._evictable[0][0] < size:
            found = self._sessions[self._evictable[0][1]]
        return found

    def _remove(self, session: _FetchSession) -> None:
        del self._sessions[session.sessionId]
        self._partitionCount -= session.size
        if session.isOld:
            del self._evictable[bisect_left(self._evictable, session.evictionKey)]

    def _touch(self, session: _FetchSession) -> None:
        """The session is used, and its partitions may have changed."""
        self._remove(session)
        session.usedAt = now = self._seconds()
        session.size = len(session.partitions)
        session.isOld = now - session.createdAt > EVICTION_SECONDS
        self._sessions[session.sessionId] = session
        self._partitionCount += session.size
        if session.isOld:
            insort(self._evictable, session.evictionKey)


def _hasMore(result: FetchResult) -> bool:
    """
    Whether a partition is to be looked at again though nothing happens to it. Who was given records
    asks for the next ones.
    """
    isRefused = bool(result.errorCode) or result.divergingEpoch is not None
    return isRefused or result.isBehind


def _areKeepable(partitions: Iterable[RequestedPartition]) -> bool:
    return all(len(each.key[0]) <= NAME_LENGTH_MAX for each in partitions)


def _asked(
    request: FetchRequest, usesTopicIds: bool, nameOf: Callable[[bytes], str | None]
) -> dict[PartitionKey, RequestedPartition]:
    """The partitions that a request names; of those that it names twice, the last."""
    found: dict[PartitionKey, RequestedPartition] = {}
    for topic in request.topics:
        topicId = bytes(topic.topicId)
        name = nameOf(topicId) if usesTopicIds else topic.topic
        for wanted in topic.partitions:
            key = (topicId if usesTopicIds else topic.topic, wanted.partition)
            found[key] = RequestedPartition(key, name, wanted)
    return found
