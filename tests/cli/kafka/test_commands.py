"""
Tests of the commands with C{--bootstrap-server}, in this process, on a real broker.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import WaitNotice
from pylogbroker.cli.kafka.records import readUpTo
from pylogbroker.cli.main import main, prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.types import TopicPartition
from tests.cli.commands import ROOT, Outcome, performAtOnce
from tests.syncclient.kafka.test_client import OldBroker

TIMEOUT_SECONDS = 60


class CurrentCase(SynchronousTestCase):
    """A broker, and commands for it."""

    broker = BackgroundBroker({"num.partitions": "2"})  # one for all; the end of the run ends it

    def setUp(self) -> None:
        self.broker.reset()

    def execute(self, *words: str, input: bytes = b"") -> Outcome:
        """A command, to its end; for the broker, unless another one is named."""
        isNamed = "--bootstrap-server" in words
        place = [] if isNamed else ["--bootstrap-server", self.broker.bootstrapServers]
        return performAtOnce(*words, *place, input=input)

    def done(self, *words: str, input: bytes = b"") -> str:
        """The output of a command that succeeds."""
        outcome = self.execute(*words, input=input)
        self.assertEqual(outcome.code, 0, outcome.errors)
        return outcome.output.decode()

    def document(self, *words: str) -> Any:
        """What a command prints with C{--json}."""
        return json.loads(self.done(*words, "--json"))

    def failed(self, *words: str) -> str:
        """Why a command fails."""
        outcome = self.execute(*words)
        self.assertEqual(outcome.code, 1)
        return outcome.errors

    def wrong(self, *words: str) -> None:
        """The arguments are wrong."""
        streams = Streams(0, 1, io.StringIO())
        with redirect_stderr(io.StringIO()):
            raised = self.assertRaises(SystemExit, prepare, words, streams)
        self.assertEqual(raised.code, 2)


class TopicTests(CurrentCase):
    """C{topic}."""

    def test_life(self) -> None:
        """Created, listed, described, altered, deleted."""
        self.assertEqual(self.done("topic", "list"), "")
        self.done(
            "topic", "create", "orders", "--partitions", "3", "--topic-config", "retention.ms=1000"
        )
        rows = [line.split() for line in self.done("topic", "list").splitlines()]
        self.assertEqual(
            [row[:3] for row in rows], [["TOPIC", "PARTITIONS", "REPLICAS"], ["orders", "3", "1"]]
        )
        [found] = self.document("topic", "describe", "orders")["topics"]
        self.assertEqual(found["configs"], {"retention.ms": "1000"})
        self.assertEqual([each["partition"] for each in found["partitions"]], [0, 1, 2])
        self.assertEqual(found["partitions"][0]["leader"], 0)
        text = self.done(
            *("topic", "alter", "orders", "--partitions", "5", "--delete-config", "retention.ms"),
            *("--topic-config", "cleanup.policy=compact"),
        )
        self.assertEqual(text, "")
        text = self.done("topic", "describe")
        self.assertEqual(len(text.splitlines()), 1 + 5 + 1 + 2)
        self.assertEqual(text.splitlines()[-1].split(), ["orders", "cleanup.policy", "compact"])
        outcome = self.execute("topic", "delete", "orders", "missing")
        self.assertEqual(outcome.code, 1)
        self.assertIn("deleted topic orders", outcome.errors)
        self.assertIn("topic missing: UNKNOWN_TOPIC_OR_PARTITION", outcome.errors)
        self.assertEqual(self.document("topic", "list")["topics"], [])

    def test_refused(self) -> None:
        """What the broker refuses has its reason, and what is missing is named."""
        self.done("topic", "create", "t")
        self.assertIn("TOPIC_ALREADY_EXISTS", self.failed("topic", "create", "t"))
        self.assertIn(
            "INVALID_CONFIG", self.failed("topic", "create", "u", "--topic-config", "x=y")
        )
        self.assertIn("nothing to alter", self.failed("topic", "alter", "t"))
        self.assertIn("INVALID_PARTITIONS", self.failed("topic", "alter", "t", "--partitions", "1"))
        self.assertIn("no topic u; there are: t", self.failed("topic", "describe", "u"))
        self.wrong("topic", "create", "t", "--topic-config", "x", "--bootstrap-server", "h:1")

    def test_partly(self) -> None:
        """What cannot be known is named, and the rest is shown."""
        self.done("topic", "create", "t")
        self.broker.injectError("DescribeLogDirs", "CLUSTER_AUTHORIZATION_FAILED")
        outcome = self.execute("topic", "list")
        self.assertIn("sizes are not known", outcome.errors)
        self.assertEqual(outcome.output.splitlines()[1].split(), [b"t", b"2", b"1", b"-"])
        self.broker.injectError("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", partition=1)
        outcome = self.execute("topic", "describe")
        self.assertEqual(outcome.code, 0)
        self.assertIn("t-1: TOPIC_AUTHORIZATION_FAILED", outcome.errors)

    def test_unreachable(self) -> None:
        """A broker that is not there is a line, and no traceback."""
        words = ["topic", "list", "--bootstrap-server", "127.0.0.1:1", "--timeout-ms", "50"]
        streams = Streams(0, 1, io.StringIO())
        options = prepare(words, streams)
        with self.assertRaisesRegex(PylogbrokerError, "cannot connect to 127.0.0.1:1"):
            options.command.current(options, streams)


class BrokerTests(CurrentCase):
    """C{broker} and C{offset}."""

    def test_brokers(self) -> None:
        """Each broker with its address, what it keeps, and what it serves."""
        self.done("topic", "create", "t", "--partitions", "3")
        host, port = self.broker.bootstrapServers.split(":")
        rows = [line.split() for line in self.done("broker", "list").splitlines()]
        self.assertEqual(rows[1], ["0", host, port, "-", "3", "3", "yes", "yes"])
        [found] = self.document("broker", "list")["brokers"]
        self.assertEqual(
            {key: found[key] for key in found if key != "apiVersions"},
            {
                "broker": 0,
                "host": host,
                "port": int(port),
                "rack": None,
                "replicaCount": 3,
                "leaderCount": 3,
                "isController": True,
                "answers": True,
            },
        )
        self.assertEqual(found["apiVersions"]["Metadata"][0], 0)

    def test_silent(self) -> None:
        """A broker that does not answer is named, and makes the exit code 1."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            gone = listening.getsockname()[1]
        cls = messages.MetadataResponse
        named = cls.MetadataResponseBroker(nodeId=7, host="127.0.0.1", port=gone, rack="r")
        body = cls(brokers=[named], controllerId=7, topics=[])
        header = RequestHeader(ApiKey.METADATA, 5, 2, None)
        broker = OldBroker(
            {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (5, 5)},
            frameResponse(header, body.encode(5)),
        )
        self.addCleanup(broker.close)
        place = f"127.0.0.1:{broker.port}"
        outcome = self.execute(
            *("broker", "list", "--bootstrap-server", place, "--timeout-ms", "200")
        )
        self.assertEqual(outcome.code, 1)
        self.assertIn(f"broker 7 at 127.0.0.1:{gone} does not answer", outcome.errors)
        row = ["7", "127.0.0.1", str(gone), "r", "0", "0", "yes", "no"]
        self.assertEqual(outcome.output.decode().splitlines()[1].split(), row)

    def test_offsets(self) -> None:
        """
        Where partitions begin and end, and where a time or the highest timestamp is; what has no
        such record is left out.
        """
        for number, at in enumerate(("1000", "3000", "2000")):
            line = f"produce - --topic t --partition 1 --timestamp {at}"
            self.done(*line.split(), input=b"%d\n" % number)
        self.done("topic", "create", "u", "--partitions", "1")
        words = ("offset", "list")
        self.assertEqual(self.done(*words), "t:0:0\nt:1:3\nu:0:0\n")
        self.assertEqual(self.done(*words, "--topic", "t", "--time", "earliest"), "t:0:0\nt:1:0\n")
        for time, offset in (("1500", 1), ("max-timestamp", 1), ("1970-01-01T00:00+00:00", 0)):
            outcome = self.execute(*words, "--topic", "t", "--time", time)
            self.assertEqual((outcome.code, outcome.output), (0, b"t:1:%d\n" % offset), time)
            self.assertEqual(outcome.errors, "t-0 has no record of that time or later\n")
        self.assertEqual(self.done(*words, "--topic", "t", "--partition", "1"), "t:1:3\n")
        found = self.document(*words, "--topic", "t", "--time", "max-timestamp")
        place = {"topic": "t", "partition": 1, "offset": 1, "timestampMs": 3000}
        self.assertEqual(found, {"offsets": [place], "problems": []})

    def test_noOffsets(self) -> None:
        """What is missing or refused is named."""
        self.done("topic", "create", "t")
        self.assertIn("no topic u; there are: t", self.failed("offset", "list", "--topic", "u"))
        self.assertIn("no partition 9", self.failed("offset", "list", "--partition", "9"))
        self.broker.injectError("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", partition=1)
        outcome = self.execute("offset", "list")
        self.assertEqual((outcome.code, outcome.output), (1, b"t:0:0\n"))
        self.assertIn("t-1: TOPIC_AUTHORIZATION_FAILED", outcome.errors)
        current = ("--bootstrap-server", "h:1")
        self.wrong("offset", "list", *current, "--count", "2")
        self.wrong("offset", "list")
        self.wrong("offset", "list", "--topic", "t", "--time", "max-timestamp")


class RecordTests(CurrentCase):
    """C{produce} and C{consume}."""

    def test_fields(self) -> None:
        """Keys, headers and times are sent, stored and shown; keys choose partitions."""
        self.done(
            *("produce", "-", "--topic", "t", "--key-separator", ":", "--header", "h=1"),
            *("--timestamp", "1234", "--compression", "lz4"),
            input=b"k:v\nk:w\nplain\n",
        )
        found = [
            json.loads(line)
            for line in self.done(
                "consume", "--topic", "t", "--from-beginning", "--json"
            ).splitlines()
        ]
        self.assertEqual(
            sorted((each["key"] or "", each["payload"], each["timestampMs"]) for each in found),
            [("", "plain", 1234), ("k", "v", 1234), ("k", "w", 1234)],
        )
        self.assertEqual(found[0]["headers"], [{"name": "h", "value": "1"}])
        self.assertEqual(len({each["partition"] for each in found if each["key"]}), 1)
        shown = self.done(
            "consume", "--topic", "t", "--from-beginning", "--print", "key,headers,timestamp"
        )
        self.assertIn("1234\th:1\tk\tv", shown.splitlines())
        self.assertIn("1234\th:1\tnull\tplain", shown.splitlines())
        checksums = self.done("consume", "--topic", "t", "--from-beginning", "--format", "checksum")
        self.assertEqual(checksums.count("checksum:"), 3)

    def test_librdkafka(self) -> None:
        """What librdkafka sends is read; its keys have the partitions that ours have."""
        keys = [b"key %d" % number for number in range(20)]
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrapServers, "partitioner": "murmur2_random"}
        )
        for key in keys:
            producer.produce("theirs", None, key)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        self.done(
            *("produce", "-", "--topic", "ours", "--key-separator", ":"),
            input=b"".join(b"%s:x\n" % key for key in keys),
        )
        places = []
        for topic in ("theirs", "ours"):
            lines = self.done(
                "consume", "--topic", topic, "--from-beginning", "--json"
            ).splitlines()
            found = [json.loads(line) for line in lines]
            places.append({each["key"]: each["partition"] for each in found})
            self.assertEqual(found[0]["payload"], None if topic == "theirs" else "x")
        self.assertEqual(places[0], places[1])

    def transactional(self, name: str) -> Any:
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrapServers, "transactional.id": name}
        )
        producer.init_transactions(TIMEOUT_SECONDS)
        return producer

    def test_isolationLevel(self) -> None:
        """
        C{read_committed} leaves out aborted transactions, whatever is between their records, and
        ends before open ones; by default all is read.
        """
        first, second = self.transactional("x"), self.transactional("y")
        sending = ("produce", "-", "--topic", "t", "--partition", "0")

        def send(producer: Any, text: str) -> None:
            producer.produce("t", text.encode(), partition=0)
            self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)

        first.begin_transaction()
        send(first, "a")
        first.commit_transaction(TIMEOUT_SECONDS)
        first.begin_transaction()
        second.begin_transaction()
        send(first, "aborted")
        send(second, "b")
        self.done(*sending, input=b"c\n")
        send(first, "aborted, too")
        first.abort_transaction(TIMEOUT_SECONDS)
        send(second, "d")
        second.commit_transaction(TIMEOUT_SECONDS)
        first.begin_transaction()
        send(first, "e")
        first.commit_transaction(TIMEOUT_SECONDS)
        second.begin_transaction()
        send(second, "open")
        self.done(*sending, input=b"behind\n")
        words = ("consume", "--topic", "t", "--from-beginning")
        committed = ("--isolation-level", "read_committed")
        self.assertEqual(self.done(*words, *committed).split("\n"), [*"abcde", ""])
        found = self.done(*words, *committed, "--group", "g")
        self.assertEqual(found.split("\n"), [*"abcde", ""])
        every = ["a", "aborted", "b", "c", "aborted, too", "d", "e", "open", "behind", ""]
        for more in ((), ("--isolation-level", "read_uncommitted")):
            self.assertEqual(self.done(*words, *more).split("\n"), every, more)
        second.abort_transaction(TIMEOUT_SECONDS)
        self.assertEqual(self.done(*words, *committed, "--group", "g"), "behind\n")

    def test_stall(self) -> None:
        """
        Reading up to an end that a partition does not have any more ends with an error, after the
        records that there are, and names the partition and both offsets.
        """
        self.done("produce", "-", "--topic", "t", "--partition", "1", input=b"0\n1\n2\n")
        where = TopicPartition("t", 1)
        with KafkaCluster([endpoint(self.broker.bootstrapServers)]) as cluster:
            reader = RecordReader(cluster, {where: 0})
            found = [each.value for _where, each in readUpTo(3, reader, reader.poll, 1)]
            self.assertEqual(found, [b"0", b"1", b"2"])
            for name in ("", "t-1 of the other cluster"):
                reader.positions[where] = 1
                rest = readUpTo(5, reader, reader.poll, 1, name)
                self.assertEqual([next(rest)[1].value, next(rest)[1].value], [b"1", b"2"])
                error = self.assertRaises(CommandError, next, rest)
                self.assertIn(f"{name or where} has ended at 3, before 5", str(error))
            reader.positions[where] = 1
            batches = readUpTo(5, reader, reader.fetch, 1)
            next(batches)
            error = self.assertRaises(CommandError, list, batches)
            self.assertIn("t-1 has ended at 1, before 5", str(error))

    def test_where(self) -> None:
        """From an offset, from a time, from one partition, some records, or topics by pattern."""
        for number, at in enumerate(("1000", "2000", "3000")):
            line = f"produce - --topic t --partition 1 --timestamp {at}"
            self.done(*line.split(), input=b"%d\n" % number)
        cases: tuple[tuple[tuple[str, ...], str], ...] = (
            (("--offset", "1", "--partition", "1"), "1\n2\n"),
            (("--from-time", "1500"), "1\n2\n"),
            (("--from-time", "1970-01-02"), ""),
            (("--from-beginning", "--partition", "0"), ""),
            (("--from-beginning", "--max-messages", "1"), "0\n"),
        )
        for words, expected in cases:
            self.assertEqual(self.done("consume", "--topic", "t", *words), expected, words)
        found = self.done("consume", "--whitelist", "t|u", "--from-beginning")
        self.assertEqual(found, "0\n1\n2\n")
        for line, text in (
            ("--whitelist x.* --from-beginning", "no topic that matches"),
            ("--topic t --from-beginning --partition 9", "no partition 9"),
            ("--topic t --offset 9 --partition 1 --follow", "no offset 9"),
            ("--topic x --from-beginning", "UNKNOWN_TOPIC"),
        ):
            self.assertIn(text, self.failed("consume", *line.split()))

    def test_outcome(self) -> None:
        """C{--json} tells the outcome; what was refused, and what is too long, ends with 1."""
        words = ["produce", "-", "--topic", "t", "--partition", "0", "--batch-size", "2", "--json"]
        found = json.loads(self.done(*words, input=b"a\nb\nc"))
        self.assertEqual(found["messageCount"], 3)
        self.assertEqual((found["requestCount"], found["payloadSize"]), (2, 3))
        self.broker.injectError("Produce", "INVALID_RECORD")
        outcome = self.execute("produce", "-", "--topic", "t", input=b"a\n")
        self.assertEqual(outcome.code, 1)
        self.assertIn("INVALID_RECORD", outcome.errors)
        self.assertIn("0 messages before it", outcome.errors)
        words = ["produce", "-", "--topic", "t", "--max-message-size", "3"]
        outcome = self.execute(*words, input=b"abc\nlong\n")
        self.assertIn("line 2 of standard input is too long", outcome.errors)
        self.assertIn(
            "no partition 7", self.failed("produce", "-", "--topic", "t", "--partition", "7")
        )

    def test_wrongArguments(self) -> None:
        """Options that mean nothing for a kind of broker are errors."""
        current = ("--bootstrap-server", "h:1", "--topic", "t")
        for words in (
            ("produce", "-", "--topic", "t", "--header", "a=b"),
            ("produce", "-", "--topic", "t", "--timestamp", "5"),
            ("produce", "-", "--topic", "t", "--compression", "zstd"),
            ("produce", "-", *current, "--partition", "-1"),
            ("produce", "-", *current, "--header", "a"),
            ("produce", "-", *current, "--timestamp", "latest"),
            ("consume", "--topic", "t", "--from-beginning", "--print", "key"),
            ("consume", "--topic", "t", "--from-beginning", "--isolation-level", "read_committed"),
            ("consume", *current, "--from-beginning", "--isolation-level", "serializable"),
            ("consume", *current, "--from-beginning", "--print", "colour"),
            ("consume", *current, "--from-beginning", "--autocommit-interval-ms", "5"),
            ("consume", *current, "--group", "g", "--partition", "1"),
            ("consume", *current, "--from-beginning", "--partition", "-1"),
            ("consume", *current),
            ("group", "reset", "g", "--to-latest", "--partition", "1", "--zookeeper", "h:1"),
            ("group", "reset", "g", "--to-latest", "--partition", "0-1", *current[:2]),
            ("topic", "list"),
        ):
            self.wrong(*words)

    def test_follow(self) -> None:
        """
        A command that follows prints new records, and ends with 0 at Ctrl-C; or by itself, when
        nothing has come for a time.
        """
        self.done("produce", "-", "--topic", "t", input=b"first\n")
        place = ("--topic", "t", "--bootstrap-server", self.broker.bootstrapServers)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pylogbroker",
                "consume",
                *place,
                "--follow",
                "--from-beginning",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.addCleanup(process.kill)
        assert process.stdout is not None
        with process.stdout:
            self.assertEqual(process.stdout.readline(), b"first\n")
            self.done("produce", "-", "--topic", "t", input=b"second\n")
            self.assertEqual(process.stdout.readline(), b"second\n")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(TIMEOUT_SECONDS), 0)
        words = ("--follow", "--from-beginning", "--consumer-timeout-ms", "1")
        self.assertEqual(len(self.done("consume", "--topic", "t", *words).splitlines()), 2)

    def test_closedOutput(self) -> None:
        """A reader that takes no more ends it without an error; nothing is committed."""
        self.done("produce", "-", "--topic", "t", input=b"x\n" * 50)
        place = ["--bootstrap-server", self.broker.bootstrapServers]
        reading, writing = os.pipe()
        os.close(reading)
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGPIPE, before)
        streams = Streams(0, writing, io.StringIO())
        words = ["consume", "--topic", "t", "--group", "g", "--from-beginning", *place]
        options = prepare(words, streams)
        self.assertEqual(options.command.current(options, streams), 0)
        os.close(writing)
        self.assertEqual(
            len(self.done("consume", "--topic", "t", "--group", "g", "--from-beginning")), 100
        )


class GroupTests(CurrentCase):
    """C{group}, and members of groups."""

    def setUp(self) -> None:
        super().setUp()
        for number in range(3):
            words = ("--partition", "1", "--timestamp", str(1000 * (number + 1)))
            self.done("produce", "-", "--topic", "t", *words, input=b"%d\n" % number)

    def lags(self) -> dict[int, tuple[int | None, int | None]]:
        """Offset and lag, by partition."""
        [found] = self.document("group", "describe", "g")["groups"]
        return {each["partition"]: (each["offset"], each["lag"]) for each in found["partitions"]}

    def test_continues(self) -> None:
        """A member commits what it has printed, and the next one continues there."""
        words = ("consume", "--topic", "t", "--group", "g", "--from-beginning")
        self.assertEqual(self.done(*words, "--max-messages", "2"), "0\n1\n")
        self.assertEqual(self.lags()[1], (2, 1))
        self.assertEqual(self.done(*words), "2\n")
        self.assertEqual(self.done(*words), "")
        self.assertEqual(self.lags(), {0: (0, 0), 1: (3, 0)})
        self.assertIn("Empty", self.done("group", "list"))
        self.assertEqual(self.document("group", "list")["groups"][0]["group"], "g")

    def test_members(self) -> None:
        """Members of other clients are shown, with what they have; they refuse a reset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "group.id": "g",
                "client.id": "theirs",
                "auto.offset.reset": "earliest",
            }
        )
        self.addCleanup(consumer.close)
        consumer.subscribe(["t"])
        found = None
        while found is None:
            found = consumer.poll(1)
        text = self.done("group", "describe")
        self.assertRegex(
            text, r"group g  Stable  classic  range\n  member theirs-\S+  /127.0.0.1  2 part"
        )
        [group] = self.document("group", "describe", "g")["groups"]
        [member] = group["members"]
        self.assertEqual((member["clientId"], member["partitions"]), ("theirs", ["t-0", "t-1"]))
        words = ("group", "reset", "g", "--to-latest", "--topic", "t", "--execute")
        self.assertIn("a group with members refuses", self.failed(*words))
        self.assertIn("NON_EMPTY_GROUP", self.failed("group", "delete", "g"))

    def test_reset(self) -> None:
        """Offsets are shown, and changed with C{--execute} only."""
        words = ("group", "reset", "g", "--topic", "t")
        self.assertIn("no positions", self.failed("group", "reset", "g", "--to-latest"))
        self.done(*words, "--to-latest", "--execute")
        self.assertEqual(self.lags(), {0: (0, 0), 1: (3, 0)})
        for more, expected in (
            (("--to-earliest",), 0),
            (("--to-datetime", "1500"), 1),
            (("--to-datetime", "2030-01-01"), 3),
            (("--to-offset", "2", "--partition", "1"), 2),
        ):
            found = self.document(*words, *more)
            self.assertFalse(found["executed"])
            changes = {each["partition"]: each["new"] for each in found["changes"]}
            self.assertEqual(changes[1], expected, more)
        self.assertEqual(self.lags()[1], (3, 0))
        self.assertIn("t-0 holds 0 to 0", self.failed(*words, "--to-offset", "1"))
        self.assertIn("no partition 9", self.failed(*words, "--to-latest", "--partition", "9"))
        table = self.done("group", "reset", "g", "--to-earliest", "--execute")
        self.assertEqual(table.splitlines()[2].split(), ["g", "t", "1", "3", "0", "-3"])
        self.assertEqual(self.lags()[1], (0, 3))

    def test_delete(self) -> None:
        """A group without members is deleted; what is missing is named."""
        self.done("group", "reset", "g", "--to-latest", "--topic", "t", "--execute")
        outcome = self.execute("group", "delete", "g", "h")
        self.assertEqual(outcome.code, 1)
        self.assertIn("deleted group g", outcome.errors)
        self.assertIn("group h: GROUP_ID_NOT_FOUND", outcome.errors)
        self.assertEqual(self.done("group", "list"), "")
        self.assertEqual(self.done("group", "describe"), "")
        self.assertIn("no consumer group g", self.failed("group", "describe", "g"))

    def test_deletedTopic(self) -> None:
        """The offsets of a topic that was deleted are gone with it, or have no end."""
        self.done("group", "reset", "g", "--to-latest", "--topic", "t", "--execute")
        self.done("topic", "delete", "t")
        for offset, lag in self.lags().values():
            self.assertEqual((offset is None, lag), (False, None))


class WaitNoticeTests(SynchronousTestCase):
    """A command that tries again for long says so."""

    def test_long(self) -> None:
        """Once, when attempts that follow one another have taken long; not for scattered ones."""
        clock, said = Clock(), []
        notice = WaitNotice(lambda: said.append(clock.seconds()), clock.seconds, clock.advance)
        for _ in range(5):  # apart
            notice(0.1)
            clock.advance(10)
        self.assertEqual(said, [])
        begin = clock.seconds()
        for _ in range(40):
            notice(0.1)
            clock.advance(0.01)
        [at] = said
        self.assertTrue(1.5 <= at - begin < 1.7, at - begin)

    def test_refused(self) -> None:
        """The cluster and the time-out are named."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            place = f"127.0.0.1:{listening.getsockname()[1]}"
        outcome = performAtOnce(
            *("topic", "list", "--bootstrap-server", place, "--timeout-ms", "4000")
        )
        self.assertEqual(outcome.code, 1)
        self.assertIn(f"waiting for the cluster at {place}; gives up after 4 s\n", outcome.errors)


class MainTests(CurrentCase):
    """The program."""

    def test_exitCode(self) -> None:
        """Without a reactor; the code is the command's, and signals have their old handlers."""
        before = signal.getsignal(signal.SIGINT)
        place = ["--bootstrap-server", self.broker.bootstrapServers]
        self.assertEqual(main(["topic", "create", "t", *place]), 0)
        self.assertEqual(main(["topic", "create", "t", *place]), 1)
        self.assertEqual(main(["topic", "list", *place, "--json"]), 0)
        self.assertIs(signal.getsignal(signal.SIGINT), before)

    def test_file(self) -> None:
        """The lines of a file are published."""
        path = Path(self.mktemp())
        path.write_bytes(b"a\nb\n")
        place = ["--bootstrap-server", self.broker.bootstrapServers]
        self.assertEqual(main(["produce", str(path), "--topic", "t", *place]), 0)
        self.assertEqual(self.done("consume", "--topic", "t", "--from-beginning"), "a\nb\n")
