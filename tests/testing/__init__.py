"""Tests of the public test doubles."""
