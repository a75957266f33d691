"""
Tests of L{pylogbroker.cluster.kafka}.
"""
