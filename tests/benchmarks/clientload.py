"""
One client under measurement, as a process of its own::

    python -m tests.benchmarks.clientload produce send bench 1000000 zk.connect=127.0.0.1:2181
    compression.codec=1 python -m tests.benchmarks.clientload consume iterate bench 1000000
    zk.connect=127.0.0.1:2181

prints one line of JSON: messages, seconds by the clock, seconds of CPU of this process with all its
threads, kernel and user. What goes before the first message (imports, payloads, connecting, joining
the group) does not count; for producers the orderly close, which sends the last messages, does.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.producer.producer import Producer, ProducerData

MESSAGE_SIZE = 200
BATCH_COUNT = 200
BURST_COUNT = 20_000
POOL_COUNT = 10_000
WARM_UP_COUNT = 20_000


def makePayloads(count: int) -> list[bytes]:
    """
    Lines of 200 bytes that look like a log's, the same ones every time; a gzip makes a third of
    them.
    """
    random = Random(7)
    words = [
        "".join(random.choices("etaoinshrdlu", k=random.randrange(3, 10))) for _ in range(2_000)
    ]
    payloads = []
    for number in range(count):
        text = (
            f"{1_795_194_782_000 + 37 * number} host{random.randrange(40):02}"
            f" {random.getrandbits(48):012x} {' '.join(random.choices(words, k=40))}"
        )
        payloads.append(text[:MESSAGE_SIZE].encode())
    return payloads


class OutcomeCounter:
    """
    Counts what became of messages, as an application would that looks at each.

    @ivar badCount: of them failed or unknown.
    """

    def __init__(self) -> None:
        self.badCount = 0

    def bad(self, _failure: Any) -> None:
        self.badCount += 1


def messages(pool: Sequence[bytes], count: int) -> Iterator[bytes]:
    """So many, again and again the same."""
    return islice(cycle(pool), count)


async def paced(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """
    As C{docs/groups.md} has it: look whether there is room, send, and look at what became of it.
    """
    bad = outcomes.bad
    for value in values:
        await producer.whenReady()
        producer.send(topic, value).addErrback(bad)


async def tuned(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """The same as C{paced}, after a word to the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    await paced(producer, topic, values, outcomes)


async def posts(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """The same, but what became of it is left to the counters."""
    for value in values:
        await producer.whenReady()
        producer.sendNoWait(topic, value)


async def keyed(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """The same, each with one of a hundred keys."""
    bad, keys = outcomes.bad, [f"key {number}" for number in range(100)]
    for number, value in enumerate(values):
        await producer.whenReady()
        producer.send(topic, value, keys[number % 100]).addErrback(bad)


async def bursts(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """Twice as many as the queue holds, at once, without looking; then wait for all."""
    bad, values = outcomes.bad, iter(values)
    while burst := list(islice(values, BURST_COUNT)):
        for value in burst:
            producer.send(topic, value).addErrback(bad)
        await producer.flush()


async def many(
    producer: Producer, topic: str, values: Iterable[bytes], outcomes: OutcomeCounter
) -> None:
    """Two hundred in a call."""
    values = iter(values)
    while batch := list(islice(values, BATCH_COUNT)):
        await producer.whenReady()
        producer.sendMany([ProducerData(topic, batch)]).addErrback(outcomes.bad)


WAYS_TO_PRODUCE = {
    "send": paced,
    "sendKeyed": keyed,
    "sendBursts": bursts,
    "sendMany": many,
    "post": posts,
    "sendTuned": tuned,
}


async def produce(
    reactor: Any, way: str, topic: str, count: int, settings: dict[str, str]
) -> dict[str, float]:
    """Send messages, from Python objects to the broker."""
    given = {"producer.type": "async", "batch.size": str(BATCH_COUNT), **settings}
    pool = makePayloads(min(count, POOL_COUNT))
    outcomes = OutcomeCounter()
    warming = Producer(reactor, given)
    await WAYS_TO_PRODUCE[way](warming, topic, messages(pool, min(count, WARM_UP_COUNT)), outcomes)
    await warming.close()
    producer = await Producer(reactor, given).start()
    values = messages(pool, count)
    cpu, begun = time.process_time(), time.monotonic()
    await WAYS_TO_PRODUCE[way](producer, topic, values, outcomes)
    await producer.close()
    figures = {
        "messages": float(count),
        "seconds": time.monotonic() - begun,
        "cpu": time.process_time() - cpu,
    }
    if outcomes.badCount or producer.counters.writtenCount != count:
        raise RuntimeError(f"not all went well: {producer.counters}")
    return figures


async def iterate(stream: MessageStream, count: int) -> None:
    """C{async for}."""
    seen = 0
    async for _message in stream:
        seen += 1
        if seen == count:
            return


class _Receiver:
    """Takes a stream's messages; provides what C{pipeTo} needs of a Twisted consumer."""

    def __init__(self, count: int) -> None:
        self.leftCount = count
        self.source: Any = None

    def registerProducer(self, source: Any, _streaming: bool) -> None:
        self.source = source

    def unregisterProducer(self) -> None:
        pass

    def write(self, _message: Any) -> None:
        self.leftCount -= 1
        if not self.leftCount:
            self.source.stopProducing()


async def deliver(stream: MessageStream, count: int) -> None:
    """C{pipeTo} a receiver."""
    await stream.pipeTo(_Receiver(count))


WAYS_TO_CONSUME = {"iterate": iterate, "deliver": deliver}


async def consume(
    reactor: Any, way: str, topic: str, count: int, settings: dict[str, str]
) -> dict[str, float]:
    """Read messages as the only member of a group."""
    async with ConsumerConnector(
        reactor, {"groupid": f"bench-{time.time_ns()}", "autooffset.reset": "smallest", **settings}
    ) as consumer:
        (stream,) = (await consumer.createMessageStreams({topic: 1}))[topic]
        cpu, begun = time.process_time(), time.monotonic()
        await WAYS_TO_CONSUME[way](stream, count)
        return {
            "messages": float(count),
            "seconds": time.monotonic() - begun,
            "cpu": time.process_time() - cpu,
        }


async def _main(reactor: Any, what: str, way: str, topic: str, count: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    figures = await (produce if what == "produce" else consume)(
        reactor, way, topic, int(count), given
    )
    print(json.dumps(figures), flush=True)


def main() -> None:
    react(
        lambda reactor, *arguments: Deferred.fromCoroutine(_main(reactor, *arguments)), sys.argv[1:]
    )


if __name__ == "__main__":
    main()
