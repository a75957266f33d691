"""
The low-level client for threads and for Spark: plain sockets, no Twisted. Names and meanings are those of L{pylogbroker.client}.
"""

from pylogbroker.blocking.simpleconsumer import SimpleConsumer
from pylogbroker.blocking.syncproducer import SyncProducer

__all__ = ["SimpleConsumer", "SyncProducer"]
