"""
Questions to brokers, each repeated within bounds: a broker that is away for a moment costs time, one that stays away is a clear error.

Only reading is done here, so that a question may be asked twice. What a broker answers is never asked for again, whatever it is: an error code
is an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from random import SystemRandom
from typing import TypeVar

from pylogbroker.config.producersettings import BrokerAddress
from pylogbroker.errors import BrokerConnectionError, NoBrokersError
from pylogbroker.retry import Backoff
from pylogbroker.spark.options import ClusterOptions
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer

T = TypeVar("T")

RETRY_FIRST_MS = 100
RETRY_MAX_MS = 5_000

log = logging.getLogger(__name__)


class RetryPolicy:
    """
    How often to try, and how long to wait in between.
    """

    def __init__(
        self,
        retryCount: int,
        pause: Callable[[float], None] = sleep,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param pause: waits so many seconds.
        @param random: numbers from 0 up to, not including, 1; by default the system's.
        """
        self.retryCount = retryCount
        self._pause = pause
        self._random = random or SystemRandom().random

    def tries(self) -> Iterator[bool]:
        """One for each try, after a pause for all but the first; says whether it is the last."""
        backoff = Backoff(self._random, firstMs=RETRY_FIRST_MS, maxMs=RETRY_MAX_MS)
        for left in range(self.retryCount, 0, -1):
            yield False
            self._pause(backoff.failed() / 1000)
        yield True


class BrokerClients:
    """
    The brokers of a cluster. A context manager: leaving it closes all connections.
    """

    def __init__(
        self,
        addresses: Mapping[int, BrokerAddress],
        options: ClusterOptions,
        patience: RetryPolicy | None = None,
    ) -> None:
        """
        @param patience: by default that of the options.
        """
        self._addresses = addresses
        self._options = options
        self.patience = patience or RetryPolicy(options.retryCount)
        self._consumers: dict[int, SimpleConsumer] = {}

    def __enter__(self) -> BrokerClients:
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
        for isLast in self.patience.tries():
            try:
                return question(consumer)
            except BrokerConnectionError as error:
                if isLast:
                    raise type(error)(
                        f"{what}: broker {broker} gave no answer, {self.patience.retryCount + 1} times: {error}"
                    ) from error
                log.warning(
                    "%s: broker %d gave no answer, it is asked again: %s", what, broker, error
                )
        raise AssertionError("it was asked at least once")

    def address(self, broker: int) -> BrokerAddress:
        """Where a broker is."""
        return self._addresses[broker]

    def _consumer(self, broker: int, what: str) -> SimpleConsumer:
        consumer = self._consumers.get(broker)
        if consumer is None:
            address = self._addresses.get(broker)
            if address is None:
                raise NoBrokersError(
                    f"{what}: there is no broker {broker}; there are {', '.join(map(str, sorted(self._addresses))) or 'none'}"
                )
            consumer = self._consumers[broker] = self._options.consumer(address)
        return consumer
