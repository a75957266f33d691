"""
Tests of the figures of producers and consumers.
"""

from __future__ import annotations

import re
from dataclasses import asdict, fields

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.clientmetrics import consumerFamilies, producerFamilies
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.metrics.exposition import COUNTER, Family, render
from pylogbroker.producer.completion import ProducerCounters


class ClientFiguresTests(SynchronousTestCase):
    """Names and values."""

    def check(self, families: list[Family]) -> list[str]:
        for family in families:
            self.assertTrue(
                re.fullmatch("[a-z_]+", family.name) and family.sentence.endswith("."), family.name
            )
            self.assertEqual(family.kind == COUNTER, family.name.endswith("_total"), family.name)
        return [line for line in render(families).decode().splitlines() if not line.startswith("#")]

    def test_producer(self) -> None:
        """Each of a producer's counters is a figure, with what is queued."""
        counters = ProducerCounters(*range(1, 1 + len(fields(ProducerCounters))))
        lines = self.check(producerFamilies(asdict(counters), 20, 30, {"name": "a"}))
        self.assertEqual(
            sorted(int(line.rpartition(" ")[2]) for line in lines), [*range(1, 9), 20, 30]
        )
        self.assertIn('pylogbroker_producer_accepted_messages_total{name="a"} 1', lines)
        self.assertIn('pylogbroker_producer_queued_bytes{name="a"} 30', lines)

    def test_consumer(self) -> None:
        """A consumer's fetches, and what came of each topic."""
        counters = ConsumerCounters()
        counters.fetches.fetched(0.25)
        counters.fetches.fetched(0.5)
        counters.fetches.failedCount = 3
        counters.topic("t").messageCount = 7
        counters.topic("t").fetchedSize = 70
        self.assertEqual(
            self.check(consumerFamilies(counters, 4)),
            [
                "pylogbroker_consumer_fetches_total 2",
                "pylogbroker_consumer_failed_fetches_total 3",
                "pylogbroker_consumer_fetch_seconds_total 0.75",
                "pylogbroker_consumer_fetch_longest_seconds 0.5",
                "pylogbroker_consumer_owned_partitions 4",
                'pylogbroker_consumer_messages_total{topic="t"} 7',
                'pylogbroker_consumer_bytes_total{topic="t"} 70',
            ],
        )
