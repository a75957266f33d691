"""Faults that a test orders of a broker."""
