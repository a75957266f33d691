"""
C{metadata move}: give the metadata of a broker that was a cluster of one to a cluster in ZooKeeper.

The broker does not run meanwhile: the command locks its log directory. It writes to ZooKeeper
first, then renames the journal, so that an interrupted move can be repeated, and a broker that
finds no journal knows that its metadata are elsewhere.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from random import SystemRandom

from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cli import CommandError
from pylogbroker.cli.session import announceWait
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.kafka.metadatamove import nextMove
from pylogbroker.cluster.metadataimage import (
    ClusterRecord,
    MetadataImage,
    Record,
    TopicRecord,
    decodeRecords,
)
from pylogbroker.errors import MetadataError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.kafka.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    readMetaProperties,
    writeMetaProperties,
)
from pylogbroker.storage.logdirectory import APACHE_METADATA, LOCK_NAME
from pylogbroker.storage.metadatastore import JOURNAL_NAME, MOVED_JOURNAL_NAME, MetadataStore
from pylogbroker.types import formatCount
from pylogbroker.zookeeper.client import ZookeeperClient

_COMMAND = -1
"""The broker id of changes that this command writes."""


async def moveMetadata(options: Namespace, streams: Streams) -> int:
    """Move the metadata."""
    path, fileSystem = os.path.abspath(options.logDir), RealFileSystem()
    if fileSystem.status(path) is None:
        raise CommandError(f"there is no directory {path}")
    unlock = fileSystem.lock(f"{path}/{LOCK_NAME}")
    try:
        found, local = _read(fileSystem, path)
        zookeeper = ZookeeperClient.fromSettings(streams.reactor, options.access, options.zookeeper)
        worker = ThreadPoolWorker(streams.reactor, "pylogbroker-metadata", 1)
        worker.start()
        try:
            await announceWait(
                streams,
                zookeeper.connect(options.timeoutMs),
                f"ZooKeeper at {options.zookeeper}",
                options.timeoutMs,
            )
            random = SystemRandom()
            log = ZookeeperLog(streams.reactor, time.monotonic, zookeeper, _COMMAND, worker, random)
            metadata = MetadataManager(log, random.randbytes)
            try:
                await _move(options, streams, metadata, log, found, local)
            finally:
                metadata.close()
        finally:
            await zookeeper.close()
            worker.stop()
        if options.dryRun:
            return 0
        clusterId = metadata.image.clusterId
        if found.clusterId != clusterId:
            writeMetaProperties(fileSystem, path, found._replace(clusterId=clusterId))
        fileSystem.rename(f"{path}/{JOURNAL_NAME}", f"{path}/{MOVED_JOURNAL_NAME}")
        fileSystem.syncDirectory(path)
        streams.say(
            f"{path} belongs to cluster {clusterId} now; {JOURNAL_NAME} is {MOVED_JOURNAL_NAME}. "
            "Start the broker with metadata.store=zookeeper"
        )
        return 0
    finally:
        unlock()


def _read(fileSystem: IFileSystem, path: str) -> tuple[MetaProperties, MetadataImage]:
    """
    The broker's own metadata.

    @raise CommandError: there are none to move.
    """
    found = readMetaProperties(fileSystem, path)
    if fileSystem.status(f"{path}/{JOURNAL_NAME}") is None:
        if fileSystem.status(f"{path}/{APACHE_METADATA}") is not None:
            raise CommandError(f"{path} is Apache Kafka's: start the broker on it once before")
        if found is not None:
            raise CommandError(
                f"{path} has no {JOURNAL_NAME}: the metadata of its broker are in ZooKeeper already"
            )
    if found is None:
        raise CommandError(
            f"{path} has no {META_PROPERTIES}: a new broker needs no move, only "
            "metadata.store=zookeeper"
        )
    store = MetadataStore(fileSystem, path)
    image = MetadataImage()
    try:
        for change in store.open():
            for record in decodeRecords(change):
                image.apply(record)
    finally:
        store.close()
    return found, image


async def _move(
    options: Namespace,
    streams: Streams,
    metadata: MetadataManager,
    log: ZookeeperLog,
    found: MetaProperties,
    local: MetadataImage,
) -> None:
    brokerId, isThere = found.nodeId, await log.open(metadata)
    cluster = metadata.image if isThere else MetadataImage()
    if not isThere:
        cluster.apply(ClusterRecord(local.clusterId))
    try:
        nextMove(local, cluster, brokerId)
    except MetadataError as error:
        raise CommandError(
            f"ZooKeeper at {options.zookeeper} has cluster {cluster.clusterId}, and {error}. "
            "Nothing was changed"
        ) from None
    verb = "would move" if options.dryRun else "moving"
    streams.say(
        f"{verb} {formatCount(len(local.topics), 'topic')} with "
        f"{formatCount(local.partitionCount, 'partition')} of broker {brokerId} to "
        f"{'cluster ' + cluster.clusterId if isThere else 'a new cluster'} in ZooKeeper at "
        f"{options.zookeeper}"
    )
    if options.dryRun:
        return
    if not isThere:
        await log.create([ClusterRecord(local.clusterId)])
        await log.open(metadata)

    def decide(image: MetadataImage) -> tuple[list[Record], list[Record]]:
        records = nextMove(local, image, brokerId)
        return records, records

    written: list[Record] = []
    while more := await metadata.change(decide):
        written += more
    topicCount = sum(isinstance(each, TopicRecord) for each in written)
    streams.say(
        f"wrote {formatCount(len(written), 'record')}, {formatCount(topicCount, 'topic')} among "
        "them; what was there already was left as it is"
    )
