"""
Log records as messages: the log4j appender of 0.7 (spec-0.7 producer §8), for programs with a reactor.

    publisher = LogPublisher(reactor, producer, "app-log")
    globalLogPublisher.addObserver(publisher.observer())         # twisted.logger
    logging.getLogger().addHandler(KafkaLogHandler(publisher))     # the standard library's, from any thread

What must be true: whoever logs waits for nothing and is never raised at. What has been logged and is not sent yet is bounded, in messages and
bytes; beyond that, records are left out, and counted. And logging about logging has an end: what the way to the broker logs about itself must not go
that way, or a broker that is away would have every failure make the next one. So records of our own loggers are left out (C{quiet}), and so is
whatever is logged on the reactor's thread while records are handed to the producer.

Sends happen on the reactor's thread, later than the record; text is made of it at once, since what it speaks of may change.
C{pylogbroker.syncclient.logappender} is for programs without a reactor: it sends at once, and waits for the socket.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import ILogObserver, LogEvent, formatEventAsClassicLogText
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import ConfigurationError, TimedOutError
from pylogbroker.net.timer import Timer

COUNT_MAX = 10_000
SIZE_MAX = 16 << 20
BATCH_COUNT = 200
CLOSE_MS = 10_000
QUIET = ("pylogbroker", "kazoo")


class ISender(Protocol):
    """What a publisher needs of a L{pylogbroker.producer.producer.Producer}."""

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[None]: ...

    def flush(self) -> Deferred[None]: ...


class LogPublisher:
    """
    Takes payloads from any thread, and gives them to a producer in the order in which they came.

    @ivar sentCount: records that the producer has sent.
    @ivar leftOutCount: records that were not: there was no room, they could not be formatted, or sending failed.
    """

    def __init__(
        self,
        reactor: Any,
        producer: ISender,
        topic: str,
        *,
        countMax: int = COUNT_MAX,
        sizeMax: int = SIZE_MAX,
        quiet: Collection[str] = QUIET,
    ) -> None:
        """
        @param producer: which is the application's: it closes it, after C{close} of this.
        @param countMax: records that may be logged and not sent yet.
        @param sizeMax: the same in bytes.
        @param quiet: loggers, with those below them, whose records are left alone. Who empties it takes care that the producer logs nothing.
        @raise ConfigurationError: there is no topic.
        """
        if not topic:
            raise ConfigurationError("a log publisher needs a topic")
        self.sentCount = self.leftOutCount = 0
        self._reactor = reactor
        self._producer = producer
        self._topic = topic
        self._countMax = countMax
        self._sizeMax = sizeMax
        self._quiet = frozenset(quiet)
        self._lock = (
            threading.RLock()
        )  # a finalizer may log while it is held; around the few lines that touch what follows
        self._waiting: deque[bytes] = deque()
        self._count = self._size = 0  # waiting, or with the producer
        self._isScheduled = self._isClosed = False
        self._handingOver: int | None = None  # the thread that does
        self._idlers: list[Deferred[None]] = []

    def __repr__(self) -> str:
        return f"<LogPublisher to {self._topic}, {self._count} records under way>"

    def isQuiet(self, name: str) -> bool:
        """Whether records of a logger are left alone; those that the sending of records causes are, too."""
        if self._handingOver == threading.get_ident():
            return True
        while name:
            if name in self._quiet:
                return True
            name = name.rpartition(".")[0]
        return False

    def publish(self, make: Callable[[], str | bytes | None]) -> None:
        """
        Take a record. From any thread; does not wait, and does not raise.

        @param make: makes its text; L{None} leaves it out without counting.
        """
        try:
            made = make()
            if made is None:
                return
            payload = (
                made.encode("utf-8", "backslashreplace") if isinstance(made, str) else bytes(made)
            )
        except Exception:  # its arguments do not fit its text, or do not like to be shown
            with self._lock:
                self.leftOutCount += 1
            return
        with self._lock:
            if (
                self._isClosed
                or self._count >= self._countMax
                or self._size + len(payload) > self._sizeMax
            ):
                self.leftOutCount += 1
                return
            self._waiting.append(payload)
            self._count += 1
            self._size += len(payload)
            isScheduled, self._isScheduled = self._isScheduled, True
        if not isScheduled:
            self._reactor.callFromThread(self._handOver)

    def _handOver(self) -> None:
        """On the reactor's thread."""
        with self._lock:
            self._isScheduled = False
            waiting, self._waiting = self._waiting, deque()
        before, self._handingOver = self._handingOver, threading.get_ident()
        try:
            while waiting:
                batch = [waiting.popleft() for _ in range(min(BATCH_COUNT, len(waiting)))]
                try:
                    sending = self._producer.send(self._topic, batch)
                except Exception:  # a producer should not, but a log must not fall over it
                    sending = Deferred()
                    sending.errback(Failure())
                sending.addCallbacks(
                    self._sent, self._failed, callbackArgs=(batch,), errbackArgs=(batch,)
                )
        finally:
            self._handingOver = before

    def _sent(self, _result: object, batch: list[bytes]) -> None:
        with self._lock:
            self.sentCount += len(batch)
        self._release(batch)

    def _failed(self, _failure: Failure, batch: list[bytes]) -> None:
        """The producer has logged why, which goes elsewhere."""
        with self._lock:
            self.leftOutCount += len(batch)
        self._release(batch)

    def _release(self, batch: list[bytes]) -> None:
        with self._lock:
            self._count -= len(batch)
            self._size -= sum(map(len, batch))
            idlers: list[Deferred[None]] = []
            if not self._count:
                idlers, self._idlers = self._idlers, []
        for idler in idlers:
            idler.callback(None)

    def close(self, timeoutMs: float = CLOSE_MS) -> Deferred[None]:
        """
        Take no more records, and see to it that those that were taken are sent. The producer stays open.

        @return: fires when nothing is under way any more. Fails with L{TimedOutError} when that takes too long: then the producer's C{close} will tell.
        """
        with self._lock:
            self._isClosed = True
            isIdle = not self._count
        if isIdle:
            return succeed(None)
        over: Deferred[None] = Deferred()
        self._idlers.append(over)
        self._handOver()
        self._producer.flush().addErrback(lambda _failure: None)
        timer = Timer(self._reactor)

        def late() -> None:
            if over in self._idlers:
                self._idlers.remove(over)
                over.errback(
                    TimedOutError(
                        f"{self._count} log records were not sent within {timeoutMs:g} ms"
                    )
                )

        timer.start(timeoutMs, late)

        def done(result: Any) -> Any:
            timer.stop()
            return result

        return over.addBoth(done)

    def observer(
        self, textOf: Callable[[LogEvent], str | bytes | None] = formatEventAsClassicLogText
    ) -> LogObserver:
        """
        An observer for L{twisted.logger}.

        @param textOf: makes a record of an event; L{None} leaves it out. C{twisted.logger.eventAsJSON} keeps all fields.
        """
        return LogObserver(self, textOf)


@implementer(ILogObserver)
class LogObserver:
    """
    Publishes the events of L{twisted.logger}; see L{LogPublisher.observer}. Put a C{FilteringLogObserver} before it to choose levels.
    """

    def __init__(
        self, publisher: LogPublisher, textOf: Callable[[LogEvent], str | bytes | None]
    ) -> None:
        self._publisher = publisher
        self._textOf = textOf

    def __call__(self, event: LogEvent) -> None:
        if self._publisher.isQuiet(str(event.get("log_namespace") or "")):
            return

        def make() -> str | bytes | None:
            text = self._textOf(event)
            return text.rstrip("\n") if isinstance(text, str) else text

        self._publisher.publish(make)


class KafkaLogHandler(logging.Handler):
    """
    Publishes the records of L{logging}, as its formatter makes them.
    """

    def __init__(self, publisher: LogPublisher, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._publisher = publisher

    def emit(self, record: logging.LogRecord) -> None:
        """Called by C{logging}, on any thread. Does not wait, and does not raise."""
        # Twisted's STDLibLogObserver hands events on under a name of its own; where they are from stands in the event.
        event = getattr(record.msg, "event", None)
        name = str(event.get("log_namespace") or "") if isinstance(event, dict) else record.name
        if not self._publisher.isQuiet(name):
            self._publisher.publish(lambda: self.format(record))
