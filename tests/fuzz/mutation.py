"""
Mutations of what real clients sent: the same ones for the same seed.

A mutation is one recorded request, or a few, with one to four small changes: bits, bytes, numbers
that computers find odd, pieces left out, doubled, exchanged. Plain changes mostly die at the first
check; so some are made inside the frame, whose size is then put right again, some inside a message,
whose checksum is then put right, too, and some inside what is compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from zlib import crc32

from pylogbroker.records.compression import GZIP, SNAPPY, compress, decompress
from tests.fuzz import golden, judge

ODD_NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    10,
    126,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    1 << 20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
)
SIZE_MAX = 16384
OPENED_SIZE_MAX = 1 << 16


class Mutator:
    """
    A source of mutations.

    @ivar samples: what they begin with.
    """

    def __init__(self, seed: int, samples: Sequence[bytes] | None = None) -> None:
        self._random = Random(seed)
        self.samples = [data for _, data in golden.requests()] if samples is None else list(samples)

    def next(self) -> bytes:
        """One more mutation: the bytes to send."""
        random = self._random
        data = random.choice(self.samples)
        way = random.random()
        if way < 0.20:
            data = self.garble(data)
        elif way < 0.50:
            data = self._framed(self.garble(data[4:]))
        elif way < 0.88:
            data = self._insideMessage(data)
        elif way < 0.96:
            data = self._framed(self.garble(data[4:])) + random.choice(self.samples)
        else:
            data = self.garble(random.randbytes(random.randrange(64)))
        return data[:SIZE_MAX]

    def _framed(self, body: bytes) -> bytes:
        return struct.pack(">i", len(body)) + body

    def garble(self, data: bytes) -> bytes:
        """Data with one to four changes."""
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 4))):
            self._change(changed)
        return bytes(changed)

    def _change(self, data: bytearray) -> None:
        random = self._random
        at = random.randrange(len(data) + 1)
        kind = random.randrange(9)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = random.randrange(256)
        elif kind in (2, 3):
            size = random.choice((1, 2, 4, 4, 8))
            number = random.choice(ODD_NUMBERS) * random.choice((1, 1, 1, -1)) + random.choice(
                (0, 0, 0, -1, 1)
            )
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "big")
        elif kind == 4:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 5:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 6:
            piece = data[at : at + random.randrange(1, 65)]
            data[at:at] = piece * random.choice((1, 1, 1, 2, 20))
        elif kind == 7:
            del data[at:]
        elif kind == 8:
            other = random.choice(self.samples)
            start = random.randrange(len(other) + 1)
            data[at:at] = other[start : start + random.randrange(1, 65)]

    def _insideMessage(self, stream: bytes) -> bytes:
        """
        A PRODUCE request one of whose messages is changed, and everything around it put right.
        """
        bodies = [
            body
            for body in golden.frames(stream)
            if body[:2] == b"\x00\x00" and int.from_bytes(body[2:4], "big") + 12 <= len(body)
        ]
        if not bodies:
            return self._framed(self.garble(stream[4:]))
        body = self._random.choice(bodies)
        headSize = 8 + int.from_bytes(body[2:4], "big")
        messages = self.insideSet(body[headSize + 4 :])
        return self._framed(body[:headSize] + struct.pack(">i", len(messages)) + messages)

    def insideSet(self, data: bytes) -> bytes:
        """
        A message set one of whose payloads is changed, its checksum and sizes put right; of a
        wrapper mostly what is inside.
        """
        entries = judge.recoverable(data)
        if not entries:
            return self.garble(data)
        random = self._random
        chosen = random.choice(entries)
        payload = chosen.payload
        attributes = random.choice(
            (chosen.attributes, chosen.attributes, chosen.attributes, random.randrange(256))
        )
        if chosen.codec in (GZIP, SNAPPY) and random.random() < 0.7:
            try:
                inner = decompress(chosen.codec, payload, OPENED_SIZE_MAX)
            except Exception:
                payload = self.garble(payload)
            else:
                payload = compress(
                    chosen.codec,
                    self.insideSet(inner) if random.random() < 0.6 else self.garble(inner),
                )
        else:
            payload = self.garble(payload)
        head = b"\x00" if chosen.magic == 0 else bytes((1, attributes))
        message = head + struct.pack(">I", crc32(payload)) + payload
        return data[: chosen.start] + struct.pack(">i", len(message)) + message + data[chosen.end :]
