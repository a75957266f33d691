"""Tests of partitions that are on several brokers."""
