"""
What tests of the data source share: a broker that does what it is told, options, and patience that
does not wait.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.retry import BlockingRetryPolicy
from pylogbroker.spark.brokerclients import BrokerClients, OffsetRange
from pylogbroker.spark.options import SourceOptions
from pylogbroker.types import BrokerPartition
from tests.spark.logbroker import LogBroker

HERE = BrokerPartition(0, 0)


class SourceCase(SynchronousTestCase):
    """
    @ivar pauses: seconds that were to be waited.
    """

    def setUp(self) -> None:
        self.pauses: list[float] = []
        self.broker = self.serve()

    def serve(self, number: int = 0, partitionCount: int = 1) -> LogBroker:
        """One more broker."""
        broker = LogBroker(number, partitionCount)
        self.addCleanup(broker.close)
        return broker

    def options(self, **options: Any) -> SourceOptions:
        """Of a source that reads clicks."""
        given = {
            "brokers": self.broker.listed,
            "subscribe": "clicks",
            "timeoutMs": "60000",
            "retryCount": "2",
            **options,
        }
        return SourceOptions.fromOptions(
            {key: str(value) for key, value in given.items() if value is not None}
        )

    def policy(self, retryCount: int = 2) -> BlockingRetryPolicy:
        """It notes down how long it should wait."""
        return BlockingRetryPolicy(retryCount, self.pauses.append, lambda: 0.0)

    def brokers(self, *brokers: LogBroker, retryCount: int = 2) -> BrokerClients:
        """Clients of brokers; by default of C{broker}."""
        found = BrokerClients(
            {each.number: each.address for each in brokers or (self.broker,)},
            self.options(),
            self.policy(retryCount),
        )
        self.addCleanup(found.close)
        return found

    def range(self, start: int, end: int, topic: str = "clicks") -> OffsetRange:
        """Of the one partition."""
        return OffsetRange(topic, HERE, start, end)
