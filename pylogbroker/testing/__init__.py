"""
Public test doubles: a real broker in a test, a ZooKeeper and a network in memory, files that lose
unsynced data. The package itself does not import this room.
"""

from pylogbroker.testing.localbroker import LocalBroker

__all__ = ["LocalBroker"]
