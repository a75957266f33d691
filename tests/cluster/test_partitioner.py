"""Tests of L{pylogbroker.cluster.partitioner}."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.partitioner import (
    REMEMBERED_COUNT_MAX,
    REMEMBERED_LENGTH_MAX,
    defaultPartitioner,
    javaHash,
)
from pylogbroker.errors import InvalidKeyError


class HashTests(SynchronousTestCase):
    """Java's hashes (spec-0.7 producer §2)."""

    # From the documentation of Java and the specification; the others by hand: s[0]*31^(n-1) + …
    KNOWN: ClassVar[dict[object, int]] = {
        "": 0,
        "a": 97,
        "ab": 97 * 31 + 98,
        "test": 3556498,
        "test-key": -1147945308,
        "polygenelubricants": -(2**31),
        "é": 233,
        "\U0001f600": 0xD83D * 31 + 0xDE00,
        b"test-key": -1147945308,
        b"\xff": 255,
        0: 0,
        7: 7,
        -1: -1,
        2**31 - 1: 2**31 - 1,
        -(2**31): -(2**31),
        2**31: -(2**31),
        2**32: 1,
    }

    def test_known(self) -> None:
        """Each known key has Java's hash."""
        for key, value in self.KNOWN.items():
            self.assertEqual(javaHash(key), value, repr(key))

    def test_negativeLong(self) -> None:
        """A C{Long} folds its upper half into the lower: C{(int)(v ^ (v >>> 32))}."""
        for value in (-(2**31) - 1, -(2**40), 2**63 - 1, -(2**63)):
            unsigned = value & (2**64 - 1)
            folded = (unsigned ^ (unsigned >> 32)) & (2**32 - 1)
            self.assertEqual(javaHash(value), folded - 2**32 if folded >= 2**31 else folded)

    def test_remembered(self) -> None:
        """
        A key's hash stays what it was, however many others and however long ones come in between.
        """
        first = [javaHash(f"key {number}") for number in range(10)]
        for number in range(REMEMBERED_COUNT_MAX + 1):
            javaHash(f"other {number}")
        self.assertEqual([javaHash(f"key {number}") for number in range(10)], first)
        for length in (REMEMBERED_LENGTH_MAX, REMEMBERED_LENGTH_MAX + 1):
            whole = sum(97 * 31**place for place in range(length)) & (2**32 - 1)
            self.assertEqual(
                [javaHash("a" * length) for _again in range(2)],
                [whole - 2**32 if whole >= 2**31 else whole] * 2,
            )

    def test_unknown(self) -> None:
        """Other keys are refused and named."""
        for key in (1.5, True, None, 2**63, ("a",)):
            self.assertIn(repr(key), str(self.assertRaises(InvalidKeyError, javaHash, key)))


class PartitionerTests(SynchronousTestCase):
    """The default partitioner."""

    def test_table(self) -> None:
        """A table of keys and partitions, from the rule in spec-0.7 producer §2."""
        table = (
            ("test-key", 5, 3),
            ("test", 5, 3),
            ("a", 2, 1),
            ("polygenelubricants", 5, 0),
            ("polygenelubricants", 4, 0),
            ("", 3, 0),
            ("abcd", 1, 0),
        )
        for key, count, partition in table:
            self.assertEqual(defaultPartitioner(key, count), partition, key)

    @given(
        st.one_of(st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1)), st.integers(1, 1000)
    )
    def test_inRange(self, key: object, count: int) -> None:
        """Whatever the key, the partition is one of those that there are."""
        self.assertIn(defaultPartitioner(key, count), range(count))
