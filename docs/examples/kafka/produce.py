"""Publish numbered messages with keys to a topic of any Kafka, each acknowledged."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.producer.kafka.producer import KafkaProducer


async def main(reactor, options):
    producer = KafkaProducer(reactor, {"bootstrap.servers": options.bootstrapServer})
    for number in range(options.count):
        await producer.whenReady()
        sent = producer.send(options.topic, b"click %d" % number, key=b"user %d" % (number % 7))
        sent.addErrback(print)
    last = await sent
    await producer.close()
    print(f"the last one is at offset {last.offset} of partition {last.partition}")
    print(producer.counters)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-server", dest="bootstrapServer", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
