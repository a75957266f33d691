"""Create a topic on any Kafka, and say where its partitions are and what a group has read."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.client.kafka.admin.client import LATEST, AdminClient, NewTopic, checkAll
from pylogbroker.types import TopicPartition


async def main(reactor, options):
    async with AdminClient(reactor, {"bootstrap.servers": options.bootstrapServer}) as admin:
        created = await admin.createTopics([NewTopic(options.topic, partitionCount=3)])
        result = created[options.topic]
        print("created" if not isinstance(result, Exception) else result)
        found = checkAll(await admin.describeTopics([options.topic]))
        parts = found[options.topic].partitions
        places = [TopicPartition(options.topic, part.partitionIndex) for part in parts]
        ends = checkAll(await admin.listOffsets(dict.fromkeys(places, LATEST)))
        committed = await admin.listConsumerGroupOffsets(options.group)
        for part, place in zip(parts, places, strict=True):
            read = committed[place].offset if place in committed else 0
            print(f"{place} on broker {part.leaderId}: {read} of {ends[place].offset} read")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-server", dest="bootstrapServer", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--group", default="readers")
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
