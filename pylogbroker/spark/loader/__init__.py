"""
Loading topics into a table of Parquet files, rows and offsets together; the Hadoop consumer of the
2011 paper, on Spark. It is a module of its own, since applications import it::

    from pylogbroker.spark.loader import load, table

    load(spark, "/warehouse/clicks", zookeeper="zk1:2181/kafka", subscribe="clicks")
    table(spark, "/warehouse/clicks").groupBy("date", "hour").count().show()

L{pylogbroker.lake} keeps the promise that nothing is lost or doubled; here are the rows.
"""

from pylogbroker.spark.loader.compaction import compact
from pylogbroker.spark.loader.reading import table
from pylogbroker.spark.loader.run import load

__all__ = ["compact", "load", "table"]
