"""
CRC-32 (IEEE 802.3), by the quickest implementation that can be imported.

This is the place where a C speed-up is chosen: today the checksum (C{isal}, C{zlib_ng}, else the standard library), later the two hot loops,
L{pylogbroker.formats.messageset.checkPlain} and L{pylogbroker.wire.requests.RequestDecoder.take}, which are functions over plain bytes for that reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

CANDIDATES = ("isal.isal_zlib", "zlib_ng.zlib_ng", "zlib")
"""Modules that have a C{crc32} of the right polynomial, the quickest first (facts: 172, 175 and 371 ns for 200 bytes)."""


def choose(candidates: tuple[str, ...] = CANDIDATES) -> tuple[str, Callable[[bytes], int]]:
    """
    The first candidate that is there.

    @return: its module name, and its C{crc32}: bytes to 0..2^32-1.
    @raise ImportError: none is.
    """
    for name in candidates:
        try:
            return name, importlib.import_module(name).crc32
        except ImportError:
            continue
    raise ImportError(f"none of {', '.join(candidates)} can be imported")


CRC32_NAME, crc32 = choose()
