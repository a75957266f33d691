"""Read a topic of any Kafka as a member of a group, and commit behind each list of messages."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.consumer.kafka.consumer import KafkaConsumer


class Listener:
    def partitionsAssigned(self, partitions):
        print("assigned:", *map(str, partitions))

    async def partitionsRevoked(self, partitions):
        print("revoked:", *map(str, partitions))

    def partitionsLost(self, partitions):
        print("lost:", *map(str, partitions))


async def main(reactor, options):
    settings = {
        "bootstrap.servers": options.bootstrapServer,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    async with KafkaConsumer(reactor, settings) as consumer:
        consumer.subscribe([options.topic], Listener())
        count = 0
        async for records in consumer.batches(100):
            count += len(records)
            await consumer.commitOffsets()
            if count >= options.count:
                break
        print(f"{count} messages")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-server", dest="bootstrapServer", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--group", default="readers")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
