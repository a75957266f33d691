"""
Job files for the tests of the commands for tasks.
"""

from __future__ import annotations

COUNT = """
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.job import MEMORY, Input, Job, Output, Store
from pylogbroker.tasks.serdes import LONG, STRING


class Count(StreamTask):
    def init(self, config, context):
        self.store = context.getStore("counts")

    def process(self, envelope, collector, coordinator):
        word = envelope.getMessage()
        if word == "bad":
            raise ValueError("that is a bad word")
        if word == "end":
            coordinator.shutdown()
        self.store.put(word, (self.store.get(word) or 0) + 1)
        print("counted", word, flush=True)


count = Job(
    "count",
    task=Count,
    inputs=[Input("words", message=STRING)],
    stores=[Store("counts", key=STRING, value=LONG, engine=MEMORY)],
)
"""
"""Counts the words of the topic C{words}; the word C{bad} raises, C{end} ends the container."""

TURN = """
from pylogbroker.tasks.job import Repartition

turn = Job(
    "turn",
    task=Count,
    inputs=[Input("words", message=STRING), Input("rates", isBroadcast=True)],
    stores=[Store("counts", key=STRING, value=LONG, engine=MEMORY)],
    repartitions=[Repartition("by-word", key=STRING, message=LONG)],
)
"""
"""Behind L{COUNT}: a job with a repartition."""

COPY = """

class Copy(StreamTask):
    def process(self, envelope, collector, coordinator):
        collector.send(OutgoingMessageEnvelope("copied", None, envelope.getMessage()))


copy = Job(
    "copy",
    task=Copy,
    inputs=[Input("words", message=STRING)],
    outputs=[Output("copied", message=STRING)],
    onError="dead-letter",
    windowMs=1000,
)
"""
"""Behind L{COUNT}: a second job, which copies the topic to another."""

TALLY = """
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.job import MEMORY, Input, Job, Output, Store
from pylogbroker.tasks.serdes import LONG, STRING


class Tally(StreamTask):
    def init(self, config, context):
        self.store = context.getStore("counts")

    def process(self, envelope, collector, coordinator):
        word = envelope.getMessage()
        count = (self.store.get(word) or 0) + 1
        self.store.put(word, count)
        collector.send(OutgoingMessageEnvelope("tallies", word, count))
        print("counted", word, count, flush=True)


tally = Job(
    "tally",
    task=Tally,
    inputs=[Input("words", message=STRING)],
    outputs=[Output("tallies", key=STRING, message=LONG)],
    stores=[Store("counts", key=STRING, value=LONG, engine=MEMORY)],
)
"""
"""Sends each word of C{words} with its count."""

STEPS = """
from pylogbroker.tasks.serdes import STRING
from pylogbroker.tasks.streams import buildJob, stream

visits = stream("visits", message=STRING)
byPage = visits.selectKey(lambda key, message: message, key=STRING, name="by")
job = buildJob("visits", byPage.groupByKey().count(), engine="memory")
"""
