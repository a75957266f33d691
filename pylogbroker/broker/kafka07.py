"""
The dialect of 2011: what outcomes become on its wire (spec-0.7 wire-protocol §8, §9), and nothing else.

 - A produce request has no answer. A set that is too large is dropped; every other refusal ends the connection, which is all that a producer can notice.
 - A fetch answers with a code. What the protocol has no code for, and that is most things, is -1.
 - An offsets request has no way to say no: its connection ends. So it does when what was produced before it on the connection could not be kept, or was
   dropped, since the answer would prove to the producer that it is there (L{pylogbroker.broker.unackedproduces}).
 - What cannot be understood ends the connection.

Answers go out in the order of the requests, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.broker.server import Broker
from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.errors import (
    NO_ERROR,
    InvalidRequestError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    RemoteUnknownError,
)
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.sendfile import ResponsePart, letGo
from pylogbroker.protocol.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    RequestDecoder,
)
from pylogbroker.protocol.kafka07.responses import (
    SET_SIZE_MAX,
    encodeOffsets,
    fetchHeader,
    multiFetchHeader,
)
from pylogbroker.types import TopicPartition

Answer = list[ResponsePart] | None
"""Pieces to send, or that there is nothing to say."""


def codeFor(error: PylogbrokerError) -> int:
    """The code that a fetch answers with."""
    if isinstance(error, OffsetOutOfRangeError):
        return RemoteOffsetOutOfRangeError.code
    if isinstance(error, PartitionOutOfRangeError):
        return RemotePartitionError.code
    return RemoteUnknownError.code


def _thatFits(fetch: Fetch) -> Fetch:
    """A fetch of no more than fits in a frame; a segment can be larger."""
    return fetch if fetch.sizeMax <= SET_SIZE_MAX else fetch._replace(sizeMax=SET_SIZE_MAX)


class Kafka07Protocol:
    """
    Understands and answers requests of Kafka 0.7; one for all connections of a broker.

    @ivar report: called with (sentence, error) for what clients are not told: drops, and failures behind code -1.
    """

    def __init__(
        self,
        broker: Broker,
        requestSizeMax: int,
        counters: BrokerCounters,
        report: Any,
        seconds: Callable[[], float] = float,
    ) -> None:
        """
        @param seconds: a clock, to see how long requests take.
        """
        self._broker = broker
        self._lostCount = broker.lostCount
        self._seconds = seconds
        self._requestSizeMax = requestSizeMax
        self._counters = counters
        self._runs: dict[bytes, Any] = {}
        self._report = report

    def newDecoder(self) -> RequestDecoder:
        """For one connection."""
        return RequestDecoder(self._requestSizeMax, self._runs)

    def carryOut(
        self, request: Request, unproven: UnackedProduces
    ) -> Any:  # Answer | Deferred[Answer]; Deferreds are invariant
        """
        Carry out a request.

        @param unproven: the connection's.
        @return: its answer, now or later.
        @raise PylogbrokerError: the connection has to end; from the Deferred, too.
        """
        counters = self._counters.requests
        begun = self._seconds()
        if isinstance(request, Produce):
            counters.produceCount += len(request.sets)
            unproven.add(request.topic, request.partition, self._lostCount)
            later = self._broker.produce(
                request.topic, request.partition, request.sets, unproven, self._refused
            )
            if later is not None:
                return self._timed(later, begun, counters.produced)
            took = (
                self._seconds() - begun
            )  # as C{produced} does, without another call: the commonest request of all
            counters.produceSeconds += took
            if took > counters.longestProduceSeconds:
                counters.longestProduceSeconds = took
            return None
        if isinstance(request, Fetch):
            counters.fetchCount += 1
            return self._timed(self._fetch(*_thatFits(request)), begun, counters.fetched)
        if isinstance(request, MultiFetch):
            counters.fetchCount += 1
            return self._timed(
                Deferred.fromCoroutine(self._multiFetch(request)), begun, counters.fetched
            )
        if isinstance(request, MultiProduce):
            counters.produceCount += 1
            return self._timed(
                Deferred.fromCoroutine(self._multiProduce(request, unproven)),
                begun,
                counters.produced,
            )
        assert isinstance(request, Offsets)
        counters.offsetsCount += 1
        return Deferred.fromCoroutine(self._offsets(request, unproven))

    def _timed(self, answer: Any, begun: float, took: Callable[[float], None]) -> Any:
        """See to it that the time of a request is counted, now or when its answer is there. One that fails is not timed, as in 0.7."""
        if not isinstance(answer, Deferred):
            took(self._seconds() - begun)
            return answer

        def over(result: Any) -> Any:
            took(self._seconds() - begun)
            return result

        return answer.addCallback(over)

    def describe(self, request: Request) -> tuple[str, TopicPartition | None]:
        """
        What a request is, for people.

        @return: C{"produce"}, C{"fetch"} or C{"offsets"}, and its partition; of a request for several, the first.
        """
        if isinstance(request, MultiProduce | MultiFetch):
            parts: Sequence[Produce | Fetch] = (
                request.produces if isinstance(request, MultiProduce) else request.fetches
            )
            kind = "produce" if isinstance(request, MultiProduce) else "fetch"
            return kind, TopicPartition(parts[0].topic, parts[0].partition) if parts else None
        kind = (
            "produce"
            if isinstance(request, Produce)
            else "fetch"
            if isinstance(request, Fetch)
            else "offsets"
        )
        return kind, TopicPartition(request.topic, request.partition)

    # -- producing

    def _refused(self, unproven: UnackedProduces, error: PylogbrokerError) -> None:
        if not isinstance(error, MessageTooLargeError):
            raise error
        unproven.drop(str(error))
        self._report(
            "A produce request was dropped, as 0.7 does without telling the producer", error
        )

    async def _multiProduce(self, request: MultiProduce, unproven: UnackedProduces) -> None:
        for produce in request.produces:
            unproven.add(produce.topic, produce.partition, self._lostCount)
            later = self._broker.produce(*produce, unproven, self._refused)
            if later is not None:
                await later

    # -- fetching

    def _fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> Answer | Deferred[Answer]:
        try:
            found = self._broker.fetch(topic, partition, offset, sizeMax)
        except PylogbrokerError as error:
            return self._fetchAnswer(*self._refuse(topic, error))
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
        else:  # perhaps of a topic that does not exist, whose name must not take a place among the counted ones
            letGo((found,))
        return NO_ERROR, found

    def _notFound(self, failure: Failure, topic: str) -> tuple[int, Slice]:
        failure.trap(PylogbrokerError)
        return self._refuse(topic, failure.value)  # type: ignore[arg-type]

    def _refuse(self, topic: str, error: PylogbrokerError) -> tuple[int, Slice]:
        self._counters.refused(topic, self._broker.exists(topic)).failedFetchCount += 1
        if isinstance(error, InvalidRequestError):
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
            letGo([found for _code, found in parts])
            raise
        pieces: list[ResponsePart] = []
        for code, found in parts:
            headers.append(fetchHeader(code, found.size))
            if found.size:  # the headers of empty sets leave together with the next one that is not
                pieces += (b"".join(headers), found)
                headers.clear()
        return [*pieces, b"".join(headers)] if headers else pieces

    async def _fetchPart(self, fetch: Fetch) -> tuple[int, Slice]:
        try:
            found = self._broker.fetch(*_thatFits(fetch))
            if isinstance(found, Deferred):
                found = await found
        except PylogbrokerError as error:
            return self._refuse(fetch.topic, error)
        return self._found(found, fetch.topic)

    # -- offsets

    async def _offsets(self, request: Offsets, unproven: UnackedProduces) -> list[ResponsePart]:
        if unproven.dropped is not None:
            raise MessageTooLargeError(
                f"it asked for proof of what it had sent, and some of that was dropped: {unproven.dropped}"
            )
        offsets = await self._broker.offsets(*request, unproven)
        unproven.clear()
        return [encodeOffsets(offsets)]
