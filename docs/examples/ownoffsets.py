"""Read partitions of one broker without a group; a file keeps the offsets between two runs."""

import argparse
import json
import pathlib

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.client import SimpleConsumer
from pylogbroker.errors import OffsetOutOfRangeError
from pylogbroker.types import EARLIEST


async def main(reactor, options):
    consumer = SimpleConsumer(reactor, options.broker)
    offsets = json.loads(options.file.read_text()) if options.file.exists() else {}
    for topic in options.topics:
        if topic not in offsets:
            [offsets[topic]] = await consumer.getOffsetsBefore(
                topic, options.partition, EARLIEST, 1
            )
    isNew = True
    while isNew:
        isNew = False
        found = await consumer.multifetch(
            [(topic, options.partition, offsets[topic], 1 << 20) for topic in options.topics]
        )
        for topic, messages in zip(options.topics, found, strict=True):
            try:
                for message, offsets[topic] in messages:
                    isNew = True
                    print(topic, message.payload.decode(errors="replace"))
            except OffsetOutOfRangeError:  # deleted since, by age or size: go on at what is there
                [offsets[topic]] = await consumer.getOffsetsBefore(
                    topic, options.partition, EARLIEST, 1
                )
                isNew = True
        options.file.write_text(json.dumps(offsets))  # what was printed is done
    await consumer.close()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("topics", nargs="+")
parser.add_argument("--broker", default="127.0.0.1:9092")
parser.add_argument("--partition", type=int, default=0)
parser.add_argument("--file", type=pathlib.Path, default="offsets.json")
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
