"""
Persistent and ephemeral nodes: 0.7's rule for claiming one (spec-0.7 zookeeper §2.1), without its
hole (gotchas 9, 10).

0.7 takes a node with the value that it wanted to write for its own. But that node may belong to an
earlier session of the same program. It goes when that session expires, and is never created again.
So here a node is ours only if its session is ours; another session is a conflict, whatever the
value.

The caller handles a conflict: a consumer rebalances again, a broker waits for the old session's end
(L{claimWithin}).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import defer

from pylogbroker.errors import (
    NoAuthException,
    NodeExistsException,
    NoNodeException,
    ZookeeperError,
)
from pylogbroker.interfaces import EPHEMERAL, IZookeeper

_ROUNDS_MAX = 10
"""How often a node, or its parent, may vanish between two of our requests."""


class ConflictError(NodeExistsException):
    """
    Another session has the node.

    @ivar session: its owner; 0 for a persistent node, which never goes by itself.
    """

    def __init__(self, path: str, data: bytes, session: int) -> None:
        super().__init__(f"{path} belongs to session {session:#x}, with the value {data[:100]!r}")
        self.data = data
        self.session = session


async def createParents(zookeeper: IZookeeper, path: str) -> None:
    """
    Create the missing parents of a path, persistent and with null data, as 0.7.2 does.

    @raise NoNodeException: as L{createPersistent}.
    """
    parent = path.rpartition("/")[0]
    if parent:
        await createPersistent(zookeeper, parent)


async def createPersistent(zookeeper: IZookeeper, path: str, data: bytes | None = None) -> bool:
    """
    Create a node and its parents.

    ZooKeeper looks at the parent's access control before it looks whether the node exists. A node
    that exists and that we may not create is therefore found by a second request.

    @param data: L{None} is ZooKeeper's null, which differs from no bytes.
    @return: whether it was created; C{False} if it exists.
    @raise NoAuthException: it is missing, and we may not create it.
    @raise NoNodeException: the chroot of the connection was deleted.
    @raise ZookeeperError: no answer came, or the parents vanish again and again.
    """
    for _round in range(_ROUNDS_MAX):
        try:
            await zookeeper.create(path, data)
            return True
        except NodeExistsException:
            return False
        except NoAuthException:
            if await zookeeper.exists(path) is None:
                raise
            return False
        except NoNodeException:
            await _restoreParents(zookeeper, path)
    raise ZookeeperError(f"the parents of {path} come and go")


async def _restoreParents(zookeeper: IZookeeper, path: str) -> None:
    """
    After L{NoNodeException} for a new node.

    @raise NoNodeException: its parent is the root, which only a chroot can lack.
    """
    if path.count("/") == 1:
        raise NoNodeException(f"{path} cannot be created: the chroot was deleted; create it again")
    await createParents(zookeeper, path)


async def write(zookeeper: IZookeeper, path: str, data: bytes) -> None:
    """
    Set a persistent node's data, or create it. The last writer wins (spec-0.7 zookeeper §4.6).
    """
    try:
        await zookeeper.set(path, data)
    except NoNodeException:
        if not await createPersistent(zookeeper, path, data):
            await zookeeper.set(path, data)


async def claim(zookeeper: IZookeeper, path: str, data: bytes) -> None:
    """
    Make an ephemeral node ours.

    @raise ConflictError: another session has it.
    @raise NoNodeException: the chroot of the connection was deleted.
    @raise ZookeeperError: no answer came. The owner is unknown; a second call is safe.
    """
    for _round in range(_ROUNDS_MAX):
        try:
            await zookeeper.create(path, data, flags=EPHEMERAL)
            return
        except NoNodeException:
            await _restoreParents(zookeeper, path)
            continue
        except NodeExistsException:
            pass
        try:
            found, stat = await zookeeper.get(path)
            if stat.ephemeralOwner != zookeeper.session_id:
                raise ConflictError(path, found or b"", stat.ephemeralOwner)
            if found != data:
                await zookeeper.set(path, data, stat.version)
            return
        except NoNodeException:
            continue
    raise ZookeeperError(f"{path} comes and goes")


async def claimWithin(
    clock: Any,
    zookeeper: IZookeeper,
    path: str,
    data: bytes,
    patienceMs: int,
    waiting: Callable[[ConflictError], None] = lambda conflict: None,
) -> None:
    """
    Claim a node, but wait for another session to end, perhaps that of a restarted program.

    @param patienceMs: longer than the session time-out.
    @param waiting: called once, with the conflict, when the wait begins.
    @raise ConflictError: the other session still has it.
    """
    deadline = clock.seconds() + patienceMs / 1000
    hasTold = False
    while True:
        try:
            await claim(zookeeper, path, data)
            return
        except ConflictError as conflict:
            left = deadline - clock.seconds()
            if left <= 0 or conflict.session == 0:
                raise
            if not hasTold:
                waiting(conflict)
                hasTold = True
        stat, fired = zookeeper.exists_and_watch(path)
        if await stat is None:
            fired.addErrback(lambda _cancelled: None).cancel()
            continue
        try:
            await fired.addTimeout(left, clock)
        except (defer.TimeoutError, ZookeeperError):
            pass
