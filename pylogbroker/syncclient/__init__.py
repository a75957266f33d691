"""
The low-level client for threads and for Spark: plain sockets, no Twisted. Names and meanings are
those of L{pylogbroker.client}::

    with SimpleConsumer("log1", 9092) as consumer: ...
    with SimpleConsumer(*endpoint("tls:log1:9093:trustRoots=/etc/ssl/my-ca.d")) as consumer: ...
"""

from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer

__all__ = ["SimpleConsumer", "SyncProducer", "endpoint"]
