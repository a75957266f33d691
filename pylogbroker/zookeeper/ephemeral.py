"""
Claiming an ephemeral node: 0.7's rule (spec-0.7 zookeeper §2.1), with the hole in it mended (gotchas 9, 10).

0.7 creates the node; finds it there already; and if its value is the one it wanted to write, it takes the node for its own, whose creation it did not
hear of. But the node may belong to an earlier session of the same program, which has not expired yet: then it goes away later, and nobody puts it
back. So what counts here is whose session it goes with: ours, and it is ours; another's, and it is a conflict, whatever is written in it.

What to do about a conflict is the caller's: a consumer leaves the partition alone and tries the whole rebalance again, a broker waits until the old
session must be over (L{claimWithin}).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.errors import NodeExistsException, NoNodeException, ZookeeperError
from pylogbroker.interfaces import EPHEMERAL, IZookeeper

_ROUNDS_MAX = 10
"""How often a node may vanish between our seeing it and our looking at it, before that is an error."""


class ConflictError(NodeExistsException):
    """
    Another session has the node.

    @ivar data: what is in it.
    @ivar session: whose it is; 0 for a persistent node, which never goes by itself.
    """

    def __init__(self, path: str, data: bytes, session: int) -> None:
        super().__init__(f"{path} belongs to session {session:#x}, with the value {data[:100]!r}")
        self.data = data
        self.session = session


async def createParents(zookeeper: IZookeeper, path: str) -> None:
    """
    Create the nodes above a path, persistent and without data, as 0.7 does. Those that are there are left alone.
    """
    parent = path.rpartition("/")[0]
    if not parent:
        return
    try:
        await zookeeper.create(parent)
    except NodeExistsException:
        return
    except NoNodeException:
        await createParents(zookeeper, parent)
        await createPersistent(zookeeper, parent)


async def createPersistent(zookeeper: IZookeeper, path: str, data: bytes = b"") -> None:
    """Create a node with its parents; that it is there already is fine."""
    try:
        await zookeeper.create(path, data)
    except NodeExistsException:
        return
    except NoNodeException:
        await createParents(zookeeper, path)
        await createPersistent(zookeeper, path, data)


async def write(zookeeper: IZookeeper, path: str, data: bytes) -> None:
    """Set a persistent node's data, and create it if need be; the last writer wins (spec-0.7 zookeeper §4.6)."""
    try:
        await zookeeper.set(path, data)
    except NoNodeException:
        try:
            try:
                await zookeeper.create(path, data)
            except NoNodeException:  # of many siblings only the first
                await createParents(zookeeper, path)
                await zookeeper.create(path, data)
        except NodeExistsException:
            await zookeeper.set(path, data)


async def claim(zookeeper: IZookeeper, path: str, data: bytes) -> None:
    """
    Make an ephemeral node ours.

    @raise ConflictError: another session has it.
    @raise ZookeeperError: ZooKeeper could not be asked; whether the node is ours is not known, and asking again is safe.
    """
    for _round in range(_ROUNDS_MAX):
        try:
            await zookeeper.create(path, data, flags=EPHEMERAL)
            return
        except NoNodeException:
            await createParents(zookeeper, path)
            continue
        except NodeExistsException:
            pass
        try:
            found, stat = await zookeeper.get(path)
        except NoNodeException:
            continue
        if stat.ephemeralOwner != zookeeper.session_id:
            raise ConflictError(path, found or b"", stat.ephemeralOwner)
        if found == data:
            return
        try:
            await zookeeper.set(path, data, stat.version)
            return
        except ZookeeperError as error:
            if not isinstance(error, NoNodeException):
                raise
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
    The same, but when another session has the node, wait for it to go, since it may be the session of a program that was just restarted.

    @param patienceMs: how long, in all; the session time-out and some more.
    @param waiting: told, once, what is waited for.
    @raise ConflictError: it is still there then.
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
        result, watch = zookeeper.exists_and_watch(path)
        if await result is not None:
            await _firstOf(clock, watch, left)
        else:
            watch.addErrback(lambda _cancelled: None).cancel()


async def _firstOf(clock: Any, watch: Deferred[Any], seconds: float) -> None:
    """Wait for a watch, but not longer than so many seconds."""
    waiting: Deferred[None] = Deferred()

    def over(result: object) -> None:
        if not waiting.called:
            waiting.callback(None)

    watch.addBoth(over)
    late = clock.callLater(seconds, over, None)
    await waiting
    if late.active():
        late.cancel()
    watch.cancel()
