"""
Random lives of a broker with random power cuts, and the one thing that must hold over all of them:
what was ever visible stays.

A life is a schedule drawn from a seed: producing, fetching, asking for offsets, time passing, jobs
being done, retention, a full disk, orderly stops, kills, and power cuts before any file operation,
also while the broker starts. After each death a new broker opens what survived and is read from the
beginning.

The books: for each partition, what was sent, in order (one connection a partition, so that the
order is known); up to where it was seen, by the answers to fetches and offsets requests. After a
death, the bytes that are there must be those that were sent, from an offset that retention had come
to, up to where it was seen at least. What is there beyond that counts as sent; what is not, as
never sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import EARLIEST, LATEST, TopicPartition
from tests.integration.brokerlife import Act, BrokerLife
from tests.integration.kills import LostError
from tests.integration.memorybroker import MemoryClient

PARTITIONS = tuple(TopicPartition(*each) for each in (("a", 0), ("a", 1), ("b", 0)))


class Books:
    """
    One partition's.

    @ivar sent: every byte from offset 0 on, though retention may have deleted the first.
    @ivar seenOffset: up to where it was ever visible.
    @ivar startOffset: where it begins, at most.
    """

    def __init__(self) -> None:
        self.sent = b""
        self.seenOffset = 0
        self.startOffset = 0

    def see(self, offset: int, data: bytes) -> None:
        """Bytes came back."""
        end = offset + len(data)
        if self.sent[offset:end] != data:
            raise LostError(f"bytes {offset} to {end} are not those that were sent")
        self.seenOffset = max(self.seenOffset, end)

    def survive(self, startOffset: int, data: bytes) -> None:
        """This is what is there after a death."""
        end = startOffset + len(data)
        if startOffset > self.startOffset:
            raise LostError(
                f"it begins at {startOffset}, and nothing from {self.startOffset} on was deleted"
            )
        if end < self.seenOffset:
            raise LostError(f"it ends at {end}, and was visible up to {self.seenOffset}")
        if self.sent[startOffset:end] != data:
            raise LostError(f"bytes {startOffset} to {end} are not those that were sent")
        for _entry in (found := MessageSet(data, startOffset)).shallow():
            pass
        if found.nextOffset != end:
            raise LostError(f"the entry at {found.nextOffset} is cut at {end}")
        self.sent = self.sent[:end]
        self.startOffset = startOffset
        self.seenOffset = end


def _properties(random: Random) -> dict[str, str]:
    return {
        "num.partitions": "2",
        "log.file.size": str(random.choice((100, 300, 1000))),
        "log.flush.interval": str(random.choice((1, 3, 10, 1000))),
        "log.default.flush.scheduler.interval.ms": "1000",
        "log.retention.size": str(random.choice((-1, 200, 500, 2000))),
        "log.cleanup.interval.mins": "1",
        "log.roll.hours": "1",
    }


class PowerCutLife(BrokerLife):
    """A life of a broker with clients of the 2011 protocol."""

    def __init__(
        self, seed: int, makeFileSystem: Callable[[], PowerCutFileSystem] = PowerCutFileSystem
    ) -> None:
        self.books = {topicPartition: Books() for topicPartition in PARTITIONS}
        self._number = 0
        super().__init__(seed, _properties, makeFileSystem)

    def _connect(self) -> None:
        self._producers = {
            topicPartition: MemoryClient(self.broker) for topicPartition in PARTITIONS
        }
        self._multiProducer = MemoryClient(self.broker)
        self._consumer = MemoryClient(self.broker)
        self._asked: deque[Callable[[bytes], None]] = deque()

    def _check(self) -> None:
        client = MemoryClient(self.broker)
        for (topic, partition), books in self.books.items():
            [start] = decodeOffsets(client.ask(encodeOffsets(topic, partition, EARLIEST, 1)))[1]
            [end] = decodeOffsets(client.ask(encodeOffsets(topic, partition, LATEST, 1)))[1]
            data = b""
            while start + len(data) < end:
                code, more = decodeFetch(
                    client.ask(encodeFetch(topic, partition, start + len(data), 1 << 20))
                )
                if code or not more:
                    raise LostError(
                        f"code {code} at {start + len(data)} of {topic}-{partition}, which is from"
                        f" {start} to {end}"
                    )
                data += more
            try:
                books.survive(start, data)
            except LostError as error:
                raise LostError(f"{topic}-{partition}: {error}") from None

    def _noteStarts(self) -> None:
        """Where retention has come to; it decides in memory first."""
        for topicPartition, log in self.broker.service.directory.logs.items():
            self.books[topicPartition].startOffset = log.logStartOffset

    # -- what can happen

    def _acts(self) -> Sequence[tuple[float, Act]]:
        return (
            (10, self._produce),
            (2, self._multiProduce),
            (6, self._fetch),
            (1, self._multiFetch),
            (3, self._offsets),
            (0.7, self._minute),
            (0.3, self._hour),
            (0.3, self._full),
        )

    def _payloads(self) -> list[bytes]:
        payloads = []
        for _each in range(self.random.randrange(1, 5)):
            self._number += 1
            payloads.append(b"%d " % self._number + bytes(self.random.randrange(40)))
        return payloads

    def _set(self) -> bytes:
        return encodeSet(
            self._payloads(), self.random.choice((0, 0, 0, 1, 2)), self.random.choice((0, 1, 1))
        )

    def _sent(self, topicPartition: TopicPartition, data: bytes) -> bytes:
        self.books[topicPartition].sent += data
        return data

    def _produce(self) -> None:
        topicPartition = self.random.choice(PARTITIONS[:2])
        self._producers[topicPartition].send(
            encodeProduce(*topicPartition, self._sent(topicPartition, self._set()))
        )

    def _multiProduce(self) -> None:
        topicPartition = PARTITIONS[2]
        parts = [
            (*topicPartition, self._sent(topicPartition, self._set()))
            for _each in range(self.random.randrange(1, 3))
        ]
        self._multiProducer.send(encodeMultiProduce(parts))

    def _fetchOf(self, topicPartition: TopicPartition) -> tuple[str, int, int, int]:
        books = self.books[topicPartition]
        offset = self.random.choice(
            (books.seenOffset, self.random.randrange(books.startOffset, len(books.sent) + 1))
        )
        return (*topicPartition, offset, self.random.choice((50, 1000, 1 << 20)))

    def _fetch(self) -> None:
        fetch = self._fetchOf(self.random.choice(PARTITIONS))
        self._consumer.send(encodeFetch(*fetch))
        self._asked.append(lambda body: self._fetched(fetch, *decodeFetch(body)))

    def _multiFetch(self) -> None:
        fetches = [self._fetchOf(topicPartition) for topicPartition in PARTITIONS]
        self._consumer.send(encodeMultiFetch(fetches))

        def answered(body: bytes) -> None:
            for fetch, found in zip(fetches, decodeMultiFetch(body), strict=True):
                self._fetched(fetch, *found)

        self._asked.append(answered)

    def _fetched(self, fetch: tuple[str, int, int, int], code: int, data: bytes) -> None:
        if code == 0 and data:
            self.books[TopicPartition(*fetch[:2])].see(fetch[2], data)

    def _offsets(self) -> None:
        topicPartition = self.random.choice(PARTITIONS)
        books = self.books[topicPartition]
        self._consumer.send(encodeOffsets(*topicPartition, LATEST, 1))

        def answered(body: bytes) -> None:
            [offset] = decodeOffsets(body)[1]
            if offset > len(books.sent):
                raise LostError(
                    f"{topicPartition} is said to end at {offset}, and {len(books.sent)} bytes were"
                    " sent"
                )
            books.seenOffset = max(books.seenOffset, offset)

        self._asked.append(answered)

    def _hear(self) -> None:
        for client in (*self._producers.values(), self._multiProducer):
            client.pump()
        while self._asked:
            body = self._consumer.take()
            if body is None:
                return
            self._asked.popleft()(body)

    def _minute(self) -> None:
        """Retention comes, or comes again; now and then the power fails in it."""
        if self.random.random() < 0.3:
            self._armed()
        for _second in range(61):
            self.broker.advance(1)

    def _hour(self) -> None:
        self.broker.advance(3601)
