"""
The low-level client on Twisted: the requests of one broker, without a choice of broker or
partition.

L{pylogbroker.client.simpleconsumer.SimpleConsumer} reads and
L{pylogbroker.client.syncproducer.SyncProducer} writes. For threads, see L{pylogbroker.syncclient}.
"""

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer

__all__ = ["SimpleConsumer", "SyncProducer"]
