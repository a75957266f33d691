"""
Tests for L{pylogbroker.spark.sink}.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
from kazoo.client import KazooClient
from pyspark.sql.types import StructType

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    EncodingError,
    InvalidKeyError,
    MessageTooLargeError,
    NoBrokersError,
)
from pylogbroker.protocol.kafka07.requests import Offsets, Produce
from pylogbroker.records.messageset import MessageSet
from pylogbroker.spark import sink as module
from pylogbroker.spark.options import SinkOptions
from pylogbroker.spark.sink import (
    BatchWriter,
    StreamWriter,
    TaskResult,
    TaskWriter,
    checkColumns,
    lastWritten,
    sendAll,
    sendOnce,
    storeLastWritten,
)
from pylogbroker.types import BrokerPartition
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.spark.logbroker import LogBroker
from tests.spark.sourcecase import SourceCase
from tests.spark.test_partitiondiscovery import Registry

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
        return SinkOptions.fromOptions(
            {"brokers": self.broker.listed, "topic": "clicks", **options}
        )

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
        """
        Value is needed, and topic where the option is not given; keys and values have types that
        can be sent; other columns do not matter.
        """
        checkColumns(columns(value="binary", key="long", more="double"), self.sink().topic)
        checkColumns(
            columns(value="string", topic="string", key="string"), self.sink(topic="").topic
        )
        for kinds, reason in (
            ({"topic": "string"}, "there is no column value"),
            ({"value": "string"}, "there is no column topic, nor an option topic"),
            (
                {"value": "integer", "topic": "string"},
                "column value is of type int; it must be one of binary, string",
            ),
            (
                {"value": "string", "topic": "string", "key": "double"},
                "column key is of type double",
            ),
        ):
            text = str(self.assertRaises(ConfigurationError, checkColumns, columns(**kinds), ""))
            self.assertIn(reason, text)

    def test_rows(self) -> None:
        """
        Rows are sent with the topic of the option, or their own; the option counts when there are
        both.
        """
        writer = BatchWriter(partial(sendAll, self.sink(compression="gzip")))
        rows = {"topic": ["other", "other"], "key": [None, "k"], "value": ["a", "b"]}
        self.assertEqual(writer.write(self.batches(rows, {"value": [b"c"]})), TaskResult("", 3))
        self.assertEqual(self.taken(), [b"a", b"b", b"c"])
        self.assertEqual(sendAll(self.sink(topic=""), self.batches(rows)), 2)
        self.assertEqual(self.taken("other"), [b"a", b"b"])
        writer.commit([TaskResult("", 3), None])
        writer.abort([TaskResult("", 3), None])

    def test_noRows(self) -> None:
        """A task without rows sends no request."""
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
        """
        A micro-batch whose number is kept is not sent again; the next one is, and so is that of
        another query.
        """
        options = self.sink(brokers="", zookeeper=self.zookeeper)
        writer = StreamWriter(options)
        self.assertIsNone(lastWritten(options, "query"))
        message = sendOnce(options, "query", 0, self.batches({"value": ["a"]}))
        self.assertEqual(message, TaskResult("query", 1))
        writer.abort([message, None], 0)  # it is not whole: it will come again
        message = sendOnce(options, "query", 0, self.batches({"value": ["a"]}))
        writer.commit([message, None], 0)
        self.assertEqual(
            sendOnce(options, "query", 0, self.batches({"value": ["a"]})), TaskResult("query", 0)
        )
        sendOnce(options, "query", 1, self.batches({"value": ["b"]}))
        sendOnce(options, "another", 0, self.batches({"value": ["c"]}))
        self.assertEqual(self.taken(), [b"a", b"a", b"b", b"c"])

    def test_withoutZookeeper(self) -> None:
        """A list of brokers keeps nothing: what is repeated is sent again."""
        options = self.sink()
        StreamWriter(options).commit([TaskResult("query", 1)], 0)
        storeLastWritten(options, "query", 0)
        for _time in range(2):
            self.assertEqual(
                sendOnce(options, "query", 0, self.batches({"value": ["a"]})),
                TaskResult("query", 1),
            )
        self.assertEqual(self.taken(), [b"a", b"a"])


class SendingTests(SourceCase):
    """A task's rows."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.serve(number=1, partitionCount=2)
        self.chances: Iterator[float] = iter(())

    def sending(self, view: Any = None, **options: Any) -> TaskWriter:
        """To both brokers."""
        found = SinkOptions.fromOptions(
            {
                "brokers": f"{self.broker.listed},{self.other.listed}",
                **{key: str(value) for key, value in options.items()},
            }
        )
        sending = TaskWriter(found, view or found.metadata(), lambda: next(self.chances, 0.0))
        self.addCleanup(sending.abort)
        return sending

    def taken(self, broker: LogBroker, partition: int = 0, topic: str = "clicks") -> list[bytes]:
        """What a partition has."""
        log = broker.log(topic, partition)
        return [
            payload
            for base in sorted(log.segments)
            for payload, _ in MessageSet(log.segments[base]).payloads()
        ]

    def setCount(self) -> int:
        """How many sets have come."""
        return sum(
            len(request.sets)
            for broker in (self.broker, self.other)
            for request in broker.requests
            if isinstance(request, Produce)
        )

    def test_keys(self) -> None:
        """
        A key goes where every producer sends it, whether it is text, bytes or a number; each
        partition keeps the order.
        """
        sending = self.sending()
        wanted: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for number in range(60):
            key = (f"key{number}", b"key%d" % number, number)[number % 3]
            sending.add("clicks", key, f"value {number}")
            wanted[defaultPartitioner(key, 3)].append(b"value %d" % number)
        sending.close()
        self.assertEqual(sending.sentCount, 60)
        self.assertEqual(
            [self.taken(self.broker), self.taken(self.other), self.taken(self.other, 1)],
            [wanted[index] for index in range(3)],
        )

    def test_withoutKey(self) -> None:
        """Rows without a key go to a partition by chance, and to another when a set is full."""
        self.chances = iter([0.99, 0.0])
        sending = self.sending(batchSize=24)
        for number in range(4):
            sending.add("clicks", None, b"%d" % number)
        self.assertEqual(sending.sentCount, 3)
        sending.close()
        self.assertEqual(
            (self.taken(self.other, 1), self.taken(self.broker)), ([b"0", b"1", b"2"], [b"3"])
        )

    def test_newTopic(self) -> None:
        """
        A new topic goes to partition 0 of each registered broker; without any broker it is an
        error.
        """
        view = Registry({})
        view.brokers = lambda: {0: self.broker.address}  # type: ignore[method-assign]
        sending = self.sending(view)
        sending.add("new", "key", "value")
        sending.close()
        self.assertEqual(self.taken(self.broker, topic="new"), [b"value"])
        self.assertIn(
            "topic new",
            str(
                self.assertRaises(
                    NoBrokersError, self.sending(Registry({})).add, "new", None, "value"
                )
            ),
        )

    def test_halfRegistered(self) -> None:
        """A broker that is registered for a topic and not at all is an error."""
        view = Registry({"clicks": [BrokerPartition(5, 0)]})
        view.brokers = dict  # type: ignore[method-assign]
        sending = self.sending(view)
        sending.add("clicks", None, "value")
        self.assertIn("broker 5", str(self.assertRaises(NoBrokersError, sending.close)))

    def test_badRows(self) -> None:
        """
        A row without topic or value, a key that is none, a topic that is none, and a message that
        is too large are errors.
        """
        sending = self.sending(maxMessageSize=1_000)
        self.assertIn(
            "without a topic",
            str(self.assertRaises(EncodingError, sending.add, None, None, "value")),
        )
        self.assertIn(
            "without a value",
            str(self.assertRaises(EncodingError, sending.add, "clicks", None, None)),
        )
        self.assertRaises(InvalidKeyError, sending.add, "clicks", 1.5, "value")
        self.assertRaises(ConfigurationError, sending.add, "a/b", None, "value")
        sending.add("clicks", None, b"x" * 1_001)
        self.assertRaises(MessageTooLargeError, sending.close)

    def test_bounded(self) -> None:
        """When all sets together are too much, all are sent."""
        self.patch(module, "BUFFERED_SIZE_MAX", 100)
        sending = self.sending()
        for number in range(9):
            sending.add("clicks", number, b"x" * 10)
        self.assertEqual(sending.sentCount, 6)

    def test_compressedCompany(self) -> None:
        """
        No row is refused for the company that it has in a compressed set: what would make that too
        large goes before, and the order stays.
        """
        random = Random(5)
        rows = [random.randbytes(size) for size in (1_900, 9_000, 200, 5_000, 4_900, 9_900, 1)]
        sending = self.sending(compression="gzip", maxMessageSize=10_000, batchSize=2_000)
        for row in rows:
            sending.add("clicks", b"one", row)
        sending.close()
        place = defaultPartitioner(b"one", 3)
        self.assertEqual(
            (
                self.taken(self.other, place - 1) if place else self.taken(self.broker),
                sending.sentCount,
            ),
            (rows, 7),
        )

    def test_largeBatches(self) -> None:
        """With compression a C{batchSize} beyond what a message may have works."""
        sending = self.sending(compression="gzip", maxMessageSize=10_000, batchSize=40_000)
        rows = [Random(number).randbytes(100) for number in range(1_000)]
        for row in rows:
            sending.add("clicks", b"one", row)
        sending.close()
        self.assertEqual(sending.sentCount, 1_000)
        self.assertEqual(self.setCount(), 12)

    def test_halves(self) -> None:
        """
        A set that is too large as one compressed message goes in halves; a message that is so alone
        goes as it is, if it fits like that.
        """
        sending = self.sending(compression="gzip", maxMessageSize=1_000)
        for number in range(9):
            sending.add("clicks", b"one", Random(number).randbytes(100))
        sending.close()
        self.assertEqual((sending.sentCount, self.setCount()), (9, 2))
        again = self.sending(compression="gzip", maxMessageSize=1_000)
        again.add("clicks", b"one", Random(1).randbytes(1_000))
        again.close()
        self.assertEqual((again.sentCount, self.setCount()), (1, 3))
        again.add("clicks", b"one", Random(1).randbytes(1_001))
        self.assertIn("1000 are allowed", str(self.assertRaises(MessageTooLargeError, again.close)))

    def test_notProven(self) -> None:
        """
        A broker that goes before it has answered the question behind all that was sent is an error,
        and all others are asked all the same.
        """
        self.broker.before = lambda request: not isinstance(request, Offsets)
        sending = self.sending()
        for number in range(9):
            sending.add("clicks", number, b"value")
        self.assertRaises(BrokerConnectionError, sending.close)
        self.assertTrue(any(isinstance(request, Produce) for request in self.broker.requests))
        self.assertTrue(
            any(
                isinstance(request, Offsets) and request.time == -1
                for request in self.other.requests
            )
        )

    def test_abandoned(self) -> None:
        """After a failure connections are let go of without another error."""
        sending = self.sending(batchSize=1)
        sending.add("clicks", 0, b"value")
        self.broker.before = lambda request: False
        sending.abort()
        sending.abort()
