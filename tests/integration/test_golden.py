"""
What 0.7.2 was recorded to do, C{twistd pylogbroker} does; what 0.7.2 wrote, it serves; what it
writes, 0.7.2's layout rules describe.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from crcmod.predefined import mkPredefinedCrcFun
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.records.messageset import encodeSet
from tests.integration.brokerprocess import BrokerProcess

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
REPLAY_SECONDS_MAX = 900


def readSegment(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """
    An independent reading of spec-0.7 wire-protocol §5: (position, magic, attributes, payload) of
    each entry.

    @raise AssertionError: it is not made of whole and valid entries.
    """
    crc = mkPredefinedCrcFun("crc-32")
    entries = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack(">i", data[position : position + 4])
        entry = data[position + 4 : position + 4 + size]
        assert len(entry) == size >= 5, f"entry at {position}"
        magic = entry[0]
        assert magic in (0, 1), f"magic {magic} at {position}"
        attributes = entry[1] if magic else 0
        head = 1 + magic
        (checksum,) = struct.unpack(">I", entry[head : head + 4])
        assert crc(entry[head + 4 :]) == checksum, f"checksum at {position}"
        entries.append((position, magic, attributes, entry[head + 4 :]))
        position += 4 + size
    return entries


def readDirectory(directory: Path) -> dict[tuple[str, int], bytes]:
    """
    An independent reading of spec-0.7 log-storage §1 and §2: what is in each partition, its
    segments put together.

    @raise AssertionError: something is there that 0.7.2 would refuse, or the segments are not
        contiguous from 0 on.
    """
    found = {}
    for inside in sorted(directory.iterdir()):
        if not inside.is_dir():
            continue
        topic, separator, number = inside.name.rpartition("-")
        assert topic and separator, f"0.7.2 does not start on {inside.name}"
        data = b""
        for segment in sorted(inside.iterdir()):
            assert segment.suffix == ".kafka" and len(segment.stem) == 20, segment.name
            assert int(segment.stem) == len(data), (
                f"{segment.name}: the ones before end at {len(data)}"
            )
            data += segment.read_bytes()
            readSegment(segment.read_bytes())
        found[topic, int(number)] = data
    return found


class GoldenTests(SynchronousTestCase):
    """Against the recordings in C{tests/golden}."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.logs = self.folder / "logs"

    def broker(self, **properties: str) -> BrokerProcess:
        found = BrokerProcess(
            str(self.logs), {key.replace("_", "."): value for key, value in properties.items()}
        )
        self.addCleanup(found.kill)
        return found

    def test_replay(self) -> None:
        """
        All 102 recorded exchanges with 0.7.2 go the same way, or the better way where we deviate on
        purpose.
        """
        broker = BrokerProcess(str(self.logs), config=str(GOLDEN / "broker.properties"))
        self.addCleanup(broker.kill)
        broker.start()
        run = subprocess.run(
            [sys.executable, str(GOLDEN / "replay.py"), "127.0.0.1", str(broker.port)],
            capture_output=True,
            text=True,
            timeout=REPLAY_SECONDS_MAX,
            check=False,
        )
        self.assertEqual(
            run.stdout.splitlines()[-1:],
            ["102 passed, 0 failed"],
            f"{run.stdout}\n{run.stderr}\n{broker.log}",
        )
        self.assertEqual(run.returncode, 0)

    def test_recordedProducers(self) -> None:
        """
        What 0.7.2's performance producer sent, plain, gzip and snappy, one by one and in batches,
        is stored as it came.
        """
        broker = self.broker().start()
        sizes: dict[str, int] = {}
        for recording in sorted((GOLDEN / "clients").glob("*.c2s.hex")):
            stream = bytes.fromhex(recording.read_text(encoding="ascii"))
            sets = self._setsOf(stream)
            with broker.client() as client:
                client.send(stream)
                client.processed()
                for topic, expected in sets.items():
                    before = sizes.get(topic, 0)
                    self.assertEqual(client.readAll(topic, 0, before), expected, recording.name)
                    self.assertTrue(readSegment(expected), recording.name)
                    sizes[topic] = before + len(expected)

    @staticmethod
    def _setsOf(stream: bytes) -> dict[str, bytes]:
        """
        Independent reading of PRODUCE and MULTIPRODUCE frames: the message sets of each topic, put
        together.
        """
        sets: dict[str, bytes] = {}
        position = 0
        while position < len(stream):
            frameSize, kind = struct.unpack_from(">ih", stream, position)
            end = position + 4 + frameSize
            position += 6
            count = 1
            if kind == 3:
                (count,) = struct.unpack_from(">h", stream, position)
                position += 2
            else:
                assert kind == 0, f"request type {kind}"
            for _part in range(count):
                (topicSize,) = struct.unpack_from(">h", stream, position)
                topic = stream[position + 2 : position + 2 + topicSize].decode()
                position += 2 + topicSize
                partition, setSize = struct.unpack_from(">ii", stream, position)
                assert partition == -1
                position += 8
                sets[topic] = sets.get(topic, b"") + stream[position : position + setSize]
                position += setSize
            assert position == end
        return sets

    def test_segmentOfKafka(self) -> None:
        """
        A segment that 0.7.2 wrote opens unchanged, with a clean-shutdown mark and without, is
        served byte for byte, and can be appended to.
        """
        sample = (GOLDEN / "segment-sample.kafka").read_bytes()
        partition = self.logs / "sample-0"
        partition.mkdir(parents=True)
        segment = partition / f"{0:020}.kafka"
        segment.write_bytes(sample)
        mark = self.logs / ".kafka_cleanshutdown"
        mark.touch()
        for appended in (b"", encodeSet([b"more"])):
            broker = self.broker().start()
            self.assertFalse(mark.exists())
            with broker.client() as client:
                self.assertEqual(client.end("sample"), len(sample))
                self.assertEqual(client.fetch("sample", 0, 0), (0, sample))
                for position, _magic, _attributes, _payload in readSegment(sample):
                    self.assertEqual(client.fetch("sample", 0, position), (0, sample[position:]))
                if appended:
                    client.produce("sample", 0, appended)
                    self.assertEqual(client.fetch("sample", 0, len(sample)), (0, appended))
            if not appended:
                broker.kill()  # so that the next one has to check the segment
            else:
                self.assertEqual(broker.stop(), 0)
            self.assertEqual(segment.read_bytes(), sample + appended)

    def test_layout(self) -> None:
        """
        What we write is laid out as 0.7.2 expects it: directories, segment names and contents, the
        mark, and no sub-directory beside partitions. Beside them is one file more, the journal of
        the metadata; 0.7.2 skips files there, with a warning.
        """
        broker = self.broker(log_file_size="300", num_partitions="2").start()
        expected: dict[tuple[str, int], bytes] = {}
        with broker.client() as client:
            for number in range(60):
                for topic, partition in (
                    ("plain", 0),
                    ("plain", 1),
                    ("with-dashes", 0),
                    ("ünïcode \U0001f4dc", 1),
                ):
                    data = encodeSet(
                        [f"{topic} {number} {each}".encode() for each in range(number % 4 + 1)],
                        codec=number % 3,
                        magic=number // 3 % 2,
                    )
                    client.produce(topic, partition, data)
                    expected[topic, partition] = expected.get((topic, partition), b"") + data
            client.processed()
            for topic, partition in expected:
                self.assertEqual(client.readAll(topic, partition), expected[topic, partition])
        self.assertEqual(broker.stop(), 0)
        self.assertEqual(readDirectory(self.logs), expected)
        self.assertGreater(len(list((self.logs / "plain-0").iterdir())), 5)
        self.assertEqual(
            {each.name for each in self.logs.iterdir() if not each.is_dir()},
            {".kafka_cleanshutdown", ".lock", "meta.properties", "metadata.journal"},
        )
        self.assertEqual((self.logs / ".kafka_cleanshutdown").stat().st_size, 0)
