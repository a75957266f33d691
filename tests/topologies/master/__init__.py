"""
Tests of L{pylogbroker.topologies.master}.
"""
