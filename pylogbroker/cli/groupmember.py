"""
A command as a member of a consumer group: of one that a person has named, whose positions stay, or of one of its own, of which nothing stays.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from random import SystemRandom
from typing import Any

from pylogbroker.cli.brokerchecks import announced
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.zookeeper.client import ZookeeperClient


class GroupMember:
    """
    One member.

    @ivar zookeeper: its client, which C{consumer} connects.
    @ivar consumer: not connected.
    """

    def __init__(
        self,
        reactor: Any,
        options: argparse.Namespace,
        streams: Streams,
        prefix: str,
        pollMs: int,
        changes: Mapping[str, str],
    ) -> None:
        """
        @param options: C{zookeeper}, C{access}, C{timeoutMs}, C{fetchSize} and C{group}, which is L{None} for one of its own.
        @param prefix: of the name of that.
        @param pollMs: how long a stream waits for messages, and a fetcher that has found none.
        @param changes: more properties of the consumer.
        """
        self._reactor = reactor
        self._options = options
        self._streams = streams
        self._isOwnGroup = options.group is None
        self._group = options.group or f"{prefix}-{SystemRandom().randrange(100_000)}"
        properties = {
            **options.access.asProperties(),
            "groupid": self._group,
            "zk.connect": options.zookeeper,
            "zk.connectiontimeout.ms": str(options.timeoutMs),
            "socket.timeout.ms": str(options.timeoutMs),
            "fetch.size": str(options.fetchSize),
            "fetcher.backoff.ms": str(pollMs),
            "consumer.timeout.ms": str(pollMs),
            **changes,
        }
        settings = ConsumerSettings.fromProperties(properties, streams.say)
        self.zookeeper = ZookeeperClient.fromSettings(reactor, settings)
        self.consumer = ConsumerConnector(reactor, settings, self.zookeeper)

    async def connect(self) -> None:
        """
        Connect to ZooKeeper. A wait is announced.

        @raise pylogbroker.errors.ZookeeperError: it is not there, or the chroot is not.
        """
        options = self._options
        await announced(
            self._reactor,
            self._streams.say,
            self.consumer.connect(),
            f"ZooKeeper at {options.zookeeper}",
            options.timeoutMs,
        )

    async def leave(self) -> None:
        """Leave the group; of one of its own nothing stays."""
        await self.consumer.shutdown()
        if self._isOwnGroup and self.zookeeper.connected:
            await _forget(self.zookeeper, GroupPaths(self._group).root)
        await self.zookeeper.close()


async def _forget(zookeeper: IZookeeper, path: str) -> None:
    """Delete a node and all below it, as far as it can be deleted."""
    try:
        for name in await zookeeper.get_children(path):
            await _forget(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except ZookeeperError:
        pass
