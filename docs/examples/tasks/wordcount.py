"""
The word count of "Kafka, Samza and the Unix philosophy of distributed data" (2015), Figures 2 to 4,
as two jobs: one splits lines into words, the other counts words. The changelog of its store,
word-counts, is the output.

    pylogbroker task run wordcount.py --bootstrap-server localhost:9092
    pylogbroker produce --bootstrap-server localhost:9092 --topic lines README.md
"""

from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask, SystemStream
from pylogbroker.tasks.job import Input, Job, Output, Store
from pylogbroker.tasks.serdes import INTEGER, STRING

WORDS = SystemStream("kafka", "words")


class SplitWords(StreamTask):
    def process(self, envelope, collector, coordinator):
        for word in envelope.getMessage().split():
            collector.send(OutgoingMessageEnvelope(WORDS, word, 1))


class CountWords(StreamTask):
    def init(self, config, context):
        self.store = context.getStore("word-counts")

    def process(self, envelope, collector, coordinator):
        word = envelope.getKey()
        self.store.put(word, (self.store.get(word) or 0) + envelope.getMessage())


splitWords = Job(
    "split-words",
    task=SplitWords,
    inputs=[Input("lines", message=STRING)],
    outputs=[Output("words", key=STRING, message=INTEGER)],
)

countWords = Job(
    "count-words",
    task=CountWords,
    inputs=[Input("words", key=STRING, message=INTEGER)],
    stores=[Store("word-counts", key=STRING, value=INTEGER, changelog="word-counts")],
)
