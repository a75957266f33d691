"""Pipe the topics that a pattern names into another protocol: here lines, to whoever listens."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import react

from pylogbroker.cluster.subscription import whitelist
from pylogbroker.consumer.connector import ConsumerConnector


class Lines:
    """Each message is a line. The transport itself pauses and resumes the stream."""

    def __init__(self, transport):
        self.transport = transport
        self.registerProducer = transport.registerProducer
        self.unregisterProducer = transport.unregisterProducer

    def write(self, message):
        self.transport.write(message.value + b"\n")


async def main(reactor, options):
    settings = {"zk.connect": options.zookeeper, "groupid": options.group}
    collector = clientFromString(reactor, options.to)
    async with ConsumerConnector(reactor, settings) as consumer:
        [stream] = await consumer.createMessageStreamsByFilter(whitelist(options.topics))
        protocol = await connectProtocol(collector, Protocol())
        await stream.pipeTo(Lines(protocol.transport))
    print("the collector has closed the connection")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--zookeeper", default="localhost:2181")
parser.add_argument("--topics", default="click.*")
parser.add_argument("--group", default="piped")
parser.add_argument("--to", default="tcp:localhost:7000")
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
