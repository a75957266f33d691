"""Tests of L{pylogbroker.topologies.log}."""
