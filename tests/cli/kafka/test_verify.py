"""
Tests for L{pylogbroker.cli.kafka.verify} and L{pylogbroker.cli.kafka.mirrorcheck}, on real brokers
whose files are damaged.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from pylogbroker.cli.kafka import mirrorcheck
from pylogbroker.records.recordbatch import readHeader
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.kafka.test_commands import TIMEOUT_SECONDS, CurrentCase

NOW_MS = int(time.time() * 1000)
"""Of the first record; an older one could be deleted by its age."""

Document = dict[str, Any]


class VerifyCase(CurrentCase):
    """Producers and verdicts."""

    def send(
        self, *values: bytes, broker: BackgroundBroker | None = None, first: int = NOW_MS
    ) -> None:
        """One batch each, to partition 0 of C{t}, with a header and ascending timestamps."""
        servers = (broker or self.broker).bootstrapServers
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        for number, value in enumerate(values, first):
            producer.produce("t", value, b"k", 0, timestamp=number, headers=[("h", value)])
            self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)

    def verdicts(self, *words: str, code: int) -> dict[int, Document]:
        """Those of C{t}, by partition."""
        outcome = self.execute("verify", "--topic", "t", "--json", *words)
        self.assertEqual(outcome.code, code, outcome.errors)
        return {each["partition"]: each for each in outcome.document()["partitions"]}


class VerifyTests(VerifyCase):
    """What one cluster serves."""

    def damage(self, batch: int, field: int, data: bytes) -> None:
        """Overwrite bytes of a batch of C{t-0}, in the broker's file."""
        path = os.path.join(self.broker.directory, "t-0", f"{0:020}.log")
        with open(path, "r+b") as file:
            whole, at = file.read(), 0
            for _ in range(batch):
                at += readHeader(whole, at).size
            file.seek(at + field)
            file.write(data)

    def test_good(self) -> None:
        """Records, markers and internal topics are looked at, each partition once."""
        self.send(b"a", b"b")
        producer: Any = Producer(
            {"bootstrap.servers": self.broker.bootstrapServers, "transactional.id": "x"}
        )
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"c" * 1000, partition=0)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        producer.abort_transaction(TIMEOUT_SECONDS)
        found = self.verdicts(code=0)
        self.assertGreater(found[0].pop("size"), 0)
        good = {"topic": "t", "missingCount": 0, "fault": None, "start": 0}
        self.assertEqual(
            found,
            {
                0: {"partition": 0, "end": 4, "batchCount": 4, "recordCount": 4, **good},
                1: {"partition": 1, "end": 0, "batchCount": 0, "recordCount": 0, "size": 0, **good},
            },
        )
        outcome = self.execute("verify", "--topic", "t")
        self.assertEqual(outcome.errors, "2 partitions with 4 records: all good\n")
        rows = [line.split() for line in outcome.output.decode().splitlines()[1:]]
        self.assertEqual(rows[0], ["t", "0", "0", "4", "4", "4", "0", "good"])
        topics = {line.split()[0] for line in self.done("verify").splitlines()[1:]}
        self.assertEqual(topics, {"t", "__transaction_state"})

    def test_damaged(self) -> None:
        """
        A wrong checksum, an overlap, a leader epoch that goes back and what is missing are faults;
        the other partition is looked at, too.
        """
        for batch, field, data, text, count in (
            (1, 70, b"?", "batch at offset 1: checksum", 1),
            (2, 0, struct.pack(">q", 1), "batch at offset 1: it comes behind offset 2", 2),
            (0, 12, struct.pack(">i", 7), "leader epoch 0 comes behind 7", 1),
            (3, 0, struct.pack(">q", 90), "missing: 1 offset", 3),
            (2, 16, b"\1", "batch at offset 2: message format 1", 2),
        ):
            self.broker.reset()
            self.send(b"a", b"b", b"c", b"d")
            self.damage(batch, field, data)
            found = self.verdicts(code=1)
            self.assertIn(text, found[0]["fault"])
            self.assertEqual(found[0]["recordCount"], count, text)
            self.assertIsNone(found[1]["fault"])
            outcome = self.execute("verify", "--topic", "t")
            self.assertEqual(outcome.code, 1)
            self.assertIn("1 of them not good", outcome.errors)

    def test_compacted(self) -> None:
        """A compacted topic may miss offsets; so may one whose settings are not shown."""
        self.done("topic", "create", "t", "--topic-config", "cleanup.policy=compact")
        self.send(b"a", b"b", b"c", b"d")
        self.damage(3, 0, struct.pack(">q", 90))
        found = self.verdicts(code=0)
        self.assertEqual((found[0]["missingCount"], found[0]["fault"]), (1, None))
        self.done("topic", "alter", "t", "--topic-config", "cleanup.policy=delete")
        self.assertEqual(self.verdicts(code=1)[0]["fault"], "missing: 1 offset")
        self.broker.injectError("DescribeConfigs", "TOPIC_AUTHORIZATION_FAILED")
        outcome = self.execute("verify", "--topic", "t")
        self.assertEqual(outcome.code, 0)
        self.assertIn("settings are not known, so missing offsets are no fault", outcome.errors)

    def test_unreadable(self) -> None:
        """A partition that cannot be read is a fault; a topic that is missing is an error."""
        self.send(b"a")
        self.broker.injectError("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic="t")
        fault = self.verdicts(code=1)[0]["fault"]
        self.assertIn("cannot be read: t-0: TOPIC_AUTHORIZATION_FAILED", fault)
        self.assertIn("no topic u", self.failed("verify", "--topic", "u"))

    def test_wrongArguments(self) -> None:
        """Files or a cluster, and not both."""
        current = ("--bootstrap-server", "h:1")
        for words in (
            (),
            ("x", *current),
            ("x", "--topic", "t"),
            ("x", "--against", "h:2"),
            (*current, "--ignore-timestamps"),
        ):
            self.wrong("verify", *words)


class AgainstTests(VerifyCase):
    """Another cluster."""

    other = BackgroundBroker({"num.partitions": "2"})

    def setUp(self) -> None:
        super().setUp()
        self.other.reset()

    def compared(self, *words: str, code: int) -> Document:
        """The verdict of C{t-0}."""
        place = ("--against", self.other.bootstrapServers)
        return self.verdicts(*place, *words, code=code)[0]

    def delete(self, broker: BackgroundBroker, offset: int) -> None:
        """Delete the oldest records of C{t-0}."""
        admin: Any = AdminClient({"bootstrap.servers": broker.bootstrapServers})
        place = TopicPartition("t", 0, offset)
        for each in admin.delete_records([place]).values():
            each.result(TIMEOUT_SECONDS)

    def test_same(self) -> None:
        """What replay has copied is the same; what came later there does not matter."""
        self.send(b"a", b"b", b"c")
        to = ("--to-topic", "t", "--to-bootstrap-server", self.other.bootstrapServers)
        self.done("replay", "--topic", "t", *to)
        self.send(b"later", broker=self.other)
        found = self.compared(code=0)
        self.assertEqual(
            found,
            {
                "topic": "t",
                "partition": 0,
                "matchedCount": 3,
                "repeatedCount": 0,
                "deletedCount": 0,
                "fault": None,
            },
        )
        place = ("--against", self.other.bootstrapServers)
        outcome = self.execute("verify", *place)
        self.assertEqual(
            outcome.errors, "2 partitions with 3 records in both: no record is missing\n"
        )
        row = outcome.output.decode().splitlines()[1].split()
        self.assertEqual(row, ["t", "0", "3", "0", "0", "same"])

    def test_repeated(self) -> None:
        """Records may come again, as long as they are remembered."""
        self.send(b"a", b"b", b"c", b"d")
        self.send(b"a", b"b", b"c", broker=self.other)
        self.send(b"b", b"c", b"d", broker=self.other, first=NOW_MS + 1)
        found = self.compared(code=0)
        self.assertEqual((found["matchedCount"], found["repeatedCount"]), (4, 2))
        self.patch(mirrorcheck, "WINDOW_COUNT", 1)
        found = self.compared(code=1)
        self.assertEqual(found["fault"], "the record at offset 3 is another one there, at offset 3")

    def test_different(self) -> None:
        """A record that differs, in its timestamp, too, is named, and so is what is missing."""
        self.send(b"a", b"b", b"c")
        self.send(b"a", b"x", b"c", broker=self.other)
        fault = self.compared(code=1)["fault"]
        self.assertEqual(fault, "the record at offset 1 is another one there, at offset 1")
        self.other.reset()
        self.send(b"a", b"b", broker=self.other)
        fault = self.compared(code=1)["fault"]
        self.assertEqual(fault, "the records from offset 2 on are missing there")
        self.other.reset()
        self.send(b"a", b"b", b"c", broker=self.other, first=NOW_MS + 9)
        self.assertIn("offset 0 is another one", self.compared(code=1)["fault"])
        self.assertEqual(self.compared("--ignore-timestamps", code=0)["matchedCount"], 3)
        self.other.reset()
        fault = self.compared(code=1)["fault"]
        self.assertEqual(fault, "the other cluster has no such partition")

    def test_deletedWithOtherTimes(self) -> None:
        """Which cluster has the older records is found out where timestamps do not tell."""
        values = [b"%d" % number for number in range(6)]
        self.send(*values)
        self.send(*values, broker=self.other, first=NOW_MS - 1_000)
        self.delete(self.broker, 2)
        self.delete(self.other, 3)
        found = self.compared("--ignore-timestamps", code=0)
        self.assertEqual((found["matchedCount"], found["deletedCount"]), (3, 1))

    def test_deleted(self) -> None:
        """Either cluster may have deleted its oldest records."""
        values = [b"%d" % number for number in range(6)]
        self.send(*values)
        self.send(*values, broker=self.other)
        self.delete(self.broker, 2)
        found = self.compared(code=0)
        self.assertEqual((found["matchedCount"], found["deletedCount"]), (4, 2))
        self.delete(self.other, 3)
        found = self.compared(code=0)
        self.assertEqual((found["matchedCount"], found["deletedCount"]), (3, 1))
        self.delete(self.broker, 4)
        found = self.compared(code=0)
        self.assertEqual((found["matchedCount"], found["deletedCount"]), (2, 1))
        self.other.reset()
        self.send(b"x", b"y", broker=self.other)
        self.assertEqual(self.compared(code=1)["fault"], "they have no record in common")
        self.delete(self.broker, 6)
        self.assertEqual(self.compared(code=0)["matchedCount"], 0)

    def test_unreadable(self) -> None:
        """A partition that cannot be read is a fault."""
        self.send(b"a")
        self.send(b"a", broker=self.other)
        self.other.injectError("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic="t")
        fault = self.compared(code=1)["fault"]
        self.assertIn("cannot be compared: t-0: TOPIC_AUTHORIZATION_FAILED", fault)
