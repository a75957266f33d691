"""
Tests of the guess who is on the line.
"""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka07 import sniff
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeSet

API_VERSIONS = (
    struct.pack(">ihhih", 36, 18, 3, 1, 7) + b"rdkafka" + b"\x00\x0blibrdkafka\x062.3.0\x00"
)
"""
ApiVersions 3 as a client of today begins with: size, key 18, version 3, correlation 1, then its
name.
"""


class GuessTests(SynchronousTestCase):
    """First bytes, and what they look like."""

    def test_known(self) -> None:
        """
        HTTP, TLS, SSH, Redis, STOMP, AMQP and ZooKeeper's words are known by their first bytes.
        """
        for greeting, name in (
            (b"GET / HTTP/1.1\r\nHost: x\r\n", "HTTP"),
            (b"POST /topics HTTP/1.1\r\n", "HTTP"),
            (b"OPTIONS * HTTP/1.0\r\n", "HTTP"),
            (b"CONNECT example.org:443 HTTP/1.1\r\n", "HTTP"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
            (bytes.fromhex("16030102000100"), "TLS"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
            (b"*1\r\n$4\r\nPING\r\n", "Redis"),
            (b"PING\r\n", "Redis"),
            (b"CONNECT\naccept-version:1.2\n", "STOMP"),
            (b"AMQP\x00\x00\x09\x01", "AMQP"),
            (b"ruok", "ZooKeeper's four-letter words"),
        ):
            self.assertEqual(sniff(greeting), name, greeting)

    def test_todaysKafka(self) -> None:
        """
        A request of today's Kafka is known by its header: a small key and version, and a client's
        name or none.
        """
        name = "the protocol of Kafka 0.8 or later"
        self.assertEqual(sniff(API_VERSIONS), name)
        self.assertEqual(sniff(struct.pack(">ihhih", 10, 18, 0, 7, -1)), name)
        self.assertEqual(sniff(struct.pack(">ihhih", 17, 18, 0, 7, 7) + b"console"), name)

    def test_notKafka(self) -> None:
        """
        What is too short, has an impossible key, version or size, or a name that cannot be printed,
        is not taken for Kafka.
        """
        for greeting in (
            b"",
            b"\x00\x00\x00\x0a\x00",
            struct.pack(">ihhih", 10, 101, 0, 7, -1),
            struct.pack(">ihhih", 10, 18, 21, 7, -1),
            struct.pack(">ihhih", 10, 18, -1, 7, -1),
            struct.pack(">ihhih", 9, 18, 0, 7, -1),
            struct.pack(">ihhih", 1 << 20, 18, 0, 7, -1),
            struct.pack(">ihhih", 12, 18, 0, 7, 2) + b"\x00\x01",
            struct.pack(">ihhih", 12, 18, 0, 7, 13) + b"ab",
        ):
            self.assertIsNone(sniff(greeting), greeting)

    def test_ours(self) -> None:
        """
        Nothing comes to mind for the requests of Kafka 0.7 themselves, so that a broken one is not
        blamed on another program.
        """
        messages = encodeSet([b"hello"])
        for topic in ("t", "ab", "abc", "test", "a-longer-name"):
            for partition in (0, -1, 1):
                for frame in (
                    encodeProduce(topic, partition, messages),
                    encodeFetch(topic, partition, 0, 10_000),
                    encodeMultiFetch([(topic, partition, 0, 10_000)]),
                    encodeMultiProduce([(topic, partition, messages)]),
                    encodeOffsets(topic, partition, -1, 10),
                ):
                    self.assertIsNone(sniff(frame[:64]), frame)
