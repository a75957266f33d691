"""
Partition 0 of a topic as the log of a registry: all records from the first on, in order, and
appending.

What must be true: no record before the current position is missing. Brokers delete old segments and
do not publish their retention. But a log whose first segments are deleted does not begin at 0, so
its start is checked before the first record is read, and every C{checkIntervalMs}. A topic that was
deleted and created again ends before the current position. L{pylogbroker.schemaregistry.registry}
checks that the first record is a registry's.

The protocol has no acknowledgement: an appended record is known to be stored when it is read. So a
record that may be lost is sent again, with the same request id, until the caller cancels. Readers
recognise repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.errors import (
    ClosedError,
    InvalidMessageSizeError,
    InvalidRegistryTopicError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    WireError,
    copyForReraise,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.types import EARLIEST, LATEST

PARTITION = 0
FETCH_SIZE = 1 << 20
FETCH_SIZE_MAX = 64 << 20


def _answer(asking: Deferred[None]) -> None:
    if not asking.called:  # it may have been cancelled
        asking.callback(None)


class TopicLog:
    """
    The log of a registry.

    @ivar position: the offset up to which the topic is read.
    @ivar problem: why the topic cannot be read now or at all; L{None}: it can.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        topic: str,
        consumer: SimpleConsumer,
        producer: SyncProducer,
        pollIntervalMs: float,
        checkIntervalMs: float,
    ) -> None:
        """
        @param consumer: of the broker; closed with this object.
        @param producer: of the broker; closed with this object.
        @param pollIntervalMs: between two fetches when nothing is new.
        @param checkIntervalMs: between two checks of the topic's start.
        """
        self.position = 0
        self.problem: PylogbrokerError | None = None
        self._clock = clock
        self._topic = topic
        self._consumer = consumer
        self._producer = producer
        self._pollMs = pollIntervalMs
        self._checkSeconds = checkIntervalMs / 1000
        self._checkAt = 0.0
        self._fetchSize = FETCH_SIZE
        self._resting: Waiters[None] = Waiters()
        self._restTimer = Timer(clock)
        self._asking: dict[Deferred[None], None] = {}
        self._ended: PylogbrokerError | None = None
        self._isClosed = False

    # -- reading

    async def follow(
        self, apply: Callable[[bytes, int], None], caughtUp: Callable[[], None]
    ) -> None:
        """
        Read all records, from the first on, and new ones as they arrive, until the log is closed.
        Failed fetches are repeated. Can be cancelled.

        @param apply: called with each payload and its offset; raises L{InvalidRegistryTopicError}
            if the log is not a registry's.
        @param caughtUp: called when the records that existed at the start are read.
        @raise InvalidRegistryTopicError: the log is not a registry's, or was truncated.
        """
        ended: PylogbrokerError = ClosedError(f"{self._topic} is no longer read")
        try:
            await self._follow(apply, caughtUp)
        except InvalidRegistryTopicError as error:
            ended = error
            raise
        finally:
            self._ended = ended
            asking, self._asking = self._asking, {}
            for each in asking:
                each.errback(copyForReraise(ended))

    async def _follow(
        self, apply: Callable[[bytes, int], None], caughtUp: Callable[[], None]
    ) -> None:
        end: int | None = None
        isCaughtUp = False
        while not self._isClosed:
            try:
                if self._clock.seconds() >= self._checkAt:
                    found = await self._checkEnds()
                    end = found if end is None else end
                asking = list(self._asking)
                isNew = await self._read(apply)
                self.problem = None
            except InvalidRegistryTopicError as error:
                self.problem = error
                raise
            except OffsetOutOfRangeError as error:
                self.problem = InvalidRegistryTopicError(
                    f"{self._topic} has nothing at {self.position}, where reading continues:"
                    f" {error}"
                )
                raise self.problem from error
            except PylogbrokerError as error:
                if str(error) != str(self.problem):
                    self._log.warn(
                        "{topic} cannot be read now; trying again: {error}",
                        topic=self._topic,
                        error=error,
                    )
                self.problem = error
                await self._rest(RETRY_INTERVAL_MS)
                continue
            if not isCaughtUp and end is not None and self.position >= end:
                isCaughtUp = True
                caughtUp()
            if isNew:
                continue
            for each in asking:
                self._asking.pop(each, None)
                self._clock.callLater(
                    0, _answer, each
                )  # not from in here: who is called may close this
            if not self._asking:
                await self._rest(self._pollMs)

    async def _checkEnds(self) -> int:
        """The end of the topic, after a check that it begins at 0 and was not created anew."""
        start, end = await self._offset(EARLIEST), await self._offset(LATEST)
        if start > 0:
            raise InvalidRegistryTopicError(
                f"{self._topic} begins at {start}, not at 0: the broker's retention has deleted"
                " schemas. Bring its directory back from a backup, and set "
                f"topic.log.retention.hours={self._topic}:2147483647 (and no size) at the broker"
            )
        if end < self.position:
            raise InvalidRegistryTopicError(
                f"{self._topic} ends at {end}, and was read up to {self.position}: it is another"
                " topic now"
            )
        self._checkAt = self._clock.seconds() + self._checkSeconds
        return end

    async def _offset(self, time: int) -> int:
        found = await self._consumer.getOffsetsBefore(self._topic, PARTITION, time, 1)
        if len(found) != 1:
            raise WireError(f"{len(found)} offsets of {self._topic} where one was asked for")
        return found[0]

    async def _read(self, apply: Callable[[bytes, int], None]) -> bool:
        """Whether there was a record."""
        start = self.position
        fetched = await self._consumer.fetch(self._topic, PARTITION, start, self._fetchSize)
        try:
            for payload, nextOffset in fetched.payloads():
                apply(payload, self.position)
                self.position = nextOffset
        except InvalidMessageSizeError:
            if len(fetched.data) < self._fetchSize or self._fetchSize >= FETCH_SIZE_MAX:
                raise
            self._fetchSize *= 2  # the record is larger than the fetch
            return True
        return self.position > start

    async def _rest(self, ms: float) -> None:
        self._restTimer.start(ms, self._wake)
        try:
            await self._resting.wait()
        finally:
            self._restTimer.stop()

    def _wake(self) -> None:
        self._resting.fire(None)

    def refresh(self) -> Deferred[None]:
        """
        Read all that is visible now.

        @return: fires when it is read, however long that takes. Fails with
            L{InvalidRegistryTopicError} or L{ClosedError} if reading has ended. Can be cancelled.
        """
        if self._ended is not None:
            return fail(copyForReraise(self._ended))
        asking: Deferred[None] = Deferred(lambda cancelled: self._asking.pop(cancelled, None))
        self._asking[asking] = None
        self._wake()
        return asking

    # -- appending

    async def append(self, payload: bytes) -> None:
        """
        Send a record until the broker has stored it (or silently dropped it, as 0.7.2 does). Fails
        only when it is cancelled.
        """
        while True:
            try:
                await self._producer.send(self._topic, PARTITION, [payload])
                await self._producer.confirm(self._topic, PARTITION)
                self._wake()
                return
            except PylogbrokerError as error:
                self._log.warn(
                    "A record for {topic} may be lost; sending it again: {error}",
                    topic=self._topic,
                    error=error,
                )
            await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)

    async def close(self) -> None:
        """Close the connections. Does not fail."""
        self._isClosed = True
        self._wake()
        await self._consumer.close()
        try:
            await self._producer.close()
        except (PylogbrokerError, CancelledError) as error:
            self._log.info(
                "The last records for {topic} may be lost: {error}",
                topic=self._topic,
                error=error,
            )
