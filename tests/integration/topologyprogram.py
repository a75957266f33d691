"""
Topologies for tests with processes: numbered sentences, whose words are written to files. A spout
writes each number that it emits, and each that was acknowledged, so that it goes on behind a kill
where it was, and a test can compare. A module of its own, since C{topology submit} runs it as a
file.

The environment's C{SPLIT_COUNT} is the number of the splitting instances of the word count.

Keys: C{sentences.folder}, of all files; C{sentences.count}, at which each instance of the spout
ends, or 0 for no end; the spout also ends when the folder has a file C{end}.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pylogbroker.topologies import Bolt, Grouping, Spout, StreamId, StreamTuple, TopologyBuilder

NOUNS = ("log", "broker", "spout", "bolt", "tuple", "topic", "stream")
VERBS = ("emits", "reads", "loses", "finds", "counts")

EMIT_SECONDS = 0.002
"""Between two tuples of an instance of the spout without an end."""


def sentence(number: int) -> str:
    """The sentence with a number."""
    first, verb, second = (number % 7, number % 5, number // 7 % 7)
    return f"{NOUNS[first]} {VERBS[verb]} {NOUNS[second]}"


class Journal:
    """A file of lines, whose writes survive C{kill -9}."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())


def lines(path: Path) -> list[str]:
    """Of a journal, without one that is not whole."""
    if not path.exists():
        return []
    return path.read_text().rpartition("\n")[0].split("\n")


class Sentences(Spout):
    """Numbers of an instance are its index and, further on, the index and the parallelism."""

    outputs = {"odd": ["number", "sentence"], "even": ["number", "sentence"]}

    def initialize(self, config: Any, context: Any) -> None:
        folder = Path(config["sentences.folder"])
        index = context.taskIndex
        emitted = {int(each) for each in lines(folder / f"emitted-{index}") if each}
        acked = {int(each) for each in lines(folder / f"acked-{index}") if each}
        self.emitted = Journal(folder / f"emitted-{index}")
        self.acked = Journal(folder / f"acked-{index}")
        isReliable = config["topology.reliability.mode"] == "ATLEAST_ONCE"
        self.again = sorted(emitted - acked) if isReliable else []
        self.number = max(emitted, default=index - context.parallelism) + context.parallelism
        self.step = context.parallelism
        self.count = int(config["sentences.count"])
        self.end = folder / "end"

    def nextTuple(self) -> None:
        if self.again:
            self.emitSentence(self.again.pop())
        elif self.number < self.count or (not self.count and not self.end.exists()):
            number, self.number = self.number, self.number + self.step
            self.emitted.write(str(number))
            self.emitSentence(number)
            if not self.count:
                time.sleep(EMIT_SECONDS)

    def emitSentence(self, number: int) -> None:
        stream = "odd" if number % 2 else "even"
        self.emit([number, sentence(number)], tupleId=number, stream=stream)

    def ack(self, tupleId: int) -> None:
        self.acked.write(str(tupleId))

    def fail(self, tupleId: int) -> None:
        self.again.append(tupleId)


class Split(Bolt):
    """Words of sentences."""

    outputs = ["word", "number", "index"]

    def process(self, tup: StreamTuple) -> None:
        for index, word in enumerate(tup["sentence"].split()):
            self.emit([word, tup["number"], index], anchors=[tup])
        self.ack(tup)


class Lengths(Bolt):
    """Lengths of sentences."""

    outputs = ["length", "number"]

    def process(self, tup: StreamTuple) -> None:
        self.emit([len(tup["sentence"]), tup["number"]], anchors=[tup])
        self.ack(tup)


class Write(Bolt):
    """Writes a line for each tuple; one that comes twice is there twice."""

    def initialize(self, config: Any, context: Any) -> None:
        folder = Path(config["sentences.folder"])
        self.journal = Journal(folder / f"{context.component}-{context.taskIndex}")

    def process(self, tup: StreamTuple) -> None:
        self.journal.write(" ".join(map(str, tup.values)))
        self.ack(tup)


RELIABLE = {"topology.reliability.mode": "ATLEAST_ONCE"}
ODD, EVEN = StreamId("sentences", "odd"), StreamId("sentences", "even")


def wordCountTopology() -> Any:
    """Sentences, words, and a line for each word in the file of its instance."""
    builder = TopologyBuilder("word-count", RELIABLE)
    builder.setSpout("sentences", Sentences, 2)
    count = int(os.environ.get("SPLIT_COUNT", "2"))
    builder.setBolt("split", Split, count, {ODD: Grouping.SHUFFLE, EVEN: Grouping.SHUFFLE})
    builder.setBolt("words", Write, 3, {"split": Grouping.fields("word")})
    return builder.build()


def figureTopology() -> Any:
    """As Figure 1 of the paper: a spout, two streams, four bolts, of which one gets two inputs."""
    builder = TopologyBuilder("figure-1", RELIABLE)
    builder.setSpout("sentences", Sentences, 2)
    builder.setBolt("split", Split, 2, {ODD: Grouping.SHUFFLE})
    builder.setBolt("lengths", Lengths, 2, {EVEN: Grouping.LOCAL_OR_SHUFFLE})
    builder.setBolt("words", Write, 2, {"split": Grouping.fields("word")})
    builder.setBolt("all", Write, 1, {"split": Grouping.GLOBAL, "lengths": Grouping.SHUFFLE})
    return builder.build()


wordCount = wordCountTopology()
figure = figureTopology()
