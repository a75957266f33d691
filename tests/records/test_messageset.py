"""
Tests of message sets: writing, and the three ways of reading them.

Hex strings are the vectors of spec-0.7 wire-protocol §12. Tests that carry a name of 0.7.2's own
tests in their docstrings show the same scenario.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    CorruptCompressionError,
    DecompressionLimitError,
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    MessageTooLargeError,
    RemoteError,
    RemoteOffsetOutOfRangeError,
    UnknownCodecError,
    UnknownMagicError,
    errorForCode,
)
from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.compression import GZIP, NONE, SNAPPY, compress
from pylogbroker.records.kafka07format import validatePlain, validateSet
from pylogbroker.records.messageset import (
    PAYLOAD_SIZE_MAX,
    MessageSet,
    encodeMessage,
    encodeSet,
    readEntry,
    wrapCompressed,
)
from pylogbroker.types import Message, MessageAndOffset, consumedCount
from tests.fuzz import golden, judge
from tests.fuzz.mutation import Mutator
from tests.fuzz.promises import messageCheck, messageSet

HELLO_1 = bytes.fromhex("0000000b01003610a68668656c6c6f")
HELLO_0 = bytes.fromhex("0000000a003610a68668656c6c6f")
EMPTY_1 = bytes.fromhex("00000006010000000000")
THREE = [b"one", b"two", b"three"]
LIMITS = CheckLimits()

PAYLOADS = st.lists(st.binary(max_size=40), max_size=8)
CODECS = st.sampled_from((NONE, GZIP, SNAPPY))
MAGICS = st.sampled_from((0, 1))


class Endless(bytes):
    """Bytes that say they are 2 GiB, for lack of a machine that would spend them."""

    def __len__(self) -> int:
        return 2**31


def changed(data: bytes, at: int, new: bytes) -> bytes:
    """Data with some bytes replaced."""
    return data[:at] + new + data[at + len(new) :]


def deepOf(messages: MessageSet) -> list[tuple[bytes, int]]:
    return [(each.message.payload, each.nextOffset) for each in messages]


class EncodeTests(SynchronousTestCase):
    """Entries and sets as 0.7 writes them (spec-0.7 wire-protocol §5)."""

    def test_vectors(self) -> None:
        """
        The entries of the specification, of both magics, and the first of 0.7.2's own fixture.
        """
        self.assertEqual(encodeMessage(b"hello"), HELLO_1)
        self.assertEqual(encodeMessage(b"hello", 0), HELLO_0)
        self.assertEqual(encodeMessage(b""), EMPTY_1)
        self.assertEqual(encodeMessage(b"x" * 100, 0)[:10].hex(), "00000069005e0e5d8f78")

    def test_overhead(self) -> None:
        """An entry is 9 bytes more than its payload in magic 0, and 10 in magic 1."""
        self.assertEqual([len(encodeMessage(b"12345", magic)) - 5 for magic in (0, 1)], [9, 10])

    def test_setIsConcatenation(self) -> None:
        """
        A plain set is its entries one behind the other, without count or padding; of no payloads it
        is nothing.
        """
        self.assertEqual(
            encodeSet([b"hello", b"there"]).hex(),
            "0000000b01003610a68668656c6c6f0000000b01005a2fe9967468657265",
        )
        for magic in (0, 1):
            self.assertEqual(
                encodeSet(THREE, magic=magic),
                b"".join(encodeMessage(each, magic) for each in THREE),
            )
            self.assertEqual(encodeSet(iter(()), magic=magic), b"")

    def test_wrapperIsOneEntry(self) -> None:
        """
        A compressed set is one entry of magic 1 with the codec in its attributes, whatever the
        magic of the messages inside.
        """
        for codec in (GZIP, SNAPPY):
            for magic in (0, 1):
                data = encodeSet(THREE, codec, magic)
                self.assertEqual(
                    data, encodeMessage(compress(codec, encodeSet(THREE, magic=magic)), codec=codec)
                )
                self.assertEqual(data[4:6], bytes((1, codec)))

    def test_nothingIsNotWrapped(self) -> None:
        """Zero messages are zero bytes in every codec; 0.7.2 writes no empty wrapper."""
        self.assertEqual(
            [encodeSet([], codec) + wrapCompressed(codec, b"") for codec in (NONE, GZIP, SNAPPY)],
            [b"", b"", b""],
        )

    def test_codec0WrapsNothing(self) -> None:
        """Codec 0 leaves a set as it is."""
        self.assertEqual(wrapCompressed(NONE, HELLO_0), HELLO_0)

    def test_unknown(self) -> None:
        """An unknown magic byte or codec is not written; magic 0 has no codec."""
        self.assertRaises(UnknownMagicError, encodeMessage, b"", 2)
        self.assertRaises(UnknownMagicError, encodeMessage, b"", 0, GZIP)
        self.assertRaises(UnknownMagicError, encodeSet, [b""], 0, 2)
        self.assertRaises(UnknownCodecError, wrapCompressed, 3, b"x")
        self.assertRaises(UnknownCodecError, encodeSet, [b"x"], 3)

    def test_tooLargeForAnEntry(self) -> None:
        """A payload that does not fit behind an int32 is a FormatError, alone and in a set."""
        self.assertRaises(MessageTooLargeError, encodeMessage, Endless())
        self.assertRaises(MessageTooLargeError, encodeSet, [b"fits", Endless()])
        self.assertEqual(PAYLOAD_SIZE_MAX + 6, 2**31 - 1)

    def test_wrapperCountsAsOne(self) -> None:
        """
        Ten equal payloads of 20 bytes are one message of less than half their size
        (SyncProducerTest: the limit is for the wrapper).
        """
        data = encodeSet([b"\x00" * 20] * 10, GZIP)
        self.assertEqual(len(list(MessageSet(data).shallow())), 1)
        self.assertEqual(len(list(MessageSet(data))), 10)
        self.assertLess(len(data), 150)


class ReadEntryTests(SynchronousTestCase):
    """One entry."""

    def test_fields(self) -> None:
        """
        Payload, magic, attributes and checksum come as they are (MessageTest.testFieldValues).
        """
        found = [
            readEntry(data, 0, len(data), True)
            for data in (HELLO_1, HELLO_0, EMPTY_1, changed(EMPTY_1, 5, b"\xfc"))
        ]
        self.assertEqual(
            found,
            [
                (Message(b"hello", 1, 0, 0x3610A686), 15),
                (Message(b"hello", 0, 0, 0x3610A686), 14),
                (Message(b"", 1, 0, 0), 10),
                (Message(b"", 1, 0xFC, 0), 10),
            ],
        )

    def test_checksum(self) -> None:
        """
        Every changed bit of payload or checksum is noticed; those of the attributes are not covered
        (MessageTest.testChecksum).
        """
        for at in range(6, len(HELLO_1)):
            for bit in range(8):
                data = changed(HELLO_1, at, bytes((HELLO_1[at] ^ 1 << bit,)))
                self.assertRaises(InvalidChecksumError, readEntry, data, 0, len(data), True)
        data = changed(HELLO_1, 5, b"\x02")
        self.assertEqual(
            readEntry(data, 0, len(data), True), (Message(b"hello", 1, 2, 0x3610A686), 15)
        )

    def test_equalityAndHash(self) -> None:
        """
        Messages of the same content are equal and hash alike (MessageTest.testEquality,
        testIsHashable).
        """
        one, other = (readEntry(HELLO_1, 0, 15, True) for _ in range(2))
        self.assertEqual(one, other)
        self.assertEqual(len({one, other, readEntry(HELLO_0, 0, 14, True)}), 2)

    def test_neverBeyondTheEnd(self) -> None:
        """What lies behind the end that was given is not looked at."""
        self.assertIs(readEntry(HELLO_1 + HELLO_1, 15, 20, False), None)
        self.assertIs(readEntry(HELLO_1 + HELLO_1, 15, 18, True), None)
        self.assertEqual(
            readEntry(HELLO_1 + HELLO_1, 15, 30, False), (Message(b"hello", 1, 0, 0x3610A686), 30)
        )


Read = Callable[[MessageSet], Any]
READINGS: dict[str, Read] = {
    "shallow": lambda messages: list(messages.shallow()),
    "deep": list,
    "payloads": lambda messages: list(messages.payloads()),
    "validSize": lambda messages: messages.validSize,
    "nextOffset": lambda messages: messages.nextOffset,
}


class RuleTests(SynchronousTestCase):
    """
    spec-0.7 wire-protocol §7.2, row by row, for every way to read, at the start of a set and behind
    another entry.
    """

    def ends(self, tail: bytes, first: bool = True) -> None:
        """Reading ends silently where C{tail} begins."""
        for before in (b"", HELLO_1, HELLO_0) if first else (HELLO_1, HELLO_0):
            messages = MessageSet(before + tail, 7)
            count = 1 if before else 0
            self.assertEqual(
                [len(READINGS[name](messages)) for name in ("shallow", "deep", "payloads")],
                [count] * 3,
            )
            self.assertEqual(
                (messages.validSize, messages.nextOffset), (len(before), 7 + len(before))
            )

    def refused(
        self,
        tail: bytes,
        error: type[FormatError],
        befores: Iterable[bytes] = (b"", HELLO_1, HELLO_0),
        names: Iterable[str] = READINGS,
    ) -> None:
        """
        Reading raises at C{tail}, which is where the error says it is; what was before was read.
        """
        for before in befores:
            for name in names:
                raised = self.assertRaises(error, READINGS[name], MessageSet(before + tail))
                self.assertEqual((type(raised), raised.position), (error, len(before)))
            found = []
            with self.assertRaises(error):
                for each in MessageSet(before + tail).payloads():
                    found.append(each)
            self.assertEqual(found, [(b"hello", len(before))] if before else [])

    def test_fewerThanFourBytes(self) -> None:
        """Fewer than 4 bytes left: the end, silently."""
        for size in range(4):
            self.ends(b"\xff" * size)

    def test_negativeSize(self) -> None:
        """A negative size: InvalidMessageSize."""
        for size in (-1, -5, -(2**31)):
            self.refused(struct.pack(">i", size) + b"padding, padding", InvalidMessageSizeError)

    def test_firstNotWhole(self) -> None:
        """
        A first entry that is not whole: InvalidMessageSize, since the fetch size was too small, or
        the log is corrupt.
        """
        for size in range(4, len(HELLO_1)):
            self.refused(HELLO_1[:size], InvalidMessageSizeError, [b""])

    def test_laterNotWhole(self) -> None:
        """A later entry that is not whole: the end, silently."""
        for size in range(4, len(HELLO_1)):
            self.ends(HELLO_1[:size], first=False)
        self.ends(struct.pack(">i", 2**31 - 1) + b"x", first=False)

    def test_tooSmallForTheHeader(self) -> None:
        """A size too small for the header: InvalidMessageSize for us."""
        for size in range(5):
            self.refused(struct.pack(">i", size) + bytes(20), InvalidMessageSizeError)
        self.refused(struct.pack(">iB", 5, 1) + bytes(20), InvalidMessageSizeError)

    def test_unknownMagic(self) -> None:
        """A magic byte that is neither 0 nor 1: UnknownMagic."""
        for magic in (2, 3, 127, 128, 255):
            self.refused(changed(HELLO_1, 4, bytes((magic,))), UnknownMagicError)

    def test_checksumMismatch(self) -> None:
        """A wrong checksum: InvalidChecksum, in both magics."""
        for data in (HELLO_1, HELLO_0):
            self.refused(changed(data, len(data) - 1, b"0"), InvalidChecksumError)

    def test_unknownCodec(self) -> None:
        """Codec 3: UnknownCodec, in deep readings only."""
        data = encodeMessage(b"payload", codec=3)
        self.refused(data, UnknownCodecError, names=("deep", "payloads"))
        self.assertEqual(
            [each.message.payload for each in MessageSet(data).shallow()], [b"payload"]
        )
        self.assertEqual(MessageSet(data).validSize, len(data))

    def test_errorCode(self) -> None:
        """
        A set that came with an error code raises what the code stands for, whatever is asked of it
        but its size.
        """
        messages = MessageSet(b"", 5, errorForCode(1))
        for read in READINGS.values():
            self.assertRaises(RemoteOffsetOutOfRangeError, read, messages)
        self.assertEqual(messages.sizeInBytes, 0)

    def test_undecodablePayload(self) -> None:
        """A compressed payload that cannot be opened: CorruptCompression, in deep readings only."""
        for codec in (GZIP, SNAPPY):
            self.refused(
                encodeMessage(b"", codec=codec), CorruptCompressionError, names=("deep", "payloads")
            )
            self.refused(
                encodeMessage(b"\xff" * 30, codec=codec),
                CorruptCompressionError,
                names=("deep", "payloads"),
            )

    def test_badMessageInside(self) -> None:
        """
        A bad message inside a wrapper raises the error that it would raise outside, at the position
        of the outermost wrapper.
        """
        for bad, error in (
            (changed(HELLO_1, 14, b"0"), InvalidChecksumError),
            (changed(HELLO_1, 4, b"\x07"), UnknownMagicError),
            (HELLO_1[:-1], InvalidMessageSizeError),
            (encodeMessage(b"", codec=3), UnknownCodecError),
        ):
            for depth in range(1, 4):
                for codec in (GZIP, SNAPPY):
                    data = bad
                    for _ in range(depth):
                        data = wrapCompressed(codec, data)
                    self.refused(data, error, names=("deep", "payloads"))

    def test_emptySet(self) -> None:
        """No bytes: no messages, a valid size of 0."""
        self.ends(b"")
        self.assertEqual(MessageSet(b"").sizeInBytes, 0)


class OffsetTests(SynchronousTestCase):
    """
    spec-0.7 wire-protocol §6, row by row: the offset attached to a message is that of the byte
    behind it.
    """

    def test_uncompressed(self) -> None:
        """An uncompressed message at p with size s: p + 4 + s."""
        self.assertEqual(
            deepOf(MessageSet(HELLO_1 + HELLO_0, 100)), [(b"hello", 115), (b"hello", 129)]
        )

    def test_shallowWrapper(self) -> None:
        """A wrapper that is not opened: p + 4 + s, with its compressed payload."""
        data = encodeSet(THREE, GZIP)
        (found,) = MessageSet(data, 100).shallow()
        self.assertEqual(
            found,
            MessageAndOffset(Message(data[10:], 1, GZIP, judge.crc32(data[10:])), 100 + len(data)),
        )

    def test_inside(self) -> None:
        """
        A message inside a wrapper: the wrapper's own start, but the last one has the wrapper's end.
        """
        for codec in (GZIP, SNAPPY):
            data = encodeSet(THREE, codec)
            end = 100 + 15 + len(data)
            expected = [
                (b"hello", 115),
                (b"one", 115),
                (b"two", 115),
                (b"three", end),
                (b"hello", end + 14),
            ]
            self.assertEqual(deepOf(MessageSet(HELLO_1 + data + HELLO_0, 100)), expected)
            self.assertEqual(list(MessageSet(HELLO_1 + data + HELLO_0, 100).payloads()), expected)

    def test_counted(self) -> None:
        """
        Asked to, the offsets inside a wrapper say how many of its messages a reader has then, of
        all depths; a bad entry is the error that it always is.
        """
        nested = wrapCompressed(
            GZIP, encodeSet([b"a"]) + encodeSet([b"b", b"c"], GZIP) + encodeSet([b"d"])
        )
        data = HELLO_1 + nested + encodeSet(THREE, SNAPPY) + HELLO_0
        counted = list(MessageSet(data, 100).payloadsWithOffsets())
        self.assertEqual(counted, list(MessageSet(data, 100).payloads()))
        self.assertEqual(
            [consumedCount(offset) for _payload, offset in counted], [0, 1, 2, 3, 0, 1, 2, 0, 0]
        )
        self.assertRaises(
            InvalidChecksumError,
            list,
            MessageSet(HELLO_1 + data[:-1] + b"?", 100).payloadsWithOffsets(),
        )

    def test_theExample(self) -> None:
        """
        A wrapper at 100 with size field 60 and three messages inside: 100, 100, 164; a shallow
        reader sees 164.
        """
        payloads = [b"abc", b"defgh", b"fourteen bytes"]
        inner = encodeSet(payloads)
        data = encodeMessage(
            bytes((len(inner), (len(inner) - 1) << 2)) + inner, codec=SNAPPY
        )  # raw snappy: one literal
        self.assertEqual(data[:4], struct.pack(">i", 60))
        self.assertEqual(
            deepOf(MessageSet(data, 100)), list(zip(payloads, (100, 100, 164), strict=True))
        )
        self.assertEqual([each.nextOffset for each in MessageSet(data, 100).shallow()], [164])

    def test_noneInside(self) -> None:
        """
        A wrapper that opens to no messages yields nothing, and the position advances by its size.
        """
        for empty in (
            encodeMessage(compress(GZIP, b""), codec=GZIP),
            encodeMessage(compress(SNAPPY, b""), codec=SNAPPY),
        ):
            messages = MessageSet(empty + HELLO_1, 100)
            self.assertEqual(deepOf(messages), [(b"hello", 100 + len(empty) + 15)])
            self.assertEqual(list(messages.payloads()), deepOf(messages))
            self.assertEqual(MessageSet(empty, 100).nextOffset, 100 + len(empty))

    def test_nestedWrappers(self) -> None:
        """Of nested wrappers only the boundaries of the outermost count."""
        inner = wrapCompressed(
            SNAPPY, encodeMessage(b"a") + encodeMessage(b"b", 0)
        ) + encodeMessage(b"c")
        data = wrapCompressed(GZIP, inner + wrapCompressed(GZIP, encodeMessage(b"d")))
        end = 50 + len(data)
        self.assertEqual(
            deepOf(MessageSet(data, 50)), [(b"a", 50), (b"b", 50), (b"c", 50), (b"d", end)]
        )

    def test_cutInsideAWrapper(self) -> None:
        """
        An entry inside a wrapper that is not whole ends what is inside silently; the message before
        it is the last.
        """
        data = wrapCompressed(GZIP, HELLO_1 + HELLO_0[:-1])
        self.assertEqual(
            deepOf(MessageSet(data + EMPTY_1)), [(b"hello", len(data)), (b"", len(data) + 10)]
        )

    def test_nextFetch(self) -> None:
        """
        The next fetch offset is the fetch offset plus the valid size; a cut last entry does not
        count.
        """
        messages = MessageSet(HELLO_1 + HELLO_0 + HELLO_1[:9], 1000)
        self.assertEqual(
            (messages.validSize, messages.nextOffset, messages.sizeInBytes), (29, 1029, 38)
        )

    def test_badAfterGoodInside(self) -> None:
        """
        Of a wrapper with a bad message, what comes before the last good one is given with the
        wrapper's offset: a reader does not commit behind it.
        """
        data = wrapCompressed(GZIP, HELLO_1 * 3 + changed(HELLO_1, 14, b"0"))
        found = []
        with self.assertRaises(InvalidChecksumError):
            for each in MessageSet(data, 40).payloads():
                found.append(each)
        self.assertEqual(found, [(b"hello", 40)] * 2)


class PlainCheckTests(SynchronousTestCase):
    """The hot loop of producing: how far a run of sets is plain, whole and valid."""

    def test_counts(self) -> None:
        """Sets and messages are counted, over all sets that are good."""
        self.assertEqual(validatePlain([HELLO_1, HELLO_1 * 3, EMPTY_1], 1000), (3, 5))
        self.assertEqual(validatePlain([], 1000), (0, 0))

    def test_stopsBefore(self) -> None:
        """
        Anything else than plain whole sets of magic 1 stops it, and nothing of that set is counted.
        """
        wrapper = encodeSet(THREE, GZIP)
        for other in (
            b"",
            b"\x00",
            HELLO_1[:9],
            HELLO_1[:-1],
            HELLO_0,
            wrapper,
            HELLO_1 + HELLO_0,
            HELLO_1 + wrapper,
            HELLO_1 + HELLO_1[:9],
            HELLO_1 + HELLO_1[:14],
            HELLO_1 + b"\x00",
            changed(HELLO_1, 14, b"0"),
            HELLO_1 + changed(HELLO_1, 14, b"0"),
            changed(HELLO_1, 4, b"\x02"),
            changed(HELLO_1, 5, b"\xfc"),
            struct.pack(">iHI", 5, 0x100, 0),
            struct.pack(">iHI", -1, 0x100, 0) + bytes(20),
            struct.pack(">iHI", 2**31 - 1, 0x100, 0),
        ):
            self.assertEqual(
                validatePlain([HELLO_1, HELLO_1 * 2, other, HELLO_1], 1000), (2, 3), other
            )

    def test_payloadLimit(self) -> None:
        """
        A payload of exactly the limit is good, one byte more is not its business
        (LogTest.testMessageSizeCheck).
        """
        sets = [encodeMessage(payload) for payload in (b"You", b"bethe", b"change")]
        self.assertEqual(validatePlain(sets, 5), (2, 2))
        self.assertEqual(validatePlain(sets, 6), (3, 3))

    @given(st.lists(PAYLOADS.filter(bool), max_size=5), st.integers(0, 45))
    def test_agreesWithTheLongWay(self, payloads: list[list[bytes]], payloadSizeMax: int) -> None:
        """
        What the short way accepts is what the long way keeps whole, set by set, with the same
        count.
        """
        sets = [encodeSet(each) for each in payloads]
        limits = CheckLimits(payloadSizeMax=payloadSizeMax)
        good = 0
        for data in sets:
            try:
                validateSet(data, limits)
            except MessageTooLargeError:
                break
            good += 1
        self.assertEqual(
            validatePlain(sets, payloadSizeMax), (good, sum(map(len, payloads[:good])))
        )

    @given(st.integers(0, 2**32), PAYLOADS, CODECS, MAGICS)
    def test_neverAcceptsMore(
        self, seed: int, payloads: list[bytes], codec: int, magic: int
    ) -> None:
        """
        Of mutated sets it accepts only what the long way keeps whole and an independent reading
        finds valid.
        """
        mutator = Mutator(seed, [encodeSet(payloads, codec, magic)])
        for _ in range(5):
            messageCheck(mutator.garble(mutator.samples[0]))
            messageCheck(mutator.insideSet(mutator.samples[0]))


class CheckTests(SynchronousTestCase):
    """
    What a broker makes of a set: spec-0.7 wire-protocol §9, the rows that the format decides, and
    log-storage §3.
    """

    def kept(self, data: bytes, size: int, count: int, limits: CheckLimits = LIMITS) -> None:
        self.assertEqual(validateSet(data, limits), (size, count))

    def refused(
        self, data: bytes, error: type[FormatError], position: int = 0, limits: CheckLimits = LIMITS
    ) -> None:
        raised = self.assertRaises(error, validateSet, data, limits)
        self.assertEqual((type(raised), raised.position), (error, position))

    def test_empty(self) -> None:
        """An empty set, and one of 1 to 3 bytes, is accepted, and nothing of it kept."""
        for size in range(4):
            self.kept(b"\xff" * size, 0, 0)

    def test_good(self) -> None:
        """
        Messages of both magics, with unknown attribute bits, with empty payloads, are kept and
        counted.
        """
        data = (
            HELLO_1
            + HELLO_0
            + EMPTY_1
            + changed(EMPTY_1, 5, b"\xfc")
            + bytes.fromhex("000000050000000000")
        )
        self.kept(data, len(data), 5)

    def test_firstNotWhole(self) -> None:
        """A first entry that is not whole refuses the set."""
        self.refused(HELLO_1[:-1], InvalidMessageSizeError)
        self.refused(HELLO_1[:4], InvalidMessageSizeError)

    def test_trailingNotWhole(self) -> None:
        """An entry that is not whole behind complete ones is cut off, silently."""
        for size in range(len(HELLO_1)):
            self.kept(HELLO_0 + HELLO_1 + HELLO_1[:size], 29, 2)

    def test_sizes(self) -> None:
        """
        A negative size, or one too small for its header, refuses the set, good entries before it or
        not.
        """
        for size, magic in ((-1, 1), (-(2**31), 1), (0, 0), (4, 0), (5, 1)):
            bad = struct.pack(">iB", size, magic) + bytes(10)
            self.refused(bad, InvalidMessageSizeError)
            self.refused(HELLO_1 + bad, InvalidMessageSizeError, 15)

    def test_checksums(self) -> None:
        """A wrong checksum in any top-level or inner message refuses the set."""
        bad = changed(HELLO_1, 14, b"0")
        self.refused(bad, InvalidChecksumError)
        self.refused(HELLO_1 + bad, InvalidChecksumError, 15)
        self.refused(HELLO_1 + wrapCompressed(GZIP, HELLO_1 + bad), InvalidChecksumError, 15)
        self.refused(wrapCompressed(SNAPPY, wrapCompressed(GZIP, bad)), InvalidChecksumError)

    def test_unknown(self) -> None:
        """An unknown magic byte, an unknown codec, an undecodable payload refuses the set."""
        self.refused(HELLO_1 + changed(HELLO_1, 4, b"\x02"), UnknownMagicError, 15)
        self.refused(HELLO_1 + encodeMessage(b"x", codec=3), UnknownCodecError, 15)
        for codec in (GZIP, SNAPPY):
            self.refused(
                HELLO_1 + encodeMessage(b"\xff" * 20, codec=codec), CorruptCompressionError, 15
            )

    def test_payloadLimit(self) -> None:
        """
        A top-level payload over the limit is MessageTooLarge, exactly the limit is good; the header
        does not count, in neither magic.
        """
        limits = CheckLimits(payloadSizeMax=5)
        for magic in (0, 1):
            self.kept(encodeMessage(b"bethe", magic), 14 + magic, 1, limits)
            self.refused(encodeMessage(b"change", magic), MessageTooLargeError, 0, limits)

    def test_wrapperCountsAsOnePayload(self) -> None:
        """The limit is for the wrapper's payload; messages inside may be larger."""
        data = encodeSet([bytes(1_500_000)], GZIP)
        self.kept(data, len(data), 1)
        self.refused(
            encodeSet([b"tiny"], GZIP), MessageTooLargeError, 0, CheckLimits(payloadSizeMax=10)
        )

    def test_whicheverComesFirst(self) -> None:
        """
        Of a message that is too large and one that is corrupt, whichever comes first decides; what
        is inside wrappers is looked at last.
        """
        large, bad, limits = (
            encodeMessage(b"too large"),
            changed(HELLO_1, 14, b"0"),
            CheckLimits(payloadSizeMax=5),
        )
        self.refused(large + bad, MessageTooLargeError, 0, limits)
        self.refused(bad + large, InvalidChecksumError, 0, limits)
        # Corrupt in itself, too: it would be both.
        self.refused(changed(large, len(large) - 1, b"0"), InvalidChecksumError, 0, limits)
        wrapped = encodeMessage(b"\xff" * 3, codec=GZIP)
        self.refused(wrapped + large, MessageTooLargeError, len(wrapped), limits)

    def test_countsInside(self) -> None:
        """
        Messages inside wrappers are counted one by one, at every depth; wrappers themselves are
        not.
        """
        data = (
            HELLO_1
            + encodeSet(THREE, GZIP)
            + wrapCompressed(
                SNAPPY, HELLO_0 + encodeSet(THREE, SNAPPY, 0) + wrapCompressed(GZIP, HELLO_1)
            )
        )
        self.kept(data, len(data), 1 + 3 + 1 + 3 + 1)

    def test_emptyWrapper(self) -> None:
        """A wrapper without messages is kept, and counts none (gotcha 15 is about its bytes)."""
        data = encodeMessage(compress(GZIP, b""), codec=GZIP)
        self.kept(data, len(data), 0)

    @given(st.integers(0, 2**32), PAYLOADS, CODECS, MAGICS)
    def test_agreesWithTheJudge(
        self, seed: int, payloads: list[bytes], codec: int, magic: int
    ) -> None:
        """All readings of good sets, cut sets and mutated sets agree with an independent one."""
        data = encodeSet(payloads, codec, magic)
        mutator = Mutator(seed, [HELLO_1 + data + HELLO_0])
        messageSet(data)
        messageSet(data[: seed % (len(data) + 1)])
        for _ in range(3):
            messageSet(mutator.garble(mutator.samples[0]))
            messageSet(mutator.insideSet(mutator.samples[0]))


class LimitTests(SynchronousTestCase):
    """
    Opening is bounded in bytes and in depth, and nothing is allocated on the word of a size field.
    """

    def test_depth(self) -> None:
        """Wrappers nest as deep as the limit and no deeper, for a broker and for an application."""
        data = HELLO_1
        for depth in range(1, 7):
            data = wrapCompressed((GZIP, SNAPPY)[depth % 2], data)
            good, bad = CheckLimits(depthMax=depth), CheckLimits(depthMax=depth - 1)
            self.assertEqual(validateSet(data, good), (len(data), 1))
            self.assertEqual(deepOf(MessageSet(data, limits=good)), [(b"hello", len(data))])
            self.assertRaises(DecompressionLimitError, validateSet, data, bad)
            self.assertRaises(DecompressionLimitError, list, MessageSet(data, limits=bad))
            self.assertRaises(
                DecompressionLimitError, list, MessageSet(data, limits=bad).payloads()
            )

    def test_sizeOverAllDepths(self) -> None:
        """What is opened at all depths counts together."""
        inner = encodeSet([bytes(500)], GZIP)
        data = wrapCompressed(GZIP, inner)
        both = len(inner) + 510
        self.assertEqual(validateSet(data, CheckLimits(decompressedSizeMax=both)), (len(data), 1))
        self.assertRaises(
            DecompressionLimitError, validateSet, data, CheckLimits(decompressedSizeMax=both - 1)
        )
        self.assertEqual(
            len(list(MessageSet(data, limits=CheckLimits(decompressedSizeMax=both)))), 1
        )
        self.assertRaises(
            DecompressionLimitError,
            list,
            MessageSet(data, limits=CheckLimits(decompressedSizeMax=both - 1)),
        )

    def test_sizeOverAllWrappersOfASet(self) -> None:
        """A broker counts all wrappers of a set together; the one that goes over is named."""
        one = encodeSet([bytes(90)], SNAPPY)
        self.assertEqual(
            validateSet(one * 3, CheckLimits(decompressedSizeMax=300)), (3 * len(one), 3)
        )
        raised = self.assertRaises(
            DecompressionLimitError, validateSet, one * 3, CheckLimits(decompressedSizeMax=299)
        )
        self.assertEqual(raised.position, 2 * len(one))

    def test_applicationOpensOneAfterTheOther(self) -> None:
        """
        An application that iterates has one top-level wrapper open at a time, and the limit is for
        each.
        """
        one = encodeSet([bytes(90)], SNAPPY)
        self.assertEqual(
            len(list(MessageSet(one * 3, limits=CheckLimits(decompressedSizeMax=100)))), 3
        )

    def test_compressedSize(self) -> None:
        """
        A compressed payload over its own limit is not opened at all: the caller may have it done
        elsewhere.
        """
        data = encodeMessage(b"not even gzip", codec=GZIP)
        self.assertRaises(
            DecompressionLimitError, validateSet, data, CheckLimits(compressedSizeMax=12)
        )
        self.assertRaises(
            CorruptCompressionError, validateSet, data, CheckLimits(compressedSizeMax=13)
        )

    def test_bombsInsideOneAnother(self) -> None:
        """Bombs inside one another allocate little more than the limit before they are refused."""
        data = encodeMessage(bytes(32 << 20))
        for _ in range(3):
            data = wrapCompressed(GZIP, data)
        limits = CheckLimits(decompressedSizeMax=1 << 20)
        tracemalloc.start()
        try:
            self.assertRaises(DecompressionLimitError, validateSet, data, limits)
            self.assertRaises(DecompressionLimitError, list, MessageSet(data, limits=limits))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 4 << 20)

    def test_sizeFieldsAllocateNothing(self) -> None:
        """
        Entries that announce up to 2 GiB, outside and inside wrappers, allocate less than 64 KiB.
        """
        announced = [
            struct.pack(">i", size) + HELLO_1[4:] for size in (2**31 - 1, 2**30, 2**24, 100_000)
        ]
        sets = list(
            chain.from_iterable(
                (
                    bad,
                    HELLO_1 + bad,
                    wrapCompressed(GZIP, bad),
                    wrapCompressed(SNAPPY, HELLO_1 + bad),
                )
                for bad in announced
            )
        )
        tracemalloc.start()
        try:
            for data in sets:
                for reading in (
                    lambda data=data: validateSet(data, LIMITS),
                    lambda data=data: validatePlain([data], 100),
                    MessageSet(data).payloads,
                ):
                    try:
                        list(reading())
                    except FormatError:
                        pass
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 1 << 16)


class MessageSetTests(SynchronousTestCase):
    """What a fetch returned, for the application."""

    @given(PAYLOADS, CODECS, MAGICS)
    def test_writtenEqualsRead(self, payloads: list[bytes], codec: int, magic: int) -> None:
        """
        What was written is read, by each way of reading (BaseMessageSet.testWrittenEqualsRead).
        """
        messages = MessageSet(encodeSet(payloads, codec, magic))
        self.assertEqual([each.message.payload for each in messages], payloads)
        self.assertEqual([payload for payload, _ in messages.payloads()], payloads)
        self.assertEqual({each.message.magic for each in messages}, {magic} if payloads else set())

    @given(PAYLOADS, CODECS)
    def test_iteratorIsConsistent(self, payloads: list[bytes], codec: int) -> None:
        """
        Iterating twice, and at the same time, gives the same
        (BaseMessageSet.testIteratorIsConsistent, ByteBufferMessageSetTest.testIterator).
        """
        messages = MessageSet(encodeSet(payloads, codec), 10)
        self.assertEqual(list(messages), list(messages))
        self.assertTrue(all(one == other for one, other in zip(messages, messages, strict=True)))
        self.assertEqual(list(messages.payloads()), deepOf(messages))

    def test_sizeInBytes(self) -> None:
        """The size is the sum of the entries, 0 for none (BaseMessageSet.testSizeInBytes)."""
        self.assertEqual(MessageSet(b"").sizeInBytes, 0)
        self.assertEqual(
            MessageSet(encodeSet(THREE)).sizeInBytes, sum(10 + len(each) for each in THREE)
        )

    def test_dataAreTheBytes(self) -> None:
        """
        The bytes are those that came, to be written elsewhere as they are
        (BaseMessageSet.testWriteTo).
        """
        data = encodeSet(THREE, GZIP) + HELLO_1[:7]
        self.assertIs(MessageSet(data).data, data)

    def test_smallFetchSize(self) -> None:
        """
        A buffer cut inside its first entry raises InvalidMessageSize
        (ByteBufferMessageSetTest.testSmallFetchSize).
        """
        data = encodeSet(THREE)
        for size in range(4, 13):
            self.assertRaises(InvalidMessageSizeError, list, MessageSet(data[:size]))
            self.assertRaises(
                InvalidMessageSizeError, getattr, MessageSet(data[:size]), "validSize"
            )

    def test_validBytes(self) -> None:
        """
        Two trailing bytes of garbage do not change the valid size; of an empty set it is 0
        (ByteBufferMessageSetTest.testValidBytes).
        """
        data = encodeSet(THREE)
        self.assertEqual(MessageSet(data + b"\x00\x02").validSize, len(data))
        self.assertEqual(MessageSet(b"").validSize, 0)

    def test_validSizeOpensNothing(self) -> None:
        """The valid size of a wrapper that cannot be opened is its size."""
        data = encodeMessage(b"no gzip", codec=GZIP)
        self.assertEqual(MessageSet(data + HELLO_1).validSize, len(data) + 15)

    def test_equals(self) -> None:
        """
        Sets of equal messages are equal, compressed or not, wherever they were fetched
        (ByteBufferMessageSetTest.testEquals).
        """
        for codec in (NONE, GZIP, SNAPPY):
            self.assertEqual(
                MessageSet(encodeSet(THREE, codec)), MessageSet(encodeSet(THREE, codec))
            )
            self.assertEqual(MessageSet(encodeSet(THREE, codec)), MessageSet(encodeSet(THREE), 500))
            self.assertNotEqual(
                MessageSet(encodeSet(THREE, codec)), MessageSet(encodeSet(THREE[:2], codec))
            )
        self.assertNotEqual(MessageSet(encodeSet(THREE)), MessageSet(encodeSet(THREE, magic=0)))
        self.assertEqual(MessageSet(HELLO_1), MessageSet(HELLO_1 + HELLO_1[:6]))

    def test_otherThings(self) -> None:
        """
        A set is equal to no other thing, and cannot be hashed, since it is compared by its
        messages.
        """
        self.assertNotEqual(MessageSet(b""), [])
        self.assertNotEqual(MessageSet(HELLO_1), HELLO_1)
        self.assertRaises(TypeError, hash, MessageSet(b""))

    def test_iterator(self) -> None:
        """
        Plain, compressed and mixed sets with empty ones among them: the same messages, the last
        offset is the total size, and shallow offsets are among the deep ones
        (ByteBufferMessageSetTest.testIterator).
        """
        empty = encodeMessage(compress(GZIP, b""), codec=GZIP)
        plain, packed = encodeSet(THREE), encodeSet(THREE, GZIP)
        for data, count in (
            (plain, 1),
            (packed, 1),
            (empty + plain + empty + packed, 2),
            (packed + encodeSet([]) + plain, 2),
        ):
            messages = MessageSet(data)
            deep = deepOf(messages)
            self.assertEqual([payload for payload, _ in deep], THREE * count)
            self.assertEqual(deep[-1][1], len(data))
            self.assertEqual(messages.nextOffset, len(data))
            offsets = {offset for _, offset in deep}
            unfilled = {len(empty), len(empty + plain + empty)}
            self.assertEqual(
                {each.nextOffset for each in messages.shallow()} - offsets - unfilled, set()
            )

    def test_lazy(self) -> None:
        """
        Nothing is decoded before it is asked for: a bad third entry is met when the third is taken,
        by each way of reading.
        """
        data = HELLO_1 + HELLO_1 + changed(HELLO_1, 14, b"0")
        for iterator in (
            iter(MessageSet(data)),
            MessageSet(data).payloads(),
            MessageSet(data).shallow(),
        ):
            next(iterator)
            next(iterator)
            self.assertRaises(InvalidChecksumError, next, iterator)

    def test_repr(self) -> None:
        """A log line shows size and offset, and the error if there is one."""
        self.assertEqual(repr(MessageSet(HELLO_1, 30)), "<MessageSet 15 bytes at 30>")
        self.assertEqual(
            repr(MessageSet(b"", 30, RemoteError("no"))), "<MessageSet 0 bytes at 30, no>"
        )

    def test_error(self) -> None:
        """The error that a set stands for is the one that is raised, and is there to look at."""
        error = RemoteError("why")
        messages = MessageSet(b"", 0, error)
        self.assertIs(messages.error, error)
        self.assertIs(self.assertRaises(RemoteError, list, messages), error)

    def test_smallTails(self) -> None:
        """
        An empty message of magic 0, the only whole entry of less than ten bytes, is read at a set's
        end, too, and so is a fault there.
        """
        empty = bytes.fromhex("000000050000000000")
        for before in (b"", HELLO_1):
            for count in (1, 2):
                data = before + empty * count
                self.assertEqual(list(MessageSet(data).payloads()), deepOf(MessageSet(data)))
                self.assertEqual(len(deepOf(MessageSet(data))), count + bool(before))
            self.assertRaises(
                InvalidChecksumError, list, MessageSet(before + empty[:-1] + b"\x01").payloads()
            )


class CompressionScenarioTests(SynchronousTestCase):
    """CompressionUtilTest and its relatives."""

    def test_gzip(self) -> None:
        """
        Three messages in a gzip wrapper come back
        (CompressionUtilTest.testSimpleCompressDecompress).
        """
        self.assertEqual(
            [payload for payload, _ in MessageSet(encodeSet(THREE, GZIP)).payloads()], THREE
        )

    def test_snappy(self) -> None:
        """
        Three messages in a snappy wrapper come back
        (CompressionUtilTest.testSnappyCompressDecompressExplicit).
        """
        self.assertEqual(
            [payload for payload, _ in MessageSet(encodeSet(THREE, SNAPPY)).payloads()], THREE
        )

    def test_nestedAndPlain(self) -> None:
        """
        A compressed and a plain message inside a compressed one flatten to all three
        (CompressionUtilTest.testComplexCompressDecompress).
        """
        data = wrapCompressed(GZIP, encodeSet(THREE[:2], GZIP) + encodeMessage(THREE[2]))
        self.assertEqual([payload for payload, _ in MessageSet(data).payloads()], THREE)

    def test_rawSnappyBlock(self) -> None:
        """A wrapper whose payload is one raw snappy block is read, too."""
        inner = encodeSet([b"raw"])
        data = encodeMessage(bytes((len(inner), (len(inner) - 1) << 2)) + inner, codec=SNAPPY)
        self.assertEqual(deepOf(MessageSet(data)), [(b"raw", len(data))])

    def test_protocolVersion0(self) -> None:
        """
        10900 bytes of 100 magic-0 entries of 100 × x each yield 100 messages
        (BackwardsCompatibilityTest.testProtocolVersion0).
        """
        data = encodeSet([b"x" * 100] * 100, magic=0)
        self.assertEqual(len(data), 10900)
        self.assertEqual(data, (bytes.fromhex("00000069005e0e5d8f") + b"x" * 100) * 100)
        self.assertEqual(validateSet(data, LIMITS), (10900, 100))
        messages = list(MessageSet(data))
        self.assertEqual(
            {each.message for each in messages}, {Message(b"x" * 100, 0, 0, 0x5E0E5D8F)}
        )
        self.assertEqual([each.nextOffset for each in messages], list(range(109, 10901, 109)))

    def test_sizeOverwritten(self) -> None:
        """
        A first size field overwritten with 1000 raises InvalidMessageSize, and does so again
        (LogCorruptionTest.testMessageSizeTooLarge).
        """
        messages = MessageSet(changed(encodeSet(THREE), 0, struct.pack(">i", 1000)))
        for _ in range(2):
            for read in READINGS.values():
                self.assertRaises(InvalidMessageSizeError, read, messages)


class GoldenTests(SynchronousTestCase):
    """What real 0.7.2 software wrote and sent, with crcmod as the judge of its checksums."""

    def test_segment(self) -> None:
        """
        The segment file of 0.7.2 reads to its end, and crcmod finds every checksum in it right,
        inside wrappers, too.
        """
        data = golden.segment()
        entries = list(judge.entries(data))
        self.assertEqual(entries[-1].end, len(data))
        expected = [
            (seen.payload, seen.magic, seen.attributes, seen.checksum, seen.end) for seen in entries
        ]
        self.assertEqual(
            [(*each.message, each.nextOffset) for each in MessageSet(data).shallow()], expected
        )
        self.assertEqual(deepOf(MessageSet(data)), list(judge.deep(data, 1 << 30, 100)))

    def test_everyRecordedSet(self) -> None:
        """Every recorded message set, good or bad, reads as the judge reads it."""
        sets = golden.messageSets()
        self.assertGreater(len(sets), 40)
        for data in sets:
            messageSet(data)

    def test_recordedAnswers(self) -> None:
        """
        crcmod finds the checksums right in every recorded answer to a fetch that began at an entry,
        and so do we.
        """
        count = 0
        for case in golden.cases():
            if "fetch" not in case["name"] or "mid_message" in case["name"]:
                continue
            for body in golden.frames(bytes.fromhex(case["response"])):
                sets = (
                    [part[2:] for part in golden.frames(body[2:])]
                    if case["name"].startswith("multifetch")
                    else [body[2:]]
                )
                for data in sets:
                    try:
                        entries = list(judge.entries(data))
                    except judge.RefusedError as refused:
                        self.assertIs(refused.error, InvalidMessageSizeError, case["name"])
                        self.assertRaises(InvalidMessageSizeError, list, MessageSet(data))
                        continue
                    count += len(entries)
                    self.assertEqual(
                        [each.message.checksum for each in MessageSet(data).shallow()],
                        [judge.crc32(each.payload) for each in entries],
                    )
        self.assertGreater(count, 25)

    def test_clients(self) -> None:
        """
        What 0.7.2's performance producer sent is accepted whole, and each of its messages is found.
        """
        counts = {}
        for name, stream in golden.requests():
            if name.endswith(".hex"):
                (body,) = golden.frames(stream)
                (data,) = golden.setsIn(body)
                checked = validateSet(data, LIMITS)
                self.assertEqual(checked[0], len(data))
                counts[name.split(".")[0]] = checked[1]
        self.assertEqual(
            counts,
            {
                "prodperf-async-c0-b3-1": 3,
                "prodperf-sync-c0-b3-1": 3,
                "prodperf-sync-gzip-b3-1": 3,
                "prodperf-sync-snappy-b200-0": 400,
                "prodperf-sync-snappy-b3-1": 3,
            },
        )


class CompleteEntriesTests(SynchronousTestCase):
    """What a fetcher asks of a fetched set."""

    def test_cuts(self) -> None:
        """
        Wherever a set is cut, its complete entries are counted, and the cut one is left in it.
        """
        first = encodeMessage(b"first")
        data = encodeSet([b"a", b"bc", b""])
        ends = [0, 11, 23, 33]
        for cut in range(len(data) + 1):
            messages = MessageSet(first + data[:cut], 1000)
            size = len(first) + max(end for end in ends if end <= cut)
            self.assertEqual(messages.complete(), (messages, size, 1000 + size))
            self.assertIs(messages.complete().messages, messages)

    def test_garbage(self) -> None:
        """A size field that cannot be one ends the count, and the set."""
        good = encodeMessage(b"a")
        for size in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\4"):
            found = MessageSet(good + size + b"\0" * 20, 7).complete()
            self.assertEqual((found.messages.data, found.messages.baseOffset), (good, 7))
            self.assertEqual((found.size, found.nextOffset), (11, 18))

    def test_onlyTheFirstIsChecked(self) -> None:
        """
        A first entry that is cut or bad is an error; the checksums of the others are not looked at.
        """
        good = encodeMessage(b"a")
        bad = good[:-1] + b"?"
        self.assertEqual(MessageSet(good + bad).complete().size, 22)
        self.assertRaises(InvalidChecksumError, MessageSet(bad + good).complete)
        for cut in range(len(good)):
            self.assertRaises(InvalidMessageSizeError, MessageSet(good[:cut]).complete)

    def test_cutEntry(self) -> None:
        """
        A cut first entry says how many bytes it takes; what is complete, or cannot be an entry,
        does not.
        """
        good = encodeMessage(b"a")
        for cut in range(len(good)):
            self.assertEqual(MessageSet(good[:cut]).cutEntrySize, 11 if cut >= 4 else 9)
        for data in (good, good[:-1] + b"?", b"\0\0\0\x20\2", b"\0\0\0\x20\1\3", b"\0\0\0\4"):
            self.assertEqual(MessageSet(data).cutEntrySize, 0, data)

    def test_corruptEntry(self) -> None:
        """
        A wrong checksum is an entry gone bad if its size leads to another one, over others like it,
        or to the end; otherwise it is none.
        """
        good = encodeMessage(b"a")
        bad = good[:-1] + b"?"
        for data in (bad, bad + good, bad + bad + good, bad + good[:5], bad + bad[:3]):
            self.assertTrue(MessageSet(data).isCorruptEntry, data)
        for data in (b"", good, good + bad, good[:5], bad + b"\0" * 20, bad + good[:4] + b"\2"):
            self.assertFalse(MessageSet(data).isCorruptEntry, data)
