"""
Tests for the log spout and the log bolt on a broker of today's Kafka.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import ConfigurationError, PylogbrokerError, TupleError
from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.programs.localcluster import LocalCluster
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.topologies.log import LogBolt, LogMessage, LogSpout
from pylogbroker.types import TopicPartition
from tests.topologies.log.logcase import Harness, Values, feed, tupleOf

T0, T1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


class KafkaLogCase(SynchronousTestCase):
    """
    Has a broker with the topic C{clicks} of two partitions.
    """

    # One for all; the end of the run ends it. The records' times are those of 1970.
    broker = BackgroundBroker({"num.partitions": "2", "log.retention.ms": "-1"})

    def setUp(self) -> None:
        self.broker.reset()
        self.cluster = KafkaCluster([endpoint(f"tcp:{self.broker.host}:{self.broker.port}")])
        self.addCleanup(self.cluster.close)
        self.cluster.partitions("clicks", isCreating=True)

    def write(self, where: TopicPartition, *values: bytes, timestampMs: int = 0) -> None:
        """A batch of records."""
        records = [Record(0, timestampMs, None, each) for each in values]
        RecordWriter(self.cluster).write(where, records)

    def contents(self, topic: str, count: int) -> list[tuple[int, Record]]:
        """The records of a topic: as many as there must be."""
        places = [TopicPartition(topic, number) for number in self.cluster.partitions(topic)]
        reader = RecordReader(self.cluster, dict.fromkeys(places, 0))
        found: list[tuple[int, Record]] = []
        while len(found) < count:
            found += [(where.partition, record) for where, record in reader.poll(1_000)]
        self.assertEqual(len(found), count)
        return found

    def config(self, **more: Any) -> dict[str, Any]:
        """A configuration; C{_} stands for a dot."""
        return {
            "topology.reliability.mode": "ATLEAST_ONCE",
            "bootstrap.servers": self.broker.bootstrapServers,
            "fetch.max.wait.ms": 10,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def committed(self, group: str = "topology-of-test") -> dict[TopicPartition, int]:
        """The positions of a group."""
        member = KafkaGroupMember(self.cluster, group, ["clicks"])
        member.partitions = [T0, T1]
        return member.committed()

    def spout(self, harness: Harness, index: int = 0, parallelism: int = 1, **more: Any) -> Values:
        """A spout that emits values."""
        spout = harness.start(Values("clicks"), self.config(**more), index, parallelism)
        self.addCleanup(spout.close)
        return spout


class LogSpoutTests(KafkaLogCase):
    """L{LogSpout} at least once."""

    def test_instancesDividePartitions(self) -> None:
        """Each record comes to one instance: that with the index of its partition."""
        self.write(T0, b"a", b"b")
        self.write(T1, b"c")
        harnesses = [Harness(), Harness(), Harness()]
        spouts = [self.spout(each, at, 3) for at, each in enumerate(harnesses)]
        self.assertEqual(harnesses[0].valuesFrom(spouts[0], 2), [b"a", b"b"])
        self.assertEqual(harnesses[1].valuesFrom(spouts[1], 1), [b"c"])
        for _turn in range(5):
            spouts[2].nextTuple()
        self.assertEqual(harnesses[2].collector.emitted, [])

    def test_fields(self) -> None:
        """Unless a subclass says otherwise, a tuple has what is known of a record."""
        RecordWriter(self.cluster).write(T1, [Record(0, 1234, b"k", b"v")])
        harness = Harness()
        spout = harness.start(LogSpout(["clicks"]), self.config())
        self.addCleanup(spout.close)
        [(values, _id)] = harness.takeFrom(spout, 1)
        self.assertEqual(
            dict(zip(spout.outputs, values, strict=True)),
            {
                "topic": "clicks",
                "partition": 1,
                "offset": 0,
                "key": b"k",
                "value": b"v",
                "timestamp": 1234,
            },
        )

    def test_positionStaysBeforeGap(self) -> None:
        """
        What is committed is behind acknowledged tuples only, whatever their order; the next
        instance begins at the first that is not.
        """
        self.write(T0, *(b"%d" % n for n in range(5)))
        harness = Harness()
        spout = self.spout(harness)
        emitted = harness.takeFrom(spout, 5)
        for at in (4, 0, 1, 3):
            spout.ack(emitted[at][1])
        spout.close()
        self.assertEqual(self.committed()[T0], 2)
        again = Harness()
        self.assertEqual(again.valuesFrom(self.spout(again), 3), [b"2", b"3", b"4"])

    def test_commitsByTime(self) -> None:
        """Positions are committed each C{auto.commit.interval.ms}, also without new records."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(harness)
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        spout.ack(tupleId)
        self.assertEqual(self.committed()[T0], 0)
        harness.clock.advance(5)
        spout.nextTuple()
        self.assertEqual(self.committed(), {T0: 1, T1: 0})

    def test_deactivatedCommits(self) -> None:
        """A spout that is deactivated commits what is acknowledged."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(harness)
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        spout.ack(tupleId)
        spout.deactivate()
        self.assertEqual(self.committed()[T0], 1)

    def test_recordsLeftOut(self) -> None:
        """What C{translate} leaves out is done."""
        self.write(T0, b"skip me", b"a", b"skip me")
        harness = Harness()
        spout = self.spout(harness)
        [(values, tupleId)] = harness.takeFrom(spout, 1)
        self.assertEqual(values, [b"a"])
        spout.ack(tupleId)
        spout.ack(tupleId)  # once more changes nothing
        spout.nextTuple()
        spout.close()
        self.assertEqual(self.committed()[T0], 3)

    def test_failedIsReplayedLater(self) -> None:
        """A record that fails comes again when its time has come, later each time, then counts."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(harness, replay_backoff_ms=1_000, replay_backoff_max_ms=3_000)
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        for seconds in (1, 2, 3, 3):
            spout.fail(tupleId)
            harness.clock.advance(seconds - 0.1)
            spout.nextTuple()
            self.assertEqual(harness.collector.take(), [])
            harness.clock.advance(0.2)
            spout.nextTuple()
            [(values, tupleId)] = harness.collector.take()
            self.assertEqual(values, [b"a"])
        spout.ack(tupleId)
        spout.fail(tupleId)  # too late
        spout.close()
        self.assertEqual(self.committed()[T0], 1)
        self.assertEqual(harness.counters["log.replayed"], 4)

    def test_replayLimitStops(self) -> None:
        """With a limit, a record that fails too often ends the instance; its position stays."""
        self.write(T0, b"a", b"b")
        harness = Harness()
        spout = self.spout(harness, replay_limit=1, replay_backoff_ms=1)
        [(_values, tupleId), _b] = harness.takeFrom(spout, 2)
        spout.fail(tupleId)
        harness.takeFrom(spout, 1)
        error = self.assertRaises(PylogbrokerError, spout.fail, tupleId)
        self.assertIn("clicks-0, offset 0: the record has failed 2 times", str(error))
        spout.close()
        self.assertEqual(self.committed()[T0], 0)

    def test_replayLimitSkips(self) -> None:
        """With C{skip} it is left out and counted."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(harness, replay_limit=0, replay_exhausted="skip")
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        spout.fail(tupleId)
        spout.close()
        self.assertEqual(self.committed()[T0], 1)
        self.assertEqual(harness.counters["log.given-up"], 1)

    def test_deadLetters(self) -> None:
        """With C{dead-letter} it goes, as it was, to a topic, with the reason."""
        RecordWriter(self.cluster).write(T1, [Record(0, 77, b"k", b"v", (("h", b"x"),))])
        harness = Harness()
        spout = self.spout(harness, replay_limit=0, replay_exhausted="dead-letter")
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        spout.fail(tupleId)
        spout.close()
        [(_partition, letter)] = self.contents("clicks-dead-letters", 1)
        self.assertEqual((letter.key, letter.value, letter.timestampMs), (b"k", b"v", 77))
        headers = dict(letter.headers)
        self.assertEqual(headers["h"], b"x")
        self.assertEqual(headers["pylogbroker.dead-letter.topic"], b"clicks")
        self.assertEqual(headers["pylogbroker.dead-letter.partition"], b"1")
        self.assertEqual(headers["pylogbroker.dead-letter.offset"], b"0")
        self.assertEqual(self.committed()[T1], 1)

    def test_deadLetterIsTriedAgain(self) -> None:
        """A record whose dead letter cannot be written is not given up."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(
            harness, replay_limit=0, replay_exhausted="dead-letter", request_timeout_ms=200
        )
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        self.broker.stop()
        spout.fail(tupleId)
        self.broker.start()
        self.assertEqual(harness.takeFrom(spout, 1), [([b"a"], tupleId)])

    def test_windowIsBounded(self) -> None:
        """A partition is not read on behind C{max.uncommitted.offsets}; another one is."""
        for n in range(30):
            self.write(T0, b"%d" % n)
        harness = Harness()
        spout = self.spout(
            harness,
            max_uncommitted_offsets=10,
            max_partition_fetch_bytes=1,  # one batch, and so one record, at a time
        )
        emitted = harness.takeFrom(spout, 10)
        for at in range(1, 10):
            spout.ack(emitted[at][1])
        self.write(T1, b"other")
        self.assertEqual(harness.valuesFrom(spout, 1), [b"other"])
        for _turn in range(5):
            spout.nextTuple()
        self.assertEqual(harness.collector.take(), [])
        spout.ack(emitted[0][1])
        self.assertEqual(harness.valuesFrom(spout, 1), [b"10"])

    def test_memoryIsBounded(self) -> None:
        """Nothing is read while C{buffer.memory} bytes are not acknowledged."""
        for _n in range(4):
            self.write(T0, b"x" * 1_000)
        harness = Harness()
        spout = self.spout(harness, buffer_memory=2_000, max_partition_fetch_bytes=1)
        emitted = harness.takeFrom(spout, 2)
        for _turn in range(5):
            spout.nextTuple()
        self.assertEqual(harness.collector.take(), [])
        spout.ack(emitted[1][1])
        self.assertEqual(len(harness.takeFrom(spout, 1)), 1)

    def test_goesOnAfterRestart(self) -> None:
        """While the broker is away nothing is emitted and nothing raises; then it goes on."""
        self.write(T0, b"a")
        harness = Harness()
        spout = self.spout(harness, request_timeout_ms=200)
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        self.broker.kill()
        spout.nextTuple()
        self.assertEqual(harness.collector.take(), [])
        spout.ack(tupleId)
        self.broker.start()
        self.write(T0, b"b")
        self.assertEqual(harness.valuesFrom(spout, 1), [b"b"])
        harness.clock.advance(10)
        harness.turn(spout, lambda: self.committed()[T0] == 1)

    def test_topicMayComeLater(self) -> None:
        """A spout waits for a topic that is not there."""
        harness = Harness()
        spout = harness.start(Values("later"), self.config())
        self.addCleanup(spout.close)
        spout.nextTuple()
        self.cluster.partitions("later", isCreating=True)
        self.write(TopicPartition("later", 0), b"a")
        self.assertEqual(harness.valuesFrom(spout, 1), [b"a"])

    def test_newPartitions(self) -> None:
        """A partition that comes later is read from its beginning, also with C{latest}."""
        harness = Harness()
        spout = self.spout(harness, auto_offset_reset="latest")
        spout.nextTuple()
        cls: Any = messages.CreatePartitionsRequest
        topic = cls.CreatePartitionsTopic(name="clicks", count=3, assignments=None)
        body = cls(topics=[topic], timeoutMs=10_000, validateOnly=False)
        self.cluster.change(ApiKey.CREATE_PARTITIONS, body)
        self.write(TopicPartition("clicks", 2), b"new")
        harness.clock.advance(301)
        self.assertEqual(harness.valuesFrom(spout, 1), [b"new"])

    def test_lag(self) -> None:
        """The lag of each partition is measured every ten seconds, from what is committable."""
        self.write(T0, b"a", b"b", b"c")
        harness = Harness()
        spout = self.spout(harness)
        emitted = harness.takeFrom(spout, 3)
        self.assertEqual(harness.counters["log.lag.clicks-0"], 3)
        spout.ack(emitted[0][1])
        harness.clock.advance(10)
        spout.nextTuple()
        self.assertEqual(harness.counters["log.lag.clicks-0"], 2)
        self.assertEqual(harness.counters["log.lag.clicks-1"], 0)
        self.assertEqual(harness.counters["log.read"], 3)

    def deleteBefore(self, offset: int) -> None:
        """As retention does, in the first partition."""
        cls: Any = messages.DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partitionIndex=0, offset=offset)
        topic = cls.DeleteRecordsTopic(name="clicks", partitions=[part])
        self.cluster.broker(self.cluster.leader(T0)).request(
            ApiKey.DELETE_RECORDS, cls(topics=[topic], timeoutMs=30_000)
        )

    def test_deletedRecords(self) -> None:
        """What was deleted before it was read is counted, and the rest is read."""
        self.write(T0, b"a", b"b", b"c")
        spout = self.spout(Harness())
        spout.nextTuple()  # its start is committed now
        self.deleteBefore(2)
        harness = Harness()
        self.assertEqual(harness.valuesFrom(self.spout(harness), 1), [b"c"])
        self.assertEqual(harness.counters["log.lost"], 2)

    def test_deletedRecordsWithoutReset(self) -> None:
        """With C{none}, records that are gone end the instance."""
        self.write(T0, b"a", b"b", b"c")
        spout = self.spout(Harness())
        spout.nextTuple()
        self.deleteBefore(2)
        spout = self.spout(Harness(), auto_offset_reset="none")
        error = self.assertRaises(ConfigurationError, spout.nextTuple)
        self.assertIn("no position in the log for clicks-0", str(error))

    def test_logMadeAnew(self) -> None:
        """A position behind the end of the log begins as C{auto.offset.reset} says."""
        self.write(T0, b"a")
        KafkaGroupMember(self.cluster, "topology-of-test", ["clicks"]).commit({T0: 7, T1: 0})
        harness = Harness()
        self.assertEqual(harness.valuesFrom(self.spout(harness), 1), [b"a"])
        self.assertEqual(harness.counters["log.lost"], 0)

    def test_groupWithMembers(self) -> None:
        """Positions of a group that has consumers are refused, and the error says why."""
        member = KafkaGroupMember(self.cluster, "taken", ["clicks"])
        member.join()
        self.addCleanup(member.leave)
        spout = self.spout(Harness(), group_id="taken")
        error = self.assertRaises(ConfigurationError, spout.nextTuple)
        self.assertIn("group.id=taken: the group has members", str(error))

    def test_unknownProperty(self) -> None:
        """A property that there is not is refused, with those that there are."""
        spout = Values("clicks", {"auto.offset.rest": "latest"})
        error = self.assertRaises(ConfigurationError, Harness().start, spout, self.config())
        self.assertIn("there is no key auto.offset.rest; there are auto.commit", str(error))

    def test_ownProperties(self) -> None:
        """A spout's own properties come before those of the topology."""
        harness = Harness()
        spout = Values("clicks", {"group.id": "own"})
        harness.start(spout, self.config(group_id="other"))
        spout.nextTuple()
        spout.close()
        self.assertEqual(self.committed("own"), {T0: 0, T1: 0})
        self.assertEqual(self.committed("other"), {})

    def test_password(self) -> None:
        """A name and a password are sent: a broker without SASL refuses them."""
        config = self.config(sasl_username="me", sasl_password="secret")
        spout = Harness().start(Values("clicks"), config)
        self.addCleanup(spout._reader.close)
        with self.assertRaises(PylogbrokerError):
            spout.nextTuple()


class StartTests(KafkaLogCase):
    """C{auto.offset.reset}, where there is no position."""

    def test_starts(self) -> None:
        """
        The beginning, a duration before now, a time, or a number of records before the end.
        """
        for n in range(6):
            self.write(T0, b"%d" % n, timestampMs=1_000 * (n + 1))
        for at, (reset, value) in enumerate(
            [
                ("earliest", b"0"),
                ("by_duration:PT3.5S", b"3"),
                ("by_timestamp:1970-01-01T00:00:05Z", b"4"),
                ("by_lag:2", b"4"),
                ("by_lag:1000", b"0"),
            ]
        ):
            harness = Harness(7.0)
            spout = self.spout(harness, auto_offset_reset=reset, group_id=f"g{at}")
            self.assertEqual(harness.valuesFrom(spout, 1), [value], reset)

    def test_latest(self) -> None:
        """The end; an instance that dies before its first commit does not begin at a later end."""
        self.write(T0, b"old")
        first = self.spout(Harness(), auto_offset_reset="latest")
        first.nextTuple()
        self.write(T0, b"new")
        harness = Harness()  # the first has not closed in order
        spout = self.spout(harness, auto_offset_reset="latest")
        self.assertEqual(harness.valuesFrom(spout, 1), [b"new"])

    def test_none(self) -> None:
        """With C{none}, a missing position is an error that names the partitions."""
        spout = self.spout(Harness(), auto_offset_reset="none")
        error = self.assertRaises(ConfigurationError, spout.nextTuple)
        self.assertIn("clicks-0, clicks-1", str(error))


class AtMostOnceTests(KafkaLogCase):
    """A L{LogSpout} in a topology without acknowledgements."""

    def test_committedBeforeEmitted(self) -> None:
        """No record is emitted twice, though the instance dies behind the first."""
        self.write(T0, b"a", b"b")
        config = {"bootstrap.servers": self.broker.bootstrapServers}
        harness = Harness()
        spout = harness.start(Values("clicks"), config)
        self.addCleanup(spout.close)
        self.assertEqual(harness.takeFrom(spout, 1), [([b"a"], None)])
        self.assertEqual(self.committed()[T0], 2)
        self.write(T0, b"c")
        again = Harness()
        successor = again.start(Values("clicks"), config)
        self.addCleanup(successor.close)
        self.assertEqual(again.takeFrom(successor, 1), [([b"c"], None)])

    def test_positionStaysWhileRecordsWait(self) -> None:
        """
        While records that were read are emitted, their position does not go back to them, neither
        by time nor when the spout is deactivated; an orderly end gives back those that wait.
        """
        self.write(T0, b"a", b"b", b"c", b"d")
        config = {"bootstrap.servers": self.broker.bootstrapServers}
        harness = Harness()
        spout = harness.start(Values("clicks"), config)
        self.addCleanup(spout.close)
        self.assertEqual(harness.valuesFrom(spout, 2), [b"a", b"b"])
        harness.clock.advance(3_600)
        self.assertEqual(harness.valuesFrom(spout, 1), [b"c"])
        self.assertEqual(self.committed()[T0], 4)
        spout.deactivate()
        self.assertEqual(self.committed()[T0], 4)
        spout.close()
        self.assertEqual(self.committed()[T0], 3)
        again = Harness()
        successor = again.start(Values("clicks"), config)
        self.addCleanup(successor.close)
        self.assertEqual(again.valuesFrom(successor, 1), [b"d"])


class LogBoltTests(KafkaLogCase):
    """L{LogBolt}."""

    def bolt(self, harness: Harness, bolt: LogBolt | None = None, **more: Any) -> LogBolt:
        """A bolt that writes C{out}."""
        made = harness.start(bolt or LogBolt("out"), self.config(**more))
        self.addCleanup(made._writer.close)
        return made

    def test_acknowledgedWhenConfirmed(self) -> None:
        """A tuple waits for its batch; it is acknowledged when its message is in the log."""
        harness = Harness()
        bolt = self.bolt(harness)
        tuples = [tupleOf({"key": f"k{n}", "value": f"v{n}"}, n) for n in range(20)]
        for each in tuples:
            bolt.process(each)
        self.assertEqual(harness.collector.acked, [])
        feed(bolt)
        self.assertEqual(harness.collector.acked, tuples)
        found = self.contents("out", 20)
        self.assertEqual(
            {(record.key, record.value) for _partition, record in found},
            {(b"k%d" % n, b"v%d" % n) for n in range(20)},
        )
        for partition, record in found:
            self.assertEqual(partition, keyPartition(record.key or b"", 2))
            self.assertEqual(record.timestampMs, 1_000_000_000)
        self.assertEqual(harness.counters, {"log.written": 20, "log.failed": 0})

    def test_sentAtSize(self) -> None:
        """A batch that has its size is sent without a tick."""
        harness = Harness()
        bolt = self.bolt(harness, batch_size=100)
        bolt.process(tupleOf({"value": "x" * 60}))
        self.assertEqual(harness.collector.acked, [])
        bolt.process(tupleOf({"value": "y"}))
        self.assertEqual(len(harness.collector.acked), 2)

    def test_sentWhenIdle(self) -> None:
        """What was collected is sent when no more tuples wait."""
        harness = Harness()
        bolt = self.bolt(harness)
        bolt.process(tupleOf({"value": "x"}))
        bolt.idle()
        self.assertEqual(len(harness.collector.acked), 1)

    def test_values(self) -> None:
        """Text is UTF-8, bytes stay, None is a tombstone, other values are JSON."""
        bolt = self.bolt(Harness())
        for value in ("ä", b"\xff", None, 12, {"a": [1, True]}):
            bolt.process(tupleOf({"key": "k", "value": value}))
        bolt.close()
        self.assertEqual(
            [record.value for _partition, record in self.contents("out", 5)],
            ["ä".encode(), b"\xff", None, b"12", b'{"a": [1, true]}'],
        )

    def test_noValue(self) -> None:
        """A tuple without the field is an error that names its stream."""
        bolt = self.bolt(Harness())
        error = self.assertRaises(TupleError, bolt.process, tupleOf({"word": "x"}))
        self.assertEqual(str(error), "words.default has no field value to write")

    def test_translate(self) -> None:
        """A subclass makes messages, with time and headers; without one, the tuple is done."""

        class Own(LogBolt):
            def translate(self, tup: Any) -> LogMessage | None:
                if tup.values[0] == "skip":
                    return None
                return LogMessage("out", None, tup.values[0].encode(), 5, (("h", b"x"),))

        harness = Harness()
        bolt = self.bolt(harness, Own("out"), compression_type="gzip")
        bolt.process(tupleOf({"word": "skip"}))
        self.assertEqual(len(harness.collector.acked), 1)
        feed(bolt, tupleOf({"word": "x"}))
        [(_partition, record)] = self.contents("out", 1)
        self.assertEqual(
            (record.value, record.timestampMs, record.headers), (b"x", 5, (("h", b"x"),))
        )

    def test_tooLarge(self) -> None:
        """A message that the broker refuses fails alone; the others of its batch are written."""
        harness = Harness()
        bolt = self.bolt(harness, batch_size=10 << 20)
        tuples = [tupleOf({"key": "k", "value": value}) for value in ("a", "x" * 2_000_000, "b")]
        feed(bolt, *tuples)
        self.assertEqual(harness.collector.failed, [tuples[1]])
        self.assertEqual(harness.collector.acked, [tuples[0], tuples[2]])
        self.assertEqual(
            [record.value for _partition, record in self.contents("out", 2)], [b"a", b"b"]
        )
        self.assertEqual(harness.counters, {"log.written": 2, "log.failed": 1})

    def test_brokerIsAway(self) -> None:
        """Tuples whose messages are not confirmed fail; later ones are written again."""
        harness = Harness()
        bolt = self.bolt(harness, request_timeout_ms=500)
        feed(bolt, tupleOf({"value": "a"}))
        self.broker.kill()
        for _time in range(2):  # with the partitions known, and to be asked for
            lost = [tupleOf({"key": str(n), "value": "b"}) for n in range(4)]
            feed(bolt, *lost)
            self.assertEqual(harness.collector.failed[-4:], lost)
        self.broker.start()
        while len(harness.collector.acked) < 2:  # the time-out is short
            feed(bolt, tupleOf({"value": "c"}))
        values = {record.value for _partition, record in self.contents("out", 2)}
        self.assertEqual(values, {b"a", b"c"})

    def test_noSuchCodec(self) -> None:
        """A property with an impossible value is refused."""
        with self.assertRaises(ConfigurationError):
            self.bolt(Harness(), compression_type="rar")


class TwoBrokersTests(TestCase):
    """L{LogSpout} on a cluster of two brokers, whose topic has a partition on each."""

    async def test_oneIsAway(self) -> None:
        """While a broker is away, the partitions of the other one are read."""
        properties = {
            "log.flush.interval": "1",
            "log.flush.acks.all": "false",
            "log.flush.before.read": "false",
            "num.partitions": "2",
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
        }
        brokers = LocalCluster(reactor, self.mktemp(), 2, properties)
        self.addCleanup(brokers.stop)
        await brokers.start()
        servers = ",".join(brokers.addresses.values())
        addresses = [endpoint(f"tcp:{each}") for each in servers.split(",")]
        cluster = KafkaCluster(addresses, connectTimeoutMs=1_000)
        self.addCleanup(cluster.close)
        harness = Harness()
        config = {
            "topology.reliability.mode": "ATLEAST_ONCE",
            "bootstrap.servers": servers,
            "request.timeout.ms": 2_000,
            "fetch.max.wait.ms": 10,
        }
        spout = Values("clicks")

        def begin() -> None:
            cluster.partitions("clicks", isCreating=True)
            for where in (T0, T1):
                RecordWriter(cluster).write(where, [Record(0, 0, None, b"first")])
            harness.start(spout, config)
            harness.takeFrom(spout, 2)

        await deferToThread(begin)
        leaders = {each: await deferToThread(cluster.leader, each) for each in (T0, T1)}
        self.assertEqual(set(leaders.values()), {1, 2})
        await brokers.stopBroker(leaders[T1])

        def whileOneIsAway() -> None:
            for value in (b"a", b"b"):
                cluster.forget()
                RecordWriter(cluster).write(T0, [Record(0, 0, None, value)])
                self.assertEqual(harness.valuesFrom(spout, 1), [value])

        await deferToThread(whileOneIsAway)
        spout._reader.close()
