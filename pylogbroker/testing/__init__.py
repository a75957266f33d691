"""
Public test doubles: real brokers for tests, a ZooKeeper and a network in memory, files that lose
unsynced data. The package itself does not import this room.

L{LocalBroker<pylogbroker.testing.localbroker.LocalBroker>} runs in a test's reactor,
L{BackgroundBroker<pylogbroker.testing.backgroundbroker.BackgroundBroker>} in a process of its own.
Names are imported when they are first used, since pytest loads its plugin from this room in every
run, also in those that need no broker and no Twisted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pylogbroker.testing.backgroundbroker import BackgroundBroker
    from pylogbroker.testing.localbroker import LocalBroker

__all__ = ["BackgroundBroker", "LocalBroker"]


def __getattr__(name: str) -> Any:
    if name == "LocalBroker":
        from pylogbroker.testing.localbroker import LocalBroker

        return LocalBroker
    if name == "BackgroundBroker":
        from pylogbroker.testing.backgroundbroker import BackgroundBroker

        return BackgroundBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
