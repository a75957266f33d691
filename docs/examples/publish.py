"""Publish numbered messages with keys to a cluster, and prove that the brokers have taken them."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.producer.producer import Producer


async def main(reactor, options):
    producer = Producer(
        reactor,
        {
            "zk.connect": options.zookeeper,
            "producer.type": "async",
            "serializer.class": "kafka.serializer.StringEncoder",
            "confirm": "true",
        },
    )
    await producer.start()
    for number in range(options.count):
        await producer.whenReady()
        producer.send(options.topic, f"click {number}", key=f"user {number % 7}").addErrback(print)
    await producer.close()
    print(producer.counters)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--zookeeper", default="localhost:2181")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
