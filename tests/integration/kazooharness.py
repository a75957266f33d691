"""
A pytest plugin for kazoo's own tests: where they start a cluster of Apache's servers, they get one
server of ours, C{pylogbroker zookeeper} as a process, over which they have the same command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tests.integration.zookeeperprocess import ZookeeperProcess


def count(typeName: str) -> int:
    """The living objects of a class, as objgraph counts them for kazoo's tests."""
    return sum(type(each).__name__ == typeName for each in gc.get_objects())


_objgraph: Any = ModuleType("objgraph")
_objgraph.count = count
sys.modules.setdefault("objgraph", _objgraph)

# kazoo's tests make keystores for Apache's servers with it, which ours does not have.
sys.modules.setdefault("jks", ModuleType("jks"))

harness: Any = importlib.import_module("kazoo.testing.harness")


class OwnServer:
    """What kazoo's tests do with a server."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="pylogbroker-kazoo-")
        self._process = ZookeeperProcess(self._directory)
        self.running = False

    @property
    def address(self) -> str:
        return self._process.servers

    @property
    def client_port(self) -> int:
        return self._process.port

    def run(self) -> None:
        """Start it, with its data and its port, if it does not run."""
        if not self.running:
            self._process.start()
            self.running = True

    start = run

    def stop(self) -> None:
        self.running = False
        self._process.stop()

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


class OwnCluster:
    """A cluster of one, which lives until the process ends."""

    def __init__(self) -> None:
        self._servers = [OwnServer()]
        self._servers[0].run()
        atexit.register(self._servers[0].destroy)

    def __getitem__(self, index: int) -> OwnServer:
        return self._servers[index]

    def __iter__(self) -> Iterator[OwnServer]:
        return iter(self._servers)

    def start(self) -> None:
        for each in self._servers:
            each.run()

    def terminate(self) -> None:
        """Nothing: the next class of tests uses it, too, in a chroot of its own."""

    def get_logs(self) -> list[str]:
        return []


_clusters: list[OwnCluster] = []


def getOwnCluster() -> OwnCluster:
    """The one cluster."""
    if not _clusters:
        _clusters.append(OwnCluster())
    return _clusters[0]


harness.get_global_cluster = getOwnCluster
