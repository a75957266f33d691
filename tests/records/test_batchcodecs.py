"""
Tests of the codecs that record batches add, lz4 and zstd, in L{pylogbroker.records.compression}.
"""

from __future__ import annotations

import random
import struct
import tracemalloc

import cramjam
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptCompressionError, DecompressionLimitError
from pylogbroker.records.compression import LZ4, ZSTD, compress, decompress

PLENTY = 1 << 20
MIB = 1 << 20
NOISE = random.Random(3).randbytes(100_000)
TEXT = b"a line of text that comes again and again, " * 5000


def lz4Frame(*blocks: bytes, flags: int = 0x60, size: int = 0x40, more: bytes = b"") -> bytes:
    """A frame of blocks as they are, each with its size; the header's checksum is not made."""
    return (
        b"\x04\x22\x4d\x18"
        + bytes((flags, size))
        + more
        + b"\0"
        + b"".join(struct.pack("<I", len(block)) + block for block in blocks)
        + bytes(4)
    )


def zstdFrame(*blocks: tuple[int, int, bytes], header: bytes = b"\0\x58") -> bytes:
    """Blocks of (kind, size, bytes). The header is flags and window: 2 MiB unless told."""
    last = len(blocks) - 1
    return (
        b"\x28\xb5\x2f\xfd"
        + header
        + b"".join(
            (int(index == last) | kind << 1 | size << 3).to_bytes(3, "little") + data
            for index, (kind, size, data) in enumerate(blocks)
        )
    )


class CodecTests(SynchronousTestCase):
    """What both have in common."""

    def test_roundTrip(self) -> None:
        """Nothing, text, noise that cannot be compressed, with every level."""
        for codec in (LZ4, ZSTD):
            for data in (b"", b"x", TEXT, NOISE, NOISE[:50] * 9000):
                for level in (None, 1, 9):
                    packed = compress(codec, data, level)
                    self.assertEqual(decompress(codec, packed, PLENTY), data)
                    self.assertLess(len(packed), len(data) + 100)

    def test_limit(self) -> None:
        """Exactly the limit comes out; one byte over it is refused."""
        for codec in (LZ4, ZSTD):
            for data in (TEXT, NOISE):
                packed = compress(codec, data)
                self.assertEqual(decompress(codec, packed, len(data)), data)
                self.assertRaises(DecompressionLimitError, decompress, codec, packed, len(data) - 1)

    def test_cut(self) -> None:
        """Data that end too soon are corrupt, wherever they end; so are none at all."""
        for codec in (LZ4, ZSTD):
            packed = compress(codec, b"hello, hello, hello, hello" + NOISE[:90])
            for size in range(len(packed)):
                self.assertRaises(CorruptCompressionError, decompress, codec, packed[:size], PLENTY)

    def test_mutated(self) -> None:
        """Mutated data give errors of ours, or data."""
        chance = random.Random(11)
        for codec in (LZ4, ZSTD):
            packed = compress(codec, TEXT[:3000] + NOISE[:300])
            for _ in range(500):
                bad = bytearray(packed)
                bad[chance.randrange(len(bad))] = chance.randrange(256)
                try:
                    self.assertLessEqual(len(decompress(codec, bytes(bad), PLENTY)), PLENTY)
                except (CorruptCompressionError, DecompressionLimitError):
                    pass

    def test_bombs(self) -> None:
        """What opens to 64 MiB allocates, before it is refused, what the limit needs."""
        for codec in (LZ4, ZSTD):
            bomb = compress(codec, bytes(64 * MIB))
            tracemalloc.start()
            try:
                self.assertRaises(DecompressionLimitError, decompress, codec, bomb, MIB)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            self.assertLess(peak, 3 * MIB)


class Lz4Tests(SynchronousTestCase):
    """Frames of lz4."""

    def test_otherFrames(self) -> None:
        """Frames of other writers: linked blocks, checksums, other block sizes, stored blocks."""
        for data in (TEXT, NOISE):
            self.assertEqual(decompress(LZ4, bytes(cramjam.lz4.compress(data)), PLENTY), data)

    def test_junkBehind(self) -> None:
        """What is behind the first frame is ignored, as by Java."""
        self.assertEqual(decompress(LZ4, compress(LZ4, b"first") + b"junk", PLENTY), b"first")

    def test_headers(self) -> None:
        """Another magic, version or block size; a frame whose fields are cut."""
        for bad, reason in (
            (b"\x05" + lz4Frame()[1:], "no lz4 frame"),
            (lz4Frame(flags=0x20), "flags 0x20"),
            (lz4Frame(size=0x30), "size 3"),
            (lz4Frame()[:5], "cut"),
            (lz4Frame(flags=0x69, more=bytes(12))[:-1], "cut"),
            (lz4Frame(b"1234", flags=0x74)[:-1], "cut"),
            (lz4Frame(*[b"x"] * 70_000), "more than 65536 blocks"),
            (lz4Frame(b"1234"), "cannot be decompressed"),
        ):
            error = self.assertRaises(CorruptCompressionError, decompress, LZ4, bad, PLENTY)
            self.assertIn(reason, str(error))


class ZstdTests(SynchronousTestCase):
    """Frames of zstd."""

    def test_frames(self) -> None:
        """Concatenated and skippable frames, stored and repeated blocks, no content size."""
        skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
        made = zstdFrame((0, 3, b"abc"), (1, 5, b"x"), (0, 0, b""))
        packed = compress(ZSTD, b"one") + skippable + made
        self.assertEqual(decompress(ZSTD, packed, PLENTY), b"oneabcxxxxx")
        checked = bytes(cramjam.zstd.compress(TEXT))
        self.assertEqual(decompress(ZSTD, checked, PLENTY), TEXT)

    def test_windows(self) -> None:
        """A window above 8 MiB and the limit is refused, before anything is allocated."""
        block = (0, 3, b"abc")
        self.assertEqual(decompress(ZSTD, zstdFrame(block, header=b"\0\x68"), 100), b"abc")
        for header in (b"\0\x70", b"\0\xff", b"\xa0" + struct.pack("<I", 1 << 30)):
            bad = zstdFrame(block, header=header)
            self.assertRaises(DecompressionLimitError, decompress, ZSTD, bad, 100)
        self.assertEqual(decompress(ZSTD, zstdFrame(block, header=b"\0\x70"), 16 * MIB), b"abc")

    def test_limits(self) -> None:
        """No frame; more frames or blocks than are walked; a block of the kind that is reserved."""
        for bad, reason in (
            (b"1234", "no zstd frame"),
            (compress(ZSTD, b"x") * 17, "more than 16 frames"),
            (zstdFrame(*[(0, 0, b"")] * 70_000), "more than 65536 blocks"),
            (zstdFrame((3, 4, b"1234")), "cannot be decompressed"),
            (zstdFrame((0, 3, b"abc"), header=b"\4\x58"), "cannot be decompressed"),
        ):
            error = self.assertRaises(CorruptCompressionError, decompress, ZSTD, bad, PLENTY)
            self.assertIn(reason, str(error))
