"""
Tests of L{pylogbroker.cluster.kafkapartitioner}.
"""

from __future__ import annotations

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

    def test_long(self) -> None:
        """A key that is too long to be remembered has its place, too."""
        key = b"k" * 1000
        self.assertEqual(keyPartition(key, 10**6), (murmur2(key) & 0x7FFFFFFF) % 10**6)

    def test_librdkafka(self) -> None:
        """C{crc32} takes the checksum."""
        self.assertEqual(KEY_PARTITIONERS[CRC32](b"abc", 1000), crc32(b"abc") % 1000)
