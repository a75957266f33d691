"""
Tests of the checksum.
"""

from __future__ import annotations

import json
import zlib

from crcmod.predefined import mkPredefinedCrcFun
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.records import compression
from pylogbroker.records.compression import crc32, firstModule

judge = mkPredefinedCrcFun("crc-32")


class ChecksumTests(SynchronousTestCase):
    """CRC-32 as zlib has it (spec-0.7 wire-protocol §5.3)."""

    def test_vectors(self) -> None:
        """The checksums of the specification come out, and that of nothing is 0."""
        self.assertEqual(
            [crc32(data) for data in (b"", b"hello", b"there", b"x" * 100)],
            [0, 0x3610A686, 0x5A2FE996, 0x5E0E5D8F],
        )

    @given(st.binary(max_size=2000))
    def test_agreesWithAnIndependentOne(self, data: bytes) -> None:
        """Whichever module was imported, it computes what crcmod computes, unsigned."""
        self.assertEqual(crc32(data), judge(data))

    def test_nameSaysWhich(self) -> None:
        """The name is that of one of the two implementations."""
        self.assertIn(compression.zlib.__name__, ("zlib_ng.zlib_ng", "zlib"))

    @given(st.binary(max_size=200), st.binary(max_size=200))
    def test_goesOn(self, first: bytes, second: bytes) -> None:
        """The checksum of bytes in two pieces is that of the whole."""
        self.assertEqual(crc32(second, crc32(first)), judge(first + second))


class FirstModuleTests(SynchronousTestCase):
    """What can be imported is found in the order of the candidates."""

    def test_firstThatIsThere(self) -> None:
        """A candidate that is not installed is passed over."""
        self.assertIs(firstModule("no_such_module_here", "zlib", "json"), zlib)
        self.assertIs(firstModule("json", "zlib"), json)

    def test_none(self) -> None:
        """Without any, the error names all of them."""
        error = self.assertRaises(ImportError, firstModule, "no_such_module_here", "nor_this_one")
        self.assertEqual(str(error), "none of no_such_module_here, nor_this_one can be imported")
