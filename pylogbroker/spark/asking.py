"""
Questions to brokers, each repeated within bounds: a broker that is away for a moment costs time, one that stays away is a clear error.

Only reading is done here, so that a question may be asked twice. What a broker answers is never asked for again, whatever it is: an error code
is an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import TypeVar

from pylogbroker.blocking.connection import sleep
from pylogbroker.blocking.pacing import Backoff
from pylogbroker.blocking.simpleconsumer import SimpleConsumer
from pylogbroker.config.producersettings import BrokerAddress
from pylogbroker.errors import ConnectionError, NoBrokersError  # noqa: A004
from pylogbroker.spark.options import ClusterOptions

T = TypeVar("T")

RETRY_FIRST_MS = 100
RETRY_MAX_MS = 5_000

log = logging.getLogger(__name__)


class Brokers:
    """
    The brokers of a cluster. A context manager: leaving it closes all connections.
    """

    def __init__(
        self,
        addresses: Mapping[int, BrokerAddress],
        options: ClusterOptions,
        *,
        pause: Callable[[float], None] = sleep,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param pause: waits so many seconds.
        @param random: numbers from 0 up to, not including, 1.
        """
        self._addresses = addresses
        self._options = options
        self._pause = pause
        self._random = random or SystemRandom().random
        self._consumers: dict[int, SimpleConsumer] = {}

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def ask(self, broker: int, what: str, question: Callable[[SimpleConsumer], T]) -> T:
        """
        @param broker: its number.
        @param what: is asked, for the text of an error.
        @raise NoBrokersError: nobody has this number.
        @raise ConnectionError: there was no answer, as often as it was asked.
        @raise pylogbroker.errors.WireError: the answer is none.
        """
        consumer = self._consumer(broker, what)
        backoff = Backoff(self._random, firstMs=RETRY_FIRST_MS, maxMs=RETRY_MAX_MS)
        for left in range(self._options.retryCount, -1, -1):
            try:
                return question(consumer)
            except ConnectionError as error:
                if not left:
                    raise type(error)(f"{what}: broker {broker} gave no answer, {self._options.retryCount + 1} times: {error}") from error
                log.warning("%s: broker %d gave no answer, it is asked again: %s", what, broker, error)
            self._pause(backoff.failed() / 1000)
        raise AssertionError("it was asked at least once")

    def _consumer(self, broker: int, what: str) -> SimpleConsumer:
        consumer = self._consumers.get(broker)
        if consumer is None:
            address = self._addresses.get(broker)
            if address is None:
                raise NoBrokersError(f"{what}: there is no broker {broker}; there are {', '.join(map(str, sorted(self._addresses))) or 'none'}")
            consumer = self._consumers[broker] = self._options.consumer(address)
        return consumer
