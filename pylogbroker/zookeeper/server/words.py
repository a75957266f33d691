"""
Four-letter words: what an operator, or a tool, asks a ZooKeeper server by C{nc}. This is a
module of its own, since the words are no part of the protocol of requests.

Left out are latencies, which this server does not measure, and words that change something.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pylogbroker import __version__

if TYPE_CHECKING:
    from pylogbroker.zookeeper.server.service import ZookeeperServer

PROTOCOL_VERSION = "3.9.0"
"""The version of ZooKeeper whose protocol this server speaks."""

DUMP_SIZE_MAX = 256 << 10
"""Characters of C{dump}, about."""

VERSION = f"{PROTOCOL_VERSION}-pylogbroker-{__version__}"


def _srvr(server: ZookeeperServer, clients: str = "") -> str:
    counters = server.counters
    return (
        f"Zookeeper version: {VERSION}, in Python, for development\n{clients}"
        f"Received: {counters.receivedCount}\n"
        f"Sent: {counters.sentCount}\n"
        f"Connections: {len(server.connections)}\n"
        f"Outstanding: {server.commits.outstandingCount}\n"
        f"Zxid: {server.tree.zxid:#x}\n"
        "Mode: standalone\n"
        f"Node count: {len(server.tree.nodes)}\n"
    )


def _stat(server: ZookeeperServer) -> str:
    return _srvr(server, f"Clients:\n{_clients(server)}\n")


def _clients(server: ZookeeperServer) -> str:
    return "".join(f" /{each}\n" for each in server.connections)


def _mntr(server: ZookeeperServer) -> str:
    tree = server.tree
    values = {
        "zk_version": VERSION,
        "zk_server_state": "standalone",
        "zk_packets_received": server.counters.receivedCount,
        "zk_packets_sent": server.counters.sentCount,
        "zk_num_alive_connections": len(server.connections),
        "zk_outstanding_requests": server.commits.outstandingCount,
        "zk_znode_count": len(tree.nodes),
        "zk_watch_count": server.watches.count,
        "zk_ephemerals_count": tree.ephemeralCount(),
        "zk_approximate_data_size": tree.size,
        "zk_global_sessions": len(tree.sessions),
    }
    return "".join(f"{name}\t{value}\n" for name, value in values.items())


def _conf(server: ZookeeperServer) -> str:
    settings = server.settings
    return (
        f"tickTime={settings.tickMs}\n"
        f"minSessionTimeout={settings.sessionTimeoutMsMin}\n"
        f"maxSessionTimeout={settings.sessionTimeoutMsMax}\n"
        f"maxCnxns={settings.connectionCountMax}\n"
    )


def _envi(server: ZookeeperServer) -> str:
    return (
        f"Environment:\nzookeeper.version={VERSION}, in Python, for development\n"
        f"host.name={platform.node()}\npython.version={sys.version.split()[0]}\n"
        f"os.name={platform.system()}\nos.arch={platform.machine()}\n"
    )


def _dump(server: ZookeeperServer) -> str:
    tree, size = server.tree, 0
    lines = [f"Sessions ({len(tree.sessions)}):"]
    for sessionId in tree.sessions:
        for line in (f"{sessionId:#x}:", *(f"\t{each}" for each in tree.ephemerals(sessionId))):
            size += len(line)
            if size > DUMP_SIZE_MAX:
                lines.append("(and more)")
                return "\n".join(lines) + "\n"
            lines.append(line)
    return "\n".join(lines) + "\n"


_WORDS: dict[bytes, Callable[[ZookeeperServer], str]] = {
    b"ruok": lambda server: "imok",
    b"isro": lambda server: "rw",
    b"srvr": _srvr,
    b"stat": _stat,
    b"mntr": _mntr,
    b"conf": _conf,
    b"envi": _envi,
    b"cons": _clients,
    b"dump": _dump,
    b"wchs": lambda server: f"Total watches:{server.watches.count}\n",
}


def answerWord(server: ZookeeperServer, word: bytes) -> str | None:
    """The answer to a four-letter word; L{None}: it is none."""
    answer = _WORDS.get(word)
    return None if answer is None else answer(server)
