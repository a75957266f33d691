"""
Tests of L{pylogbroker.cluster.kafkapartitioner}.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import cycle
from struct import Struct
from typing import ClassVar
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafkapartitioner import (
    CRC32,
    KEY_PARTITIONERS,
    REMEMBERED_COUNT_MAX,
    keyPartition,
    murmur2,
)

RECORDED = (
    ("", 275646681, 2, 681),
    ("58", -1422426446, 2, 202),
    ("5828", 1973866505, 2, 505),
    ("ee31d2", -2071543208, 2, 440),
    ("7d634405", -258803338, 6, 310),
    ("47f1200d7c", 1550236534, 0, 534),
    ("0a0057b81a10", 984480078, 1, 78),
)
"""
Of keys of 0 to 39 random bytes, in hexadecimal: their hash, and their partition of 7 and of 1000,
as kafka-clients 4.3.1 gives them (C{Utils.murmur2}, C{BuiltInPartitioner.partitionForKey}).
"""

KEY_COUNT = 1_000_000
PARTITION_COUNTS = (1, 2, 3, 7, 12, 50, 1000)
PARTITIONS_DIGEST = "bf0b166476f976fcdc1e1071b988a9fbfb5402b173625ab3e5bd4d514dbd1eb1"
"""Of the partitions of L{randomKeys}, by C{tests/golden/kafka43/KeyPartitions.java}."""


def randomKeys() -> Iterator[bytes]:
    """A million keys of 0 to 200 bytes, mostly fewer than 50, the same ones every time."""
    counter = Struct(">II")
    for number in range(KEY_COUNT):
        found = sha256(counter.pack(number, 0)).digest()
        end = 4 + ((int.from_bytes(found[:4], "big") & 0x7FFFFFFF) % 201 >> number % 4)
        part = 0
        while len(found) < end:
            part += 1
            found += sha256(counter.pack(number, part)).digest()
        yield found[4:end]


class KeyTests(SynchronousTestCase):
    """The partition of a key."""

    KNOWN: ClassVar[dict[bytes, int]] = {  # of Kafka's own documentation and tests
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }

    def test_known(self) -> None:
        """Each known key has Kafka's hash."""
        for key, value in self.KNOWN.items():
            self.assertEqual(murmur2(key), value & 0xFFFFFFFF, key)

    def test_recorded(self) -> None:
        """Keys go where Java's client sends them, also when others were hashed in between."""
        for _again in range(2):
            for text, value, ofSeven, ofThousand in RECORDED:
                key = bytes.fromhex(text)
                self.assertEqual(murmur2(key), value & 0xFFFFFFFF, text)
                self.assertEqual(keyPartition(key, 7), ofSeven, text)
                self.assertEqual(keyPartition(key, 1000), ofThousand, text)
            for number in range(REMEMBERED_COUNT_MAX):
                keyPartition(b"other %d" % number, 7)

    def test_million(self) -> None:
        """A million random keys go where Java's client sends them, of several partition counts."""
        digest = sha256()
        partition = Struct(">i")
        for key, count in zip(randomKeys(), cycle(PARTITION_COUNTS), strict=False):
            digest.update(partition.pack(keyPartition(key, count)))
        self.assertEqual(digest.hexdigest(), PARTITIONS_DIGEST)

    def test_long(self) -> None:
        """A key that is too long to be remembered has its place, too."""
        key = b"k" * 1000
        self.assertEqual(keyPartition(key, 10**6), (murmur2(key) & 0x7FFFFFFF) % 10**6)

    def test_librdkafka(self) -> None:
        """C{crc32} takes the checksum."""
        self.assertEqual(KEY_PARTITIONERS[CRC32](b"abc", 1000), crc32(b"abc") % 1000)
