"""The benchmarks of today's dialect run. What they measure is for people to read."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.kafka import replication
from tests.benchmarks.kafka.__main__ import main


class KafkaRowsTests(SynchronousTestCase):
    """The rows of produce."""

    def test_rowsHaveFigures(self) -> None:
        """A row is measured on the broker and what it is compared with; none answers an error."""
        figures, output = Path(self.mktemp()), io.StringIO()
        arguments = ["--sides", "ours", "twisted", "yardstick", "--rounds", "1", "--share", "0.001"]
        arguments += ["--only", "b50", "--json", str(figures)]
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            self.assertEqual(main(arguments), 0)
        found = json.loads(figures.read_text(encoding="utf-8"))
        self.assertEqual(
            sorted(found),
            ["acks=1 b50 lz4", "acks=1 b50 none", "acks=all b50 lz4", "acks=all b50 none"],
        )
        for name, sides in found.items():
            self.assertIn(name, output.getvalue())
            self.assertEqual(sorted(sides), ["ours", "twisted", "yardstick"])


class ReplicationRowsTests(SynchronousTestCase):
    """Produce to three replicas."""

    def test_rowsHaveFigures(self) -> None:
        """A row is measured on three brokers and on their leader; none answers an error."""
        figures, output = Path(self.mktemp()), io.StringIO()
        arguments = ["--sides", "flushed", "--rounds", "1", "--share", "0.001"]
        arguments += ["--only", "b50 lz4", "--json", str(figures)]
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            self.assertEqual(replication.main(arguments), 0)
        ((name, sides),) = json.loads(figures.read_text(encoding="utf-8")).items()
        self.assertIn(name, output.getvalue())
        (one,) = sides["flushed"]
        self.assertGreater(one["cpuUs"], one["leaderUs"])
        self.assertGreater(one["leaderUs"], 0)
