"""
Spouts that read the log, and bolts that write it, in both dialects: today's Kafka and that of 2011.

User code of an instance has a thread that may block, so the clients are those for threads.
"""

from pylogbroker.topologies.log.logbolt import LogBolt
from pylogbroker.topologies.log.logclients import LogMessage, LogRecord
from pylogbroker.topologies.log.logspout import LogSpout

__all__ = ["LogBolt", "LogMessage", "LogRecord", "LogSpout"]
