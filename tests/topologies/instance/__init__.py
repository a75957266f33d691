"""
Tests of L{pylogbroker.topologies.instance}.
"""
