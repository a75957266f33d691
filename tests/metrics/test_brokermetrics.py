"""
Tests of the figures of a broker.
"""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.brokermetrics import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    ThrottledPartition,
    brokerFamilies,
)
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.metrics.exposition import COUNTER, Family, render


def picture() -> BrokerSnapshot:
    """One with something in every place."""
    counters = BrokerCounters(1)
    counters.requests.produceCount = 3
    counters.requests.produced(0.25)
    counters.requests.produced(0.5)
    counters.requests.fetched(0.125)
    counters.flushes.flushed(1500)
    counters.connections.opened()
    counters.topic("t").messageCount = 5
    counters.topic("beyond").messageCount = 2
    partitions = (
        PartitionSnapshot("t", 0, 10, 30, 40, 20, 2, 10, 5, ""),
        PartitionSnapshot("t", 1, 0, 0, 0, 0, 1, 0, 0, "fsync failed"),
    )
    return BrokerSnapshot(
        7,
        "h:1",
        2_000,
        1_500,
        True,
        counters.snapshot(),
        partitions,
        2,
        {"u-0": "gap"},
        10,
        100,
        3,
        (
            ThrottledPartition("", -1, "flush", 2),
            ThrottledPartition("t", 1, "flush", 3),
            ThrottledPartition("t", 0, "roll", 1),
        ),
        (),
        {"flush": 5, "memory": 0},
        1.5,
        4096,
    )


class FiguresTests(SynchronousTestCase):
    """Names and values."""

    def setUp(self) -> None:
        self.families = brokerFamilies(picture(), "1.2")
        self.lines = render(self.families).decode().splitlines()

    def test_names(self) -> None:
        """
        Names are what the format allows; each comes once; a counter's ends in total, a gauge's does
        not.
        """
        names = [family.name for family in self.families]
        self.assertEqual(sorted(set(names)), sorted(names))
        for family in self.families:
            self.assertTrue(
                re.fullmatch("[a-z_]+", family.name) and family.sentence.endswith("."), family.name
            )
            self.assertEqual(family.kind == COUNTER, family.name.endswith("_total"), family.name)

    def test_values(self) -> None:
        """Every kind of figure, in the unit that its name says."""
        for line in (
            'pylogbroker_info{broker="7",version="1.2"} 1',
            "process_start_time_seconds 1.5",
            "process_cpu_seconds_total 1.5",
            "process_resident_memory_bytes 4096",
            "pylogbroker_registered 1",
            'pylogbroker_requests_total{kind="produce"} 3',
            'pylogbroker_request_seconds_total{kind="produce"} 0.75',
            'pylogbroker_request_longest_seconds{kind="produce"} 0.5',
            'pylogbroker_request_seconds_total{kind="fetch"} 0.125',
            "pylogbroker_connections 1",
            "pylogbroker_messages_in_total 7",
            'pylogbroker_topic_messages_in_total{topic="t"} 5',
            'pylogbroker_topic_messages_in_total{topic=""} 2',
            "pylogbroker_partitions 2",
            "pylogbroker_failed_partitions 2",
            'pylogbroker_partition_size_bytes{topic="t",partition="0"} 20',
            'pylogbroker_partition_segments{topic="t",partition="0"} 2',
            'pylogbroker_partition_start_offset{topic="t",partition="0"} 10',
            'pylogbroker_partition_visible_offset{topic="t",partition="0"} 30',
            'pylogbroker_partition_end_offset{topic="t",partition="0"} 40',
            'pylogbroker_partition_unflushed_bytes{topic="t",partition="0"} 10',
            'pylogbroker_partition_appended_messages_total{topic="t",partition="0"} 5',
            'pylogbroker_partition_failed{topic="t",partition="1"} 1',
            "pylogbroker_flushes_total 1",
            "pylogbroker_flush_seconds_total 1.5",
            "pylogbroker_flush_longest_seconds 1.5",
            "pylogbroker_unflushed_limit_bytes 100",
            'pylogbroker_waiting_connections{reason="flush"} 5',
            'pylogbroker_held_back_requests{reason="flush"} 5',
            'pylogbroker_held_back_requests{reason="roll"} 1',
        ):
            self.assertIn(line, self.lines)

    def test_cluster(self) -> None:
        """What a broker knows of its cluster."""
        cluster = ClusterSnapshot(1, 2, 3, 4, 5, 6, 7, True, 9, 10, 11, 12)
        lines = render(brokerFamilies(picture()._replace(cluster=cluster), "1")).decode()
        for line in (
            "pylogbroker_led_partitions 1",
            "pylogbroker_replicas 2",
            "pylogbroker_under_replicated_partitions 3",
            "pylogbroker_under_min_isr_partitions 4",
            "pylogbroker_reassigning_partitions 5",
            "pylogbroker_offline_partitions 6",
            "pylogbroker_preferred_replica_imbalance 7",
            "pylogbroker_active_controller 1",
            "pylogbroker_active_brokers 9",
            "pylogbroker_fenced_brokers 10",
            "pylogbroker_metadata_change 11",
            "pylogbroker_metadata_lag_changes 12",
        ):
            self.assertIn(f"\n{line}\n", lines)

    def test_leftOut(self) -> None:
        """
        What a broker has not, it does not claim: no registration without ZooKeeper, no memory where
        nobody can tell.
        """
        names = {
            family.name
            for family in brokerFamilies(picture()._replace(isRegistered=None, memorySize=0), "1")
        }
        self.assertFalse(names & {"pylogbroker_registered", "process_resident_memory_bytes"})

    def test_everyCounter(self) -> None:
        """No counter is kept in vain: each of them moves a figure."""
        before = brokerFamilies(picture(), "1")
        for part, numbers in picture().counters.items():
            for name in numbers if part not in ("topics", "otherTopics", "allTopics") else ():
                changed = {**picture().counters, part: {**numbers, name: 10**9}}
                self.assertNotEqual(
                    values(brokerFamilies(picture()._replace(counters=changed), "1")),
                    values(before),
                    name,
                )


def values(families: list[Family]) -> bytes:
    """What a scrape would see."""
    return render(families)
