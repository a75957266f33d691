"""Tests for L{pylogbroker.spark.tasks}, without Java."""
