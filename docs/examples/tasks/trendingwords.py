"""
The words whose counts have grown most in the last minute. The input is the changelog of
wordcount.py's store: what another job remembers is a topic like any other.

Each task ranks the words of its partition, and sends its list with the number of the partition as
the key. The words that have grown most of all are among those of the lists.

    pylogbroker task run trendingwords.py --bootstrap-server localhost:9092
    pylogbroker consume --bootstrap-server localhost:9092 --topic trending-words --from-beginning
"""

from heapq import nsmallest

from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask, SystemStream
from pylogbroker.tasks.job import Input, Job, Output, Store
from pylogbroker.tasks.serdes import INTEGER, JSON, STRING

TRENDING_WORDS = SystemStream("kafka", "trending-words")


class FindTrends(StreamTask):
    def init(self, config, context):
        self.count = int(config["trending.words"])
        self.partition = context.partition
        self.counts = context.getStore("counts")
        self.growths = context.getStore("growths")

    def process(self, envelope, collector, coordinator):
        # A count that comes again has not grown: so nothing is counted twice.
        word, count = envelope.key, envelope.message or 0
        growth = count - (self.counts.get(word) or 0)
        self.counts.put(word, count)
        if growth > 0:
            self.growths.put(word, (self.growths.get(word) or 0) + growth)

    def window(self, collector, coordinator):
        grown = list(self.growths.all())
        for word, _ in grown:
            self.growths.delete(word)
        trends = nsmallest(self.count, grown, key=lambda entry: (-entry[1], entry[0]))
        if trends:
            collector.send(OutgoingMessageEnvelope(TRENDING_WORDS, str(self.partition), trends))


trendingWords = Job(
    "trending-words",
    task=FindTrends,
    inputs=[Input("word-counts", key=STRING, message=INTEGER)],
    outputs=[Output("trending-words", key=STRING, message=JSON)],
    stores=[
        Store("counts", key=STRING, value=INTEGER),
        Store("growths", key=STRING, value=INTEGER),
    ],
    config={"trending.words": "10"},
    windowMs=60_000,
)
