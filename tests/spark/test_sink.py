"""Tests for L{pylogbroker.spark.sink}: what Spark asks, without Spark."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa
from kazoo.client import KazooClient
from pyspark.sql.types import StructType

from pylogbroker.errors import BrokerConnectionError, ConfigurationError
from pylogbroker.records.messageset import MessageSet
from pylogbroker.spark.options import SinkOptions, sinkOptions
from pylogbroker.spark.sink import (
    BatchWriter,
    StreamWriter,
    Written,
    checkColumns,
    keepWritten,
    lastWritten,
    sendAll,
    sendOnce,
)
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.spark.sourcecase import SourceCase

_numbers = count()


def columns(**kinds: str) -> StructType:
    """A schema."""
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    return schema


class SinkCase(SourceCase):
    """Writes to one broker."""

    def sink(self, **options: str) -> SinkOptions:
        """By a list."""
        return sinkOptions({"brokers": self.broker.listed, "topic": "clicks", **options})

    def batches(self, *columns: dict[str, Any]) -> Any:
        """Of rows."""
        return iter([pa.RecordBatch.from_pydict(each) for each in columns])

    def taken(self, topic: str = "clicks") -> list[bytes]:
        """What the broker has."""
        log = self.broker.log(topic)
        return [
            payload
            for base in sorted(log.segments)
            for payload, _ in MessageSet(log.segments[base]).payloads()
        ]


class WritingTests(SinkCase):
    """Rows and commits."""

    def test_columns(self) -> None:
        """Value is needed, and topic where the option is not given; keys and values have types that can be sent; other columns do not matter."""
        checkColumns(columns(value="binary", key="long", more="double"), self.sink())
        checkColumns(columns(value="string", topic="string", key="string"), self.sink(topic=""))
        for kinds, reason in (
            ({"topic": "string"}, "there is no column value"),
            ({"value": "string"}, "there is no column topic, nor an option topic"),
            (
                {"value": "integer", "topic": "string"},
                "column value is of type int; it should be one of binary, string",
            ),
            (
                {"value": "string", "topic": "string", "key": "double"},
                "column key is of type double",
            ),
        ):
            text = str(
                self.assertRaises(
                    ConfigurationError, checkColumns, columns(**kinds), self.sink(topic="")
                )
            )
            self.assertIn(reason, text)

    def test_rows(self) -> None:
        """Rows are sent with the topic of the option, or their own; the option counts when there are both."""
        writer = BatchWriter(self.sink(compression="gzip"))
        rows = {"topic": ["other", "other"], "key": [None, "k"], "value": ["a", "b"]}
        self.assertEqual(writer.write(self.batches(rows, {"value": [b"c"]})), Written("", 3))
        self.assertEqual(self.taken(), [b"a", b"b", b"c"])
        self.assertEqual(sendAll(self.sink(topic=""), self.batches(rows)), 2)
        self.assertEqual(self.taken("other"), [b"a", b"b"])
        writer.commit([Written("", 3), None])
        writer.abort([Written("", 3), None])

    def test_noRows(self) -> None:
        """A task without rows asks nobody anything."""
        self.assertEqual(sendAll(self.sink(), self.batches({"value": []})), 0)
        self.assertEqual(self.broker.requests, [])

    def test_failure(self) -> None:
        """What cannot be sent is an error, not a result."""
        self.broker.before = lambda request: False
        self.assertRaises(
            BrokerConnectionError,
            sendAll,
            self.sink(timeoutMs="60000"),
            self.batches({"value": ["a"]}),
        )


class RepeatTests(SinkCase):
    """Micro-batches that Spark repeats."""

    def setUp(self) -> None:
        super().setUp()
        chroot = f"/sink{next(_numbers)}"
        self.zookeeper = sharedZookeeper().servers + chroot
        admin = KazooClient(hosts=sharedZookeeper().servers)
        admin.start()
        admin.create(chroot)
        admin.create(
            f"{chroot}/brokers/ids/0",
            f"c:127.0.0.1:{self.broker.address.port}".encode(),
            makepath=True,
        )
        admin.stop()
        admin.close()

    def test_withZookeeper(self) -> None:
        """A micro-batch whose number is kept is not sent again; the next one is, and so is that of another query."""
        options = self.sink(brokers="", zookeeper=self.zookeeper)
        writer = StreamWriter(options)
        self.assertIsNone(lastWritten(options, "query"))
        message = sendOnce(options, "query", 0, self.batches({"value": ["a"]}))
        self.assertEqual(message, Written("query", 1))
        writer.abort([message, None], 0)  # it is not whole: it will come again
        message = sendOnce(options, "query", 0, self.batches({"value": ["a"]}))
        writer.commit([message, None], 0)
        self.assertEqual(
            sendOnce(options, "query", 0, self.batches({"value": ["a"]})), Written("query", 0)
        )
        sendOnce(options, "query", 1, self.batches({"value": ["b"]}))
        sendOnce(options, "another", 0, self.batches({"value": ["c"]}))
        self.assertEqual(self.taken(), [b"a", b"a", b"b", b"c"])

    def test_withoutZookeeper(self) -> None:
        """A list of brokers keeps nothing: what is repeated is sent again."""
        options = self.sink()
        StreamWriter(options).commit([Written("query", 1)], 0)
        keepWritten(options, "query", 0)
        for _time in range(2):
            self.assertEqual(
                sendOnce(options, "query", 0, self.batches({"value": ["a"]})), Written("query", 1)
            )
        self.assertEqual(self.taken(), [b"a", b"a"])
