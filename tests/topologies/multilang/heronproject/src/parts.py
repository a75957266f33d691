"""
Components for C{heronpy}.
"""

from itertools import cycle

from heronpy.api.bolt.bolt import Bolt
from heronpy.api.custom_grouping import ICustomGrouping
from heronpy.api.metrics import CountMetric
from heronpy.api.spout.spout import Spout
from heronpy.api.stream import Stream


class WordSpout(Spout):
    """Emits 600 words, again when they fail, and tells of its end."""

    outputs = ["word", Stream(fields=["what", "value"], name="told")]

    def initialize(self, config, context):
        """Begins with none."""
        self.words = cycle(["hello", "bye", "good", "bad", "heron", "storm"])
        self.count = self.ackedCount = self.failedCount = 0
        self.emit(["config", [config["words.number"], config["words.flag"]]], stream="told")

    def next_tuple(self):
        """Emits one, while there are any."""
        if self.count < 600:
            self.emit([next(self.words)], tup_id=("word", self.count))
            self.count += 1

    def ack(self, tup_id):
        """Counts it."""
        assert tup_id[0] == "word"
        self.ackedCount += 1
        if self.ackedCount == 600:
            self.emit(["ends", {"acked": 600, "failed": self.failedCount}], stream="told")

    def fail(self, tup_id):
        """Emits it again."""
        self.failedCount += 1
        self.emit(["again"], tup_id=tup_id)


class CountBolt(Bolt):
    """Counts words; it fails the tenth one."""

    outputs = ["word", "count", Stream(fields=["number"], name="ticks")]

    def initialize(self, config, context):
        """Begins with none."""
        self.counts = {}
        self.ticks = self.seen = 0
        self.metric = CountMetric()
        context.register_metric("words", self.metric, 10)

    def process(self, tup):
        """Emits the word and its count, as a tuple of Python."""
        self.seen += 1
        if self.seen == 10:
            self.fail(tup)
            return
        (word,) = tup.values
        self.counts[word] = self.counts.get(word, 0) + 1
        self.metric.incr()
        self.emit([word, (word, self.counts[word])], anchors=[tup])
        self.ack(tup)
        self.ack(tup)  # of no use, and no harm

    def process_tick(self, tup):
        """Counts it."""
        assert self.is_tick(tup)
        self.ticks += 1
        self.emit([self.ticks], stream="ticks")


class FirstTwo(ICustomGrouping):
    """Sends each tuple to two tasks."""

    def prepare(self, context, component, stream, target_tasks):
        """Remembers them."""
        assert (component, stream) == ("words", "default")
        assert target_tasks == context.get_component_tasks("both")
        self.tasks = target_tasks[:2]

    def choose_tasks(self, values):
        """The first two."""
        return self.tasks
