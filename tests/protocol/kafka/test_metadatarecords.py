"""Records of Apache's metadata log."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka.metadatarecords import (
    KINDS,
    RECORDS,
    SKIPPED,
    decodeMetadataRecord,
)
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.records.recordbatch import iterateRecords
from pylogbroker.storage.files import RealFileSystem
from tests.oracle.directories import NAMES, extract


class RecordTests(SynchronousTestCase):
    """L{decodeMetadataRecord}."""

    def test_apaches(self) -> None:
        """Every record that Apache wrote is decoded, and encoded again to the same bytes."""
        kinds = {name: kind for kind, name in KINDS.items()}
        seen = set()
        for name in NAMES:
            directory = self.mktemp()
            extract(name, directory)
            folder = Path(directory, "__cluster_metadata-0")
            for path in (*folder.glob("*.log"), *folder.glob("*.checkpoint")):
                base = int(path.name[:20]) if path.suffix == ".log" else 0
                with closing(RealFileSystem().open(str(path), write=False)) as file:
                    scan = KafkaFormat().scan(file.readAt, base, 0, file.size())
                    for entry in scan:
                        assert entry.header is not None
                        if entry.header.isControl:
                            continue
                        data = file.readAt(entry.position, entry.size)
                        for record in iterateRecords(data, 0, entry.header):
                            value = bytes(record.value or b"")
                            found = decodeMetadataRecord(value)
                            if found is None:
                                self.assertIn(value[1], SKIPPED)
                                continue
                            kind, version = value[1:3]
                            self.assertEqual(kinds[type(found).__name__], kind)
                            self.assertEqual(found.encode(version), value[3:])
                            seen.add(type(found).__name__)
        self.assertLessEqual(
            {
                "TopicRecord",
                "PartitionRecord",
                "PartitionChangeRecord",
                "ConfigRecord",
                "RemoveTopicRecord",
                "UserScramCredentialRecord",
                "AccessControlEntryRecord",
                "ClientQuotaRecord",
                "FeatureLevelRecord",
                "ProducerIdsRecord",
            },
            seen,
        )

    def test_tables(self) -> None:
        """Every kind has a table, and every table a kind."""
        self.assertEqual(sorted(KINDS.values()), sorted(RECORDS))
        for name in RECORDS:
            self.assertEqual(type(RECORDS[name]().encode(0)), bytes)

    def test_faults(self) -> None:
        """What is no record, of an unknown kind or version is refused, and the text says why."""
        for value, error, text in (
            (b"", WireError, "the data end"),
            (b"\2\2\0", UnsupportedVersionError, "frame of version 2"),
            (b"\1\x63\0", WireError, "unknown kind 99"),
            (b"\1\2\1", UnsupportedVersionError, "TopicRecord"),
            (b"\1\x09\0" + bytes(17) + b"x", WireError, "RemoveTopicRecord: 1 bytes"),
        ):
            found = self.assertRaises(error, decodeMetadataRecord, value)
            self.assertIn(text, str(found))
