"""
The metadata log of a cluster in ZooKeeper: its nodes, and what their bytes mean. Paths are relative
to the chroot. A module of its own, so that programs that only look need nothing of a broker.

    /pylogbroker/cluster                            its version
    /pylogbroker/cluster/brokers/ids/<id>           ephemeral: this broker lives
    /pylogbroker/cluster/controller                 ephemeral: the broker that is the controller
    /pylogbroker/cluster/controller_epoch           how often a broker became the controller
    /pylogbroker/cluster/metadata                   the head: which changes there are
    /pylogbroker/cluster/metadata/changes/<N>       change number N, from 1 on
    /pylogbroker/cluster/metadata/snapshots/<M>/<chunk>   the image after change M, in pieces

A change is the records of one decision (L{pylogbroker.cluster.metadataimage}), with who wrote it.
It is written in one transaction with the head, whose version says on which change it was decided:
so changes have an order, and each was decided on the image of all before it.

A change has at most L{CHANGE_SIZE_MAX} bytes, since ZooKeeper takes no larger request. A snapshot
has no such limit, as it is cut in pieces.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from pylogbroker.cluster.metadataimage import Endpoint, Record, encodeRecords
from pylogbroker.errors import MetadataError

ROOT = "/pylogbroker/cluster"
BROKERS = f"{ROOT}/brokers"
BROKER_IDS = f"{BROKERS}/ids"
CONTROLLER = f"{ROOT}/controller"
CONTROLLER_EPOCH = f"{ROOT}/controller_epoch"
HEAD = f"{ROOT}/metadata"
CHANGES = f"{HEAD}/changes"
SNAPSHOTS = f"{HEAD}/snapshots"

VERSION = 1
CHANGE_SIZE_MAX = 900_000
"""Bytes of a change."""

CHUNK_SIZE = 900_000
"""Bytes of each piece of a snapshot but the last."""

CHUNK_COUNT_MAX = 1_000
"""Pieces of a snapshot: a larger number is garbage."""

_ENVELOPE_SIZE_MAX = 200
RECORDS_SIZE_MAX = CHANGE_SIZE_MAX - _ENVELOPE_SIZE_MAX
"""Bytes of the records of a change."""


def brokerPath(brokerId: int) -> str:
    """The node of a broker that lives."""
    return f"{BROKER_IDS}/{brokerId}"


def changePath(number: int) -> str:
    """The node of a change."""
    return f"{CHANGES}/{number:010d}"


def snapshotPath(number: int) -> str:
    """The parent of the pieces of a snapshot."""
    return f"{SNAPSHOTS}/{number:010d}"


def chunkPath(number: int, chunk: int) -> str:
    """
    The node of a piece of a snapshot.

    @param chunk: from 0 on.
    """
    return f"{snapshotPath(number)}/{chunk:04d}"


class Head(NamedTuple):
    """
    Which changes there are.

    @ivar last: the number of the last change; 0: none.
    @ivar snapshot: the number of the last change in the latest snapshot; 0: there is none.
    """

    last: int
    snapshot: int

    def encode(self) -> bytes:
        return _json({"version": VERSION, "last": self.last, "snapshot": self.snapshot})

    @classmethod
    def decode(cls, data: bytes | None) -> Head:
        """@raise MetadataError: the node's data are not a head."""
        last, snapshot = _fields(HEAD, data, {"last": int, "snapshot": int})
        if not 0 <= snapshot <= last:
            raise MetadataError(f"{HEAD}: a snapshot of change {snapshot} of {last}")
        return cls(last, snapshot)


class Change(NamedTuple):
    """
    A change.

    @ivar brokerId: of the broker that wrote it; -1: a command did.
    @ivar writeId: 32 random hexadecimal digits. A writer that has lost the answer knows its own
        change by them.
    @ivar records: what C{encodeRecords} gives.
    """

    brokerId: int
    writeId: str
    records: bytes

    def encode(self) -> bytes:
        """A line of JSON, and the records in the next."""
        head = {"version": VERSION, "brokerid": self.brokerId, "id": self.writeId}
        return _json(head) + b"\n" + self.records

    @classmethod
    def decode(cls, path: str, data: bytes | None) -> Change:
        """@raise MetadataError: the node's data are not a change."""
        head, separator, records = (data or b"").partition(b"\n")
        brokerId, writeId = _fields(path, head, {"brokerid": int, "id": str})
        if not separator:
            raise MetadataError(f"{path}: a change without records")
        return cls(brokerId, writeId, records)


class SnapshotInfo(NamedTuple):
    """
    What the parent of a snapshot's pieces says.

    @ivar size: bytes of all pieces.
    @ivar crc: CRC-32 of all pieces together.
    """

    chunkCount: int
    size: int
    crc: int

    def encode(self) -> bytes:
        return _json({"version": VERSION, **self._asdict()})

    @classmethod
    def decode(cls, path: str, data: bytes | None) -> SnapshotInfo:
        """@raise MetadataError: the node's data are not those of a snapshot."""
        found = cls(*_fields(path, data, {"chunkCount": int, "size": int, "crc": int}))
        if not 0 < found.chunkCount <= CHUNK_COUNT_MAX:
            raise MetadataError(f"{path}: a snapshot of {found.chunkCount} pieces")
        return found

    def join(self, path: str, chunks: Sequence[bytes]) -> bytes:
        """
        The records of a snapshot.

        @raise MetadataError: pieces are missing or damaged.
        """
        data = b"".join(chunks)
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise MetadataError(
                f"{path}: the snapshot's {len(chunks)} pieces have {len(data)} bytes with CRC "
                f"{zlib.crc32(data)}, not {self.size} bytes with CRC {self.crc}"
            )
        return data


def snapshotChunks(records: bytes) -> tuple[SnapshotInfo, list[bytes]]:
    """
    Cut a snapshot in pieces.

    @param records: what C{encodeRecords} gives.
    """
    chunks = [records[at : at + CHUNK_SIZE] for at in range(0, len(records), CHUNK_SIZE)]
    return SnapshotInfo(len(chunks), len(records), zlib.crc32(records)), chunks


def encodeRoot() -> bytes:
    """The data of L{ROOT}."""
    return _json({"version": VERSION})


def checkRoot(data: bytes | None) -> None:
    """@raise MetadataError: another version of this program has made the cluster."""
    _fields(ROOT, data, {})


class LiveBroker(NamedTuple):
    """
    A broker that lives; for people and programs that look: brokers follow the metadata.

    @ivar endpoints: of its listeners; the first is told as C{host} and C{port}, too.
    @ivar nowMs: milliseconds since the epoch, when it registered.
    """

    endpoints: Sequence[Endpoint]
    rack: str | None
    nowMs: int

    def encode(self) -> bytes:
        """JSON with the fields of Kafka's own nodes of brokers, version 5."""
        first = self.endpoints[0]
        return _json(
            {
                "version": 5,
                "endpoints": [
                    f"{each.listener}://{_bracketed(each.host)}:{each.port}"
                    for each in self.endpoints
                ],
                "listener_security_protocol_map": {
                    each.listener: each.protocol for each in self.endpoints
                },
                "host": first.host,
                "port": first.port,
                "rack": self.rack,
                "timestamp": str(self.nowMs),
            }
        )


def encodeController(brokerId: int, nowMs: int) -> bytes:
    """The data of L{CONTROLLER}, as Kafka has them."""
    return _json({"version": VERSION, "brokerid": brokerId, "timestamp": str(nowMs)})


def decodeController(data: bytes | None) -> int:
    """
    The broker that is the controller.

    @raise MetadataError: the node's data do not name one.
    """
    (brokerId,) = _fields(CONTROLLER, data, {"brokerid": int})
    return brokerId  # type: ignore[no-any-return]


def decodeEpoch(data: bytes | None) -> int:
    """@raise MetadataError: the data of L{CONTROLLER_EPOCH} are no number."""
    try:
        return int(data or b"")
    except ValueError:
        raise MetadataError(f"{CONTROLLER_EPOCH}: {data!r} is no epoch") from None


def brokerIds(names: Sequence[str]) -> set[int]:
    """The brokers that live, by the names of their nodes; other names are passed over."""
    return {int(each) for each in names if each.isdecimal() and each.isascii()}


def beginningOf(records: Sequence[Record]) -> list[Record]:
    """The first of these records, as many as fit in a change; at least one."""
    size = 2  # of the brackets
    for at, record in enumerate(records):
        size += len(encodeRecords([record])) - 1
        if size > RECORDS_SIZE_MAX and at:
            return list(records[:at])
    return list(records)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fields(path: str, data: bytes | None, kinds: dict[str, type]) -> list[Any]:
    """The fields of a JSON object of our version."""
    try:
        found = json.loads(data or b"")
    except ValueError:
        found = None
    if not isinstance(found, dict) or type(found.get("version")) is not int:
        raise MetadataError(f"{path}: {(data or b'')[:100]!r} is no JSON object with a version")
    if found["version"] != VERSION:
        raise MetadataError(
            f"{path} has version {found['version']}, and this program knows {VERSION}: another "
            "version of it has made this cluster"
        )
    for name, kind in kinds.items():
        if type(found.get(name)) is not kind:
            raise MetadataError(f"{path}: {name} is {found.get(name)!r}")
    return [found[name] for name in kinds]
