"""
CRC-32 (IEEE 802.3) and deflate, by the quickest implementation that can be imported.

This is the place where a C speed-up is chosen: today C{zlib_ng}, else the standard library's C{zlib}, which have the same functions; later the two hot
loops, L{pylogbroker.records.messageset.checkPlain} and C{RequestDecoder._takeRun} of L{pylogbroker.protocol.kafka07.requests}, which work on plain bytes for that reason.

zlib_ng takes 39 ns for the checksum of 200 bytes, zlib 125. C{isal} takes 169, and must not be imported beside zlib_ng: its AVX-512 code
leaves the processor in a state in which zlib_ng takes 170, too, for the rest of the process's life.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def firstModule(*names: str) -> Any:
    """
    The first of some modules that can be imported.

    @raise ImportError: none can.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"none of {', '.join(names)} can be imported")


zlib = firstModule("zlib_ng.zlib_ng", "zlib")
CRC32_NAME: str = zlib.__name__.rpartition(".")[2]
"""C{"zlib_ng"} or C{"zlib"}."""

crc32: Callable[..., int] = zlib.crc32
"""Bytes, and what the bytes before them gave (0 at first), to 0..2^32-1."""
