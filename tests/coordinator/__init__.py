"""
Tests of the coordinators: rules one by one, and random orders of events with checkers.
"""
