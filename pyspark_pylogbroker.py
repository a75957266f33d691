"""
Where Spark looks for data sources: it imports every top-level module named C{pyspark_…} and
registers its C{DefaultSource}. With this module installed, C{spark.read.format("pylogbroker")}
works without anything being registered.
"""

from pylogbroker.spark.datasource import PylogbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
