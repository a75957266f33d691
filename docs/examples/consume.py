"""Consume a topic in a group until there are enough messages; fail if none comes for 5 seconds."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import ClosedError, ClosingException


async def main(reactor, options):
    settings = {
        "zk.connect": options.zookeeper,
        "groupid": options.group,
        "consumer.timeout.ms": "5000",
    }
    count, last = 0, None
    try:
        async with ConsumerConnector(reactor, settings) as consumer:
            streams = await consumer.createMessageStreams({options.topic: 1})
            async for message in streams[options.topic][0]:
                count, last = count + 1, message.value
                if count == options.count:
                    break
    except (ClosedError, ClosingException):
        pass  # Ctrl-C before the streams were there
    print(count, "messages, the last one", last)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--zookeeper", default="localhost:2181")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--group", default="counters")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
