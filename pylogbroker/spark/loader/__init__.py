"""
Loading topics into a table of Parquet files: the Hadoop consumer of the 2011 paper, on Spark::

    from pylogbroker.spark.loader import load, table

    load(spark, "/warehouse/clicks", zookeeper="zk1:2181/kafka", subscribe="clicks")
    table(spark, "/warehouse/clicks").groupBy("date", "hour").count().show()

L{pylogbroker.lake} commits rows and offsets together, so nothing is lost or duplicated.
"""

from pylogbroker.spark.loader.compaction import compact
from pylogbroker.spark.loader.run import load
from pylogbroker.spark.loader.tablereader import table

__all__ = ["compact", "load", "table"]
