"""
Tests for L{pylogbroker.programs.topologies.process}, as processes; and the sinks of a metrics
manager's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.trial.unittest import SynchronousTestCase, TestCase
from twisted.web.client import Agent, readBody

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.programs.localcluster import freePort
from pylogbroker.programs.topologies.metricsrole import MetricsManagerRole
from pylogbroker.programs.topologies.process import (
    INSTANCE,
    METRICS_MANAGER,
    ProcessSpec,
    RoleContext,
)
from pylogbroker.topologies.messages import Metrics
from pylogbroker.topologies.metrics.sinks import FileSink, PrometheusSink, TopicSink

reactor: Any = _reactor

SPOUT = """
from pylogbroker.topologies import Spout, TopologyBuilder

class Nothing(Spout):
    def nextTuple(self):
        pass

builder = TopologyBuilder("words")
builder.setSpout("spout", Nothing)
words = builder.build()
print("said at import")
"""


class ProcessTests(SynchronousTestCase):
    """Instances without a stream manager."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        (self.folder / "properties").write_text("")
        (self.folder / "words.py").write_text(SPOUT)

    def started(self, **fields: Any) -> subprocess.Popen[bytes]:
        values: dict[str, Any] = {
            "file": str(self.folder / "words.py"),
            "task": 1,
            "component": "spout",
            "streamManager": f"127.0.0.1:{freePort()}",
            "metricsManager": f"127.0.0.1:{freePort()}",
            "properties": str(self.folder / "properties"),
            **fields,
        }
        spec = ProcessSpec(INSTANCE, "words", 1, directory=str(self.folder), **values)
        made = subprocess.Popen(
            [sys.executable, *spec.words[1:]],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=False,
        )
        self.addCleanup(self._end, made)
        return made

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stderr):
            assert pipe is not None
            pipe.close()

    def log(self) -> str:
        path = self.folder / "instance-1-spout.log"
        return path.read_text() if path.exists() else ""

    def test_parentGone(self) -> None:
        """With its standard input it ends, at once; its output stands in its log."""
        process = self.started()
        assert process.stdin is not None
        while "said at import" not in self.log():
            self.assertIsNone(process.poll())
        process.stdin.close()
        self.assertEqual(process.wait(60), 1)

    def test_thread(self) -> None:
        """A thread of the author's code does not keep it from ending, with its status."""
        (self.folder / "words.py").write_text(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
            "raise ValueError('no')\n"
        )
        self.assertEqual(self.started().wait(60), 1)

    def test_badFile(self) -> None:
        """A file that cannot be used is told of on standard error."""
        (self.folder / "words.py").write_text("raise ValueError('no')")
        process = self.started()
        _output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"words.py", errors)

    def test_badSettings(self) -> None:
        """So are settings."""
        (self.folder / "properties").write_text("metrics.interval.ms=0\n")
        process = self.started()
        _output, errors = process.communicate(timeout=60)
        self.assertIn(b"metrics.interval.ms=0", errors)


class MetricsManagerRoleTests(TestCase):
    """Which sinks there are."""

    def role(self, **properties: str) -> MetricsManagerRole:
        given = {key.replace("_", "."): value for key, value in properties.items()}
        settings = TopologySettings.fromProperties(given, self.fail)
        spec = ProcessSpec(METRICS_MANAGER, "words", 1, "", os.path.abspath(self.mktemp()))
        return MetricsManagerRole(reactor, RoleContext(spec, settings, {}, SystemRandom()))

    async def test_sinks(self) -> None:
        """As the settings say; Prometheus gets the last metrics."""
        self.assertEqual(self.role(metrics_file_size_max="0")._sinks(), [])
        role = self.role(
            metrics_topic="metrics",
            metrics_bootstrap_servers="127.0.0.1:1",
            metrics_prometheus_port=str(freePort()),
        )
        sinks: list[Any] = role._sinks()
        [port] = role._ports
        self.addCleanup(port.stopListening)
        self.assertEqual([type(each) for each in sinks], [FileSink, TopicSink, PrometheusSink])
        sinks[2].take(Metrics(1, "1", "spout", 1, 1, {"acked": 4}))
        url = f"http://127.0.0.1:{port.getHost().port}/metrics"
        answer = await Agent(reactor).request(b"GET", url.encode())
        self.assertIn(b'name="acked"} 4', await readBody(answer))
        await sinks[1].close()
