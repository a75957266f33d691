"""
The records of C{__transaction_state}, against bytes that Apache's classes printed.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.transactions.transactionstopic import (
    StoredTransaction,
    TransactionState,
    decodeTransaction,
    decodeTransactionKey,
    encodeTransaction,
    encodeTransactionKey,
    transactionPartition,
)
from pylogbroker.errors import FormatError
from pylogbroker.types import TopicPartition
from tests.goldenfiles import GOLDEN as GOLDEN_FOLDER

GOLDEN = {
    name: bytes.fromhex(data)
    for name, data in (
        line.split()
        for line in (GOLDEN_FOLDER / "kafka43" / "transactionstopic.txt").read_text().splitlines()
    )
}
ONGOING = StoredTransaction(
    4000,
    3,
    60_000,
    TransactionState.ONGOING,
    frozenset({TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)}),
    1_700_000_000_123,
    1_700_000_000_001,
)
VERSION_2 = ONGOING._replace(
    state=TransactionState.PREPARE_COMMIT,
    clientVersion=2,
    previousProducerId=3999,
    nextProducerId=4001,
)
EMPTY = StoredTransaction(4000, 0, 1000, lastUpdateMs=1_700_000_000_123)
COMPLETE = ONGOING._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset())


class RecordTests(SynchronousTestCase):
    """Keys and values."""

    def test_key(self) -> None:
        """A transactional id."""
        self.assertEqual(encodeTransactionKey("tr\u00fc"), GOLDEN["key"])
        self.assertEqual(decodeTransactionKey(GOLDEN["key"]), "tr\u00fc")
        self.assertIsNone(decodeTransactionKey(b"\0\1" + GOLDEN["key"][2:]))

    def test_values(self) -> None:
        """Where a transaction stands; version 0 is read, too."""
        for name, stored in (
            ("ongoing1", ONGOING),
            ("version2", VERSION_2),
            ("empty", EMPTY),
            ("complete", COMPLETE),
        ):
            self.assertEqual(encodeTransaction(stored), GOLDEN[name], name)
            self.assertEqual(decodeTransaction(GOLDEN[name]), stored, name)
        self.assertEqual(decodeTransaction(GOLDEN["ongoing0"]), ONGOING)

    def test_broken(self) -> None:
        """Whatever is cut, too long or unknown is refused."""
        value = GOLDEN["ongoing1"]
        for data in (b"", b"\0", b"\0\2" + value[2:], value[:-1], value + b"x"):
            with self.assertRaises(FormatError):
                decodeTransaction(data)
        for data in (b"\0", GOLDEN["key"][:-1], GOLDEN["key"] + b"x"):
            with self.assertRaises(FormatError):
                decodeTransactionKey(data)
        status = value.index(bytes.fromhex("0000ea60")) + 4
        with self.assertRaises(FormatError):
            decodeTransaction(value[:status] + b"\x08" + value[status + 1 :])

    def test_partition(self) -> None:
        """By Java's hash."""
        self.assertEqual(transactionPartition("await", 1), 0)
        self.assertEqual(transactionPartition("a", 50), 97 % 50)
