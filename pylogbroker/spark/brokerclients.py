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

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import BrokerConnectionError, NoBrokersError
from pylogbroker.retry import RetryPolicy
from pylogbroker.spark.options import ClusterOptions
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer

T = TypeVar("T")

log = logging.getLogger(__name__)


def retryPolicy(retryCount: int) -> RetryPolicy:
    """The policy of a number of retries, which sleeps."""
    return RetryPolicy(retryCount, sleep, SystemRandom().random)


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
        self.patience = patience or retryPolicy(options.retryCount)
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
        for isLast in self.patience.attempts():
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
