"""
Topics in PySpark: the data source C{pylogbroker}. No Twisted; what plans and reads knows nothing of
Spark either, and can be tried without it.
"""
