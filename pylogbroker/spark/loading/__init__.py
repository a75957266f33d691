"""
Loading topics into a table of Parquet files, rows and offsets together; the Hadoop consumer of the 2011 paper, on Spark::

    from pylogbroker.spark.loading import load, table

    load(spark, "/warehouse/clicks", zookeeper="zk1:2181/kafka", subscribe="clicks")
    table(spark, "/warehouse/clicks").groupBy("date", "hour").count().show()

L{pylogbroker.warehouse} keeps the promise that nothing is lost or doubled; here are the rows.
"""

from pylogbroker.spark.loading.compacting import compact
from pylogbroker.spark.loading.reading import table
from pylogbroker.spark.loading.running import load

__all__ = ["compact", "load", "table"]
