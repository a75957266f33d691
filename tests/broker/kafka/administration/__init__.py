"""Tests of what operators ask a cluster for."""
