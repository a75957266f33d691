"""
Log records as messages: 0.7's log4j appender as a C{logging.Handler} (spec-0.7 producer §8).

    producer = SyncProducer("log1", 9092)
    logging.getLogger().addHandler(BlockingLogHandler(producer, "app-log"))

As in 0.7, the thread that logs sends the record at once. What must be true: logging never raises
into the application and never logs about itself. A broker that is away does not delay each record:
after a failure, records are dropped and counted for C{retryMs}. An application that cannot wait for
a socket puts C{logging.handlers.QueueHandler} before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pylogbroker.errors import BrokerConnectionError, ConfigurationError
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.types import RANDOM_PARTITION

RETRY_MS = 10_000


class BlockingLogHandler(logging.Handler):
    """
    Sends each record as a message: formatted, UTF-8.

    @ivar leftOutCount: records that were not sent.
    """

    def __init__(
        self,
        producer: SyncProducer,
        topic: str,
        partition: int = RANDOM_PARTITION,
        *,
        retryMs: float = RETRY_MS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        @param producer: the application's, which closes it.
        @param partition: of the topic; by default the broker chooses one.
        @param retryMs: how long records are dropped after a failure.
        @param clock: seconds.
        @raise ConfigurationError: there is no topic.
        """
        if not topic:
            raise ConfigurationError("a log appender needs a topic")
        super().__init__()
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._retrySeconds = retryMs / 1000
        self._clock = clock
        self._sendAfter = float("-inf")
        self._isSending = False
        self.leftOutCount = 0

    def emit(self, record: logging.LogRecord) -> None:
        """
        Called by C{logging}, one thread at a time. A record that cannot be sent is reported as
        C{logging} does (C{handleError}), never raised.
        """
        if self._isSending:
            return  # logged by what we call
        if self._clock() < self._sendAfter:
            self.leftOutCount += 1
            return
        self._isSending = True
        try:
            payload = self.format(record).encode("utf-8", "backslashreplace")
            self._producer.send(self._topic, self._partition, [payload])
        except Exception as error:  # or its arguments do not fit its text, or it is too large
            self.leftOutCount += 1
            if isinstance(error, BrokerConnectionError):
                self._sendAfter = self._clock() + self._retrySeconds
            self.handleError(record)
        finally:
            self._isSending = False
