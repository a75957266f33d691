"""
Tests of the broker in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ClosedError, PylogbrokerError, TimedOutError
from pylogbroker.testing.backgroundbroker import BackgroundBroker

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_SECONDS = 60

KILLED = """
import os, signal
from pylogbroker.testing import BackgroundBroker
broker = BackgroundBroker().start()
print(broker.pid, broker.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
FORGOTTEN = """
import sys
from pylogbroker.testing import BackgroundBroker
broker = BackgroundBroker().start()
print(broker.pid, broker.directory, "twisted" in sys.modules)
"""
FORKED = """
import os, sys
from pylogbroker.testing import BackgroundBroker
broker = BackgroundBroker().start()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(broker.isRunning, os.path.isdir(broker.directory))
"""


def execute(program: str) -> tuple[int, list[str]]:
    """
    Run a program to its end, and to that of all who have its standard error.

    @return: its exit status, and the words that it has printed.
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * TIMEOUT_SECONDS,
    )
    return done.returncode, done.stdout.split()


class BackgroundBrokerCase(SynchronousTestCase):
    """Brokers that end with the test."""

    def broker(self, *args: Any) -> BackgroundBroker:
        """One that is started."""
        found = BackgroundBroker(*args)
        self.addCleanup(found.close)
        return found.start()

    def produce(self, broker: BackgroundBroker, topic: str, value: bytes) -> int:
        """Returns the record's offset."""
        offsets: list[int | None] = []
        producer = Producer({"bootstrap.servers": broker.bootstrapServers})
        producer.produce(
            topic, value, on_delivery=lambda error, sent: offsets.append(sent.offset())
        )
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        assert offsets[0] is not None
        return offsets[0]

    def commit(self, broker: BackgroundBroker, topic: str, offset: int | None) -> int:
        """Commit the position of group C{g}, unless it is L{None}; returns what is committed."""
        consumer = Consumer({"bootstrap.servers": broker.bootstrapServers, "group.id": "g"})
        try:
            if offset is not None:
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            place = [TopicPartition(topic, 0)]
            [found] = consumer.committed(place, timeout=TIMEOUT_SECONDS)
            return int(found.offset)
        finally:
            consumer.close()

    def topics(self, broker: BackgroundBroker) -> set[str]:
        """Their names."""
        admin = AdminClient({"bootstrap.servers": broker.bootstrapServers})
        return set(admin.list_topics(timeout=TIMEOUT_SECONDS).topics)


class LifeTests(BackgroundBrokerCase):
    """From the start to the end."""

    def test_context(self) -> None:
        """
        As its documentation shows it: it serves inside the block; then its process and its data are
        gone.
        """
        with BackgroundBroker() as broker:
            self.assertEqual(self.produce(broker, "t", b"x"), 0)
            self.assertEqual(broker.bootstrapServers, f"127.0.0.1:{broker.port}")
            self.assertIn(broker.bootstrapServers, repr(broker))
            self.assertTrue(os.path.isdir(broker.directory))
            pid = broker.pid
        assert pid is not None
        self.assertFalse(broker.isRunning)
        self.assertFalse(os.path.exists(broker.directory))
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)
        self.assertIn("does not run", repr(broker))
        self.assertRaises(ClosedError, broker.start)

    def test_killed(self) -> None:
        """
        Ended as by C{kill -9}, and started again: port, records and positions are those of before.
        """
        broker = self.broker()
        place = broker.bootstrapServers
        self.produce(broker, "t", b"x")
        self.assertEqual(self.commit(broker, "t", 1), 1)
        broker.kill()
        self.assertFalse(broker.isRunning)
        self.assertIsNone(broker.pid)
        broker.start()
        self.assertEqual(broker.bootstrapServers, place)
        self.assertEqual(self.commit(broker, "t", None), 1)
        self.assertEqual(self.produce(broker, "t", b"y"), 1)

    def test_stopped(self) -> None:
        """Stopped in order, and started again; both may be said twice."""
        broker = self.broker()
        self.produce(broker, "t", b"x")
        broker.stop()
        broker.stop()
        self.assertIn(".kafka_cleanshutdown", os.listdir(broker.directory))
        self.assertIs(broker.start(), broker)
        pid = broker.pid
        self.assertEqual(broker.start().pid, pid)
        self.assertEqual(self.produce(broker, "t", b"y"), 1)

    def test_keptDirectory(self) -> None:
        """A directory that was given stays, and another broker goes on with it."""
        directory = os.path.abspath(self.mktemp())
        for number in range(2):
            broker = self.broker({}, directory)
            self.assertEqual(self.produce(broker, "t", b"x"), number)
            broker.close()
        self.assertIn("t-0", os.listdir(directory))

    def test_properties(self) -> None:
        """Properties, with Kafka's names, override its defaults."""
        broker = self.broker({"num.partitions": "3"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrapServers})
        self.produce(broker, "t", b"x")
        found = admin.list_topics("t", timeout=TIMEOUT_SECONDS).topics["t"]
        self.assertEqual(len(found.partitions), 3)

    def test_cannotStart(self) -> None:
        """One that cannot start says why."""
        with self.assertRaisesRegex(PylogbrokerError, "num.partitions=none"):
            self.broker({"num.partitions": "none"})

    def test_slow(self) -> None:
        """A start that takes too long is an error, and no process is left."""
        broker = BackgroundBroker(timeoutMs=1)
        self.addCleanup(broker.close)
        self.assertRaises(TimedOutError, broker.start)
        self.assertFalse(broker.isRunning)

    def test_endsByItself(self) -> None:
        """Orders to a process that has ended, or was never started, are errors."""
        broker = BackgroundBroker()
        self.addCleanup(broker.close)
        with self.assertRaisesRegex(ClosedError, "does not run"):
            broker.cutConnections()
        broker.start()
        pid = broker.pid
        assert pid is not None
        os.kill(pid, 9)
        with self.assertRaisesRegex(ClosedError, "status -9"):
            broker.cutConnections()


class ProcessTests(SynchronousTestCase):
    """The process of the test ends."""

    def check(self, program: str, status: int) -> list[str]:
        """The broker's process and its directory end with a program."""
        code, (pid, directory, *more) = execute(program)
        self.assertEqual(code, status)
        self.assertFalse(os.path.exists(f"/proc/{pid}/cmdline") and _isBroker(pid))
        self.assertFalse(os.path.exists(directory))
        return more

    def test_killed(self) -> None:
        """When the test is ended by C{kill -9}, the broker ends, too, and removes its data."""
        self.check(KILLED, -9)

    def test_forgotten(self) -> None:
        """It may be forgotten; the test's process has not imported Twisted."""
        self.assertEqual(self.check(FORGOTTEN, 0), ["False"])

    def test_forked(self) -> None:
        """The end of a fork of the test's process leaves the broker alone."""
        self.assertEqual(execute(FORKED), (0, ["True", "True"]))


def _isBroker(pid: str) -> bool:
    """Whether a process, which may be another one by now, is a broker."""
    try:
        return b"backgroundprocess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class ResetTests(BackgroundBrokerCase):
    """What stands between two tests."""

    def test_empty(self) -> None:
        """Topics and positions are gone; process and port stay."""
        broker = self.broker()
        pid, place = broker.pid, broker.bootstrapServers
        for _ in range(2):
            self.assertEqual(self.topics(broker), set())
            self.assertEqual(self.produce(broker, "t", b"x"), 0)
            self.assertEqual(self.commit(broker, "t", 1), 1)
            broker.reset()
            self.assertEqual((broker.pid, broker.bootstrapServers), (pid, place))
        self.assertEqual(self.topics(broker), set())

    def test_client(self) -> None:
        """A client that was connected is cut off, connects again, and goes on."""
        broker = self.broker()
        offsets: list[int | None] = []
        producer = Producer({"bootstrap.servers": broker.bootstrapServers, "log_level": 0})
        for _ in range(2):
            producer.produce(
                "t", b"x", on_delivery=lambda error, sent: offsets.append(sent.offset())
            )
            self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
            broker.reset()
        self.assertEqual(offsets, [0, 0])

    def test_ended(self) -> None:
        """One that was killed is started again, empty, on its port; also in a directory given."""
        for directory in (None, os.path.abspath(self.mktemp())):
            broker = self.broker(None, directory)
            place = broker.bootstrapServers
            self.produce(broker, "t", b"x")
            broker.kill()
            broker.reset()
            self.assertEqual(broker.bootstrapServers, place)
            self.assertEqual(self.topics(broker), set())

    def test_first(self) -> None:
        """One that has not run yet is started."""
        broker = BackgroundBroker(None, os.path.abspath(self.mktemp()))
        self.addCleanup(broker.close)
        broker.reset()
        self.assertEqual(self.topics(broker), set())
