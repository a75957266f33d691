"""
Tests for L{pylogbroker.cli.kafka.replay}: a topic is copied, on real brokers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from confluent_kafka import Consumer, Message, Producer

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.commands import ROOT
from tests.cli.kafka.test_commands import TIMEOUT_SECONDS, CurrentCase

REPLAY = ("replay", "--topic", "t", "--to-topic")

Place = tuple[Any, Any, Any, Any, int]
"""Partition, key, value, headers and timestamp of a record."""


class ReplayTests(CurrentCase):
    """C{replay}."""

    other = BackgroundBroker({"num.partitions": "3"})

    def setUp(self) -> None:
        super().setUp()
        self.other.reset()

    def send(self, *records: dict[str, Any], **properties: str) -> None:
        """To the topic C{t}, in this order."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrapServers, **properties})
        for record in records:
            producer.produce("t", **record)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)

    def stored(self, topic: str, broker: BackgroundBroker | None = None) -> list[Place]:
        """What librdkafka reads."""
        consumer = Consumer(
            {
                "bootstrap.servers": (broker or self.broker).bootstrapServers,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": "true",
                "enable.auto.commit": "false",
            }
        )
        found: list[Message] = []
        ended = set[int | None]()
        consumer.subscribe([topic])
        count = len(consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic].partitions)
        while len(ended) < count:
            for each in consumer.consume(100, 0.1):
                if each.error() is None:
                    found.append(each)
                else:
                    ended.add(each.partition())
        consumer.close()
        return [
            (each.partition(), each.key(), each.value(), each.headers(), each.timestamp()[1])
            for each in sorted(found, key=lambda each: (each.partition(), each.offset()))
        ]

    def replay(self, *words: str, to: str = "u") -> Any:
        """The outcome."""
        return self.document(*REPLAY, to, *words)

    def test_all(self) -> None:
        """
        Keys, values, tombstones, headers, timestamps, partitions and order stay; the target is
        created as the source is, and nothing is stored twice when an answer is lost.
        """
        self.done("topic", "create", "t", "--partitions", "3")
        headers = [("trace", b"\x00\x01"), ("empty", None)]
        self.send(
            {"value": b"one", "key": b"k", "partition": 2, "timestamp": 1000, "headers": headers},
            {"value": None, "key": b"k", "partition": 2, "timestamp": 3000},
            {"value": b"", "partition": 0, "timestamp": 2000},
            *({"value": b"%d" % number, "partition": 1} for number in range(500)),
            **{"compression.type": "zstd"},
        )
        self.broker.injectDisconnect("Produce", topic="u", isHandled=True)
        outcome = self.replay("--batch-size", "100", "--compression", "lz4")
        stored = self.stored("t")
        size = sum(len(value or b"") for _, _, value, *_ in stored)
        self.assertEqual(
            outcome,
            {
                "topic": "t",
                "toTopic": "u",
                "messageCount": 503,
                "payloadSize": size,
                "arePartitionsKept": True,
            },
        )
        self.assertEqual(self.stored("u"), stored)
        self.assertEqual(stored[-2], (2, b"k", b"one", headers, 1000))

    def test_itself(self) -> None:
        """A topic that is copied into itself is doubled, and no more."""
        self.send(*({"value": b"%d" % number, "partition": 1} for number in range(50)))
        self.replay(to="t")
        values = [b"%d" % number for number in range(50)]
        self.assertEqual([value for _, _, value, *_ in self.stored("t")], values * 2)

    def test_otherCluster(self) -> None:
        """
        Into a topic with another number of partitions of another cluster keys go where a producer
        would send them, and what has none stays together.
        """
        keys = [b"key %d" % number for number in range(20)]
        self.send(*({"value": b"x", "key": key, "partition": 1} for key in keys))
        self.send(*({"value": b"%d" % number, "partition": 1} for number in range(20)))
        place = ("--bootstrap-server", self.other.bootstrapServers)
        self.done("topic", "create", "u", *place)
        words = ("--to-bootstrap-server", self.other.bootstrapServers)
        self.assertFalse(self.replay(*words)["arePartitionsKept"])
        self.done(
            *("produce", "-", "--topic", "ours", "--key-separator", ":", *place),
            input=b"".join(b"%s:x\n" % key for key in keys),
        )
        stored = self.stored("u", self.other)
        self.assertEqual(
            [each[:3] for each in stored if each[1]],
            [each[:3] for each in self.stored("ours", self.other)],
        )
        plain = [(partition, value) for partition, key, value, *_ in stored if key is None]
        self.assertEqual(plain, [(1, b"%d" % number) for number in range(20)])

    def test_some(self) -> None:
        """From a time on, or some messages, the oldest first."""
        for at in (1000, 2000, 3000):
            self.send({"value": b"%d" % at, "partition": 1, "timestamp": at})
        self.assertEqual(self.replay("--from-time", "1500", to="a")["messageCount"], 2)
        self.assertEqual([each[2] for each in self.stored("a")], [b"2000", b"3000"])
        self.assertEqual(self.replay("--max-messages", "2", to="b")["messageCount"], 2)
        self.assertEqual([each[2] for each in self.stored("b")], [b"1000", b"2000"])

    def test_transactions(self) -> None:
        """Records of aborted and open transactions are left out, unless they are asked for."""
        name = {"bootstrap.servers": self.broker.bootstrapServers, "transactional.id": "x"}
        producer: Any = Producer(name)
        producer.init_transactions(TIMEOUT_SECONDS)
        for value, end in (
            (b"good", producer.commit_transaction),
            (b"bad", producer.abort_transaction),
            (b"better", producer.commit_transaction),
            (b"open", None),
        ):
            producer.begin_transaction()
            producer.produce("t", value, partition=0)
            self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
            if end is not None:
                end(TIMEOUT_SECONDS)
        self.replay(to="a")
        self.assertEqual([each[2] for each in self.stored("a")], [b"good", b"better"])
        self.replay("--isolation-level", "read_uncommitted", to="b")
        values = [b"good", b"bad", b"better", b"open"]
        self.assertEqual([each[2] for each in self.stored("b")], values)
        producer.abort_transaction(TIMEOUT_SECONDS)

    def test_large(self) -> None:
        """
        Batches stay below the limit. A message that is larger, or that the target refuses, is
        named, and how far the copy came.
        """
        large = [{"value": b"x" * 90_000, "partition": 0} for _ in range(20)]
        self.send({"value": b"first", "partition": 1}, *large)
        self.assertEqual(self.replay("--max-message-size", "200000", to="a")["messageCount"], 21)
        reason = self.failed(
            *[
                "replay",
                "--topic",
                "t",
                "--to-topic",
                "b",
                "--max-message-size",
                "80000",
                "--batch-size",
                "1",
            ]
        )
        self.assertIn("the message at offset 0 of t-0 has 90,000 bytes, more than", reason)
        self.assertIn("0 messages acknowledged; copied are partitions 0 up to 0 of 20", reason)
        self.done("topic", "create", "c", "--topic-config", "max.message.bytes=50000")
        reason = self.failed(*REPLAY, "c")
        self.assertIn("MESSAGE_TOO_LARGE", reason)
        self.assertIn("partitions 0 up to 0 of 20, 1 up to 0 of 1; up to a batch", reason)

    def test_interrupted(self) -> None:
        """Ctrl-C tells how far it came, and the exit code is 130."""
        self.send(*({"value": b"x", "partition": 0} for _ in range(30)))
        self.done("topic", "create", "u")
        self.broker.injectDelay("Produce", 20_000, topic="u", partition=1)
        self.send({"value": b"y", "partition": 1})
        place = ("--bootstrap-server", self.broker.bootstrapServers)
        words = (*REPLAY, "u", "--batch-size", "10", *place)
        process = subprocess.Popen(
            [sys.executable, "-m", "pylogbroker", *words],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.addCleanup(process.kill)
        while len(self.done("consume", "--topic", "u", "--from-beginning").split()) < 31:
            pass  # the record of the delayed request is stored at once
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        text = "ended: 30 messages acknowledged; copied are partitions 0 up to 30 of 30, 1 up to 0"
        self.assertIn(text, errors.decode())

    def test_refused(self) -> None:
        """What is missing is named, and so are options of the other kind of cluster."""
        reason = self.failed(*["replay", "--topic", "x", "--to-topic", "u"])
        self.assertIn("topic x: UNKNOWN_TOPIC_OR_PARTITION", reason)
        self.send({"value": b"x", "partition": 0})
        self.broker.injectError("CreateTopics", "POLICY_VIOLATION")
        self.assertIn("POLICY_VIOLATION", self.failed(*REPLAY, "u"))
        current, former = ("--bootstrap-server", "h:1"), ("--zookeeper", "h:1")
        for more in (
            (*current, "--to-zookeeper", "h:2"),
            (*former, "--to-bootstrap-server", "h:2"),
            (*former, "--from-time", "5"),
            (*former, "--compression", "zstd"),
            (*former, "--isolation-level", "read_committed"),
        ):
            self.wrong(*REPLAY, "u", *more)

    def test_text(self) -> None:
        """Without C{--json} a line tells what was done."""
        self.send({"value": b"abc", "partition": 0})
        outcome = self.execute(*REPLAY, "u")
        self.assertEqual(
            (outcome.code, outcome.output, outcome.errors),
            (0, b"", "replayed 1 message (3 B) of t to u, into the same partitions\n"),
        )
        self.assertEqual(json.loads(self.done("topic", "list", "--json"))["problems"], [])
