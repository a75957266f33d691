"""
Apache Kafka's DumpLogSegments reads our directories: every batch deep, every index against its
segment, snapshots of producers, aborted transactions, both internal topics decoded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import TopicPartition
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.kafkatools import sharedJava
from tests.oracle.directories import NODE_ID, extract
from tests.oracle.directoryrecording import BASE_MS, CODECS, GROUP, Filler, readRecords

PROPERTIES = {
    "brokerid": str(NODE_ID),
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.retention.minutes": "2000000000",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000000000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "2000000000",
}
NEVER_MS = 2_000_000_000
TRIES_MAX = 3000
FAULT = re.compile(r".*(?:mismatch|out of order|isvalid: false|Ignoring|Exception|Found ).*", re.I)
GAP = re.compile(r"Non-consecutive offsets in (\S+)")
"""DumpLogSegments says so of what compaction leaves."""

RECORD = re.compile(r"^\| offset: (\d+) (?!.*endTxnMarker)", re.MULTILINE)
BATCH = re.compile(r"^baseOffset: \d+ .* isvalid: true$", re.MULTILINE)


class DumpLogSegmentsTests(SynchronousTestCase):
    """Directories of ours, and one of Apache's that we used."""

    def setUp(self) -> None:
        self.java = sharedJava(self)
        self.directory = Path(os.path.abspath(self.mktemp()))
        self.addCleanup(shutil.rmtree, self.directory)

    def started(self, backoffMs: int = NEVER_MS) -> BackgroundBroker:
        """@param backoffMs: how often it looks for what to compact."""
        properties = {**PROPERTIES, "log.cleaner.backoff.ms": str(backoffMs)}
        broker = BackgroundBroker(properties, str(self.directory))
        self.addCleanup(broker.close)
        return broker.start()

    def dump(self, files: Iterable[Path], *options: str) -> str:
        """What it prints of files, in which it finds no fault."""
        names = ",".join(map(str, sorted(files)))
        self.assertNotEqual(names, "")
        status, output = self.java.run("DumpLogSegments", *options, "--files", names)
        self.assertEqual((status, FAULT.findall(output)), (0, []))
        return output

    def check(self, records: dict[str, list[list[object]]], compacted: Iterable[str]) -> None:
        """Everything in the directory is read, and has these records, and no others."""
        for place, expected in records.items():
            segments = list((self.directory / place).glob("*.log"))
            output = self.dump(segments, "--deep-iteration", "--print-data-log")
            offsets = [int(each) for each in RECORD.findall(output)]
            kept = [offset for offset in offsets if offset >= self.logStart(place)]
            self.assertEqual(kept, [record[0] for record in expected], place)
            self.assertGreaterEqual(len(BATCH.findall(output)), 1 if expected else 0)
        indexes = [
            path
            for suffix in ("index", "timeindex")
            for path in self.directory.glob(f"*-*/*.{suffix}")
            if not path.parent.name.startswith("__cluster_metadata")
        ]
        sane = self.dump(indexes, "--index-sanity-check")
        self.assertEqual(len(re.findall("passed sanity check|is empty", sane)), len(indexes))
        for path in indexes:
            verified = self.dump([path], "--verify-index-only")
            if path.parent.name not in compacted:
                self.assertEqual(GAP.findall(verified), [])
        self.dump(self.directory.glob("*-*/*.snapshot"))

    def logStart(self, place: str) -> int:
        """Of the checkpoint."""
        topic, _, partition = place.rpartition("-")
        text = (self.directory / "log-start-offset-checkpoint").read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(topic)} {partition} (\d+)$", text, re.MULTILINE)
        return int(found.group(1)) if found else 0

    def internal(self, topic: str, option: str) -> str:
        segments = (self.directory / f"{topic}-0").glob("*.log")
        return self.dump(segments, option, "--deep-iteration", "--print-data-log")

    def waitForCompaction(self, address: str, topic: str) -> None:
        """Until the first record is gone."""
        for _ in range(TRIES_MAX):
            records = readRecords(address, [(topic, 0)], "read_uncommitted")[f"{topic}-0"]
            if records[0][0] > 0:
                return
        raise AssertionError(f"{topic} is not compacted")

    def test_ours(self) -> None:
        """
        Every codec, headers, both kinds of timestamps, idempotent producers, transactions, rolled,
        deleted and compacted segments, full indexes; positions in C{__consumer_offsets}, states in
        C{__transaction_state}.
        """
        broker = self.started(50)
        filler = Filler(broker.bootstrapServers)
        filler.create("codecs")
        for codec in CODECS:
            filler.send("codecs", [codec.encode() * 50] * 20, compression_type=codec)
        filler.create("lz4", compression_type="lz4", message_timestamp_type="LogAppendTime")
        filler.send("lz4", [b"x" * 100] * 10, compression_type="gzip")
        filler.create("indexed", index_interval_bytes="1000", segment_ms="50000")
        filler.send(
            "indexed",
            [bytes(500)] * 100,
            atMs=lambda number: BASE_MS + number * 1000,
            batch_num_messages=1,
            enable_idempotence=True,
        )
        filler.create("deleted", segment_ms="1000")
        filler.create("compacted", cleanup_policy="compact", segment_ms="1000")
        for topic in ("deleted", "compacted"):
            filler.send(
                topic,
                [b"v%d" % number for number in range(12)],
                key=lambda number: b"key %d" % (number % 4),
                atMs=lambda number: BASE_MS + number * 2000,
                batch_num_messages=1,
            )
        for waiting in filler.admin.delete_records([TopicPartition("deleted", 0, 3)]).values():
            waiting.result()
        filler.create("empty")
        filler.create("plain", 2)
        filler.send("plain", [b"value"] * 20)
        filler.create("rolled")
        filler.positions()
        filler.transactions()
        self.waitForCompaction(broker.bootstrapServers, "compacted")
        broker.stop()
        broker = self.started()
        topics = ("codecs", "lz4", "indexed", "deleted", "compacted", "empty", "plain")
        places = [*((topic, 0) for topic in topics), ("transactions", 0), ("transactions", 1)]
        records = readRecords(broker.bootstrapServers, places, "read_uncommitted")
        broker.stop()
        self.assertGreater(len(list((self.directory / "indexed-0").glob("*.log"))), 1)
        self.check(records, ["compacted-0", "__consumer_offsets-0", "__transaction_state-0"])
        output = self.internal("__consumer_offsets", "--offsets-decoder")
        self.assertIn(f'"group":"{GROUP}","topic":"plain","partition":0', output)
        self.assertIn('"offset":6,', output)
        aborted = self.dump(self.directory.glob("transactions-*/*.txnindex"))
        self.assertEqual(len(re.findall("producerId: \\d+", aborted)), 2)
        output = self.internal("__transaction_state", "--transaction-log-decoder")
        states = set(re.findall(r'"transactionStatus":(\d)', output))
        self.assertEqual(states, set("012345"))  # from Empty to CompleteAbort

    def test_apaches(self) -> None:
        """A directory of Apache's, with transactions, after this broker went on with it."""
        extract("killed", self.directory)
        broker = self.started()
        filler = Filler(broker.bootstrapServers)
        topics = ("plain", "codecs", "transactions", "rolled")
        for topic in topics:
            filler.send(topic, [b"new"] * 3, compression_type="zstd", enable_idempotence=True)
        places = [(topic, 0) for topic in (*topics, "lz4", "deleted", "compacted")]
        places.append(("transactions", 1))
        records = readRecords(broker.bootstrapServers, places, "read_uncommitted")
        broker.stop()
        self.check(records, ["compacted-0", "__consumer_offsets-0", "__transaction_state-0"])
        output = self.dump(self.directory.glob("*-*/*.txnindex"))
        self.assertIn("producerId", output)
        output = self.internal("__consumer_offsets", "--offsets-decoder")
        self.assertIn(f'"group":"{GROUP}","topic":"plain","partition":0', output)
        output = self.internal("__transaction_state", "--transaction-log-decoder")
        self.assertIn('"transactionalId":"committing"', output)
