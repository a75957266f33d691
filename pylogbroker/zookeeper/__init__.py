"""
ZooKeeper: a client with Deferreds over kazoo, ephemeral nodes, and a server for development.

This module also serves the client for threads: it imports kazoo, and no Twisted.
"""

from typing import Any

READABLE, PRIVATE, OPEN = "readable", "private", "open"

IN_FLIGHT_COUNT_MAX = 100
"""Requests that kazoo holds at a time: its socket pair blocks the caller at some 270."""


def accessControl(digest: str, acl: str) -> Any:
    """
    kazoo's access control list for new nodes.

    @param digest: the client's C{user:password}; without one, nodes are open to all.
    @param acl: C{zk.acl} (L{pylogbroker.config.brokersettings}).
    """
    # A broker without ZooKeeper imports this module, and no kazoo.
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

    if not digest or acl == OPEN:
        return OPEN_ACL_UNSAFE
    return CREATOR_ALL_ACL + READ_ACL_UNSAFE if acl == READABLE else CREATOR_ALL_ACL
