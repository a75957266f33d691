"""
Tests of L{pylogbroker.topologies}.
"""
