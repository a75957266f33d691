"""
Tests for L{pylogbroker.spark.loader.kafka}. What both protocols share is tested in
L{tests.spark.loader.test_run}.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.records.recordbatch import Record
from pylogbroker.spark.loader import table
from pylogbroker.spark.loader.kafka import KafkaTopics
from pylogbroker.spark.loader.run import planLoad
from pylogbroker.spark.loader.tablereader import tableAt
from pylogbroker.types import AnyPartition, PartitionId, TopicPartition
from tests.spark.kafka.kafkasource import deleteBefore
from tests.spark.loader.cases import HERE, NOW_MS, KafkaLoadCase, packed

HOUR_MS = 3_600_000


class RecordTests(KafkaLoadCase):
    """What rows have that only today's Kafka has."""

    def values(self) -> list[bytes]:
        """What the table has, sorted."""
        rows = table(self.spark, self.folder).select("value").collect()
        return sorted(bytes(row["value"]) for row in rows)

    def test_record(self) -> None:
        """
        A row has key, headers and times. Its event time is that of the envelope, else the record's
        own; a tombstone is a row, too.
        """
        headers = (("trace", b"1"), ("trace", None))
        self.writeRecords(
            Record(0, NOW_MS - HOUR_MS, b"k", b"v", headers),
            Record(0, NOW_MS - 2 * HOUR_MS, b"k", packed(NOW_MS - 3 * HOUR_MS, b"w")),
            Record(0, NOW_MS - HOUR_MS, b"k", None),
            Record(0, -1, None, b"without a time"),
        )
        manifest = self.loaded()
        self.assertEqual((manifest.rowCount, manifest.arrivals), (4, {self.topic: 1}))
        self.assertEqual([each.host for each in manifest.windows], ["web1", ""])
        plain, enveloped, tombstone, arrived = (
            row.asDict() for row in table(self.spark, self.folder).orderBy("offset").collect()
        )
        time = datetime.fromtimestamp((NOW_MS - HOUR_MS) / 1000, UTC)
        wanted = {
            "key": b"k",
            "value": b"v",
            "topic": self.topic,
            "partition": 0,
            "offset": 0,
            "timestampType": 0,
            "isArrival": False,
            "host": None,
            "hour": time.hour,
        }
        self.assertEqual({name: plain[name] for name in wanted}, wanted)
        self.assertEqual(plain["eventTime"], plain["timestamp"])
        self.assertEqual(plain["eventTime"].timestamp(), time.timestamp())
        self.assertEqual(
            [tuple(each) for each in plain["headers"]], [("trace", b"1"), ("trace", None)]
        )
        self.assertEqual((enveloped["hour"], enveloped["host"]), (time.hour - 2, "web1"))
        self.assertEqual((tombstone["value"], tombstone["hour"]), (None, time.hour))
        self.assertEqual((arrived["isArrival"], arrived["headers"]), (True, None))

    def test_transactions(self) -> None:
        """
        Records of aborted transactions are left out, and a run ends where an open one begins; the
        next run continues there. A run that finds markers only moves the table's end.
        C{read_uncommitted} loads all.
        """
        servers = {"bootstrap.servers": self.broker.bootstrapServers}
        producer = Producer({**servers, "transactional.id": self.topic})
        producer.init_transactions(60)

        def begin(value: bytes) -> None:
            producer.begin_transaction()
            producer.produce(self.topic, value, partition=0)
            producer.flush(60)

        begin(b"committed")
        producer.commit_transaction(60)
        begin(b"aborted")
        producer.abort_transaction(60)
        begin(b"open")
        first = self.loaded()
        self.assertEqual((first.positions[self.place()], self.values()), (4, [b"committed"]))
        self.assertEqual(self.load(), (None, ()))
        producer.commit_transaction(60)
        self.assertEqual((self.loaded().rowCount, self.end()), (1, 6))
        self.assertEqual(self.values(), [b"committed", b"open"])
        begin(b"aborted, too")
        producer.abort_transaction(60)
        nothing = self.loaded()
        self.assertEqual((nothing.rowCount, nothing.positions[self.place()]), (0, 8))
        every = {"startOffsets": "earliest", "KAFKA.isolation.level": "read_uncommitted"}
        again = self.loaded(includeheaders="false", **every)
        self.assertEqual((again.rowCount, again.replacedCount), (4, 2))

    def test_lostMeanwhile(self) -> None:
        """
        Records that retention deletes between the plan and the reading stop the run, or stand in
        result and manifest; a gap that was there before does not.
        """

        def deleting(offset: int) -> dict[str, Any]:
            def transform(rows: Any) -> Any:
                deleteBefore(self.today, TopicPartition(self.topic, 0), offset)
                return rows

            return {"transform": transform}

        self.write(b"a", b"b", b"c")
        self.write(b"other", partition=1)
        error = self.assertRaises(LoadError, self.load, **deleting(1))
        self.assertIn("the earliest offset left is 1", str(error))
        self.assertEqual(tableAt(self.folder).manifestCount(), 0)
        result = self.load(failOnDataLoss="false", **deleting(2))
        note = (
            f"{self.topic}-0: offsets 1 to 2 were deleted while they were read, and 1 of them have"
            " no rows"
        )
        self.assertEqual(result.notes, (note,))
        self.assertEqual(self.values(), [b"c", b"other"])
        self.assertEqual(tableAt(self.folder).manifest(1).notes, (note,))
        self.write(b"d")
        gone = self.load(failOnDataLoss="false", **deleting(4))
        self.assertIn("offsets 3 to 4 were deleted", gone.notes[0])
        self.assertEqual(self.values(), [b"c", b"other"])
        self.write(b"e")
        self.assertEqual(self.load(failOnDataLoss="false").notes, ())


class PlanTests(KafkaLoadCase):
    """What brokers say."""

    def topics(self, **more: str) -> KafkaTopics:
        """The source of a run."""
        return KafkaTopics({**self.source(), **more})

    def test_lost(self) -> None:
        """
        Records that were deleted before they were loaded are an error, or a note; a log that ends
        before the table, and a topic that has fewer partitions than the table, were created anew.
        """
        self.write(b"a", b"b", b"c")
        place = self.place()
        deleteBefore(self.today, TopicPartition(self.topic, 0), 2)
        positions: dict[AnyPartition, int] = {place: 1}
        lost = f"{self.topic}-0: offsets 1 to 2 were deleted before they were loaded"
        self.assertIn(lost, str(self.assertRaises(LoadError, planLoad, self.topics(), positions)))
        plan = planLoad(self.topics(failOnDataLoss="false"), positions)
        self.assertEqual((plan.ranges, plan.notes), ((PlannedRange(place, 2, 3, False),), (lost,)))
        error = self.assertRaises(LoadError, planLoad, self.topics(), {place: 4})
        self.assertIn("was the log created anew?", str(error))
        more = TopicPartition(self.topic, 7)
        plan = planLoad(self.topics(), {place: 3, more: 5, TopicPartition("other", 9): 5})
        self.assertEqual(plan.ranges, ())
        self.assertEqual(len(plan.notes), 1)
        self.assertIn(f"{more}: the topic has no such partition now", plan.notes[0])

    def test_lossNotes(self) -> None:
        """
        A log that was truncated while a run read, and one whose beginning was deleted, are told;
        without either nothing is.
        """
        self.write(b"a", b"b", b"c")
        place = self.place()
        topics = self.topics()
        self.assertEqual(topics.lossNotes(None, [PlannedRange(place, 0, 3, False)]), ())
        self.assertEqual(topics.lossNotes(None, [PlannedRange(place, 9, 9, False)]), ())
        [note] = topics.lossNotes(None, [PlannedRange(place, 0, 5, False)])
        self.assertIn(f"{place}: the log ends at 3, and ended at 5", note)
        deleteBefore(self.today, TopicPartition(self.topic, 0), 2)
        [note] = topics.lossNotes(None, [PlannedRange(place, 0, 3, False)])
        self.assertIn("offsets 0 to 2 were deleted while they were read, and 2 of them", note)

    def test_unstable(self) -> None:
        """
        A table that was loaded with C{read_uncommitted} beyond the first open transaction waits for
        its end; then the next run continues.
        """
        servers = {"bootstrap.servers": self.broker.bootstrapServers}
        producer = Producer({**servers, "transactional.id": self.topic})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.topic, b"open", partition=0)
        producer.flush(60)
        self.write(b"behind it")
        place = self.place()
        plan = planLoad(self.topics(), {place: 2})
        self.assertEqual((plan.ranges, plan.notes), ((), ()))
        plan = planLoad(self.topics(), {place: 2}, "earliest")
        self.assertEqual(plan.ranges[0], PlannedRange(place, 0, 0, True))
        error = self.assertRaises(LoadError, planLoad, self.topics(), {place: 3})
        self.assertIn("the log ends at 0", str(error))
        producer.commit_transaction(60)
        plan = planLoad(self.topics(), {place: 2})
        self.assertEqual(plan.ranges, (PlannedRange(place, 2, 3, False),))

    def test_otherKind(self) -> None:
        """A table has topics of one protocol."""
        error = self.assertRaises(
            LoadError, planLoad, self.topics(), {PartitionId(self.topic, HERE): 1}
        )
        self.assertIn("those of today's Kafka, and the table has others", str(error))
