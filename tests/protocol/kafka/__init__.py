"""Tests of today's dialect on the wire."""
