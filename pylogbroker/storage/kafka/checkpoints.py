"""
Kafka's small text files: checkpoints of offsets, C{partition.metadata}, C{meta.properties}.

A checkpoint is a version, the number of lines, and the lines. Each file is replaced as a whole: it
is written beside itself, synced, renamed, and the directory synced, so that after a power cut it is
the old one or the new one.

Topics of the 2011 format have no place here: their names may have spaces, their marks are in the
segments.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple
from uuid import UUID

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.storage.files import writeAll
from pylogbroker.types import TopicPartition

RECOVERY_POINT = "recovery-point-offset-checkpoint"
"""Everything below is synced."""

HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
"""Everything below is compacted."""

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
BROKER_EPOCH = "broker-epoch-checkpoint"
"""The latest registration of this directory's broker, and how far it acknowledged."""

CHECKPOINTS = (RECOVERY_POINT, HIGH_WATERMARK, LOG_START, CLEANER)
"""The offset checkpoints of a log directory."""

FILE_SIZE_MAX = 64 << 20

_VERSION = "0"
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_TOPIC_ID = re.compile(r"version: *0\s+topic_id: *([A-Za-z0-9_-]{22})\s*")


def readSmallFile(fileSystem: IFileSystem, path: str, sizeMax: int = FILE_SIZE_MAX) -> bytes | None:
    """
    A whole file; L{None}: there is none. Blocks.

    @raise CorruptLogError: it is larger than C{sizeMax}.
    """
    if fileSystem.status(path) is None:
        return None
    with closing(fileSystem.open(path, write=False)) as file:
        size = file.size()
        if size > sizeMax:
            raise CorruptLogError(path, "read", f"it has {size} bytes, at most {sizeMax} can be")
        return file.readAt(0, size)


def replaceFile(fileSystem: IFileSystem, path: str, data: bytes) -> None:
    """
    Replace a file, or make it, durably. Blocks.

    @raise pylogbroker.errors.StorageError: it could not be; the old file is there, or the new one.
    """
    temporary = path + ".tmp"
    if fileSystem.status(temporary) is not None:
        fileSystem.remove(temporary)
    with closing(fileSystem.open(temporary, create=True)) as file:
        problem = writeAll(file, 0, [data], len(data)).problem if data else None
        if problem is not None:
            raise problem
        file.sync()
    fileSystem.rename(temporary, path)
    fileSystem.syncDirectory(path.rpartition("/")[0])


def readCheckpoint(fileSystem: IFileSystem, path: str) -> list[list[str]] | None:
    """
    The lines of a checkpoint, split at spaces; L{None}: there is no such file. Blocks.

    @raise CorruptLogError: it is none, or of another version.
    """
    data = readSmallFile(fileSystem, path)
    if data is None:
        return None
    version, count, *lines = [*data.decode("utf-8", "replace").splitlines(), "", ""]
    lines = [line for line in lines if line]
    if version != _VERSION or count != str(len(lines)):
        raise CorruptLogError(
            path, "read", f"version {version!r} with {count!r} lines, and {len(lines)} are there"
        )
    return [line.split() for line in lines]


def writeCheckpoint(fileSystem: IFileSystem, path: str, lines: Iterable[str]) -> None:
    """Replace a checkpoint durably. Blocks."""
    found = list(lines)
    text = "".join(f"{line}\n" for line in (_VERSION, len(found), *found))
    replaceFile(fileSystem, path, text.encode())


def readNumber(path: str, text: str) -> int:
    """
    A number of a checkpoint.

    @raise CorruptLogError: it is none.
    """
    if _NUMBER.fullmatch(text) is None:
        raise CorruptLogError(path, "read", f"{text[:40]!r} is no number")
    return int(text)


def readOffsets(fileSystem: IFileSystem, path: str) -> dict[TopicPartition, int]:
    """
    An offset checkpoint; empty if there is none. Blocks.

    @raise CorruptLogError: it cannot be read.
    """
    found = {}
    for line in readCheckpoint(fileSystem, path) or ():
        if len(line) != 3:
            raise CorruptLogError(path, "read", f"{' '.join(line)[:80]!r} is no offset")
        topic, partition, offset = line
        found[TopicPartition(topic, readNumber(path, partition))] = readNumber(path, offset)
    return found


def writeOffsets(fileSystem: IFileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint durably. Blocks."""
    writeCheckpoint(
        fileSystem,
        path,
        (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()),
    )


# -- ids


def encodeId(id: UUID) -> str:
    """An id as Kafka writes it: 22 characters of base64."""
    return base64.urlsafe_b64encode(id.bytes).decode().rstrip("=")


def decodeId(text: str) -> UUID:
    """
    @raise ValueError: the text is no id.
    """
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no id") from error


def readTopicId(fileSystem: IFileSystem, directory: str) -> UUID | None:
    """
    The topic's id in a partition's directory; L{None}: it has none. Blocks.

    @raise CorruptLogError: C{partition.metadata} cannot be read.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    data = readSmallFile(fileSystem, path)
    if data is None:
        return None
    found = _TOPIC_ID.fullmatch(data.decode("utf-8", "replace"))
    if found is None:
        raise CorruptLogError(path, "read", "it has no version 0 and topic id")
    return decodeId(found.group(1))


def writeTopicId(fileSystem: IFileSystem, directory: str, topicId: UUID) -> None:
    """Write C{partition.metadata} durably. Blocks."""
    replaceFile(
        fileSystem,
        f"{directory}/{PARTITION_METADATA}",
        f"version: 0\ntopic_id: {encodeId(topicId)}".encode(),
    )


class MetaProperties(NamedTuple):
    """
    Whose a log directory is: C{meta.properties}, version 1.

    @ivar clusterId: as Kafka writes it, mostly 22 characters of base64.
    @ivar nodeId: of the broker.
    @ivar directoryId: of the directory; L{None}: it has none.
    """

    clusterId: str
    nodeId: int
    directoryId: UUID | None


def readMetaProperties(fileSystem: IFileSystem, directory: str) -> MetaProperties | None:
    """
    Whose a log directory is; L{None}: it does not say. Blocks.

    @raise CorruptLogError: the file cannot be read.
    """
    path = f"{directory}/{META_PROPERTIES}"
    data = readSmallFile(fileSystem, path)
    if data is None:
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    values = {key.strip(): value.strip().replace("\\", "") for key, _, value in pairs}
    if values.get("version") != "1" or "cluster.id" not in values:
        raise CorruptLogError(path, "read", "it has no version 1 and cluster.id")
    try:
        directoryId = decodeId(values["directory.id"]) if "directory.id" in values else None
    except ValueError as error:
        raise CorruptLogError(path, "read", str(error)) from error
    return MetaProperties(
        values["cluster.id"], readNumber(path, values.get("node.id", "")), directoryId
    )


def writeMetaProperties(fileSystem: IFileSystem, directory: str, found: MetaProperties) -> None:
    """Write C{meta.properties} durably. Blocks."""
    lines = [
        "#",
        *([f"directory.id={encodeId(found.directoryId)}"] if found.directoryId else []),
        f"node.id={found.nodeId}",
        "version=1",
        f"cluster.id={found.clusterId}",
        "",
    ]
    replaceFile(fileSystem, f"{directory}/{META_PROPERTIES}", "\n".join(lines).encode())


class LastRegistration(NamedTuple):
    """
    What a log directory knows of its broker's place in a cluster.

    @ivar brokerEpoch: of the latest registration; -1: there was none.
    @ivar isFlushed: whether that process acknowledged, and named to leaders, only what was flushed.
    """

    brokerEpoch: int
    isFlushed: bool


_FLUSHED, _WRITTEN = "flushed", "written"


def readRegistration(fileSystem: IFileSystem, directory: str) -> LastRegistration:
    """
    The latest registration of a log directory's broker. Blocks.

    @raise CorruptLogError: the file cannot be read.
    """
    path = f"{directory}/{BROKER_EPOCH}"
    found = readCheckpoint(fileSystem, path)
    if found is None:
        return LastRegistration(-1, True)
    epoch, mode = [*(found[0] if len(found) == 1 else ()), "", ""][:2]
    # Versions before did not say: then what was acknowledged may not have been flushed.
    if len(found) != 1 or len(found[0]) > 2 or mode not in (_FLUSHED, _WRITTEN, ""):
        raise CorruptLogError(path, "read", f"{found!r} is no epoch, and flushed or written")
    return LastRegistration(readNumber(path, epoch), mode == _FLUSHED)


def writeRegistration(fileSystem: IFileSystem, directory: str, found: LastRegistration) -> None:
    """Write the latest registration durably. Blocks."""
    mode = _FLUSHED if found.isFlushed else _WRITTEN
    writeCheckpoint(fileSystem, f"{directory}/{BROKER_EPOCH}", [f"{found.brokerEpoch} {mode}"])
