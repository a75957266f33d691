"""
A program with our clients for L{tests.long.namespacechaos}: transactions that append to lists and
read them. Processes of one C{transactional.id} take turns: each new producer fences the one before,
which may be in the middle of a transaction. They write down::

    begin N                 before the first step of a transaction
    append N PLACE VALUE    before the value is given to the producer
    read N PLACE COUNT      a reader of committed messages has read the list to its end
    saw PLACE VALUE         a value of a list, in its order, before the read that counts it
    ok N                    the transaction is committed
    aborted N               it cannot have been
    unknown N               it may have been

and what L{tests.integration.kafkachaosmember} does, too. A list is a partition of L{LISTS}. The
first step is an append, and the next one comes when that is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import PylogbrokerError, TimedOutError, UnknownOutcomeError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.types import TopicPartition
from tests.integration.chaosprogram import Record, start
from tests.integration.listappend import (
    ABORTED,
    OK,
    UNKNOWN,
    Append,
    Read,
    Transaction,
)
from tests.integration.numberedmessages import placed

LISTS = "lists"
STEP_COUNT_MAX = 5
TURN_COUNT_MAX = 12
"""How many transactions a process makes before it leaves the lists to the other one."""
ABORT_SHARE = 0.15
READ_SECONDS_MAX = 20.0
LOOK_SECONDS = 0.02
PAUSE_SECONDS = (0.05, 0.6)
REST_SECONDS = (0.0, 4.0)


class _AbortError(PylogbrokerError):
    """The application does not want this transaction."""


class _Lists:
    """What a reader of committed messages has of the lists so far."""

    def __init__(
        self, reactor: Any, properties: Any, places: Iterable[TopicPartition], record: Record
    ) -> None:
        self._reactor = reactor
        self._record = record
        self.places = list(places)
        self._reader = KafkaConsumer(reactor, properties)
        self._reader.assign(dict.fromkeys(self.places, 0))
        self._counts = dict.fromkeys(self.places, 0)

    async def read(self, place: TopicPartition) -> int:
        """
        Read a list up to where it ends now.

        @return: how many values it has.
        @raise PylogbrokerError: it cannot be read.
        """
        ends = await self._reader.endOffsets([place])
        for _look in range(int(READ_SECONDS_MAX / LOOK_SECONDS)):
            for each in self._reader.takeMany():
                found = TopicPartition(each.topic, each.partition)
                self._counts[found] += 1
                value = (each.value or b"").decode().rpartition(".")[0]
                self._record.write("saw", placed(*found), value)
            if self._reader.positions.get(place, 0) >= ends[place]:
                return self._counts[place]
            await deferLater(self._reactor, LOOK_SECONDS)
        raise TimedOutError(f"{place} was not read to {ends[place]} in {READ_SECONDS_MAX} s")

    async def close(self) -> None:
        await self._reader.close()


async def append(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """
    Append to lists and read them until it is C{over}; with C{haste}, its pauses are shorter by that
    factor.
    """
    haste = options.get("haste", 1)
    random = Random(options["seed"])
    places = [TopicPartition(LISTS, number) for number in range(options["partitions"])]
    lists = _Lists(reactor, options["consumer"], places, record)
    number = 0
    while not over.called:
        producer = KafkaProducer(reactor, options["producer"], isLoggingFailures=False)
        try:
            for _turn in range(random.randrange(1, TURN_COUNT_MAX)):
                if over.called:
                    break
                await _transact(producer, lists, options["name"], number, random, record)
                number += 1
                await deferLater(reactor, random.uniform(*PAUSE_SECONDS) / haste)
        except PylogbrokerError as error:
            record.write("error", type(error).__name__, error)
            number += 1
        finally:
            try:
                await producer.close()
            except PylogbrokerError as error:
                record.write("closing", type(error).__name__, error)
        if not over.called:
            await deferLater(reactor, random.uniform(*REST_SECONDS) / haste)
    await lists.close()
    record.write("end", "{}")


async def _transact(
    producer: KafkaProducer,
    lists: _Lists,
    name: str,
    number: int,
    random: Random,
    record: Record,
) -> None:
    """@raise PylogbrokerError: the producer must be replaced."""
    record.write("begin", number)
    outcome = ABORTED
    try:
        async with producer.transaction():
            for step in range(random.randrange(1, STEP_COUNT_MAX)):
                place = random.choice(lists.places)
                if step and random.random() < 0.5:
                    record.write("read", number, placed(*place), await lists.read(place))
                    continue
                value = f"{name}.{number}.{step}"
                record.write("append", number, placed(*place), value)
                await producer.send(place.topic, f"{value}.".encode(), partition=place.partition)
            if random.random() < ABORT_SHARE:
                raise _AbortError("not wanted")
            outcome = UNKNOWN  # the commit begins
        outcome = OK
    except _AbortError:
        pass
    except UnknownOutcomeError:
        outcome = UNKNOWN
        raise
    except PylogbrokerError:
        outcome = ABORTED  # the statement says so
        raise
    finally:
        record.write(outcome, number)


def transactionsOf(name: str, lines: Iterable[list[str]]) -> Iterable[Transaction]:
    """What a process wrote down, for L{tests.integration.listappend}."""
    seen: dict[str, list[str]] = {}
    begins: dict[str, float] = {}
    steps: dict[str, list[Append | Read]] = {}
    for words in lines:
        word, ns, rest = words[0], words[1], words[2:]
        if word == "begin":
            begins[rest[0]], steps[rest[0]] = int(ns) / 1e9, []
        elif word == "append":
            steps[rest[0]].append(Append(rest[1], rest[2]))
        elif word == "saw":
            seen.setdefault(rest[0], []).append(rest[1])
        elif word == "read":
            values = seen.get(rest[1], [])[: int(rest[2])]
            steps[rest[0]].append(Read(rest[1], values))
        elif word in (OK, ABORTED, UNKNOWN):
            yield Transaction(
                f"{name}.{rest[0]}",
                steps.pop(rest[0]),
                word,
                begins[rest[0]],
                int(ns) / 1e9 if word == OK else inf,
            )
    for number, left in steps.items():
        yield Transaction(f"{name}.{number}", left, UNKNOWN, begins[number])


if __name__ == "__main__":
    start({"appender": append})
