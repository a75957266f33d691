"""Tests of L{pylogbroker.spark.kafka}."""
