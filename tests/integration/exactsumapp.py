"""
An application that adds up numbers, as a process to be killed::

    python -m tests.integration.exactsumapp DATABASE SERVERS COUNT

It is a member of a group that keeps its positions in SQLite, in the transactions in which it
changes its sums; it says C{begins} when it has its partitions, and ends when COUNT numbers were
added, over all its lives, and those of others that share the database.

Now and then it has messages in hand for a while before it adds them, so that a partition may go to
another in between, and then there are two who add the same ones: whoever is later is refused, rolls
back, says C{conflict}, and joins anew.
"""

from __future__ import annotations

import sqlite3
import sys
from random import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.offsetstores import SqliteOffsetStore
from pylogbroker.consumer.stream import ConsumedMessage
from pylogbroker.errors import ConsumerTimeoutError, OffsetConflictError
from pylogbroker.types import PartitionId

TOPIC, GROUP = "numbers", "adders"
TRANSACTION_COUNT_MAX = 20
HOLD_SECONDS = 0.5
HOLD_PART = 0.05
LOCK_SECONDS_MAX = 20.0


def openDatabase(path: str) -> sqlite3.Connection:
    """With a row for each partition: what was added up, and how many numbers that were."""
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS_MAX)
    connection.execute(
        'CREATE TABLE IF NOT EXISTS sums ("partition" INTEGER PRIMARY KEY, total INTEGER NOT NULL,'
        " count INTEGER NOT NULL)"
    )
    connection.commit()
    return connection


def totalCount(connection: sqlite3.Connection) -> int:
    """Numbers that were added."""
    (found,) = connection.execute("SELECT COALESCE(SUM(count), 0) FROM sums").fetchone()
    return int(found)


def add(connection: sqlite3.Connection, store: SqliteOffsetStore, message: ConsumedMessage) -> None:
    """In the transaction that is open, or opens one."""
    connection.execute(
        'INSERT INTO sums VALUES (?, ?, 1) ON CONFLICT ("partition") DO UPDATE SET total = total +'
        " excluded.total, count = count + 1",
        (message.partition.partition, int(message.value)),
    )
    store.store(message.topic, message.partition, message.nextOffset)


def tell(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def hold(reactor: Any, consumer: ConsumerConnector, messages: list[ConsumedMessage]) -> None:
    """
    Do nothing with messages for a while, and for another if one's partition has gone meanwhile: who
    has that now begins then.
    """
    await deferLater(reactor, HOLD_SECONDS)
    if any(
        PartitionId(message.topic, message.partition) not in consumer.owned for message in messages
    ):
        await deferLater(reactor, HOLD_SECONDS)


async def live(reactor: Any, connection: sqlite3.Connection, servers: str, count: int) -> bool:
    """As a member, to the end; returns whether that was reached, or else there was a conflict."""
    store = SqliteOffsetStore(connection, GROUP)
    settings = {
        "zk.connect": servers,
        "groupid": GROUP,
        "autocommit.enable": "false",
        "zk.sessiontimeout.ms": "1000",
        "rebalance.backoff.ms": "100",
        "fetcher.backoff.ms": "20",
        "rebalance.retries.max": "100",
        "consumer.timeout.ms": "200",
    }
    async with ConsumerConnector(reactor, settings, offsetStore=store) as consumer:
        (stream,) = (await consumer.createMessageStreams({TOPIC: 1}))[TOPIC]
        tell("begins")
        while totalCount(connection) < count:
            try:
                messages = [await stream.__anext__()]
            except ConsumerTimeoutError:
                continue
            while len(messages) < TRANSACTION_COUNT_MAX and (message := stream.take()) is not None:
                messages.append(message)
            if random() < HOLD_PART:
                await hold(reactor, consumer, messages)
            try:
                for message in messages:
                    add(connection, store, message)
                connection.commit()
            except OffsetConflictError:
                connection.rollback()
                tell("conflict")
                return False
    return True


async def main(reactor: Any, path: str, servers: str, count: str) -> None:
    connection = openDatabase(path)
    while not await live(reactor, connection, servers, int(count)):
        pass


if __name__ == "__main__":
    react(
        lambda reactor, *arguments: Deferred.fromCoroutine(main(reactor, *arguments)), sys.argv[1:]
    )
