"""The nodes of the metadata log."""

from __future__ import annotations

import json
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafka import metadatalog
from pylogbroker.cluster.kafka.metadatalog import (
    Change,
    Head,
    LiveBroker,
    SnapshotInfo,
    beginningOf,
    brokerIds,
    changePath,
    checkRoot,
    chunkPath,
    decodeController,
    decodeEpoch,
    encodeController,
    encodeRoot,
    snapshotChunks,
)
from pylogbroker.cluster.metadataimage import GROUP, ConfigRecord, Endpoint, encodeRecords
from pylogbroker.errors import MetadataError


class NodeTests(SynchronousTestCase):
    """Each node's bytes, there and back."""

    def refused(self, text: str, decode: Callable[..., object], *arguments: object) -> None:
        self.assertIn(text, str(self.assertRaises(MetadataError, decode, *arguments)))

    def test_paths(self) -> None:
        """Numbers have ten digits, so that names sort as numbers do."""
        self.assertEqual(changePath(7), "/pylogbroker/cluster/metadata/changes/0000000007")
        self.assertEqual(
            chunkPath(123, 4), "/pylogbroker/cluster/metadata/snapshots/0000000123/0004"
        )

    def test_head(self) -> None:
        """The head is JSON that people can read; garbage is refused with its path."""
        head = Head(12, 7)
        self.assertEqual(json.loads(head.encode()), {"version": 1, "last": 12, "snapshot": 7})
        self.assertEqual(Head.decode(head.encode()), head)
        for data in (None, b"", b"[]", b"{}", b"\xff", b'{"version":true}'):
            self.refused("/pylogbroker/cluster/metadata: ", Head.decode, data)
        self.refused("last is None", Head.decode, b'{"version":1,"snapshot":0}')
        self.refused("last is '1'", Head.decode, b'{"version":1,"last":"1","snapshot":0}')
        self.refused("snapshot of change 3 of 2", Head.decode, Head(2, 3).encode())
        self.refused("this program knows 1", Head.decode, b'{"version":2,"last":1,"snapshot":0}')

    def test_change(self) -> None:
        """A change names its writer, and has the records as they are."""
        change = Change(3, "ab" * 16, b'[{"kind":"x"}]\nand more')
        self.assertEqual(Change.decode("/c", change.encode()), change)
        self.refused("/c: ", Change.decode, "/c", None)
        self.refused("without records", Change.decode, "/c", b'{"version":1,"brokerid":1,"id":"x"}')
        large = Change(2**31 - 1, "f" * 32, b"x" * metadatalog.RECORDS_SIZE_MAX)
        self.assertLess(len(large.encode()), metadatalog.CHANGE_SIZE_MAX)

    def test_snapshot(self) -> None:
        """A snapshot is cut in pieces; a missing or a damaged one is found."""
        self.patch(metadatalog, "CHUNK_SIZE", 10)
        info, chunks = snapshotChunks(b"0123456789abcdefghijklm")
        self.assertEqual(chunks, [b"0123456789", b"abcdefghij", b"klm"])
        found = SnapshotInfo.decode("/s", info.encode())
        self.assertEqual(found, info)
        self.assertEqual(found.join("/s", chunks), b"0123456789abcdefghijklm")
        self.refused("2 pieces have 20 bytes", found.join, "/s", chunks[:2])
        self.refused("not 23 bytes", found.join, "/s", [*chunks[:2], b"klM"])
        for count in (0, 1_001):
            self.refused(
                f"{count} pieces", SnapshotInfo.decode, "/s", SnapshotInfo(count, 1, 1).encode()
            )

    def test_root(self) -> None:
        """A cluster of another version is refused."""
        checkRoot(encodeRoot())
        self.refused("version 2", checkRoot, b'{"version":2}')

    def test_broker(self) -> None:
        """A broker's node has the fields of Kafka's."""
        endpoints = [
            Endpoint("INSIDE", "::1", 9092, "PLAINTEXT"),
            Endpoint("OUT", "example.org", 9093, "SSL"),
        ]
        self.assertEqual(
            json.loads(LiveBroker(endpoints, "r1", 1_700_000_000_000).encode()),
            {
                "version": 5,
                "endpoints": ["INSIDE://[::1]:9092", "OUT://example.org:9093"],
                "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUT": "SSL"},
                "host": "::1",
                "port": 9092,
                "rack": "r1",
                "timestamp": "1700000000000",
            },
        )
        self.assertEqual(brokerIds(["3", "12", "x", "-1", ""]), {3, 12})

    def test_beginning(self) -> None:
        """A list of records is cut where a change is full."""
        records = [ConfigRecord(GROUP, "g", f"n{at}", "x" * 1_000) for at in range(2_000)]
        first = beginningOf(records)
        self.assertEqual(first, records[: len(first)])
        self.assertLessEqual(len(encodeRecords(first)), metadatalog.RECORDS_SIZE_MAX)
        longer = encodeRecords(records[: len(first) + 1])
        self.assertGreater(len(longer), metadatalog.RECORDS_SIZE_MAX)
        self.assertEqual(beginningOf(records[:10]), records[:10])
        huge = [ConfigRecord(GROUP, "g", "n", "x" * 2_000_000)] * 2
        self.assertEqual(len(beginningOf(huge)), 1)

    def test_controller(self) -> None:
        """The controller is named as in Kafka; its epoch is text."""
        data = encodeController(3, 5)
        self.assertEqual(json.loads(data), {"version": 1, "brokerid": 3, "timestamp": "5"})
        self.assertEqual(decodeController(data), 3)
        self.refused("brokerid is None", decodeController, b'{"version":1}')
        self.assertEqual(decodeEpoch(b"12"), 12)
        for data in (b"", b"x"):
            self.refused("is no epoch", decodeEpoch, data)
