"""Suites that several providers of one interface must pass."""
