"""
Tests of L{pylogbroker.tasks.state}.
"""
