"""Read a topic of any Kafka, and write each message to another one, with what was read: once."""

import argparse

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.producer.kafka.producer import KafkaProducer


async def main(reactor, options):
    servers = {"bootstrap.servers": options.bootstrapServer}
    producer = KafkaProducer(reactor, {**servers, "transactional.id": "copier"})
    reading = {
        **servers,
        "group.id": "copiers",
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    async with KafkaConsumer(reactor, reading) as consumer:
        consumer.subscribe([options.topic])
        count = 0
        async for records in consumer.batches(100):
            async with producer.transaction() as transaction:
                for record in records:
                    await producer.whenReady()
                    sent = producer.send(options.to, record.value, key=record.key)
                    sent.addErrback(lambda _failure: None)  # the transaction raises it
                await transaction.sendOffsets(consumer.positions, consumer.groupMetadata())
            count += len(records)
            if count >= options.count:
                break
    await producer.close()
    print(f"{count} messages copied, each once")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-server", dest="bootstrapServer", default="localhost:9092")
parser.add_argument("--topic", default="clicks")
parser.add_argument("--to", default="copies")
parser.add_argument("--count", type=int, default=1000)
options = parser.parse_args()
react(lambda reactor: ensureDeferred(main(reactor, options)))
