"""Read all partitions of a topic of any Kafka from the beginning, until there are enough."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.consumer.kafka.consumer import KafkaConsumer


async def main(reactor, options):
    settings = {"bootstrap.servers": options.bootstrapServer, "auto.offset.reset": "earliest"}
    async with KafkaConsumer(reactor, settings) as consumer:
        consumer.assign(await consumer.partitionsFor(options.topic))
        count = 0
        async for record in consumer:
            count += 1
            if count == options.count:
                break
        print(f"{count} messages, the last one {record.value} with key {record.key}")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-server", dest="bootstrapServer", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
