"""
Tests for the high-level API of tasks.
"""
