"""Tests of what containers publish of themselves."""
