"""
An application that adds up numbers, as a process to be killed::

    python -m tests.integration.exactsumapp DATABASE SERVERS COUNT

It is a member of a group that keeps its positions in SQLite, in the transactions in which it changes its sums; it says C{begins} when it has its
partitions, and ends when it has seen COUNT numbers, over all its lives.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.consumer.group import ConsumerConnector
from pylogbroker.consumer.offsetstores import SqliteOffsetStore
from pylogbroker.consumer.stream import ConsumedMessage

TOPIC, GROUP = "numbers", "adders"
TRANSACTION_COUNT_MAX = 20


def openDatabase(path: str) -> sqlite3.Connection:
    """With a row for each partition: what was added up, and how many numbers that were."""
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE IF NOT EXISTS sums ("partition" INTEGER PRIMARY KEY, total INTEGER NOT NULL, count INTEGER NOT NULL)')
    connection.commit()
    return connection


def totalCount(connection: sqlite3.Connection) -> int:
    """Numbers that were added."""
    (found,) = connection.execute("SELECT COALESCE(SUM(count), 0) FROM sums").fetchone()
    return int(found)


def add(connection: sqlite3.Connection, store: SqliteOffsetStore, message: ConsumedMessage) -> None:
    """In the transaction that is open, or opens one."""
    connection.execute(
        'INSERT INTO sums VALUES (?, ?, 1) ON CONFLICT ("partition") DO UPDATE SET total = total + excluded.total, count = count + 1',
        (message.partition.partition, int(message.value)),
    )
    store.store(message.topic, message.partition, message.nextOffset)


async def main(reactor: Any, path: str, servers: str, count: str) -> None:
    connection = openDatabase(path)
    store = SqliteOffsetStore(connection, GROUP)
    settings = {
        "zk.connect": servers, "groupid": GROUP, "autocommit.enable": "false", "zk.sessiontimeout.ms": "1000", "rebalance.backoff.ms": "100",
        "fetcher.backoff.ms": "20", "rebalance.retries.max": "100",
    }  # fmt: skip
    async with ConsumerConnector(reactor, settings, offsetStore=store) as consumer:
        (stream,) = (await consumer.createMessageStreams({TOPIC: 1}))[TOPIC]
        sys.stdout.write("begins\n")
        sys.stdout.flush()
        if totalCount(connection) == int(count):
            return
        async for first in stream:
            message: ConsumedMessage | None = first
            for _number in range(TRANSACTION_COUNT_MAX):
                if message is None:
                    break
                add(connection, store, message)
                message = stream.take() if _number < TRANSACTION_COUNT_MAX - 1 else None
            connection.commit()
            if totalCount(connection) == int(count):
                return


if __name__ == "__main__":
    react(lambda reactor, *arguments: Deferred.fromCoroutine(main(reactor, *arguments)), sys.argv[1:])
