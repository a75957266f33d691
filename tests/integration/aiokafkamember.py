"""
Programs with aiokafka for L{tests.integration.clusterclients}: a producer of numbered messages, a
member of a group, and an application that copies a topic in transactions. They write down what
those of L{tests.integration.kafkachaosmember} do.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from random import Random
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError

from tests.integration.chaosprogram import Record
from tests.integration.numberedmessages import (
    BATCH_COUNT,
    CLICKS,
    AssignmentRecorder,
    Messages,
    placed,
    valueName,
)

POLL_MS = 200
AGAIN_SECONDS = 0.3


async def publish(options: dict[str, Any], record: Record, over: asyncio.Event) -> None:
    """Publish with keys until it is C{over}."""
    messages = Messages(options["name"], Random(options["seed"]), record)
    waiting: set[asyncio.Task[None]] = set()

    async def acknowledge(number: int, sent: Any) -> None:
        try:
            found = await sent
        except KafkaError as error:
            messages.unknown(number, type(error).__name__, error)
        else:
            messages.acknowledged(number, found.topic, found.partition, found.offset)

    async with aiokafka.AIOKafkaProducer(**options["properties"]) as producer:
        while not over.is_set():
            message = messages.next()
            try:
                sent = await producer.send(CLICKS, message.value, message.key)
            except KafkaError as error:
                messages.unknown(message.number, type(error).__name__, error)
            else:
                task = asyncio.ensure_future(acknowledge(message.number, sent))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.sleep(options["pause"])
        await asyncio.gather(*waiting)
    messages.end()


class _Listener(AssignmentRecorder, aiokafka.ConsumerRebalanceListener):
    """Writes down which partitions the member has."""


async def consume(options: dict[str, Any], record: Record, over: asyncio.Event) -> None:
    """Be a member of a group, which commits by time, until it is C{over}."""
    consumer = aiokafka.AIOKafkaConsumer(**options["properties"])
    consumer.subscribe([options["topic"]], listener=_Listener(record))
    async with consumer:
        while not over.is_set():
            for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                for each in records:
                    record.write("got", placed(*place), each.offset, valueName(each.value))
    record.write("left")
    record.write("end", "{}")


async def copy(options: dict[str, Any], record: Record, over: asyncio.Event) -> None:
    """
    Copy L{CLICKS}, partition by partition, in transactions, until it is C{over}. After an error
    it begins anew. Its partitions are its own by hand: aiokafka does not know KIP-447, so the
    positions of a group that has rebalanced could be those before an open transaction.
    """
    places = [aiokafka.TopicPartition(CLICKS, each) for each in range(options["partitions"])]
    while not over.is_set():
        producer = aiokafka.AIOKafkaProducer(**options["producer"])
        consumer = aiokafka.AIOKafkaConsumer(**options["consumer"])
        try:
            await producer.start()  # ends what an earlier one of this name has open
            consumer.assign(places)
            await consumer.start()
            while not over.is_set():
                found = await consumer.getmany(timeout_ms=POLL_MS, max_records=BATCH_COUNT)
                records = [each for part in found.values() for each in part]
                if not records:
                    continue
                async with producer.transaction():
                    for each in records:
                        await producer.send(options["target"], each.value, each.key, each.partition)
                    behind = {place: part[-1].offset + 1 for place, part in found.items() if part}
                    group = options["consumer"]["group_id"]
                    await producer.send_offsets_to_transaction(behind, group)
                record.write("copied", len(records))
                await asyncio.sleep(options["pause"])
        except KafkaError as error:
            record.write("error", type(error).__name__, error)
        finally:
            for each in (consumer, producer):
                try:
                    await each.stop()
                except KafkaError as error:
                    record.write("closing", type(error).__name__, error)
        if not over.is_set():
            await asyncio.sleep(AGAIN_SECONDS)
    record.write("end", "{}")


async def main() -> None:
    """Run the program that the command line names, in JSON."""
    options = json.loads(sys.argv[1])
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    program = {"producer": publish, "consumer": consume, "copier": copy}[options["program"]]
    await program(options, Record(options["record"]), over)


if __name__ == "__main__":
    asyncio.run(main())
