"""
The low-level client on Twisted: one broker, its requests, nothing decided for the caller.

L{pylogbroker.client.simpleconsumer.SimpleConsumer} reads,
L{pylogbroker.client.syncproducer.SyncProducer} writes; both stand on
L{pylogbroker.client.brokerclient.BrokerClient}, which keeps one
L{pylogbroker.client.connection.BrokerConnection} to a broker. For threads, see
L{pylogbroker.syncclient}.
"""

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer

__all__ = ["SimpleConsumer", "SyncProducer"]
