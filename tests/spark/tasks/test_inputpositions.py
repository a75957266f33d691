"""Tests of L{pylogbroker.spark.tasks.inputpositions}, with a real broker, and without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.spark.kafka.source import decodeKafkaCheckpoint
from pylogbroker.spark.tasks.inputpositions import InputPositions, checkpointTopics, handledUpTo
from pylogbroker.types import TopicPartition
from tests.spark.kafka.kafkasource import ALL, T0, T1, KafkaSourceCase, deleteBefore

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


class EndTests(KafkaSourceCase):
    """A job with repartitions, whose inputs go on."""

    def test_fixed(self) -> None:
        """
        The source reads the inputs up to the ends that were fixed, also in a partition that was
        empty and is not any more; what the job writes to itself it reads on and on, until nothing
        is left.
        """
        inner = TopicPartition("inner", 0)
        self.cluster.partitions("inner", isCreating=True)
        self.write(T0, b"a", b"b")
        deleteBefore(self.cluster, T0, 1)
        given = self.given(subscribe="clicks,inner", startingOffsets="earliest")
        positions = InputPositions(given, ["inner"])
        stops: dict[str, Any] = {**positions.fixEnds()}
        self.assertEqual(json.loads(stops["stopOffsets"]), {"clicks": {"0": 2, "1": 0}})
        stream = self.stream(subscribe="clicks,inner", startingOffsets="earliest", **stops)
        self.write(T0, b"late")
        self.write(T1, b"late")
        self.write(inner, b"first")
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        self.assertEqual(self.micro(stream, start, end), [b"b", b"first"])

        def isEnd() -> bool:
            handled = {place: each.end for place, each in decodeKafkaCheckpoint(end).items()}
            return positions.areReached(handled)

        self.assertTrue(isEnd())
        self.write(inner, b"second")
        self.assertFalse(isEnd())
        self.write(T0, b"later")
        start, end = end, stream.latestOffset(end, ALL)
        self.assertEqual(self.micro(stream, start, end), [b"second"])
        self.assertTrue(isEnd())
        more: dict[str, Any] = {**positions.fixEnds()}
        again = self.stream(subscribe="clicks,inner", **more)
        start, end = end, again.latestOffset(end, ALL)
        self.assertEqual(
            sorted(filter(None, self.micro(again, start, end))), [b"late", b"late", b"later"]
        )
