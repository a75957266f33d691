"""
C{python -m tests.benchmarks.kafka.clients --bootstrap-server HOST:PORT}: what clients of today's
protocol cost on one broker, in one run: processor seconds of the client for a million messages of
200 bytes, produced to one partition with a future, a Deferred or a callback for each, and consumed
one by one.

Each client is a process. All produce idempotently, in batches of up to 64 KiB, with 5 ms linger.
The clients of Python import what they need only here, since the others would pay for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from tests.benchmarks.report import table
from tests.benchmarks.servers import ROOT

MODULE = "tests.benchmarks.kafka.clients"
TOPIC = "bench"
VALUE = b"x" * 200
BATCH_SIZE = 64 << 10
LINGER_MS = 5
WARM_UP_COUNT = 20_000
RUN_SECONDS_MAX = 600


class _Meter:
    """Processor seconds of this process since the warm-up."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._began = 0.0

    def start(self) -> None:
        self._began = time.process_time()

    def stop(self) -> None:
        """Print the seconds for a million messages."""
        print((time.process_time() - self._began) / self.count * 1e6)


def _produceOurs(servers: str, meter: _Meter) -> None:
    from twisted.internet.defer import Deferred
    from twisted.internet.task import react

    from pylogbroker.producer.kafka.producer import KafkaProducer

    async def main(reactor: Any) -> None:
        producer = KafkaProducer(
            reactor,
            {
                "bootstrap.servers": servers,
                "batch.size": str(BATCH_SIZE),
                "linger.ms": str(LINGER_MS),
            },
        )

        async def send(count: int) -> None:
            for _message in range(count):
                await producer.whenReady()
                producer.send(TOPIC, VALUE, partition=0).addErrback(print)
            await producer.flush()

        await send(WARM_UP_COUNT)
        meter.start()
        await send(meter.count)
        meter.stop()
        await producer.close()

    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))


def _consumeOurs(servers: str, meter: _Meter) -> None:
    from twisted.internet.defer import Deferred
    from twisted.internet.task import react

    from pylogbroker.consumer.kafka.consumer import KafkaConsumer
    from pylogbroker.types import TopicPartition

    async def main(reactor: Any) -> None:
        async with KafkaConsumer(reactor, {"bootstrap.servers": servers}) as consumer:
            consumer.assign({TopicPartition(TOPIC, 0): 0})
            count = 0
            async for _record in consumer:
                count += 1
                if count == WARM_UP_COUNT:
                    meter.start()
                elif count == WARM_UP_COUNT + meter.count:
                    break
            meter.stop()

    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))


def _produceAiokafka(servers: str, meter: _Meter) -> None:
    import aiokafka

    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            max_batch_size=BATCH_SIZE,
            linger_ms=LINGER_MS,
            enable_idempotence=True,
        )
        await producer.start()

        async def send(count: int) -> None:
            for _message in range(count):
                sent = await producer.send(TOPIC, VALUE, partition=0)
                sent.add_done_callback(lambda done: done.result())
            await producer.flush()

        await send(WARM_UP_COUNT)
        meter.start()
        await send(meter.count)
        meter.stop()
        await producer.stop()

    asyncio.run(main())


def _consumeAiokafka(servers: str, meter: _Meter) -> None:
    import aiokafka

    async def main() -> None:
        place = aiokafka.TopicPartition(TOPIC, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        consumer.assign([place])
        await consumer.start()
        consumer.seek(place, 0)
        for _message in range(WARM_UP_COUNT):
            await consumer.getone()
        meter.start()
        for _message in range(meter.count):
            await consumer.getone()
        meter.stop()
        await consumer.stop()

    asyncio.run(main())


def _consumeKafkaPython(servers: str, meter: _Meter) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    for _message in range(WARM_UP_COUNT):
        next(consumer)
    meter.start()
    for _message in range(meter.count):
        next(consumer)
    meter.stop()
    consumer.close()


def _produceConfluent(servers: str, meter: _Meter) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "batch.size": BATCH_SIZE,
            "linger.ms": LINGER_MS,
            "enable.idempotence": True,
        }
    )

    def delivered(error: Any, _message: Any) -> None:
        assert error is None, error

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(TOPIC, VALUE, partition=0, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number % 500:
                producer.poll(0)
        producer.flush()

    send(WARM_UP_COUNT)
    meter.start()
    send(meter.count)
    meter.stop()


def _consumeConfluent(servers: str, meter: _Meter) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])

    def read(count: int) -> None:
        while count:
            if consumer.poll(1) is not None:
                count -= 1

    read(WARM_UP_COUNT)
    meter.start()
    read(meter.count)
    meter.stop()
    consumer.close()


CLIENTS: dict[str, Callable[[str, _Meter], None]] = {
    "produce pylogbroker": _produceOurs,
    "produce aiokafka": _produceAiokafka,
    "produce confluent-kafka": _produceConfluent,
    "consume pylogbroker": _consumeOurs,
    "consume aiokafka": _consumeAiokafka,
    "consume kafka-python": _consumeKafkaPython,
    "consume confluent-kafka": _consumeConfluent,
}


def measure(name: str, servers: str, count: int) -> float:
    """Processor seconds for a million messages, by a process of its own."""
    command = [sys.executable, "-m", MODULE, "--bootstrap-server", servers]
    done = subprocess.run(
        [*command, "--count", str(count), "--run", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
    return float(done.stdout.split()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kafka.clients",
        description="Measure clients of today's protocol on a broker that runs.",
    )
    parser.add_argument("--bootstrap-server", required=True, dest="servers", help="HOST:PORT")
    parser.add_argument(
        "--count", type=int, default=400_000, help="messages of a run (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often (%(default)s)")
    parser.add_argument("--run", choices=CLIENTS, help="one client, in this process")
    options = parser.parse_args(arguments)
    if options.run is not None:
        CLIENTS[options.run](options.servers, _Meter(options.count))
        return 0
    found: dict[str, list[float]] = {name: [] for name in CLIENTS}
    for _round in range(options.rounds):
        for name in CLIENTS:
            found[name].append(measure(name, options.servers, options.count))
    rows = [
        [name, f"{median(all_):.2f}", f"{min(all_):.2f}–{max(all_):.2f}"]
        for name, all_ in found.items()
    ]
    print("\n".join(table(["client", "s per million", "rounds"], rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
