"""
C{kill -9} of a broker at random moments, round after round in one directory, with a producer and a
watcher at work: what was visible stays.

The producer writes messages with running numbers to several partitions, in batches of all packings,
in order, over one connection. The watcher fetches whatever is visible and keeps it. After each kill
the broker starts again (now and then it is killed while it starts), and each partition must hold
exactly the bytes that were sent to it, in order, up to at least where the watcher has seen them,
and end with a whole entry; what is missing was never visible. The producer then goes on behind what
is there, so that in the end the numbers must run without a gap.
"""

from __future__ import annotations

import threading
from random import Random
from typing import NamedTuple

from pylogbroker.protocol.kafka07.requests import encodeMultiProduce, encodeProduce
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import TopicPartition
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.rawclient import ClosedByBrokerError, RawClient

PARTITIONS = tuple(
    TopicPartition(*each) for each in (("orders", 0), ("orders", 1), ("clicks", 0), ("clicks", 1))
)
PROPERTIES = {
    "num.partitions": "2",
    "log.file.size": "8000",
    "log.flush.interval": "100",
    "log.default.flush.scheduler.interval.ms": "40",
}
SENT_SIZE_MAX = 400_000
"""Bytes to each partition in a round."""

AHEAD_SIZE_MAX = 60_000
"""How far the producer may be ahead of the watcher in a partition."""

GONE = (ClosedByBrokerError, ConnectionError, TimeoutError)


class LostError(AssertionError):
    """The broker has broken its promise."""


class Figures(NamedTuple):
    """
    What a run was made of.

    @ivar killedStartingCount: kills of a broker that did not serve yet.
    @ivar cutCount: recoveries that cut a segment.
    @ivar rolledCount: segments that were begun.
    @ivar messageCount: messages that are there in the end.
    @ivar sentSize: bytes that were sent, or were about to be.
    @ivar seenSize: of these, bytes that the watcher saw before a kill.
    @ivar unseenSize: bytes that were there after a kill though nobody had seen them.
    @ivar lostSize: bytes that were never visible, and not there after a kill.
    """

    roundCount: int = 0
    killedStartingCount: int = 0
    cutCount: int = 0
    rolledCount: int = 0
    messageCount: int = 0
    sentSize: int = 0
    seenSize: int = 0
    unseenSize: int = 0
    lostSize: int = 0


class Partition:
    """
    The books of one partition.

    @ivar sent: all that was sent, or is about to be, and not lost, from offset 0 on.
    @ivar seen: what the watcher has fetched, from offset 0 on.
    @ivar number: of the next message.
    @ivar batches: offset and first number of each batch.
    """

    def __init__(self) -> None:
        self.sent = bytearray()
        self.seen = bytearray()
        self.number = 0
        self.batches = [(0, 0)]

    def batch(self, random: Random) -> bytes:
        """The next messages, entered in the books."""
        payloads = []
        self.batches.append((len(self.sent), self.number))
        for _each in range(random.choice((1, 1, 5, 50))):
            payloads.append(b"%d " % self.number + bytes(random.randrange(200)))
            self.number += 1
        data = encodeSet(payloads, random.choice((0, 0, 0, 1, 2)), random.choice((0, 1, 1)))
        self.sent += data
        return data

    def goOn(self, found: bytes) -> None:
        """This is what is there: the next batch comes behind it."""
        while self.batches[-1][0] > len(found):
            self.batches.pop()
        offset, number = self.batches[-1]
        self.number = number + sum(1 for _message in MessageSet(found[offset:]).payloads())
        self.sent = bytearray(found)
        self.seen = bytearray(found)


class KillTrial:
    """
    Rounds in one directory.

    @ivar figures: of all rounds so far.
    """

    def __init__(self, directory: str, seed: int) -> None:
        self.random = Random(seed)
        self.figures = Figures()
        self.partitions = {topicPartition: Partition() for topicPartition in PARTITIONS}
        self.broker = BrokerProcess(directory, PROPERTIES)
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, roundCount: int) -> None:
        """
        So many kills; afterwards the broker is stopped in order.

        @raise LostError: something that was visible is not there any more, or is there twice.
        """
        try:
            self.broker.start()
            for _round in range(roundCount):
                self._round()
                self._checkAll()
            self._checkNumbers()
            status = self.broker.stop()
            if status:
                raise LostError(f"it stopped with status {status}\n{self.broker.log}")
        finally:
            self.broker.kill()

    def _count(self, **changes: int) -> None:
        self.figures = self.figures._replace(
            **{name: getattr(self.figures, name) + change for name, change in changes.items()}
        )

    # -- one round

    def _round(self) -> None:
        self._over.clear()
        sizesBefore = self._sizes()
        acting = [
            threading.Thread(target=self._act, args=(act,)) for act in (self._produce, self._watch)
        ]
        for thread in acting:
            thread.start()
        self._over.wait(
            self.random.uniform(0.02, 0.5)
        )  # the random moment; it is set only when something went wrong
        self.broker.kill()
        self._over.set()
        for thread in acting:
            thread.join()
        if self._errors:
            raise self._errors[0]
        sent, seen = (now - before for now, before in zip(self._sizes(), sizesBefore, strict=True))
        self._count(
            roundCount=1, sentSize=sent, seenSize=seen, rolledCount=self.broker.log.count("Rolled ")
        )
        while self.random.random() < 0.2:
            self.broker.launch()
            self._pause(self.random.uniform(0.05, 0.6))
            self.broker.kill()
            self._count(killedStartingCount=1, cutCount=self.broker.log.count("] Cut "))
        self.broker.start()
        self._count(cutCount=self.broker.log.count("] Cut "))

    def _sizes(self) -> tuple[int, int]:
        """Bytes sent and bytes seen."""
        partitions = self.partitions.values()
        return sum(len(partition.sent) for partition in partitions), sum(
            len(partition.seen) for partition in partitions
        )

    @staticmethod
    def _pause(seconds: float) -> None:
        threading.Event().wait(seconds)

    def _act(self, act: object) -> None:
        try:
            assert callable(act)
            act()
        except BaseException as error:
            self._errors.append(error)
            self._over.set()

    def _produce(self) -> None:
        random = Random(self.random.random())
        starts = {
            topicPartition: len(partition.sent)
            for topicPartition, partition in self.partitions.items()
        }
        try:
            with self.broker.client(5) as client:
                while not self._over.is_set():
                    open_ = [
                        (topicPartition, partition)
                        for topicPartition, partition in self.partitions.items()
                        if len(partition.sent) < starts[topicPartition] + SENT_SIZE_MAX
                        and len(partition.sent) < len(partition.seen) + AHEAD_SIZE_MAX
                    ]
                    if not open_:
                        self._over.wait(0.001)
                    elif random.random() < 0.2:
                        client.send(
                            encodeMultiProduce(
                                [
                                    (*topicPartition, partition.batch(random))
                                    for topicPartition, partition in open_
                                ]
                            )
                        )
                    else:
                        topicPartition, partition = random.choice(open_)
                        client.send(encodeProduce(*topicPartition, partition.batch(random)))
        except GONE:
            pass

    def _watch(self) -> None:
        try:
            with self.broker.client(5) as client:
                while not self._over.is_set():
                    if not self._watchOnce(client):
                        self._over.wait(0.001)
        except GONE:
            pass

    def _watchOnce(self, client: RawClient) -> bool:
        fetches = [
            (*topicPartition, len(partition.seen), 50_000)
            for topicPartition, partition in self.partitions.items()
        ]
        anything = False
        for (topic, number, offset, _size), (code, data) in zip(
            fetches, client.multiFetch(fetches), strict=True
        ):
            if code:
                raise LostError(
                    f"code {code} for a fetch of {topic}-{number} at {offset}, which was visible"
                )
            self.partitions[TopicPartition(topic, number)].seen += data
            anything = anything or bool(data)
        return anything

    # -- looking after it

    def _checkAll(self) -> None:
        with self.broker.client() as client:
            for topicPartition, partition in self.partitions.items():
                try:
                    self._check(partition, client.readAll(*topicPartition, sizeMax=1 << 20))
                except LostError as error:
                    raise LostError(
                        f"{topicPartition}, round {self.figures.roundCount}:"
                        f" {error}\n{self.broker.log}"
                    ) from None

    def _check(self, partition: Partition, found: bytes) -> None:
        if len(found) < len(partition.seen):
            raise LostError(f"it ends at {len(found)}, and was visible up to {len(partition.seen)}")
        if partition.seen != found[: len(partition.seen)]:
            raise LostError("what was visible has changed")
        if found != partition.sent[: len(found)]:
            raise LostError("it is not what was sent")
        tail = MessageSet(found[len(partition.seen) :], len(partition.seen))
        for _entry in tail.shallow():
            pass
        if tail.nextOffset != len(found):
            raise LostError(f"the entry at {tail.nextOffset} is cut")
        self._count(
            lostSize=len(partition.sent) - len(found), unseenSize=len(found) - len(partition.seen)
        )
        partition.goOn(found)

    def _checkNumbers(self) -> None:
        """Each message is there once, and in order."""
        for topicPartition, partition in self.partitions.items():
            numbers = [
                int(payload.split()[0])
                for payload, _next in MessageSet(bytes(partition.sent)).payloads()
            ]
            if numbers != list(range(len(numbers))):
                raise LostError(f"{topicPartition}: the numbers have gaps")
            self._count(messageCount=len(numbers))
