"""
A chroot of its own for each test, in the ZooKeeper that all tests share, and brokers that are
registered in one.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from pylogbroker.zookeeper.client import ZookeeperClient
from tests.integration.zookeeperprocess import sharedZookeeper

reactor: Any = _reactor
_numbers = count()


def freshChroot(name: str) -> Deferred[str]:
    """
    Make a chroot whose tests see no others.

    @param name: what its name begins with.
    @return: fires with what clients are told, chroot and all, when it is there.
    """

    async def make() -> str:
        chroot = f"/{name}{next(_numbers)}"
        outer = ZookeeperClient(reactor, sharedZookeeper().servers)
        await outer.connect()
        await outer.create(chroot)
        await outer.close()
        return sharedZookeeper().servers + chroot

    return Deferred.fromCoroutine(make())


def registered(servers: str, number: int = 0, partitionCount: int = 2) -> dict[str, str]:
    """
    The properties of a broker of this machine that is registered in a ZooKeeper.

    @param number: C{brokerid}.
    """
    where = {"enable.zookeeper": "true", "zk.connect": servers, "hostname": "127.0.0.1"}
    return {"brokerid": str(number), "num.partitions": str(partitionCount), **where}
