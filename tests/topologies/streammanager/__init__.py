"""
Tests of L{pylogbroker.topologies.streammanager}.
"""
