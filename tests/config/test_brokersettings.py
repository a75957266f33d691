"""
Tests for L{pylogbroker.config.brokersettings} and for the sample file that is made of its table.
"""

from __future__ import annotations

import os
import re

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.__main__ import settingsPage
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.properties import parseProperties, readProperties
from pylogbroker.errors import ConfigurationError

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
SAMPLE = os.path.join(ROOT, "etc", "broker.properties")

LEAST = "brokerid=3\nlog.dir=/data\nenable.zookeeper=false\n"

# The file that Kafka 0.7.2 came with, comments left out (config/server.properties).
SHIPPED = """\
brokerid=0
#hostname=
port=9092
num.threads=8
socket.send.buffer=1048576
socket.receive.buffer=1048576
max.socket.request.bytes=104857600
log.dir=/tmp/kafka-logs
num.partitions=1
#topic.partition.count.map=topic1:3, topic2:4
log.flush.interval=10000
log.default.flush.interval.ms=1000
#topic.flush.intervals.ms=topic1:1000, topic2:3000
log.default.flush.scheduler.interval.ms=1000
log.retention.hours=168
#log.retention.size=1073741824
log.file.size=536870912
log.cleanup.interval.mins=1
enable.zookeeper=true
zk.connect=localhost:2181
zk.connectiontimeout.ms=1000000
"""


class SettingsCase(SynchronousTestCase):
    """What the cases below share."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def read(self, text: str, least: str = LEAST) -> BrokerSettings:
        return BrokerSettings.fromProperties(parseProperties(least + text), self.warnings.append)

    def refused(self, text: str, least: str = LEAST) -> str:
        return str(self.assertRaises(ConfigurationError, self.read, text, least))


class DefaultTests(SettingsCase):
    """What a broker is told when the file says nothing."""

    def test_kafkasDefaults(self) -> None:
        """
        Kafka's keys have the defaults of 0.7.2's code, in the units of the keys, but for the
        buffers of sockets, which the system sizes.
        """
        settings = self.read("")
        self.assertEqual(
            (settings.brokerId, settings.logDir, settings.enableZookeeper),
            (3, "/data", False),
        )
        self.assertEqual((settings.port, settings.hostName), (6667, None))
        self.assertEqual((settings.socketSendBuffer, settings.socketReceiveBuffer), (0, 0))
        self.assertEqual(
            (settings.maxSocketRequestBytes, settings.maxMessageSize, settings.maxTopicNameLength),
            (104857600, 1000000, 255),
        )
        self.assertEqual(
            (settings.numPartitions, settings.logFileSize, settings.logRollHours),
            (1, 1 << 30, 168),
        )
        self.assertEqual(
            (
                settings.logRetentionHours,
                settings.logRetentionSize,
                settings.logCleanupIntervalMins,
            ),
            (168, -1, 10),
        )
        self.assertEqual(
            (
                settings.logFlushInterval,
                settings.logDefaultFlushSchedulerIntervalMs,
                settings.logDefaultFlushIntervalMs,
            ),
            (500, 3000, 3000),
        )
        for overrides in (
            settings.topicPartitionCountMap,
            settings.topicLogFileSize,
            settings.topicLogRollHours,
            settings.topicLogRetentionHours,
            settings.topicLogRetentionSize,
            settings.topicFlushIntervalsMs,
        ):
            self.assertEqual(overrides, {})

    def test_ownDefaults(self) -> None:
        """Every limit of ours has a value without being asked."""
        settings = self.read("")
        self.assertEqual(
            (
                settings.maxRequestMemoryBytes,
                settings.maxDecompressedBytes,
                settings.maxCompressionDepth,
            ),
            (256 << 20, 64 << 20, 8),
        )
        self.assertEqual(
            (settings.maxUnflushedBytesPerPartition, settings.maxUnflushedBytes),
            (64 << 20, 256 << 20),
        )

    def test_everyRowIsASetting(self) -> None:
        """
        The table and the settings object name the same settings, once each, and only rows without
        effect have none.
        """
        effective = [key.name for key in BrokerSettings.keys if key.isEffective]
        self.assertEqual(sorted(vars(self.read(""))), sorted(effective))
        self.assertEqual(len({row.key for row in BrokerSettings.keys}), len(BrokerSettings.keys))

    def test_defaultsAreValid(self) -> None:
        """Every default passes its own row."""
        for row in BrokerSettings.keys:
            if row.default is not None:
                row.type.parse(row.default, self.fail)


class KafkaFileTests(SettingsCase):
    """Files of a Kafka 0.7 installation."""

    def test_shipped(self) -> None:
        """The file that 0.7.2 shipped works unchanged and without a warning."""
        settings = self.read(SHIPPED, "")
        self.assertEqual(
            (settings.port, settings.logFileSize, settings.logFlushInterval),
            (9092, 536870912, 10000),
        )
        self.assertEqual(
            (settings.logDefaultFlushIntervalMs, settings.logCleanupIntervalMins), (1000, 1)
        )
        self.assertEqual((settings.enableZookeeper, settings.zkConnect), (True, "localhost:2181"))
        self.assertEqual(
            (settings.zkSessionTimeoutMs, settings.zkConnectionTimeoutMs),
            (6_000, 1_000_000),
        )
        self.assertEqual(self.warnings, [])

    def test_zookeeperIsTheDefault(self) -> None:
        """
        A file that does not mention ZooKeeper asks for it, as in 0.7, and is told what to set.
        """
        self.assertEqual(
            self.refused("", "brokerid=0\nlog.dir=x"),
            "zk.connect is missing: enable.zookeeper=true (the default, as in Kafka 0.7) needs"
            " ZooKeeper's servers, such as zk.connect=localhost:2181; or set"
            " enable.zookeeper=false",
        )
        self.assertNotIn("default", self.refused("enable.zookeeper=true\nzk.connect= "))

    def test_zookeeperTimes(self) -> None:
        """The start waits for ZooKeeper as long as a session lasts, if nothing else is said."""
        settings = self.read("zk.sessiontimeout.ms=1234")
        self.assertEqual(
            (settings.zkSessionTimeoutMs, settings.zkConnectionTimeoutMs),
            (1234, 1234),
        )
        self.assertEqual(settings.zkConnect, "")
        self.assertIn("zk.sessiontimeout.ms=0", self.refused("zk.sessiontimeout.ms=0"))

    def test_required(self) -> None:
        """Without a number or a directory there is no broker; both are named at once."""
        lines = self.refused("", "enable.zookeeper=false").split("\n")
        self.assertEqual([line.split(" is missing")[0] for line in lines], ["brokerid", "log.dir"])

    def test_negativeBrokerId(self) -> None:
        """A negative number is refused (gotcha 25)."""
        self.assertIn("brokerid=-1", self.refused("brokerid=-1"))

    def test_ranges(self) -> None:
        """Each range of 0.7.2 is kept: the least value is taken, the next lower one refused."""
        for key, least in (
            ("port", 0),
            ("max.socket.request.bytes", 1),
            ("max.message.size", 0),
            ("max.topic.name.length", 1),
            ("num.partitions", 1),
            ("log.file.size", 5),
            ("log.roll.hours", 1),
            ("log.retention.hours", 1),
            ("log.cleanup.interval.mins", 1),
            ("log.flush.interval", 1),
            ("log.default.flush.scheduler.interval.ms", 1),
            ("monitoring.period.secs", 1),
            ("num.threads", 1),
        ):
            self.read(f"{key}={least}")
            self.assertIn(f"{key}={least - 1}", self.refused(f"{key}={least - 1}"))

    def test_perTopic(self) -> None:
        """
        The maps by topic are read in the units of their keys, sizes for retention with 64 bits
        (gotcha 5).
        """
        settings = self.read(
            "topic.partition.count.map=a:2\ntopic.log.file.size=a:100\ntopic.log.roll.hours=a:1\ntopic.log.retention.hours=a:2\n"
            "topic.flush.intervals.ms=a:50\ntopic.log.retention.size=a:5000000000"
        )
        self.assertEqual(
            (settings.topicPartitionCountMap, settings.topicLogFileSize), ({"a": 2}, {"a": 100})
        )
        self.assertEqual(
            (settings.topicLogRollHours, settings.topicLogRetentionHours),
            ({"a": 1}, {"a": 2}),
        )
        self.assertEqual(
            (settings.topicFlushIntervalsMs, settings.topicLogRetentionSize),
            ({"a": 50}, {"a": 5_000_000_000}),
        )

    def test_flushInterval(self) -> None:
        """The longest wait for a flush is the look-around interval unless it is given."""
        self.assertEqual(
            self.read("log.default.flush.scheduler.interval.ms=70").logDefaultFlushIntervalMs, 70
        )
        self.assertEqual(
            self.read(
                "log.default.flush.scheduler.interval.ms=70\nlog.default.flush.interval.ms=0"
            ).logDefaultFlushIntervalMs,
            0,
        )

    def test_hostName(self) -> None:
        """A host name is taken as it is; an empty one is none."""
        self.assertEqual(self.read("hostname=log1").hostName, "log1")
        self.assertIs(self.read("hostname=").hostName, None)

    def test_noHosts(self) -> None:
        """What is no host is refused with its key, and not told to others."""
        for line in ("hostname=ev[il", "listen.interface=[::1", "zk.connect=ev[il:2181"):
            error = self.assertRaises(ConfigurationError, self.read, line)
            self.assertIn(line, str(error))

    def test_misspelt(self) -> None:
        """A misspelt key is reported with its nearest neighbour (gotcha 24)."""
        self.read("log.flush.intervall=1")
        self.assertEqual(
            self.warnings,
            [
                "line 4: log.flush.intervall=1: there is no such key and it has no effect; did you"
                " mean log.flush.interval?"
            ],
        )


class ListenerTests(SettingsCase):
    """Where a broker listens."""

    def test_default(self) -> None:
        """Without anything else it is the port on all addresses, as in 0.7."""
        self.assertEqual(self.read("").listeners, ("tcp:6667",))

    def test_interface(self) -> None:
        """
        One address can be chosen (gotcha 23); an IPv6 address is quoted as endpoint strings want
        it.
        """
        self.assertEqual(
            self.read("port=1\nlisten.interface=127.0.0.1").listeners,
            ("tcp:1:interface=127.0.0.1",),
        )
        self.assertEqual(
            self.read("port=1\nlisten.interface=::1").listeners, ("tcp6:1:interface=\\:\\:1",)
        )

    def test_given(self) -> None:
        """Given endpoint strings stand instead."""
        self.assertEqual(
            self.read("port=1\nlisteners=tcp:2 | systemd:domain=INET:index=0").listeners,
            ("tcp:2", "systemd:domain=INET:index=0"),
        )


class BudgetTests(SettingsCase):
    """Memory for all must suffice for one."""

    def test_grows(self) -> None:
        """A file that only allows larger requests, or larger sets, gets the memory for one."""
        self.assertEqual(
            self.read("max.socket.request.bytes=1000000000").maxRequestMemoryBytes, 1_000_000_000
        )
        self.assertEqual(
            self.read("max.decompressed.bytes=1000000000").maxDecompressionMemoryBytes,
            1_000_000_000,
        )

    def test_tooSmall(self) -> None:
        """A budget that is given and too small for one is an error that names both."""
        self.assertEqual(
            self.refused("max.request.memory.bytes=1000"),
            "max.request.memory.bytes=1000: must be at least max.socket.request.bytes, which is"
            " 104857600",
        )
        self.assertIn("max.decompressed.bytes", self.refused("max.decompression.memory.bytes=1000"))

    def test_given(self) -> None:
        """A budget that suffices is taken as given."""
        self.assertEqual(
            self.read(
                "max.socket.request.bytes=1000\nmax.request.memory.bytes=1000"
            ).maxRequestMemoryBytes,
            1000,
        )


class PageTests(SynchronousTestCase):
    """Its part of the reference page."""

    def test_everyKey(self) -> None:
        """Every key is on it, once."""
        for row in BrokerSettings.keys:
            self.assertEqual(
                settingsPage().split("\n## ")[1].count(f"\n| `{row.key}` |"), 1, row.key
            )


class SampleTests(SettingsCase):
    """The sample file C{etc/broker.properties}."""

    def test_usable(self) -> None:
        """It is valid without a warning and listens on loopback without ZooKeeper."""
        settings = BrokerSettings.fromProperties(readProperties(SAMPLE, self.fail), self.fail)
        self.assertEqual(settings.listeners, ("tcp:9092:interface=127.0.0.1",))
        self.assertFalse(settings.enableZookeeper)

    def pairs(self) -> list[tuple[str, str, str, str]]:
        """(comment, C{"#"} if the key is commented out, key, value), for each key of the file."""
        with open(SAMPLE, encoding="utf-8") as file:
            found = re.findall(r"\n((?:# .*\n)+)(#?)([a-z0-9._]+)=(.*)", file.read())
        prefixes = [row.key for row in BrokerSettings.keys if row.isPrefix]

        def rowKey(key: str) -> str:
            return next((prefix for prefix in prefixes if key.startswith(prefix)), key)

        return [
            (" ".join(line[2:] for line in comment.splitlines()), mark, rowKey(key), value)
            for comment, mark, key, value in found
        ]

    def test_complete(self) -> None:
        """
        It has every key that has an effect, commented out or not, in the order of the table, and no
        other.
        """
        self.assertEqual(
            [key for _, _, key, _ in self.pairs()],
            [row.key for row in BrokerSettings.keys if row.isEffective],
        )

    def test_sentences(self) -> None:
        """Each key is explained by the sentence of its row, and those that are ours are marked."""
        rows = {row.key: row for row in BrokerSettings.keys}
        for comment, _, key, _ in self.pairs():
            self.assertEqual(comment, rows[key].doc + ("" if rows[key].isKafkaKey else " (ours)"))

    def test_commentedDefaults(self) -> None:
        """
        What is commented out shows the default, or, where there is none, an example that is valid.
        """
        rows = {row.key: row for row in BrokerSettings.keys}
        for _, mark, key, value in self.pairs():
            if mark and rows[key].default:
                self.assertEqual(value, rows[key].default)
            elif mark:
                rows[key].type.parse(value, self.fail)
                self.assertNotEqual(value, "")
