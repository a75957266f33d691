"""
L{ClientQuotas}: holds back clients that do more than their quotas allow, as Kafka does.

A request that exceeds a quota is carried out, and its response says for how long the client is
throttled: C{throttle_time_ms}. The client should wait; if it does not, its connection is not read
until then, as by Kafka, so that what it sends waits in the kernels' buffers
(L{pylogbroker.broker.connection}). Requests that are in progress then are carried out. Two things
are not: a fetch gets no records, since they would be the excess; and a change of topics beyond the
quota is refused, where the version has that error.

B{What is measured.} Bytes of records that are produced; bytes of records that are fetched; for the
share of the processor, the time for which a request occupies the reactor when it arrives;
partitions that are created and deleted; connections of an address.

Each user, client or address that has a quota has a rate, forgotten when it was idle for
L{IDLE_MS}, or when there are L{RATE_COUNT_MAX} others that were used later. Long names are known by
their digest. While there are no quotas, requests do not come here at all (L{withQuotas}).

Brokers of the cluster that end or verify transactions are never held back: others wait for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.grouprequests import javaHost
from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.cluster.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    QuotaTable,
    SampledRate,
    TokenBucket,
)
from pylogbroker.metrics.counters import RequestCounters
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.fetch import withLongerThrottleTime
from pylogbroker.protocol.kafka.produce import withThrottleTime
from pylogbroker.protocol.kafka.requests import RequestHeader

RATE_COUNT_MAX = 10_000
IDLE_MS = 3_600_000
THROTTLE_MS_MAX = 3_600_000
"""Kafka has no such limit: a client may be throttled for days."""
_NAME_LENGTH_MAX = 64

_STRICT_VERSIONS: Mapping[ApiKey, int] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}
"""The first versions in which changes of topics beyond a quota are refused."""


class QuotaWindows(NamedTuple):
    """Over how many windows, of how many milliseconds each, something is measured."""

    windowCount: int
    windowMs: int


class _ThrottledChannel:
    """
    A connection whose requests are throttled
    (L{pylogbroker.broker.kafka.protocol.IThrottledChannel}).

    @ivar key: of the wait in the purgatory, which ends at C{dueMs}.
    """

    __slots__ = ("dueMs", "end", "key", "released")

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.dueMs = self.key = 0
        self.released: Callable[[], object] = _nothing


def _nothing() -> None:
    """No connection asks to be told."""


_BROKERS_VERSION = 4
"""From here on, AddPartitionsToTxn is a request of brokers."""


class ClientQuotas:
    """Measures what clients do; the module states the rules."""

    def __init__(
        self,
        quotas: Callable[[], Mapping[QuotaEntity, Mapping[str, float]]],
        seconds: Callable[[], float],
        purgatory: Purgatory,
        counters: RequestCounters,
        windows: QuotaWindows,
        controllerWindows: QuotaWindows,
    ) -> None:
        """
        @param quotas: gives the current ones: another mapping after each change.
        @param purgatory: tells when a client is throttled no longer.
        @param controllerWindows: of changes of topics.
        """
        self._quotas = quotas
        self._seconds = seconds
        self._purgatory = purgatory
        self._counters = counters
        self._windows = windows
        self._controllerWindows = controllerWindows
        self._seen: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._table = QuotaTable({})
        self._keys: frozenset[str] = frozenset()
        self._rates: OrderedDict[tuple[str, str, str], tuple[int, Any]] = OrderedDict()
        self._throttled: dict[ConnectionState, _ThrottledChannel] = {}
        self._isStopping = False

    # -- rates

    def _follow(self) -> QuotaTable:
        quotas = self._quotas()
        if quotas is not self._seen:
            self._seen = quotas
            self._table = QuotaTable(quotas)
            self._keys = frozenset(key for found in quotas.values() for key in found)
        return self._table

    def _rate(self, key: str, bound: float, user: str, clientId: str, nowMs: int) -> Any:
        place = key, _short(user), _short(clientId)
        _, rate = self._rates.pop(place, (0, None))
        if rate is None:
            if key == CONTROLLER_MUTATION_RATE:
                rate = TokenBucket(bound, *self._controllerWindows, nowMs)
            else:
                rate = SampledRate(bound, *self._windows)
        rate.bound = bound
        self._rates[place] = nowMs, rate
        oldest = next(iter(self._rates.values()))[0]
        while len(self._rates) > RATE_COUNT_MAX or nowMs - oldest > IDLE_MS:
            self._rates.popitem(last=False)
            oldest = next(iter(self._rates.values()))[0]
        return rate

    def _of(self, key: str, header: RequestHeader, state: ConnectionState) -> tuple[Any, int]:
        """The rate of a client, or L{None}, and the time."""
        table = self._follow()
        if key not in self._keys:
            return None, 0
        nowMs = int(self._seconds() * 1000)
        user = state.principal.partition(":")[2]
        found = table.find(key, user, header.clientId or "")
        if found is None:
            return None, nowMs
        return self._rate(key, *found, nowMs), nowMs

    def _record(
        self, key: str, amount: float, header: RequestHeader, state: ConnectionState
    ) -> int:
        """Returns how long the client is to be throttled."""
        rate, nowMs = self._of(key, header, state)
        if rate is None:
            return 0
        rate.add(amount, nowMs)
        found: int = rate.throttleMs(nowMs)
        return min(found, THROTTLE_MS_MAX)

    # -- what handlers ask

    def recordFetch(self, size: int, header: RequestHeader, state: ConnectionState) -> int:
        """
        Records are about to be sent.

        @return: the milliseconds for which the client is throttled; if not 0, they must not be
            sent.
        """
        rate, nowMs = self._of(CONSUMER_BYTE_RATE, header, state)
        if rate is None:
            return 0
        rate.add(size, nowMs)
        throttleMs: int = min(rate.throttleMs(nowMs), THROTTLE_MS_MAX)
        if throttleMs:
            rate.add(-size, nowMs)
            self.throttle(state, throttleMs)
        return throttleMs

    def fetchSizeMax(self, header: RequestHeader, state: ConnectionState, sizeMax: int) -> int:
        """
        The bytes that a client may fetch at once. As by Kafka no more than its quota allows in all
        windows: a larger response would be throttled for ever.

        @param sizeMax: without a quota.
        """
        rate, _ = self._of(CONSUMER_BYTE_RATE, header, state)
        if rate is None:
            return sizeMax
        windowCount, windowMs = self._windows
        return min(sizeMax, int(rate.bound * max(windowCount - 1, 1) * windowMs / 1000))

    def handleMutation(
        self,
        header: RequestHeader,
        state: ConnectionState,
        handle: Callable[[Callable[[int], None]], Coroutine[Any, Any, Any]],
    ) -> Deferred[Any]:
        """
        Handle a request that changes topics.

        @param handle: called with what takes a number of partitions from the quota, and raises
            L{KafkaError} if it is used up, so that nothing may be changed.
        @return: fires with what C{handle} gives, which says for how long the client is throttled.
        """
        isStrict = header.apiVersion >= _STRICT_VERSIONS[header.apiKey]
        throttles = [0]

        def take(count: int) -> None:
            bucket, nowMs = self._of(CONTROLLER_MUTATION_RATE, header, state)
            if bucket is None:
                return
            if isStrict:
                throttles.append(bucket.throttleMs(nowMs))
                if throttles[-1]:
                    raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            bucket.add(count, nowMs)
            if not isStrict:
                throttles.append(bucket.throttleMs(nowMs))

        def answered(response: Any) -> Any:
            throttleMs = min(max(throttles), THROTTLE_MS_MAX)
            if throttleMs:
                self.throttle(state, throttleMs)
                response.throttleTimeMs = throttleMs
            return response

        return Deferred.fromCoroutine(handle(take)).addCallback(answered)

    def recordConnection(self, host: str) -> int:
        """
        An address connects.

        @param host: its text.
        @return: milliseconds after which the connection is to be closed, unread; 0: it is welcome.
        """
        table = self._follow()
        if CONNECTION_CREATION_RATE not in self._keys:
            return 0
        address = javaHost(f"/{host}")[1:]
        bound = table.ofAddress(address)
        if bound is None:
            return 0
        nowMs = int(self._seconds() * 1000)
        rate = self._rate(CONNECTION_CREATION_RATE, bound, address, "", nowMs)
        rate.add(1, nowMs)
        throttleMs: int = min(rate.throttleMs(nowMs), self._windows.windowMs)
        if throttleMs:
            rate.add(-1, nowMs)
        return throttleMs

    # -- requests

    def withQuotas(self, key: ApiKey, handler: Handler) -> Handler:
        """A handler that measures, and holds back."""
        return handler if key is ApiKey.WRITE_TXN_MARKERS else partial(self._handle, handler)

    def _handle(
        self, handler: Handler, header: RequestHeader, body: Any, state: ConnectionState
    ) -> Any:
        if header.apiKey is ApiKey.ADD_PARTITIONS_TO_TXN and header.apiVersion >= _BROKERS_VERSION:
            return handler(header, body, state)
        throttleMs = 0
        self._follow()
        if header.apiKey is ApiKey.PRODUCE:
            throttleMs = self._record(PRODUCER_BYTE_RATE, _sizeOf(body), header, state)
        began = self._seconds()
        try:
            answer = handler(header, body, state)
        finally:
            if REQUEST_PERCENTAGE in self._keys:
                share = (self._seconds() - began) * 100
                found = self._record(REQUEST_PERCENTAGE, share, header, state)
                throttleMs = max(throttleMs, min(found, self._windows.windowMs))
        if not throttleMs:
            return answer
        self.throttle(state, throttleMs)
        return _told(answer, header, throttleMs)

    def throttle(self, state: ConnectionState, throttleMs: int) -> None:
        """Take no more requests of a connection; if that is so already, until the later time."""
        self._counters.throttledCount += 1
        self._counters.throttledMs += throttleMs
        if state.isLost or self._isStopping:
            return
        dueMs = int(self._seconds() * 1000) + throttleMs
        channel = self._throttled.get(state)
        if channel is None:
            state.throttled = channel = self._throttled[state] = _ThrottledChannel(
                partial(self._release, state)
            )
        elif channel.dueMs >= dueMs:
            return
        else:
            self._purgatory.cancel(channel.key)
        channel.dueMs, channel.key = dueMs, self._purgatory.wait(throttleMs, channel.end)

    def _release(self, state: ConnectionState) -> None:
        channel = self._throttled.pop(state)
        self._purgatory.cancel(channel.key)
        state.throttled = None
        channel.released()

    def endWaits(self) -> None:
        """Hold no client back any more: the broker stops."""
        self._isStopping = True
        for state in list(self._throttled):
            self._release(state)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH_MAX else sha256(name.encode()).hexdigest()


def _sizeOf(request: Any) -> int:
    return sum(
        len(part.records)
        for topic in request.topicData
        for part in topic.partitionData
        if part.records is not None
    )


def _isLater(answer: Any) -> bool:
    """Whether an answer is a function that gives it."""
    return type(answer) is not list and callable(answer)


def _told(answer: Any, header: RequestHeader, throttleMs: int) -> Any:
    """A response that says so."""
    if isinstance(answer, Deferred):
        return answer.addCallback(_told, header, throttleMs)
    if _isLater(answer):
        return lambda respond: answer(lambda found: respond(_told(found, header, throttleMs)))
    if isinstance(answer, list):
        version = header.apiVersion
        isFetch = header.apiKey is ApiKey.FETCH
        put = withLongerThrottleTime if isFetch else withThrottleTime
        return [put(answer[0], version, throttleMs), *answer[1:]]
    if answer is not None and hasattr(answer, "throttleTimeMs"):
        answer.throttleTimeMs = max(answer.throttleTimeMs, throttleMs)
    return answer
