"""
Tests of L{pylogbroker.programs.topologies}.
"""
