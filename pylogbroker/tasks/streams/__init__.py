"""
The high-level API of tasks, in the manner of Kafka Streams: a fluent layer over streams and tables
that becomes a job.
"""

from pylogbroker.tasks.streams.compiler import buildJob
from pylogbroker.tasks.streams.fluent import (
    KGroupedStream,
    KGroupedTable,
    KSink,
    KStream,
    KTable,
    WindowedStream,
    stream,
    table,
)
from pylogbroker.tasks.streams.stores import ValueAndTimestamp
from pylogbroker.tasks.streams.windows import (
    ON_CHANGE,
    ON_CLOSE,
    HoppingWindow,
    JoinWindow,
    SessionWindow,
    TimeWindowedSerde,
    TumblingWindow,
    Windowed,
    WindowedSerde,
)

__all__ = [
    "ON_CHANGE",
    "ON_CLOSE",
    "HoppingWindow",
    "JoinWindow",
    "KGroupedStream",
    "KGroupedTable",
    "KSink",
    "KStream",
    "KTable",
    "SessionWindow",
    "TimeWindowedSerde",
    "TumblingWindow",
    "ValueAndTimestamp",
    "Windowed",
    "WindowedSerde",
    "WindowedStream",
    "buildJob",
    "stream",
    "table",
]
