"""
Tests for L{pylogbroker.cluster.offsetexport}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.offsetexport import FROM_EARLIEST, EtlOffset, decodeEtlLines
from pylogbroker.errors import FormatError


class LineTests(SynchronousTestCase):
    """There and back."""

    def test_line(self) -> None:
        """A line is as 0.7's Hadoop consumer wrote it."""
        line = "tcp://log1:9092\tclicks\t3\t4711"
        self.assertEqual(decodeEtlLines([line]), [EtlOffset("log1", 9092, "clicks", 3, 4711)])
        self.assertEqual(EtlOffset("log1", 9092, "clicks", 3, 4711).encode(), line)

    @given(some.lists(some.builds(
        EtlOffset, some.from_regex(r"[a-z0-9.:-]{1,20}", fullmatch=True), some.integers(0, 65535), some.from_regex(r"[\w.-]{2,9}", fullmatch=True),
        some.integers(0, 2**31 - 1), some.integers(-1, 2**63 - 1),
    ), unique_by=lambda each: each[:4]))  # fmt: skip
    def test_round(self, offsets: list[EtlOffset]) -> None:
        """What was encoded is decoded, whatever hosts and topics are called; empty lines between do no harm."""
        self.assertEqual(
            decodeEtlLines([text for each in offsets for text in (each.encode(), "")]), offsets
        )

    def test_earliest(self) -> None:
        """-1 is the earliest."""
        self.assertEqual(
            [
                each.offset
                for each in decodeEtlLines(["tcp://h:1\tt\t0\t-1", "tcp://h:1\tt\t0\t-1"])
            ],
            [FROM_EARLIEST],
        )

    def test_wrong(self) -> None:
        """What is no line is refused, with its number."""
        good = "tcp://h:1\tt\t0\t0"
        for line in ("x", "http://h:1\tt\t0\t0", "tcp://h\tt\t0\t0", "tcp://h:1 t 0 0", "tcp://h:1\tt\t0\t-2", "tcp://h:99999\tt\t0\t0",
                     "tcp://h:1\tt\t0\t9999999999999999999", "tcp://h:1\ta/b\t0\t0", "tcp://h:1\tt\t0\t5"):  # fmt: skip
            error = self.assertRaises(FormatError, decodeEtlLines, [good, line])
            self.assertIn("line 2", str(error))
            self.assertEqual(error.position, 1)
