"""
Tests of L{pylogbroker.tasks}.
"""
