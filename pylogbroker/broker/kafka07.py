"""
The protocol handler of Kafka 0.7: its requests and their answers on the wire (spec-0.7
wire-protocol §8, §9). A module of its own, since each protocol has one.

 - A produce request has no answer. A set that is too large is dropped; every other refusal closes
 the connection, the only sign for a producer.
 - A fetch is answered with a code, usually -1, where the protocol has none.
 - An offsets request cannot be refused: its connection is closed, also when earlier produce
 requests of the connection were lost or dropped (L{UnconfirmedPartitions}).
 - An unreadable request closes the connection.

Only in this dialect: partition -1 of a produce request means any partition; a produce request
creates its partition; a missing partition is empty; a fetch or offsets request waits for a flush
that is due by count. (0.7.2 flushes inside the produce request, so clients find what they have just
sent; here the flush is in the background, and the reader waits. Neither waits for a flush that is
due by time.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.server import Broker
from pylogbroker.errors import (
    NO_ERROR,
    InvalidRequestValueError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    RemoteUnknownError,
    UnknownPartitionError,
)
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.sendfile import ResponsePart, releaseSlices
from pylogbroker.protocol.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    ProduceRuns,
    Request,
    RequestDecoder,
)
from pylogbroker.protocol.kafka07.responses import (
    SET_SIZE_MAX,
    encodeOffsets,
    fetchHeader,
    multiFetchHeader,
)
from pylogbroker.types import EARLIEST, LATEST, RANDOM_PARTITION, TopicPartition

REQUEST_LOG = "pylogbroker.requests"
"""Namespace of the events that log requests, as 0.7.2's C{kafka.request.logger}."""

PARTITION_COUNT_MAX = 64
"""Partitions that are recorded for a connection, see L{UnconfirmedPartitions}."""

_REQUEST_LINES: dict[type, str] = {
    Produce: "PRODUCE {topic!r} {partition}: {size} bytes, requests: {requestCount}",
    Fetch: "FETCH {topic!r} {partition} from {offset}: at most {sizeMax} bytes",
    Offsets: "OFFSETS {topic!r} {partition} before {time}: at most {countMax}",
}

Answer = list[ResponsePart] | None
"""Parts to send, or no answer."""


class UnconfirmedPartitions:
    """
    The partitions to which one connection has produced since its last answer to an OFFSETS request.

    A producer takes such an answer as proof that the broker has all earlier messages of the
    connection. A disk may fail or be full while accepted messages are still in memory, and this
    protocol cannot tell. Therefore the answer waits, or never comes
    (L{pylogbroker.broker.logmanager.LogManager.awaitWritten}).

    We record at most L{PARTITION_COUNT_MAX} partitions per connection. A connection that exceeds
    the limit counts as having produced to every partition. A request to a failed partition closes
    its connection, so only later failures matter.

    We also record the drop of a message that was too large. 0.7.2 still answers the next OFFSETS
    request, so the producer wrongly believes the message was stored (spec-0.7 wire-protocol §11).
    We never answer OFFSETS on that connection again. Clients of 0.7 do not notice: producers do not
    send OFFSETS, and consumers have their own connections (spec-0.7 gotchas §3).

    Rejected: closing all connections when a partition fails. It is as safe, but all producers would
    resend messages that are in no danger.

    @ivar failedBefore: failed partitions of the broker before the first message.
    @ivar dropped: why a message was first dropped; L{None}: none was.
    """

    __slots__ = ("_partitions", "dropped", "failedBefore")

    def __init__(self) -> None:
        # Most of many thousand connections produce nothing: no set for them.
        self._partitions: set[tuple[str, int]] | None = None
        self.failedBefore = 0
        self.dropped: str | None = None

    def record(self, topic: str, partition: int, failedCount: Callable[[], int]) -> None:
        """
        @param partition: may be L{RANDOM_PARTITION}.
        @param failedCount: gives the number of failed partitions; called for the first message.
        """
        partitions = self._partitions
        if partitions is None:
            self._partitions = {(topic, partition)}
            self.failedBefore = failedCount()
        elif len(partitions) < PARTITION_COUNT_MAX:
            partitions.add((topic, partition))

    def markDropped(self, reason: str) -> None:
        """The connection stays unacknowledged for good."""
        self.dropped = self.dropped or reason

    def mayInclude(self, topicPartition: TopicPartition) -> bool:
        """Whether messages may have gone to a partition."""
        partitions = self._partitions
        if partitions is None:
            return False
        return (
            len(partitions) >= PARTITION_COUNT_MAX
            or topicPartition in partitions
            or (topicPartition.topic, RANDOM_PARTITION) in partitions
        )

    def clear(self) -> None:
        if self._partitions:
            self._partitions = None


def codeFor(error: PylogbrokerError) -> int:
    """The code that answers a fetch."""
    if isinstance(error, OffsetOutOfRangeError):
        return RemoteOffsetOutOfRangeError.code
    if isinstance(error, PartitionOutOfRangeError):
        return RemotePartitionError.code
    return RemoteUnknownError.code


def _fitting(fetch: Fetch) -> Fetch:
    return fetch if fetch.sizeMax <= SET_SIZE_MAX else fetch._replace(sizeMax=SET_SIZE_MAX)


class Kafka07Protocol:
    """
    Handles the requests of all connections that speak Kafka 0.7
    (L{pylogbroker.broker.connection.IProtocolHandler}).
    """

    name = "the protocol of Kafka 0.7"
    slotCountMax = 1
    allowsHalfClose = True
    endsIdle = False  # a producer would lose the next message that it sends

    def __init__(
        self,
        broker: Broker,
        requestSizeMax: int,
        counters: BrokerCounters,
        report: Callable[[str, PylogbrokerError], None],
        random: Random,
        seconds: Callable[[], float] = float,
        requestLog: Logger | None = None,
    ) -> None:
        """
        @param report: called with (sentence, error) for what clients do not learn: drops, and
            failures behind code -1.
        @param random: chooses partitions.
        @param seconds: a clock that times requests.
        @param requestLog: logs every request; costs more than the requests do.
        """
        self._broker = broker
        self._tryProduce = broker.tryProduce
        self._failedCount = broker.failedPartitionCount
        self._seconds = seconds
        self._requestSizeMax = requestSizeMax
        self._counters = counters
        self._runs: dict[bytes, Any] = {}
        self._report = report
        self._random = random
        self._requestLog = requestLog

    def newDecoder(self) -> RequestDecoder:
        return RequestDecoder(self._requestSizeMax, self._runs)

    def newState(self, transport: Any) -> UnconfirmedPartitions:
        return UnconfirmedPartitions()

    def handle(
        self, request: Request, unacked: UnconfirmedPartitions
    ) -> Any:  # Answer | Deferred[Answer]; Deferreds are invariant
        """
        @return: its answer, now or later.
        @raise PylogbrokerError: the connection must be closed; from the Deferred, too.
        """
        if self._requestLog is not None:
            self._logRequest(self._requestLog, request)
        counters = self._counters.requests
        started = self._seconds()
        if isinstance(request, Produce | ProduceRuns):
            later = self._produceRuns(
                (request,) if isinstance(request, Produce) else request.produces, unacked
            )
            if later is not None:
                return self._timed(later, started, counters.produced)
            took = self._seconds() - started  # as C{produced} does, without another call
            counters.produceSeconds += took
            if took > counters.longestProduceSeconds:
                counters.longestProduceSeconds = took
            return None
        if isinstance(request, Fetch):
            counters.fetchCount += 1
            return self._timed(self._fetch(*_fitting(request)), started, counters.fetched)
        if isinstance(request, MultiFetch):
            counters.fetchCount += 1
            return self._timed(
                Deferred.fromCoroutine(self._multiFetch(request)), started, counters.fetched
            )
        if isinstance(request, MultiProduce):
            counters.produceCount += 1
            return self._timed(
                Deferred.fromCoroutine(self._multiProduce(request, unacked)),
                started,
                counters.produced,
            )
        assert isinstance(request, Offsets)
        counters.offsetsCount += 1
        return Deferred.fromCoroutine(self._offsets(request, unacked))

    def _timed(self, answer: Any, started: float, took: Callable[[float], None]) -> Any:
        """Count the time of a request. As in 0.7, not if it fails."""
        if not isinstance(answer, Deferred):
            took(self._seconds() - started)
            return answer

        def over(result: Any) -> Any:
            took(self._seconds() - started)
            return result

        return answer.addCallback(over)

    def mustAuthenticate(self, state: UnconfirmedPartitions) -> bool:
        """The certificate is enough."""
        return False

    def keepsFrame(self, request: Request) -> bool:
        """All do: produced records are parts of it, and the waits of others are short."""
        return True

    def isThrottled(self, state: UnconfirmedPartitions, released: Callable[[], object]) -> bool:
        """There are no quotas."""
        return False

    def connectionLost(self, state: UnconfirmedPartitions) -> None:
        """Held requests are handled all the same; their waits are short."""

    def describe(self, request: Request) -> tuple[str, TopicPartition | None]:
        """
        A request for people.

        @return: C{"produce"}, C{"fetch"} or C{"offsets"}, and its first partition.
        """
        kind, parts = _parts(request)
        first = next(iter(parts), None)
        return kind, None if first is None else TopicPartition(first.topic, first.partition)

    def _logRequest(self, log: Logger, request: Request) -> None:
        _kind, parts = _parts(request)
        for part in parts:
            fields = part._asdict()
            if isinstance(part, Produce):
                sets = fields.pop("sets")
                fields.update(requestCount=len(sets), size=sum(map(len, sets)))
            log.info(_REQUEST_LINES[type(part)], partCount=len(parts), **fields)

    # -- producing

    def _produceNow(self, request: Produce, unacked: UnconfirmedPartitions) -> bool:
        topic, partition, sets = request
        unacked.record(topic, partition, self._failedCount)
        try:
            return self._tryProduce(topic, partition, sets) is not None
        except PylogbrokerError as error:
            self._refuseProduce(error, unacked)
            return True

    async def _produceEach(self, request: Produce, unacked: UnconfirmedPartitions) -> None:
        topic, partition, sets = request
        for data in sets:
            try:
                chosen = partition
                if partition == RANDOM_PARTITION:
                    chosen = self._random.randrange(self._broker.partitionCount(topic))
                await self._broker.produce(topic, chosen, data, True)
            except PylogbrokerError as error:
                self._refuseProduce(error, unacked)

    def _refuseProduce(self, error: PylogbrokerError, unacked: UnconfirmedPartitions) -> None:
        """Returns to go on with the next set, or raises to close the connection."""
        if not isinstance(error, MessageTooLargeError):
            raise error
        unacked.markDropped(str(error))
        self._report(
            "A produce request was dropped, as 0.7 does without telling the producer", error
        )

    def _produceRuns(
        self, produces: Sequence[Produce], unacked: UnconfirmedPartitions
    ) -> Deferred[None] | None:
        """
        Produce to several partitions, if that can be done at once. A refusal of one does not keep
        the sets of the others from the log: they may have been sent before the refused one.

        @return: L{None}: it is done; else when it is.
        @raise PylogbrokerError: the first refusal; from the Deferred, too.
        """
        later: list[Produce] = []
        refusal: PylogbrokerError | None = None
        for produce in produces:
            self._counters.requests.produceCount += len(produce.sets)
            try:
                if not self._produceNow(produce, unacked):
                    later.append(produce)
            except PylogbrokerError as error:
                refusal = refusal or error
        if later:
            return Deferred.fromCoroutine(self._produceLater(later, refusal, unacked))
        if refusal is not None:
            raise refusal
        return None

    async def _produceLater(
        self,
        produces: Sequence[Produce],
        refusal: PylogbrokerError | None,
        unacked: UnconfirmedPartitions,
    ) -> None:
        for produce in produces:
            try:
                await self._produceEach(produce, unacked)
            except PylogbrokerError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    async def _multiProduce(self, request: MultiProduce, unacked: UnconfirmedPartitions) -> None:
        for produce in request.produces:
            if not self._produceNow(produce, unacked):
                await self._produceEach(produce, unacked)

    # -- fetching

    def _fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> Answer | Deferred[Answer]:
        try:
            found = self._broker.fetch(topic, partition, offset, sizeMax, True)
        except PylogbrokerError as error:
            return self._fetchAnswer(*self._refuseFetch(topic, error))
        if isinstance(found, Deferred):
            answer = found.addCallbacks(
                self._found, self._notFound, callbackArgs=(topic,), errbackArgs=(topic,)
            )
            return answer.addCallback(lambda both: self._fetchAnswer(*both))
        return self._fetchAnswer(*self._found(found, topic))

    def _fetchAnswer(self, code: int, found: Slice) -> list[ResponsePart]:
        header = fetchHeader(code, found.size)
        return [header, found] if found.size else [header]

    def _found(self, found: Slice, topic: str) -> tuple[int, Slice]:
        if found.size:
            self._counters.topic(topic).fetchedSize += found.size
        else:
            releaseSlices((found,))
        return NO_ERROR, found

    def _notFound(self, failure: Failure, topic: str) -> tuple[int, Slice]:
        failure.trap(PylogbrokerError)
        return self._refuseFetch(topic, failure.value)  # type: ignore[arg-type]

    def _refuseFetch(self, topic: str, error: PylogbrokerError) -> tuple[int, Slice]:
        if isinstance(error, UnknownPartitionError):
            return NO_ERROR, EMPTY_SLICE
        self._counters.refused(topic, self._broker.exists(topic)).failedFetchCount += 1
        if isinstance(error, InvalidRequestValueError):
            raise error
        code = codeFor(error)
        if code == RemoteUnknownError.code:
            self._report("A fetch was answered with code -1", error)
        return code, EMPTY_SLICE

    async def _multiFetch(self, request: MultiFetch) -> list[ResponsePart]:
        parts: list[tuple[int, Slice]] = []
        try:
            for fetch in request.fetches:
                parts.append(await self._fetchPart(fetch))
            headers = [multiFetchHeader([found.size for _code, found in parts])]
        except PylogbrokerError:
            releaseSlices([found for _code, found in parts])
            raise
        pieces: list[ResponsePart] = []
        for code, found in parts:
            headers.append(fetchHeader(code, found.size))
            if found.size:  # headers of empty sets leave together with the next set that is not
                pieces += (b"".join(headers), found)
                headers.clear()
        return [*pieces, b"".join(headers)] if headers else pieces

    async def _fetchPart(self, fetch: Fetch) -> tuple[int, Slice]:
        try:
            found = self._broker.fetch(*_fitting(fetch), True)
            if isinstance(found, Deferred):
                found = await found
        except PylogbrokerError as error:
            return self._refuseFetch(fetch.topic, error)
        return self._found(found, fetch.topic)

    # -- offsets

    async def _offsets(
        self, request: Offsets, unacked: UnconfirmedPartitions
    ) -> list[ResponsePart]:
        if unacked.dropped is not None:
            raise MessageTooLargeError(
                "the client asked for proof of what it had sent, "
                f"and some of that was dropped: {unacked.dropped}"
            )
        await self._broker.awaitWritten(unacked.mayInclude, unacked.failedBefore)
        offsets = await offsetsBefore(self._broker, request)
        unacked.clear()
        return [encodeOffsets(offsets)]

    def sniff(self, greeting: bytes) -> str | None:
        return sniff(greeting)


async def offsetsBefore(broker: Broker, request: Offsets) -> list[int]:
    """The offsets that a request is answered with. A missing partition is empty."""
    try:
        return await broker.offsets(*request, True)
    except UnknownPartitionError:
        return [0] if request.time in (LATEST, EARLIEST) else []


def _parts(request: Request) -> tuple[str, Sequence[Produce | Fetch | Offsets]]:
    if isinstance(request, MultiProduce | ProduceRuns):
        return "produce", request.produces
    if isinstance(request, MultiFetch):
        return "fetch", request.fetches
    if isinstance(request, Produce):
        return "produce", (request,)
    return ("fetch" if isinstance(request, Fetch) else "offsets"), (request,)


# -- clients of other protocols --------------------------------------------------------------------

_KAFKA_HEAD = struct.Struct(">ihhih")
_KAFKA_KEY_MAX = 100
_KAFKA_VERSION_MAX = 20
_CORRELATION_MAX = 1 << 24
_OUR_KEY_MAX = 4

_FIRST_WORDS = (
    (
        (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT "),
        "HTTP",
    ),
    ((b"PRI * HTTP/2",), "HTTP/2"),
    ((b"\x16\x03",), "TLS"),
    ((b"SSH-",), "SSH"),
    ((b"*1\r\n", b"*2\r\n", b"*3\r\n", b"PING"), "Redis"),
    ((b"CONNECT\n", b"STOMP\n"), "STOMP"),
    ((b"AMQP",), "AMQP"),
    ((b"ruok", b"stat", b"srvr"), "ZooKeeper's four-letter words"),
)


def sniff(greeting: bytes) -> str | None:
    """
    The likely protocol of a client whose first request was refused: a guess for the log.

    @param greeting: its first bytes, some dozens of them.
    """
    for words, name in _FIRST_WORDS:
        if greeting.startswith(words):
            return name
    if _looksLikeKafka(greeting):
        return "the protocol of Kafka 0.8 or later"
    return None


def _looksLikeKafka(greeting: bytes) -> bool:
    """
    Size, API key, API version, correlation id, then a printable client id, or none. A broken 0.7
    request must not match: Kafka's correlation id, where 0.7 has the topic, counts up from 0; and a
    partition reads as an empty client id.
    """
    if len(greeting) < _KAFKA_HEAD.size:
        return False
    size, key, version, correlation, idSize = _KAFKA_HEAD.unpack_from(greeting)
    if key <= _OUR_KEY_MAX and idSize < 1:
        return False
    name = greeting[_KAFKA_HEAD.size : _KAFKA_HEAD.size + max(idSize, 0)]
    return (
        _KAFKA_HEAD.size - 4 <= size < 1 << 20
        and 0 <= key <= _KAFKA_KEY_MAX
        and 0 <= version <= _KAFKA_VERSION_MAX
        and 0 <= correlation < _CORRELATION_MAX
        and -1 <= idSize <= min(size, 250)
        and all(32 <= byte < 127 for byte in name)
    )
