"""
Tests of looking at messages.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.console import peek as module
from pylogbroker.console.peek import (
    COUNT_MAX,
    READ_SIZE,
    READ_SIZE_MAX,
    SHOWN_SIZE_MAX,
    PeekResult,
    firstEntry,
    peek,
    peekLast,
)
from pylogbroker.errors import OffsetOutOfRangeError
from pylogbroker.records import compression
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import decompressedPayloads, encodeSet, wrapCompressed
from pylogbroker.types import OffsetBounds


class Log:
    """A partition in memory, whose reads end with its segments."""

    def __init__(self, data: bytes, start: int = 0, segmentSize: int = 1 << 30) -> None:
        self.data = data
        self.start = start
        self.segmentSize = segmentSize
        self.sizes: list[int] = []

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        assert (topic, partition) == ("t", 1)
        at = offset - self.start
        if not 0 <= at <= len(self.data):
            raise OffsetOutOfRangeError(str(offset))
        end = min(at + sizeMax, (at // self.segmentSize + 1) * self.segmentSize)
        self.sizes.append(sizeMax)
        return succeed(self.data[at:end])

    def bounds(self, topic: str, partition: int) -> Deferred[OffsetBounds]:
        return succeed(OffsetBounds(self.start, self.start + len(self.data)))


class PeekCase(SynchronousTestCase):
    """
    @ivar workCount: how often something was given to the worker.
    """

    workCount = 0

    def work(self, decode: Callable[[], Any]) -> Deferred[Any]:
        self.workCount += 1
        return maybeDeferred(decode)

    def peek(self, log: Log, offset: int, count: int = 20) -> PeekResult:
        return self.successResultOf(
            Deferred.fromCoroutine(peek(log, "t", 1, offset, count, self.work))
        )

    def last(self, log: Log, count: int = 20) -> PeekResult:
        return self.successResultOf(Deferred.fromCoroutine(peekLast(log, "t", 1, count, self.work)))

    def payloads(self, found: PeekResult) -> list[bytes]:
        return [base64.b64decode(row["payload"]) for row in found.messages]


class FromTests(PeekCase):
    """From an offset on."""

    def test_some(self) -> None:
        """So many as were asked for, each with where it begins and ends."""
        log = Log(encodeSet([b"a", b"bb", b"ccc"]), 1000)
        found = self.peek(log, 1000, 2)
        self.assertEqual(
            (self.payloads(found), found.offset, found.nextOffset, found.problem),
            ([b"a", b"bb"], 1000, 1023, ""),
        )
        self.assertEqual(
            [(row["offset"], row["next"], row["size"], row["codec"]) for row in found.messages],
            [(1000, 1011, 1, ""), (1011, 1023, 2, "")],
        )
        self.assertEqual(self.payloads(self.peek(log, 1023)), [b"ccc"])

    def test_end(self) -> None:
        """At the end there is nothing, and that is no problem."""
        self.assertEqual(self.peek(Log(b"", 5), 5), PeekResult([], 5, 5, ""))

    def test_outside(self) -> None:
        """Beyond it is an error."""
        self.failureResultOf(
            Deferred.fromCoroutine(peek(Log(b""), "t", 1, 7, 1, self.work)), OffsetOutOfRangeError
        )

    def test_compressed(self) -> None:
        """
        What is inside a compressed entry is shown, with the entry's offsets and the codec; of very
        many, that there are more.
        """
        log = Log(
            encodeSet([b"a", b"b"], GZIP)
            + encodeSet([b"c"])
            + encodeSet([b"x"] * (COUNT_MAX + 5), GZIP)
        )
        found = self.peek(log, 0, 3)
        self.assertEqual(self.payloads(found), [b"a", b"b", b"c"])
        self.assertEqual([row["codec"] for row in found.messages], ["gzip", "gzip", ""])
        self.assertEqual(found.messages[0]["offset"], found.messages[1]["offset"])
        rows = self.peek(log, found.nextOffset).messages
        self.assertEqual(
            (len(rows), rows[-1]["moreThan"], "moreThan" in rows[0]),
            (COUNT_MAX + 1, COUNT_MAX, False),
        )
        self.assertEqual(self.workCount, 2)

    def test_bomb(self) -> None:
        """
        A compressed entry that opens to more than is good for anybody is a problem, told; what was
        before it is shown.
        """
        found = self.peek(Log(encodeSet([b"a"]) + encodeSet([b"\0" * (8 << 20)], GZIP)), 0)
        self.assertEqual((self.payloads(found), found.nextOffset), ([b"a"], 11))
        self.assertIn("more than", found.problem)
        nested = encodeSet([b"a"])
        for _ in range(6):
            nested = wrapCompressed(GZIP, nested)
        self.assertIn("nest deeper", self.peek(Log(nested), 0).problem)

    def test_long(self) -> None:
        """
        Of a large payload the beginning is shown, with its whole size; what does not fit into the
        first read is read again.
        """
        log = Log(encodeSet([b"x" * 100_000, b"y"]))
        found = self.peek(log, 0)
        self.assertEqual(
            [(row["size"], len(base64.b64decode(row["payload"]))) for row in found.messages],
            [(100_000, SHOWN_SIZE_MAX), (1, 1)],
        )
        self.assertEqual(log.sizes, [READ_SIZE, READ_SIZE_MAX])

    def test_tooLong(self) -> None:
        """A message that is larger than what is read says so."""
        found = self.peek(Log(encodeSet([b"x" * READ_SIZE_MAX])), 0)
        self.assertEqual(found.messages, [])
        self.assertNotEqual(found.problem, "")

    def test_middle(self) -> None:
        """An offset that is inside a message is a problem, told."""
        self.assertNotEqual(self.peek(Log(encodeSet([b"abcdefgh" * 10])), 3).problem, "")


class LastTests(PeekCase):
    """The last ones."""

    def test_few(self) -> None:
        """Of a short log, the last ones of all."""
        log = Log(encodeSet([b"a", b"bb", b"ccc"]), 500)
        found = self.last(log, 2)
        self.assertEqual(
            (self.payloads(found), found.offset, found.nextOffset), ([b"bb", b"ccc"], 511, 536)
        )
        self.assertEqual(self.payloads(self.last(log, 9)), [b"a", b"bb", b"ccc"])

    def test_nothing(self) -> None:
        """Of an empty one, nothing."""
        self.assertEqual(self.last(Log(b"", 9)), PeekResult([], 9, 9, ""))

    def test_many(self) -> None:
        """
        Of a long log whose beginning is far away, too, over the ends of segments; wrappers count by
        what is in them.
        """
        payloads = [b"%d" % number * 50 for number in range(2000)]
        log = Log(encodeSet(payloads), 10**12, 4_096)
        found = self.last(log, 10)
        self.assertEqual(
            (self.payloads(found), found.nextOffset), (payloads[-10:], 10**12 + len(log.data))
        )
        log = Log(log.data + encodeSet([b"in", b"side"], GZIP))
        self.assertEqual(self.payloads(self.last(log, 3)), [payloads[-1], b"in", b"side"])

    def test_backwards(self) -> None:
        """
        No more is opened than is shown: from the end on, each compressed entry as far as is needed.
        What may not be opened any more is told, and what is behind it is shown.
        """
        opened: list[int] = []

        def counting(message: Any, *rest: Any) -> Any:
            for payload in decompressedPayloads(message, *rest):
                opened.append(1)
                yield payload

        self.patch(module, "decompressedPayloads", counting)
        wrapper = encodeSet([b""] * 10_000, GZIP)
        log = Log(wrapper * 50 + encodeSet([b"a", b"b"]))
        found = self.last(log, 20)
        self.assertEqual(
            (len(opened), len(found.messages), found.problem, self.workCount),
            (COUNT_MAX + 1, 20, "", 1),
        )
        self.assertEqual(self.payloads(found)[-2:], [b"a", b"b"])
        opened.clear()
        self.assertEqual(self.payloads(self.last(log, 2)), [b"a", b"b"])
        self.assertEqual(opened, [])
        found = self.last(Log(encodeSet([b"\0" * (8 << 20)], GZIP) + encodeSet([b"c"])))
        self.assertEqual((self.payloads(found), found.offset > 0), ([b"c"], True))
        self.assertIn("more than", found.problem)

    def test_allTogether(self) -> None:
        """All entries of one look share what may be opened."""
        found = self.peek(Log(encodeSet([b"x" * (3 << 19)], GZIP) * 10), 0)
        self.assertEqual(len(found.messages), 2)
        self.assertIn("more than", found.problem)

    def test_large(self) -> None:
        """When the last one is large, more is read; when it is too large, that is told."""
        before = encodeSet([b"x" * 1000] * 3000)
        self.assertEqual(
            [
                row["size"]
                for row in self.last(Log(before + encodeSet([b"y" * 500_000])), 2).messages
            ],
            [1000, 500_000],
        )
        found = self.last(Log(before + encodeSet([b"y" * READ_SIZE_MAX])), 2)
        self.assertEqual((found.messages, found.offset), ([], len(before) + READ_SIZE_MAX + 10))
        self.assertIn("larger", found.problem)


class FirstEntryTests(SynchronousTestCase):
    """Where the entries begin in some bytes."""

    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.integers(0, 60))
    def test_cut(self, payloads: list[bytes], cut: int) -> None:
        """
        However the beginning is cut off, entries are found to the end, from a place that is no
        later than the next true beginning.
        """
        data = encodeSet(payloads)
        ends = [0]
        for payload in payloads:
            ends.append(ends[-1] + 10 + len(payload))
        cut = min(cut, ends[-2])
        found = firstEntry(data[cut:])
        assert found is not None
        self.assertLessEqual(found + cut, next(end for end in ends if end >= cut))

    def test_none(self) -> None:
        """Bytes without entries have none."""
        for data in (b"", b"x", b"\0" * 100_000, bytes(range(256)) * 500):
            self.assertIsNone(firstEntry(data))

    def test_work(self) -> None:
        """Bytes that are made to cost much cost no more than the limit: then there is no answer."""
        calls: list[int] = []
        crc32 = compression.crc32

        def counting(data: Any) -> int:
            calls.append(len(data))
            return crc32(data)

        self.patch(module, "crc32", counting)
        self.patch(module, "CHECKED_SIZE_MAX", 100_000)
        self.patch(module, "CANDIDATE_COUNT_MAX", 1_000)
        hostile = b"\0\0\x0f\xff\0" * 100_000  # each looks like an entry of 4 KiB
        self.assertIsNone(firstEntry(hostile))
        self.assertLessEqual(len(calls), 1_000)
        self.assertLess(sum(calls), 110_000)

    def test_oldFormat(self) -> None:
        """Entries of magic 0 are found, too."""
        data = encodeSet([b"a" * 30, b"b"], magic=0)
        self.assertEqual(firstEntry(data[5:]), 39 - 5)
