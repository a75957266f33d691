"""
Tests of L{pylogbroker.tasks.inputs}.
"""
