"""
Topics of today's Kafka in Spark: the source and the sink that C{kafka.bootstrap.servers} chooses.
Columns, options and their meanings are those of Spark's own Kafka source and sink.
"""
