"""
Log handlers that publish log records as messages: the log4j appender of 0.7 (spec-0.7 producer §8),
for programs with a reactor. C{pylogbroker.syncclient.loghandler} is for programs without one.

    publisher = LogRecordPublisher(reactor, producer, "app-log")
    globalLogPublisher.addObserver(publisher.observer())        # twisted.logger
    logging.getLogger().addHandler(KafkaLogHandler(publisher))  # logging, from any thread

What must be true: a call that logs never waits and never raises. Waiting records are limited in
number and bytes; beyond that, records are dropped and counted. Errors of sending must not be sent,
or a missing broker would cause endless records. So records of this package's loggers (C{quiet}) are
ignored, and what the reactor's thread logs while records are handed over.

The producer is one for topics of 2011 or of today. Records keep their order in each partition; none
has a key. They are formatted at once, since their arguments may change, and sent later on the
reactor's thread. Only applications import this module.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.logger import ILogObserver, LogEvent, formatEventAsClassicLogText
from twisted.python.failure import Failure
from zope.interface import provider

from pylogbroker.errors import ConfigurationError, TimedOutError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.producer.producer import ProducerData

COUNT_MAX = 10_000
SIZE_MAX = 16 << 20
BATCH_COUNT = 200
CLOSE_MS = 10_000
QUIET = ("pylogbroker", "kazoo")


class ISender(Protocol):
    """
    The methods that a publisher calls of L{pylogbroker.producer.producer.Producer}, or of
    L{pylogbroker.producer.kafka.producer.KafkaProducer}.
    """

    def sendMany(self, datas: Iterable[ProducerData]) -> Deferred[None]: ...

    def flush(self) -> Deferred[None]: ...


class LogRecordPublisher:
    """
    Takes records from any thread, and gives them to a producer in order.

    @ivar sentCount: records that the producer has sent.
    @ivar leftOutCount: records dropped because too many were waiting, or formatting or sending
        failed.
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
        @param producer: the application closes it, after C{close} of this publisher.
        @param countMax: records that may be logged and not sent yet.
        @param sizeMax: bytes of these.
        @param quiet: loggers whose records are ignored, with the loggers below them. An application
            that empties it must ensure that the producer logs nothing.
        @raise ConfigurationError: the topic is empty.
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
        # Guards the counts and what follows; re-entrant since a finalizer may log while it is held.
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()
        self._count = self._size = 0  # waiting, or in flight
        self._isScheduled = self._isClosed = False
        self._sendingThread: int | None = None
        self._idleWaiters: Waiters[None] = Waiters()

    def __repr__(self) -> str:
        return f"<LogRecordPublisher to {self._topic}, {self._count} records not sent yet>"

    def isQuiet(self, name: str) -> bool:
        if self._sendingThread == threading.get_ident():
            return True
        while name:
            if name in self._quiet:
                return True
            name = name.rpartition(".")[0]
        return False

    def publish(self, make: Callable[[], str | bytes | None]) -> None:
        """
        Take a record from any thread. It does not wait, and does not raise.

        @param make: returns the record's text; L{None} skips it uncounted.
        """
        payload = None
        try:
            made = make()
            if made is None:
                return
            payload = (
                made.encode("utf-8", "backslashreplace") if isinstance(made, str) else bytes(made)
            )
        except Exception:  # arguments that do not fit the format, or whose repr fails
            pass
        with self._lock:
            if (
                payload is None
                or self._isClosed
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
            self._reactor.callFromThread(self._send)

    def _send(self) -> None:
        with self._lock:
            self._isScheduled = False
            waiting, self._waiting = self._waiting, deque()
        before, self._sendingThread = self._sendingThread, threading.get_ident()
        try:
            while waiting:
                batch = [waiting.popleft() for _ in range(min(BATCH_COUNT, len(waiting)))]
                # a fault of the producer must not stop the log
                sending = maybeDeferred(self._producer.sendMany, [ProducerData(self._topic, batch)])
                sending.addBoth(self._onSent, batch)
        finally:
            self._sendingThread = before

    def _onSent(self, result: object, batch: list[bytes]) -> None:
        with self._lock:
            if isinstance(result, Failure):  # the producer has logged it
                self.leftOutCount += len(batch)
            else:
                self.sentCount += len(batch)
            self._count -= len(batch)
            self._size -= sum(map(len, batch))
            isIdle = not self._count
        if isIdle:
            self._idleWaiters.fire(None)

    def close(self, timeoutMs: float = CLOSE_MS) -> Deferred[None]:
        """
        Refuse further records, and send the accepted ones. The producer stays open.

        @return: fires when all are sent. Fails with L{TimedOutError} after C{timeoutMs}; the
            producer's C{close} then waits for the rest.
        """
        with self._lock:
            self._isClosed = True
            isIdle = not self._count
        if isIdle:
            return succeed(None)
        waiting = self._idleWaiters.wait()

        def onTimeout(_result: object, _seconds: float) -> None:
            raise TimedOutError(f"{self._count} log records were not sent within {timeoutMs:g} ms")

        waiting.addTimeout(timeoutMs / 1000, self._reactor, onTimeout)
        self._send()
        self._producer.flush().addErrback(lambda _failure: None)
        return waiting

    def observer(
        self, textOf: Callable[[LogEvent], str | bytes | None] = formatEventAsClassicLogText
    ) -> ILogObserver:
        """
        An observer for L{twisted.logger}, which publishes events. A C{FilteringLogObserver} before
        it chooses levels.

        @param textOf: the record of an event; L{None} skips it. C{twisted.logger.eventAsJSON} keeps
            all fields.
        """

        def observe(event: LogEvent) -> None:
            def make() -> str | bytes | None:
                text = textOf(event)
                return text.rstrip("\n") if isinstance(text, str) else text

            if not self.isQuiet(str(event.get("log_namespace") or "")):
                self.publish(make)

        observer: ILogObserver = provider(ILogObserver)(observe)
        return observer


class KafkaLogHandler(logging.Handler):
    """
    Publishes the records of L{logging} as its formatter makes them.
    """

    def __init__(self, publisher: LogRecordPublisher, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._publisher = publisher

    def emit(self, record: logging.LogRecord) -> None:
        """Called by C{logging} on any thread. It does not wait, and does not raise."""
        # Twisted's STDLibLogObserver uses a logger of its own; the event has the namespace.
        event = getattr(record.msg, "event", None)
        name = str(event.get("log_namespace") or "") if isinstance(event, dict) else record.name
        if not self._publisher.isQuiet(name):
            self._publisher.publish(lambda: self.format(record))
