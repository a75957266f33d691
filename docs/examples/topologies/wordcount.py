"""
The word count of Storm and Heron: a spout emits sentences, a bolt splits them, another one counts
words, and a last one keeps the whole picture.

    pylogbroker topology submit wordcount.py
    pylogbroker topology submit wordcount.py --set wordcount.text=README.md \
        --set wordcount.output=counts.json

Without a text it counts four sentences, again and again. With one it counts each line once, and
again from the first line when the spout's process has died; a spout on the log begins where it was
(sshfailures.py).
"""

import json
import os
from pathlib import Path

from pylogbroker.topologies import Bolt, Grouping, Spout, TopologyBuilder

SENTENCES = [
    "the cow jumped over the moon",
    "an apple a day keeps the doctor away",
    "four score and seven years ago",
    "snow white and the seven dwarfs",
]


class Sentences(Spout):
    """Each instance has its share of the lines, and emits those that fail again."""

    outputs = ["sentence"]

    def initialize(self, config, context):
        path = config.get("wordcount.text")
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else SENTENCES
        self.isEndless = not path
        self.lines = lines[context.taskIndex :: context.parallelism]
        self.next = 0
        self.failed = []

    def nextTuple(self):
        if self.failed:
            number = self.failed.pop()
        elif self.lines and (self.isEndless or self.next < len(self.lines)):
            number, self.next = self.next % len(self.lines), self.next + 1
        else:
            return
        self.emit([self.lines[number]], tupleId=number)

    def fail(self, tupleId):
        self.failed.append(tupleId)


class SplitSentences(Bolt):
    outputs = ["word"]

    def process(self, tup):
        for word in tup["sentence"].lower().split():
            self.emit([word], anchors=[tup])
        self.ack(tup)


class CountWords(Bolt):
    outputs = ["word", "count"]
    isAutoAnchored = isAutoAcked = True

    def initialize(self, config, context):
        self.counts = {}

    def process(self, tup):
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        self.emit([word, self.counts[word]])


class Report(Bolt):
    """One instance, which knows all counts. Each second it writes them, and prints the first."""

    config = {"topology.tick.tuple.freq.secs": 1}
    isAutoAcked = True

    def initialize(self, config, context):
        self.path = config.get("wordcount.output")
        self.counts = {}

    def process(self, tup):
        if not tup.isTick:
            self.counts[tup["word"]] = max(tup["count"], self.counts.get(tup["word"], 0))
            return
        if self.path:
            Path(f"{self.path}.new").write_text(json.dumps(self.counts), encoding="utf-8")
            os.replace(f"{self.path}.new", self.path)
        first = sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))[:5]
        print(", ".join(f"{word} {count}" for word, count in first), flush=True)


builder = TopologyBuilder("word-count", {"topology.reliability.mode": "ATLEAST_ONCE"})
builder.setSpout("sentences", Sentences, 2)
builder.setBolt("split", SplitSentences, 3, {"sentences": Grouping.SHUFFLE})
builder.setBolt("count", CountWords, 3, {"split": Grouping.fields("word")})
builder.setBolt("report", Report, 1, {"count": Grouping.GLOBAL})
wordCount = builder.build()
