"""
Tests of L{pylogbroker.topologies.metrics}.
"""
