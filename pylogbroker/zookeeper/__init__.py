"""
ZooKeeper: a client with Deferreds over kazoo, ephemeral nodes, and a server for tests.

This module also serves the client for threads: it imports kazoo, and no Twisted.
"""

from typing import Any

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

READABLE, PRIVATE, OPEN = "readable", "private", "open"

_ACLS = {
    READABLE: CREATOR_ALL_ACL + READ_ACL_UNSAFE,
    PRIVATE: CREATOR_ALL_ACL,
    OPEN: OPEN_ACL_UNSAFE,
}

IN_FLIGHT_COUNT_MAX = 100
"""Requests that kazoo holds at a time: its socket pair blocks the caller at some 270."""


def accessControl(digest: str, acl: str) -> Any:
    """
    kazoo's access control list for new nodes.

    @param digest: the client's C{user:password}; without one, nodes are open to all.
    @param acl: C{zk.acl} (L{pylogbroker.config.brokersettings}).
    """
    return _ACLS[acl] if digest else OPEN_ACL_UNSAFE
