"""
Tests for L{pylogbroker.spark.kafka.source} and the modules that it reads with, on a real broker.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows

from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    DataLossError,
    PylogbrokerError,
    UnknownPartitionError,
    UnreadableRangeError,
)
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.records.columns import recordColumns
from pylogbroker.records.recordbatch import Record, encodeBatch, readHeader
from pylogbroker.spark.kafka.options import KafkaSourceOptions
from pylogbroker.spark.kafka.rangereader import (
    TIMESTAMP_MAX_MS,
    KafkaRangeReader,
    arrowBatch,
)
from pylogbroker.spark.kafka.ranges import KafkaRange, asked, splitRanges
from pylogbroker.spark.kafka.source import KafkaBatchReader, decodeKafkaCheckpoint
from pylogbroker.syncclient.kafka.recordreader import FetchedBatches
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.spark.kafka.kafkasource import ALL, T0, T1, KafkaSourceCase, deleteBefore

BOTH = '{"clicks":{"0":%s,"1":%s}}'


class BatchTests(KafkaSourceCase):
    """What a batch reads."""

    def test_columns(self) -> None:
        """All columns of Spark's own source; a record without headers has null."""
        headers = (("a", b"1"), ("a", None))
        records = [Record(0, 1_500, b"k", b"v", headers), Record(1, -1, None, None)]
        RecordWriter(self.cluster).write(T1, records)
        first, second = self.rows(includeHeaders="TRUE")
        self.assertEqual(
            first,
            {
                "key": b"k",
                "value": b"v",
                "topic": "clicks",
                "partition": 1,
                "offset": 0,
                "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
                "timestampType": 0,
                "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            },
        )
        self.assertEqual((second["key"], second["value"], second["headers"]), (None, None, None))
        self.assertEqual(second["timestamp"], datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC))
        self.assertNotIn("headers", self.rows()[0])

    def test_selection(self) -> None:
        """By name, by pattern, which passes over internal topics, or by partition."""
        self.write(T0, b"a")
        self.write(T1, b"b")
        self.assertEqual(self.values(), [b"a", b"b"])
        self.assertEqual(self.values(subscribe=None, subscribePattern="cl.*|__.*"), [b"a", b"b"])
        self.assertEqual(self.values(subscribe=None, subscribePattern="no.*"), [])
        self.assertEqual(self.values(subscribe=None, assign='{"clicks":[1]}'), [b"b"])
        with self.assertRaisesRegex(UnknownPartitionError, "no partition clicks-7"):
            self.values(subscribe=None, assign='{"clicks":[7]}')
        with self.assertRaisesRegex(ResponseError, "topic none: UNKNOWN_TOPIC_OR_PARTITION"):
            self.values(subscribe="none", fetchOffset_numRetries=0)

    def test_ranges(self) -> None:
        """Offsets cut batches; words and numbers may be mixed."""
        self.write(T0, b"0", b"1", b"2", b"3")
        self.write(T1, b"x")
        found = self.values(startingOffsets=BOTH % (1, -2), endingOffsets=BOTH % (3, -1))
        self.assertEqual(found, [b"1", b"2", b"x"])
        for reason, options in (
            ("startingOffsets does not name clicks-1", {"startingOffsets": '{"clicks":{"0":0}}'}),
            ("names clicks-2", {"endingOffsets": '{"clicks":{"0":0,"1":0,"2":0}}'}),
            (
                "clicks-0: the end is 1, before the start at 2",
                {"startingOffsets": BOTH % (2, 0), "endingOffsets": BOTH % (1, -1)},
            ),
            ("would read nothing", {"startingOffsets": "latest"}),
            ("would read nothing", {"startingOffsets": BOTH % (1, -1)}),
        ):
            with self.assertRaisesRegex(ConfigurationError, reason):
                self.values(**options)

    def test_times(self) -> None:
        """A start and an end by time, for all or for each partition."""
        for time in (10, 20, 30):
            self.write(T0, str(time).encode(), timestampMs=time)
        self.write(T1, b"25", timestampMs=25)
        self.assertEqual(self.values(startingTimestamp=20), [b"20", b"30", b"25"])
        self.assertEqual(self.values(startingTimestamp=15, endingTimestamp=25), [b"20"])
        found = self.values(
            startingOffsetsByTimestamp=BOTH % (30, 1), endingOffsetsByTimestamp=BOTH % (99, 99)
        )
        self.assertEqual(found, [b"30", b"25"])
        with self.assertRaisesRegex(ConfigurationError, "clicks-1 has no record of time 26"):
            self.values(startingTimestamp=26)
        found = self.values(
            startingTimestamp=26,
            startingOffsetsByTimestampStrategy="latest",
            startingOffsets="latest",
        )
        self.assertEqual(found, [b"30"])

    def test_file(self) -> None:
        """A broker that asks for a password is read with the property file of the tools."""
        listener = "listener.name.sasl_plaintext."
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        properties = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN",
            f"{listener}plain.sasl.jaas.config": f'{module} required user_ann="right";',
        }
        broker = BackgroundBroker(properties).start()
        self.addCleanup(broker.close)
        for password, isRight in (("right", True), ("wrong", False)):
            file = Path(self.mktemp())
            file.write_text(
                f"sasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password={password}\n",
                encoding="utf-8",
            )
            given = {
                "kafka.bootstrap.servers": broker.bootstrapServers,
                "subscribePattern": ".*",
                "config": str(file.absolute()),
                "fetchOffset.numRetries": "0",
            }
            reader = KafkaBatchReader(KafkaSourceOptions.fromOptions(given))
            if isRight:
                self.assertEqual(reader.partitions(), [])
            else:
                self.assertRaises(PylogbrokerError, reader.partitions)

    def test_splits(self) -> None:
        """
        C{minPartitions} and C{maxRecordsPerPartition} cut anywhere; every record is in one split.
        """
        values = [b"%d" % number for number in range(100)]
        self.write(T0, *values)
        self.write(T1, b"x")
        self.assertEqual(self.values(minPartitions=7), [*values, b"x"])
        reader = KafkaBatchReader(self.options(maxRecordsPerPartition=30))
        self.assertEqual(len(reader.partitions()), 5)
        self.assertEqual(self.values(maxRecordsPerPartition=30), [*values, b"x"])
        ranges = [KafkaRange(T0, 0, 100), KafkaRange(T1, 5, 5), KafkaRange(T1, 0, 1)]
        self.assertEqual(max(each.size for each in splitRanges(ranges, 0, 33)), 25)
        self.assertEqual(len(splitRanges(ranges, 7, 50)), 8)
        self.assertEqual(len(splitRanges(ranges, 7)), 8)
        self.assertEqual(len(splitRanges(ranges, 1)), 2)

    def test_committed(self) -> None:
        """With C{read_committed} aborted and open transactions are left out."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrapServers, "transactional.id": "t"}
        )
        producer.init_transactions(30)
        for value, isKept in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            producer.produce("clicks", value, partition=0)
            producer.flush(30)
            (producer.commit_transaction if isKept else producer.abort_transaction)(30)
        producer.begin_transaction()
        producer.produce("clicks", b"open", partition=0)
        producer.flush(30)
        self.assertEqual(self.values(), [b"a", b"b", b"c", b"open"])
        self.assertEqual(self.values(kafka_isolation_level="read_committed"), [b"a", b"c"])
        producer.abort_transaction(30)

    def test_lostData(self) -> None:
        """Records that are gone are an error, or are skipped, while planning and while reading."""
        self.write(T0, b"0", b"1")
        self.write(T0, b"2")
        deleteBefore(self.cluster, T0, 1)
        self.assertEqual(self.values(), [b"1", b"2"])
        spec = {"startingOffsets": BOTH % (0, 0), "endingOffsets": BOTH % (9, 0)}
        with self.assertRaisesRegex(DataLossError, "the log ends at 3: it was truncated"):
            self.values(**spec)
        self.assertEqual(self.values(failOnDataLoss="false", **spec), [b"1", b"2"])
        for start, end, reason in ((0, 3, "it was deleted before"), (1, 9, "ended at 9 when")):
            wanted = KafkaRange(T0, start, end)
            with self.assertRaisesRegex(DataLossError, reason):
                list(KafkaRangeReader(wanted, self.cluster, self.options()))
            reader = KafkaRangeReader(wanted, self.cluster, self.options(failOnDataLoss="false"))
            self.assertEqual(sum(columns.rowCount for columns in reader), 2)

    def test_unreadable(self) -> None:
        """A damaged batch, and a broker that gives nothing, are errors that name the place."""
        self.write(T0, b"0")
        options = self.options(kafkaConsumer_pollTimeoutMs=1_500)
        reader = KafkaRangeReader(KafkaRange(T0, 0, 1), self.cluster, options)
        [(where, data, aborted)] = reader._reader.fetch(0)
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        self.patch(reader._reader, "fetch", lambda _waitMs: [(where, damaged, aborted)])
        with self.assertRaisesRegex(UnreadableRangeError, "clicks-0, offset 0: .*checksum"):
            list(reader)
        waits: list[int] = []

        def fetchNothing(waitMs: int) -> list[FetchedBatches]:
            waits.append(waitMs)
            return []

        self.patch(reader._reader, "fetch", fetchNothing)
        with self.assertRaisesRegex(BrokerConnectionError, "for 1500 ms, though it has 0 to 1"):
            list(reader)
        self.assertEqual(waits, [0, 500, 500, 500])

    def test_timestamp(self) -> None:
        """A timestamp beyond those of Spark is an error, and none before."""
        for timeMs, isGood in ((TIMESTAMP_MAX_MS, True), (TIMESTAMP_MAX_MS + 1, False)):
            data = encodeBatch([Record(0, timeMs, None, b"x")])
            [columns] = recordColumns([(data, 0, readHeader(data))])
            wanted = KafkaRange(T0, 0, 1)
            if isGood:
                [found] = arrowBatch(columns, wanted).column("timestamp").cast("int64").to_pylist()
                self.assertEqual(found, timeMs * 1000)
            else:
                with self.assertRaisesRegex(UnreadableRangeError, f"clicks-0.*timestamp {timeMs}"):
                    arrowBatch(columns, wanted)


class StreamTests(KafkaSourceCase):
    """Micro-batches."""

    def test_latest(self) -> None:
        """A stream begins at the end, and each micro-batch has what is new."""
        self.write(T0, b"old")
        stream = self.stream()
        start = stream.initialOffset()
        self.assertEqual(start["clicks"]["0"], {"from": 1, "to": 1})
        self.assertIs(stream.latestOffset(start, ALL), start)
        self.write(T0, b"new")
        end = stream.latestOffset(start, ALL)
        self.assertEqual(self.micro(stream, start, end), [b"new"])
        self.assertEqual(self.micro(self.stream(), {}, end), [b"new"])  # repeated after a crash
        self.assertIs(stream.latestOffset(end, ALL), end)

    def test_limit(self) -> None:
        """C{maxOffsetsPerTrigger} limits a micro-batch, and nothing is left out."""
        self.write(T0, *(b"%d" % number for number in range(10)))
        self.write(T1, b"x", b"y")
        stream = self.stream(startingOffsets="earliest", maxOffsetsPerTrigger=4)
        limit, start, found = stream.getDefaultReadLimit(), stream.initialOffset(), []
        self.assertEqual(limit, ReadMaxRows(4))
        self.assertIsInstance(self.stream().getDefaultReadLimit(), type(ALL))
        while (end := stream.latestOffset(start, limit)) is not start:
            rows = self.micro(stream, start, end)
            self.assertTrue(0 < len(rows) <= 5)
            found += rows
            start = end
        self.assertEqual(
            sorted(filter(None, found)), sorted([*(b"%d" % n for n in range(10)), b"x", b"y"])
        )

    def test_delay(self) -> None:
        """
        C{minOffsetsPerTrigger} lets a micro-batch wait for records, but not the first one, not
        longer than C{maxTriggerDelay}, and not when Spark asks for all there is.
        """
        clock = [1_000.0]
        options: dict[str, Any] = {"minOffsetsPerTrigger": 3, "maxTriggerDelay": "2m"}
        stream = self.stream(startingOffsets="earliest", clock=lambda: clock[0], **options)
        limit = stream.getDefaultReadLimit()
        self.assertEqual(limit, ReadMinRows(3))
        self.write(T0, b"0")
        end = stream.latestOffset(stream.initialOffset(), limit)
        self.assertEqual(self.micro(stream, {}, end), [b"0"])
        self.write(T0, b"1", b"2")
        self.assertIs(stream.latestOffset(end, limit), end)
        self.assertIsNot(stream.latestOffset(end, ALL), end)
        clock[0] += 119
        self.assertIs(stream.latestOffset(end, limit), end)
        clock[0] += 1
        end = stream.latestOffset(end, limit)
        self.assertEqual(self.micro(stream, {}, end), [b"1", b"2"])
        self.write(T0, b"3", b"4")
        self.assertIs(stream.latestOffset(end, limit), end)
        self.write(T1, b"5")
        end = stream.latestOffset(end, limit)
        self.assertEqual(self.micro(stream, {}, end), [b"3", b"4", b"5"])
        both = self.stream(maxOffsetsPerTrigger=4, **options)
        self.assertEqual(both.getDefaultReadLimit(), ReadMaxRows(4))
        both.latestOffset(end, ALL)
        self.write(T0, b"6")
        self.assertIsNot(both.latestOffset(end, ReadMaxRows(4)), end)  # the first that has records
        self.assertIs(both.latestOffset(end, ReadMaxRows(4)), end)

    def test_delayAvailableNow(self) -> None:
        """A run that reads what exists does not wait for more."""
        self.write(T0, b"a", b"b")
        stream = self.stream(
            startingOffsets="earliest", minOffsetsPerTrigger=2, maxOffsetsPerTrigger=2
        )
        start = stream.initialOffset()
        self.write(T0, b"c")
        stream.prepareForTriggerAvailableNow()
        end = stream.latestOffset(start, ReadMaxRows(2))
        end = stream.latestOffset(end, ReadMaxRows(2))
        self.assertEqual(end["clicks"]["0"]["to"], 3)

    def test_askedAgain(self) -> None:
        """
        Without an answer the brokers are asked again, C{fetchOffset.numRetries} times; an error
        that does not pass is told at once.
        """
        options = self.options(fetchOffset_numRetries=2, fetchOffset_retryIntervalMs=250)
        outcomes: list[Any] = [BrokerConnectionError("away"), ResponseError(5), "found"]
        pauses: list[float] = []

        def ask() -> Any:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.assertEqual(asked(options, ask, pauses.append), "found")
        self.assertEqual(pauses, [0.25, 0.25])
        outcomes += [BrokerConnectionError("away")] * 3
        with self.assertRaisesRegex(BrokerConnectionError, "away"):
            asked(options, ask, pauses.append)
        outcomes += [ResponseError(29), "not asked for"]
        with self.assertRaisesRegex(ResponseError, "TOPIC_AUTHORIZATION_FAILED"):
            asked(options, ask, pauses.append)
        self.assertEqual((outcomes, len(pauses)), (["not asked for"], 4))

    def test_availableNow(self) -> None:
        """A run that reads what exists ends there, whatever comes meanwhile."""
        self.write(T0, b"a")
        stream = self.stream(startingOffsets="earliest")
        start = stream.initialOffset()
        stream.prepareForTriggerAvailableNow()
        self.write(T0, b"b")
        end = stream.latestOffset(start, ReadMaxRows(9))
        self.assertEqual(self.micro(stream, start, end), [b"a"])
        self.assertIs(stream.latestOffset(end, ALL), end)
        past = {"clicks": {"0": {"from": 0, "to": 2}, "1": {"from": 0, "to": 0}}}
        self.assertIs(stream.latestOffset(past, ALL), past)

    def test_newPartition(self) -> None:
        """A partition that is not in the checkpoint is read from its beginning."""
        self.write(T0, b"a")
        self.write(T1, b"b")
        start = {"clicks": {"0": {"from": 0, "to": 1}}}
        stream = self.stream()
        end = stream.latestOffset(start, ALL)
        self.assertEqual(self.micro(stream, start, end), [b"b"])

    def test_lost(self) -> None:
        """Deleted, truncated and missing data are errors, or are skipped."""
        self.write(T0, b"a", b"b")
        deleteBefore(self.cluster, T0, 1)
        for name, before, reason in (
            ("0", 0, "the earliest offset left is 1"),
            ("0", 9, "the log ends at 2, and 9 was read"),
            ("7", 3, "clicks-7: it does not exist any more; 3 of it was read"),
        ):
            start = {"clicks": {name: {"from": 0, "to": before}}}
            with self.assertRaisesRegex(DataLossError, reason):
                self.stream().latestOffset(start, ALL)
            stream = self.stream(failOnDataLoss="false")
            end = stream.latestOffset(start, ALL)
            self.assertEqual(self.micro(stream, start, end), [b"b"])
        pattern: dict[str, Any] = {"subscribe": None, "subscribePattern": "cl.*"}
        for options in ({}, pattern):
            with self.assertRaisesRegex(DataLossError, "other-0: .* no longer subscribed"):
                self.stream(**options).latestOffset({"other": {"0": {"from": 0, "to": 3}}}, ALL)

    def test_checkpoint(self) -> None:
        """A checkpoint of something else is refused."""
        bad: tuple[dict[str, Any], ...] = (
            {"t": {"0": 5}},
            {"t": {"0-0": {"from": 0, "to": 1}}},
            {"t": []},
        )
        for stored in bad:
            with self.assertRaisesRegex(UnreadableRangeError, "not an offset of pylogbroker"):
                decodeKafkaCheckpoint(stored)
