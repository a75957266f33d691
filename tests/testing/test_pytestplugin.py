"""
Tests of pytest's plugin: pytest runs files that use it, in processes of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent.parent

EMPTY = """
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

@pytest.mark.parametrize("number", range(3))
def test_it(kafka_broker, number):
    servers = {"bootstrap.servers": kafka_broker.bootstrapServers}
    assert AdminClient(servers).list_topics(timeout=60).topics == {}
    offsets = []
    producer = Producer(servers)
    producer.produce("t", b"x", on_delivery=lambda error, sent: offsets.append(sent.offset()))
    assert producer.flush(60) == 0
    assert offsets == [0]
    if number == 1:
        kafka_broker.kill()
"""
ONE_PROCESS = """
pids = set()

def test_one(kafka_broker):
    pids.add(kafka_broker.pid)

def test_other(kafka_broker, kafka_broker_session):
    pids.add(kafka_broker.pid)
    pids.add(kafka_broker_session.pid)
    assert len(pids) == 1
"""
PROPERTIES = """
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

@pytest.fixture(scope="session")
def kafka_broker_properties():
    return {"num.partitions": "3"}

def test_it(kafka_broker):
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrapServers})
    admin.create_topics([NewTopic("t", -1, 1)])["t"].result(60)
    assert len(admin.list_topics("t", timeout=60).topics["t"].partitions) == 3
"""
FACTORY = """
import os
brokers = []

def test_two(kafka_broker_factory):
    brokers.append(kafka_broker_factory())
    brokers.append(kafka_broker_factory({"brokerid": "7"}))
    assert brokers[0].port != brokers[1].port

def test_theyAreGone():
    assert [broker.isRunning for broker in brokers] == [False, False]
    assert not any(os.path.exists(broker.directory) for broker in brokers)
"""
UNUSED = """
import sys

def test_nothing():
    assert "twisted" not in sys.modules
    assert "pylogbroker.testing.backgroundbroker" not in sys.modules
"""


class PluginTests(SynchronousTestCase):
    """The fixtures."""

    def passed(self, text: str, count: int) -> None:
        """So many tests of a file pass, and nothing else happens."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        path = folder / "test_it.py"
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "pylogbroker.testing.pytestplugin"),
                *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), str(path)),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertRegex(said, re.compile(rf"^{count} passed in ", re.MULTILINE))

    def test_empty(self) -> None:
        """Each test finds the broker empty, also behind one that has killed it."""
        self.passed(EMPTY, 3)

    def test_oneProcess(self) -> None:
        """All tests of a run share a process."""
        self.passed(ONE_PROCESS, 2)

    def test_properties(self) -> None:
        """A fixture of one's own gives it other properties."""
        self.passed(PROPERTIES, 1)

    def test_factory(self) -> None:
        """A test may start brokers of its own, which end with it."""
        self.passed(FACTORY, 2)

    def test_unused(self) -> None:
        """A run that needs no broker imports neither Twisted nor anything else for one."""
        self.passed(UNUSED, 1)
