"""
What the tests of loading share: the session, one broker for all of them, and rows like those of the
data source.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from itertools import count
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.envelope import encodeEnvelope
from pylogbroker.lake.manifest import RunManifest
from pylogbroker.spark.loader import load
from pylogbroker.spark.loader.run import LoadResult
from pylogbroker.types import BrokerPartition
from tests.integration.sparksession import SparkCluster, sharedSession

NOW_MS = 1_767_272_400_005
"""2026-01-01T13:00:00.005Z."""

HERE = BrokerPartition(0, 0)
ROW = (
    "key binary, value binary, topic string, broker int, partition int, offset long,"
    " nextOffset long, timestamp timestamp"
)

_clusters: list[SparkCluster] = []
_numbers = count()


def sharedCluster() -> SparkCluster:
    """One broker of two partitions, with small segments; tests keep apart by topics."""
    if not _clusters:
        _clusters.append(SparkCluster(1, num_partitions="2", log_file_size="20000"))
        atexit.register(_clusters[0].end)
    return _clusters[0]


def packed(timeMs: int, payload: bytes = b"x", host: bytes = b"web1") -> bytes:
    """A payload in an envelope."""
    return encodeEnvelope(timeMs, host, payload)


class SparkCase(SynchronousTestCase):
    """Has a session and a folder."""

    def setUp(self) -> None:
        self.spark = sharedSession()
        self.folder = os.path.abspath(self.mktemp())

    def rows(self, values: Iterable[bytes], topic: str = "clicks") -> Any:
        """As the data source gives them."""
        return self.spark.createDataFrame(
            [
                (None, value, topic, 0, 0, number, number + 1, None)
                for number, value in enumerate(values)
            ],
            ROW,
        )


class LoadCase(SparkCase):
    """
    Loads.

    @ivar topic: of this test.
    """

    def setUp(self) -> None:
        super().setUp()
        self.cluster = sharedCluster()
        self.topic = f"load{next(_numbers)}"

    def write(self, *payloads: bytes, partition: int = 0, codec: int = 0) -> None:
        """Messages of the topic."""
        self.cluster.write(self.topic, BrokerPartition(0, partition), list(payloads), codec)

    def end(self, partition: int = 0) -> int:
        """Where the log ends."""
        from pylogbroker.syncclient import SimpleConsumer

        with SimpleConsumer("127.0.0.1", self.cluster.brokers[0].port) as consumer:
            [offset] = consumer.getOffsetsBefore(self.topic, partition, -1, 1)
        return offset

    def load(self, **options: Any) -> LoadResult:
        """One run."""
        return load(
            self.spark,
            self.folder,
            **{
                "brokers": self.cluster.listed,
                "subscribe": self.topic,
                "nowMs": lambda: NOW_MS,
                **options,
            },
        )

    def loaded(self, **options: Any) -> RunManifest:
        """One run that has something to do."""
        manifest = self.load(**options).manifest
        assert manifest is not None
        return manifest
