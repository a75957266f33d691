"""Tests of L{pylogbroker.spark.tasks.inputpositions}, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.spark.tasks.inputpositions import checkpointTopics, handledUpTo
from pylogbroker.types import TopicPartition

END = {"a": {"0": {"from": 0, "to": 3}, "1": {"from": 2, "to": 2}}}


class CheckpointTests(SynchronousTestCase):
    """What Spark's files and reports say."""

    def test_topics(self) -> None:
        """The last micro-batch counts, by its number; without a folder there is none."""
        folder = self.mktemp()
        self.assertEqual(checkpointTopics(folder), set())
        Path(folder, "offsets").mkdir(parents=True)
        for number, end in ((9, END), (10, {**END, "b": END["a"]})):
            text = f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(end)}'
            Path(folder, "offsets", str(number)).write_text(text, encoding="utf-8")
            Path(folder, "offsets", f".{number}.crc").write_bytes(b"\xff")
        self.assertEqual(checkpointTopics(folder), {"a", "b"})

    def test_handled(self) -> None:
        """A report of Spark has the end of its micro-batch."""
        self.assertEqual(handledUpTo(None), {})
        source = SimpleNamespace(endOffset=json.dumps(END))
        self.assertEqual(
            handledUpTo(SimpleNamespace(sources=[source])),
            {TopicPartition("a", 0): 3, TopicPartition("a", 1): 2},
        )
