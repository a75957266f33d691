"""
For people's tests, and for ours: brokers and files that fail on demand. Nothing in the package imports this.
"""

from pylogbroker.testing.localbroker import LocalBroker

__all__ = ["LocalBroker"]
