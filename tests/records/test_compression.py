"""
Tests of the codecs.
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptCompressionError, DecompressionLimitError, UnknownCodecError
from pylogbroker.records.compression import (
    CODEC_NAMES,
    GZIP,
    NONE,
    SNAPPY,
    codecByName,
    compress,
    decompress,
)
from tests.fuzz import judge

ROOT = Path(__file__).resolve().parent.parent.parent
PLENTY = 1 << 20
STREAM_HEAD = bytes.fromhex("82534e41505059000000000100000001")
MIB = 1 << 20


def stream(*blocks: bytes, version: int = 1) -> bytes:
    """A snappy-java stream of raw blocks."""
    return (
        STREAM_HEAD[:8]
        + struct.pack(">ii", version, 1)
        + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    )


def literal(data: bytes) -> bytes:
    """A raw snappy block of at most 60 bytes, not compressed at all."""
    return bytes((len(data), (len(data) - 1) << 2)) + data


class NameTests(SynchronousTestCase):
    """Codecs by number and by name."""

    def test_numbersAndNames(self) -> None:
        """A codec is found by its name, and by its number as text."""
        self.assertEqual(
            {
                number: (codecByName(name), codecByName(str(number)))
                for number, name in CODEC_NAMES.items()
            },
            {0: (0, 0), 1: (1, 1), 2: (2, 2)},
        )
        self.assertEqual(CODEC_NAMES, {NONE: "none", GZIP: "gzip", SNAPPY: "snappy"})

    def test_unknownName(self) -> None:
        """Any other name is an error that says which there are."""
        for name in ("", "GZIP", "3", "-1", "lz4"):
            self.assertIn(
                "none, gzip, snappy", str(self.assertRaises(UnknownCodecError, codecByName, name))
            )

    def test_unknownNumber(self) -> None:
        """
        Codec 5 can neither be written nor read; codec 0 is no compression that could be opened.
        """
        for codec in (5, 7, -1):
            self.assertRaises(UnknownCodecError, compress, codec, b"x")
        for codec in (NONE, 5, 7):
            self.assertRaises(UnknownCodecError, decompress, codec, b"x", PLENTY)


class RoundTripTests(SynchronousTestCase):
    """What is compressed comes back."""

    @given(
        st.sampled_from((GZIP, SNAPPY)),
        st.one_of(st.binary(max_size=300), st.binary(max_size=9).map(lambda data: data * 9000)),
    )
    def test_comesBack(self, codec: int, data: bytes) -> None:
        """
        Ours and an independent reader open what was compressed to the same, within a limit of
        exactly its size.
        """
        packed = compress(codec, data)
        self.assertEqual(decompress(codec, packed, len(data)), data)
        self.assertEqual(judge.gunzip(packed) if codec == GZIP else judge.unsnappy(packed), data)

    def test_noneIsTheDataItself(self) -> None:
        """Codec 0 copies nothing."""
        data = b"as it is"
        self.assertIs(compress(NONE, data), data)


class GzipTests(SynchronousTestCase):
    """Codec 1, with the leniency of Java's reader (spec-0.7 wire-protocol §5.4)."""

    def test_isOneStandardMember(self) -> None:
        """What is written is one member that any gzip reader opens."""
        packed = compress(GZIP, b"hello" * 50)
        self.assertEqual(gzip.decompress(packed), b"hello" * 50)
        member = zlib.decompressobj(31)
        member.decompress(packed)
        self.assertEqual((member.eof, member.unused_data), (True, b""))

    def test_trailingJunkIsIgnored(self) -> None:
        """What stands behind a good member and is none is ignored."""
        for junk in (b"\x00", b"junk", b"\x1f\x8b", gzip.compress(b"cut")[:-1]):
            self.assertEqual(decompress(GZIP, gzip.compress(b"good") + junk, PLENTY), b"good")

    def test_furtherMembersAreRead(self) -> None:
        """A concatenated second member is decoded behind the first."""
        self.assertEqual(
            decompress(GZIP, gzip.compress(b"one ") + gzip.compress(b"two") + b"junk", PLENTY),
            b"one two",
        )

    def test_memberCountHasALimit(self) -> None:
        """
        Sixteen members are opened; for one more, each of which would cost a copy of what is left,
        the data are corrupt.
        """
        member = gzip.compress(b"x")
        self.assertEqual(decompress(GZIP, member * 16, PLENTY), b"x" * 16)
        self.assertRaises(CorruptCompressionError, decompress, GZIP, member * 17, PLENTY)

    def test_truncatedOrEmpty(self) -> None:
        """Data that end too soon are corrupt wherever they end; so are none at all."""
        packed = gzip.compress(b"hello, hello, hello")
        for size in range(len(packed)):
            self.assertRaises(CorruptCompressionError, decompress, GZIP, packed[:size], PLENTY)

    def test_garbled(self) -> None:
        """No gzip header, and a wrong checksum inside the gzip data, are corrupt."""
        packed = bytearray(gzip.compress(b"hello"))
        packed[-5] ^= 1
        for data in (b"not gzip at all", bytes(packed)):
            self.assertRaises(CorruptCompressionError, decompress, GZIP, data, PLENTY)

    def test_limit(self) -> None:
        """
        Exactly the limit comes out; one byte over it is refused, also when the second member passes
        it.
        """
        packed = gzip.compress(b"x" * 100)
        self.assertEqual(len(decompress(GZIP, packed, 100)), 100)
        self.assertRaises(DecompressionLimitError, decompress, GZIP, packed, 99)
        self.assertEqual(len(decompress(GZIP, packed * 2, 200)), 200)
        self.assertRaises(DecompressionLimitError, decompress, GZIP, packed * 2, 199)
        self.assertRaises(DecompressionLimitError, decompress, GZIP, packed, 0)
        self.assertEqual(decompress(GZIP, gzip.compress(b""), 0), b"")

    def test_bombAllocatesItsLimit(self) -> None:
        """
        A few kilobytes that open to 64 MiB allocate, before they are refused, what the limit of 1
        MiB needs and no more.
        """
        bomb = gzip.compress(bytes(64 * MIB), 9)
        tracemalloc.start()
        try:
            self.assertRaises(DecompressionLimitError, decompress, GZIP, bomb, MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 3 * MIB)


class SnappyTests(SynchronousTestCase):
    """
    Codec 2: snappy-java's stream is written; that, and a raw block, are read (spec-0.7
    wire-protocol §5.4).
    """

    def test_writesTheStream(self) -> None:
        """The magic bytes, version 1 twice, then blocks of 32 KiB each with its size."""
        data = bytes(range(256)) * 400
        packed = compress(SNAPPY, data)
        self.assertEqual(packed[:16], STREAM_HEAD)
        at, opened = 16, []
        while at < len(packed):
            (size,) = struct.unpack_from(">i", packed, at)
            opened.append(judge.unsnappyBlock(packed[at + 4 : at + 4 + size]))
            at += 4 + size
        self.assertEqual(b"".join(opened), data)
        self.assertEqual([len(each) for each in opened], [32768, 32768, 32768, 4096])

    def test_nothing(self) -> None:
        """
        No data are a stream without blocks, and open to none; so does a raw block that announces
        nothing.
        """
        self.assertEqual(compress(SNAPPY, b""), STREAM_HEAD)
        self.assertEqual(decompress(SNAPPY, STREAM_HEAD, 0), b"")
        self.assertEqual(decompress(SNAPPY, b"\x00", 0), b"")

    def test_anyBlockSize(self) -> None:
        """Blocks may be of any size, one by one."""
        self.assertEqual(
            decompress(SNAPPY, stream(literal(b"a"), literal(b"bc"), literal(b"d" * 60)), PLENTY),
            b"abc" + b"d" * 60,
        )

    def test_rawBlock(self) -> None:
        """A payload that does not begin with the magic bytes is one raw block."""
        self.assertEqual(decompress(SNAPPY, literal(b"raw"), PLENTY), b"raw")

    def test_rawBlockThatBeginsLikeAStream(self) -> None:
        """
        A first byte 0x82 without the other magic bytes is a raw block; so is anything of fewer than
        16 bytes.
        """
        data = b"y" * 130
        block = b"\x82\x01" + bytes((60 << 2, 129)) + data
        self.assertEqual(decompress(SNAPPY, block, PLENTY), data)
        self.assertRaises(CorruptCompressionError, decompress, SNAPPY, STREAM_HEAD[:15], PLENTY)

    def test_versions(self) -> None:
        """Version 1 and later are read, as by snappy-java; an earlier one is corrupt."""
        self.assertEqual(decompress(SNAPPY, stream(literal(b"v"), version=2), PLENTY), b"v")
        for version in (0, -1):
            self.assertRaises(
                CorruptCompressionError,
                decompress,
                SNAPPY,
                stream(literal(b"v"), version=version),
                PLENTY,
            )

    def test_brokenStream(self) -> None:
        """A cut or negative block size, a block that is not whole or empty: corrupt."""
        good = stream(literal(b"abc"))
        for tail in (
            b"\x00",
            b"\x00\x00\x00",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x05abcd",
            b"\x7f\xff\xff\xff",
            b"\x00\x00\x00\x00",
        ):
            self.assertRaises(CorruptCompressionError, decompress, SNAPPY, good + tail, PLENTY)

    def test_brokenBlock(self) -> None:
        """
        No size, a size of more than five bytes, a copy from before the start, fewer bytes than
        announced: corrupt.
        """
        for block in (
            b"",
            b"\x80",
            b"\x80\x80\x80\x80\x80",
            b"\x04\x01\x01",
            b"\x05\x00a",
            b"\x02\x04abc",
        ):
            self.assertRaises(CorruptCompressionError, decompress, SNAPPY, block, PLENTY)

    def test_impossibleClaim(self) -> None:
        """
        A block that claims more than its bytes can possibly open to is corrupt, and is not opened,
        whatever the limit.
        """
        self.assertIn(
            "claims",
            str(
                self.assertRaises(
                    CorruptCompressionError, decompress, SNAPPY, b"\xff\xff\xff\xff\x07\x00a", 2**31
                )
            ),
        )

    def test_densestBlockIsOpened(self) -> None:
        """The densest block that there can be, copies of 64 bytes in 3, is no impossible claim."""
        count = 4000
        block = b"\x81\xd0\x0f" + b"\x00a" + b"\xfe\x01\x00" * count
        self.assertEqual(decompress(SNAPPY, block, PLENTY), b"a" * (1 + 64 * count))

    def test_limit(self) -> None:
        """Exactly the limit comes out, over all blocks together; one byte over it is refused."""
        packed = stream(literal(b"a" * 50), literal(b"b" * 50))
        self.assertEqual(len(decompress(SNAPPY, packed, 100)), 100)
        self.assertRaises(DecompressionLimitError, decompress, SNAPPY, packed, 99)
        self.assertRaises(DecompressionLimitError, decompress, SNAPPY, literal(b"abc"), 2)


class BombTests(SynchronousTestCase):
    """What a native library allocates is seen by the system alone."""

    def test_bombsStaySmall(self) -> None:
        """
        Blocks of 12 MiB that announce, truthfully, 256 MiB make the process grow by less than 8 MiB
        under a limit of 1 MiB, raw and in a stream.
        """
        code = """
import resource, struct
from pylogbroker.errors import DecompressionLimitError
from pylogbroker.records.compression import GZIP, SNAPPY, decompress

count = 4 << 20
size, announced = 1 + 64 * count, b""
while size >= 128:
    announced, size = announced + bytes((size & 127 | 128,)), size >> 7
block = announced + bytes((size,)) + b"\\x00a" + b"\\xfe\\x01\\x00" * count
stream = b"\\x82SNAPPY\\x00" + struct.pack(">iii", 1, 1, len(block)) + block
block + block  # room for copies of it
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for data in (block, stream):
    try:
        decompress(SNAPPY, data, 1 << 20)
    except DecompressionLimitError:
        print("refused")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        self.assertEqual(out[:2], ["refused", "refused"])
        self.assertLess(int(out[2]), 8 << 10)
