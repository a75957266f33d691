"""
Watches on nodes in ZooKeeper, and on their children.

A watch is armed before anything is read that it is to watch over, and stays armed until it fires; so what changes between two readings is never missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.errors import NoNodeException
from pylogbroker.interfaces import IZookeeper, Stat

T = TypeVar("T")


class ChildWatches:
    """
    One on each node that was asked for, as long as nothing has changed there.
    """

    def __init__(self, zookeeper: IZookeeper, changed: Callable[[], None]) -> None:
        """
        @param changed: called when a watch has fired.
        """
        self._zookeeper = zookeeper
        self._changed = changed
        self._fired: dict[str, Deferred[Any]] = {}

    async def children(self, path: str) -> list[str]:
        """
        The children of a node, which are watched from now on if they were not; none of a node that is not there, which is watched for, too.

        @raise pylogbroker.errors.ZookeeperError: they cannot be read.
        """
        while path not in self._fired:
            children, fired = self._zookeeper.get_children_and_watch(path)
            try:
                return await self._watched(path, children, fired)
            except NoNodeException:
                pass
            stat, fired = self._zookeeper.exists_and_watch(path)
            if await self._watched(path, stat, fired) is None:
                return []
            fired.cancel()
        try:
            return list(await self._zookeeper.get_children(path))
        except NoNodeException:
            return []

    def isWatched(self, path: str) -> bool:
        """Whether a watch is armed and has not fired: what was read there is still so."""
        return path in self._fired

    async def node(self, path: str) -> tuple[bytes, Stat] | None:
        """
        A node's data and status, which are watched from now on; L{None} for a node that is not there, which is not.

        @raise pylogbroker.errors.ZookeeperError: it cannot be read.
        """
        self.forget(path)
        found, fired = self._zookeeper.get_and_watch(path)
        try:
            data, stat = await self._watched(path, found, fired)
        except NoNodeException:
            return None
        return data or b"", stat

    def forget(self, path: str) -> None:
        """Watch a path no more."""
        fired = self._fired.pop(path, None)
        if fired is not None:
            fired.cancel()

    async def _watched(self, path: str, result: Awaitable[T], fired: Deferred[Any]) -> T:
        self._fired[path] = fired
        fired.addCallbacks(
            self._seen, self._unseen, callbackArgs=(path, fired), errbackArgs=(path, fired)
        )
        try:
            return await result
        except BaseException:
            self.forget(path)
            raise

    def _seen(self, _event: object, path: str, fired: Deferred[Any]) -> None:
        self._unseen(None, path, fired)
        self._changed()

    def _unseen(self, _failure: Failure | None, path: str, fired: Deferred[Any]) -> None:
        """Its session is over, or it was cancelled."""
        if self._fired.get(path) is fired:
            del self._fired[path]

    def cancel(self) -> None:
        """Watch nothing any more."""
        for fired in list(self._fired.values()):
            fired.cancel()
