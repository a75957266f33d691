"""Tests for L{pylogbroker.cluster.offsetexport}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.offsetexport import (
    FROM_EARLIEST,
    EtlOffset,
    GroupOffset,
    decodeEtlLines,
    decodeOffsetLine,
    decodeOffsetLines,
)
from pylogbroker.errors import FormatError, InvalidNameError, ZnodeError
from pylogbroker.types import BrokerPartition

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1
).filter(lambda name: name not in (".", ".."))


class LineTests(SynchronousTestCase):
    """One line."""

    def test_format(self) -> None:
        """It is 0.7's."""
        line = "/consumers/counters/offsets/clicks/2-0:1234"
        self.assertEqual(
            decodeOffsetLine(line), GroupOffset("counters", "clicks", BrokerPartition(2, 0), 1234)
        )
        self.assertEqual(decodeOffsetLine(line).encode(), line)

    @given(
        NAMES,
        NAMES,
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
    )
    def test_roundTrip(
        self, group: str, topic: str, broker: int, partition: int, offset: int
    ) -> None:
        """What was encoded is decoded, colons in names and all."""
        each = GroupOffset(group, topic, BrokerPartition(broker, partition), offset)
        self.assertEqual(decodeOffsetLine(each.encode()), each)

    def test_refused(self) -> None:
        """What is no such line is refused, and says why."""
        for line, reason in (
            ("nonsense", "a line is"),
            ("/consumers/g/offsets/t/0-0", "a line is"),
            ("/consumers/g/owners/t/0-0:1", "a line is"),
            ("/brokers/g/offsets/t/0-0:1", "a line is"),
            ("x/consumers/g/offsets/t/0-0:1", "a line is"),
            ("/consumers/g/offsets/t/more/0-0:1", "a line is"),
            ("/consumers/g/offsets/t/0:1", "<broker>-<partition>"),
            ("/consumers/g/offsets/t/0-0:one", "should be a number"),
            ("/consumers/g/offsets/t/0-0:-1", "not negative"),
            ("/consumers/g/offsets/t/0-0:9223372036854775808", "should be a number"),
            ("/consumers/../offsets/t/0-0:1", "cannot be the name"),
            ("/consumers/g/offsets//0-0:1", "cannot be the name"),
        ):
            self.assertIn(reason, str(self.assertRaises(ZnodeError, decodeOffsetLine, line)))

    def test_badNames(self) -> None:
        """Names that would point elsewhere make no line."""
        self.assertRaises(
            InvalidNameError, GroupOffset("a/b", "t", BrokerPartition(0, 0), 1).encode
        )


class FileTests(SynchronousTestCase):
    """Many lines."""

    def test_file(self) -> None:
        """
        Empty lines and spaces around lines are nothing; a line that stands there twice counts once.
        """
        lines = [
            "/consumers/g/offsets/t/0-0:1",
            "",
            "  /consumers/g/offsets/t/0-1:2\r",
            "/consumers/g/offsets/t/0-0:1",
        ]
        expected = [
            GroupOffset("g", "t", BrokerPartition(0, 0), 1),
            GroupOffset("g", "t", BrokerPartition(0, 1), 2),
        ]
        self.assertEqual(decodeOffsetLines(lines), expected)

    def test_refused(self) -> None:
        """A line that is none, or contradicts another, is named by its number."""
        error = self.assertRaises(
            ZnodeError, decodeOffsetLines, ["/consumers/g/offsets/t/0-0:1", "x"]
        )
        self.assertIn("line 2", str(error))
        error = self.assertRaises(
            ZnodeError,
            decodeOffsetLines,
            ["/consumers/g/offsets/t/0-0:1", "/consumers/g/offsets/t/0-0:2"],
        )
        self.assertIn("another line has 1", str(error))


class EtlLineTests(SynchronousTestCase):
    """There and back."""

    def test_line(self) -> None:
        """A line is as 0.7's Hadoop consumer wrote it."""
        line = "tcp://log1:9092\tclicks\t3\t4711"
        self.assertEqual(decodeEtlLines([line]), [EtlOffset("log1", 9092, "clicks", 3, 4711)])
        self.assertEqual(EtlOffset("log1", 9092, "clicks", 3, 4711).encode(), line)

    @given(
        some.lists(
            some.builds(
                EtlOffset,
                some.from_regex(r"[a-z0-9.:-]{1,20}", fullmatch=True),
                some.integers(0, 65535),
                some.from_regex(r"[\w.-]{2,9}", fullmatch=True),
                some.integers(0, 2**31 - 1),
                some.integers(-1, 2**63 - 1),
            ),
            unique_by=lambda each: each[:4],
        )
    )
    def test_round(self, offsets: list[EtlOffset]) -> None:
        """
        What was encoded is decoded, whatever hosts and topics are called; empty lines between do no
        harm.
        """
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
        for line in (
            "x",
            "http://h:1\tt\t0\t0",
            "tcp://h\tt\t0\t0",
            "tcp://h:1 t 0 0",
            "tcp://h:1\tt\t0\t-2",
            "tcp://h:99999\tt\t0\t0",
            "tcp://h:1\tt\t0\t9999999999999999999",
            "tcp://h:1\ta/b\t0\t0",
            "tcp://h:1\tt\t0\t5",
        ):
            error = self.assertRaises(FormatError, decodeEtlLines, [good, line])
            self.assertIn("line 2", str(error))
            self.assertEqual(error.position, 1)
