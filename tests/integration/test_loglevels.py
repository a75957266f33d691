"""
Levels of the log of a service that runs: changed in a file, which C{SIGHUP} has read again.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.brokerprocess import BrokerProcess


class LevelTests(SynchronousTestCase):
    """C{twistd pylogbroker --log-levels FILE}."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.file = Path(folder, "log-levels.properties")
        self.file.write_text(
            "root=warn\npylogbroker.programs.brokertap=info\npylogbroker.requests=error\n",
            encoding="ascii",
        )
        self.broker = BrokerProcess(
            folder + "/logs", {"log.requests": "true"}, options=("--log-levels", str(self.file))
        )
        self.addCleanup(self.broker.kill)
        self.broker.start()

    def change(self, text: str, line: str) -> None:
        """Other levels; what the broker says of them."""
        start = len(self.broker.lines)
        self.file.write_text(text, encoding="ascii")
        os.kill(self.broker.pid, signal.SIGHUP)
        self.broker.waitForLine(line, start=start)

    def asked(self, topic: bytes) -> None:
        """Something to log, and its answer."""
        with self.broker.client() as client:
            client.roundTrip(topic.decode(), b"hello")

    def test_changedAndBack(self) -> None:
        """
        Every request is logged from the moment on that its level allows it, and no longer than
        that; the broker serves on.
        """
        self.assertIn(
            "Log levels: root=warn pylogbroker.programs.brokertap=info pylogbroker.requests=error",
            self.broker.log,
        )
        self.asked(b"before")
        self.change(
            "root=warn\npylogbroker.requests=info\n",
            "Log levels: root=warn pylogbroker.requests=info",
        )
        self.asked(b"meanwhile")
        self.broker.waitForLine("PRODUCE 'meanwhile'")
        self.change("root=error\n", "Log levels: root=error")
        self.asked(b"after")
        self.assertEqual(self.broker.stop(), 0)
        self.assertNotIn("'before'", self.broker.log)
        self.assertNotIn("'after'", self.broker.log)

    def test_wrong(self) -> None:
        """
        A file with a mistake changes nothing; the mistake is named. A namespace of ours that does
        not exist is named, too.
        """
        self.change(
            "root=info\npylogbroker=loud\n",
            "The log levels stay as they were: .*log-levels.properties:2: pylogbroker=loud: must be"
            " one of",
        )
        self.asked(b"before")
        self.change(
            "root=info\npylogbroker.requets=info\n",
            "pylogbroker.requets: nothing is logged under that name",
        )
        self.broker.waitForLine("Log levels: root=info pylogbroker.requets=info")
        self.asked(b"after")
        self.broker.waitForLine("PRODUCE 'after'")
        self.assertEqual(self.broker.stop(), 0)
        self.assertNotIn("'before'", self.broker.log)
