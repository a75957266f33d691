"""
Snapshots of the metadata log, as the controller writes them; a module of its own, since only this
removes changes of the log.

A snapshot is due after L{SNAPSHOT_COUNT} changes, or L{SNAPSHOT_SIZE} bytes of them. It is written
beside the earlier one. The head points to it when all its pieces are there; then the earlier one is
removed, and the changes that are L{KEPT_COUNT} or L{KEPT_SIZE} bytes and more behind it. A broker
that reads the earlier one meanwhile finds a piece missing, and begins with the later one. What an
interrupted controller has left is removed first.

Each transaction requires that the controller is still the controller.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.logger import Logger

from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.kafka.metadatalog import (
    CHANGES,
    SNAPSHOTS,
    chunkPath,
    snapshotChunks,
    snapshotPath,
)
from pylogbroker.cluster.metadataimage import encodeRecords
from pylogbroker.errors import NoNodeException
from pylogbroker.interfaces import CreateOperation, DeleteOperation, ZookeeperOperation
from pylogbroker.net.deferreds import batched
from pylogbroker.net.workers import IWorker

SNAPSHOT_COUNT = 1_000
"""Changes from one snapshot to the next."""

KEPT_COUNT = 1_000
"""Changes that stay behind a snapshot, for brokers that are not far behind."""

SNAPSHOT_SIZE = 10 << 20
KEPT_SIZE = 10 << 20
"""Bytes likewise: ZooKeeper has all nodes in memory."""

DELETE_COUNT_MAX = 100
"""Nodes that one transaction removes."""

log = Logger()


def isSnapshotDue(metadataLog: ZookeeperLog, metadata: MetadataManager) -> bool:
    """Whether the changes behind the latest snapshot are many or large."""
    snapshot = metadataLog.head.snapshot
    if metadata.position - snapshot >= SNAPSHOT_COUNT:
        return True
    size = sum(size for number, size in metadataLog.sizes.items() if number > snapshot)
    return size >= SNAPSHOT_SIZE


def oldestKept(metadataLog: ZookeeperLog, snapshot: int) -> int:
    """The number of the first change that stays; those whose size is not known go."""
    size, oldest = 0, snapshot + 1
    while oldest > snapshot - KEPT_COUNT + 1 and oldest - 1 in metadataLog.sizes:
        size += metadataLog.sizes[oldest - 1]
        if size > KEPT_SIZE:
            break
        oldest -= 1
    return oldest


async def writeSnapshot(
    metadataLog: ZookeeperLog,
    metadata: MetadataManager,
    worker: IWorker,
    guard: Sequence[ZookeeperOperation],
) -> None:
    """
    Write a snapshot of the image, and remove what it makes superfluous.

    @param worker: encodes it.
    @param guard: checked by each transaction.
    @raise pylogbroker.errors.MultiFailedException: this broker is not the controller any more.
    @raise pylogbroker.errors.ZookeeperError: no answer came. The next snapshot removes what is left
        of this one, or what this one has left.
    """
    zookeeper, number = metadataLog.zookeeper, metadata.position
    records = list(metadata.image.records())
    info, chunks = await worker.submit(lambda: snapshotChunks(encodeRecords(records)))
    await _removeSnapshots(metadataLog, metadataLog.head.snapshot, guard)
    await zookeeper.multi([*guard, CreateOperation(snapshotPath(number), info.encode())])
    for at, chunk in enumerate(chunks):
        await zookeeper.multi([*guard, CreateOperation(chunkPath(number, at), chunk)])
    await metadataLog.pointTo(number, guard)
    await _removeSnapshots(metadataLog, number, guard)
    names = await zookeeper.get_children(CHANGES)
    oldest = oldestKept(metadataLog, number)
    old = [f"{CHANGES}/{each}" for each in names if int(each) < oldest]
    await _removeAll(metadataLog, old, guard)
    log.info(
        "Wrote a snapshot of the metadata up to change {number}, {size} bytes; removed {count} "
        "changes behind it",
        number=number,
        size=info.size,
        count=len(old),
    )


async def _removeSnapshots(
    metadataLog: ZookeeperLog, kept: int, guard: Sequence[ZookeeperOperation]
) -> None:
    for name in await metadataLog.zookeeper.get_children(SNAPSHOTS):
        path = f"{SNAPSHOTS}/{name}"
        if path == snapshotPath(kept):
            continue
        try:
            chunks = await metadataLog.zookeeper.get_children(path)
        except NoNodeException:
            continue
        await _removeAll(metadataLog, [*(f"{path}/{each}" for each in chunks), path], guard)


async def _removeAll(
    metadataLog: ZookeeperLog, paths: Sequence[str], guard: Sequence[ZookeeperOperation]
) -> None:
    for some in batched(paths, DELETE_COUNT_MAX):
        await metadataLog.zookeeper.multi([*guard, *map(DeleteOperation, some)])
