"""
Which schema may follow which in a subject, by name: the rules that clients of registries know.
"""

from __future__ import annotations

NONE = "NONE"
BACKWARD = "BACKWARD"
FORWARD = "FORWARD"
FULL = "FULL"
TRANSITIVE = "_TRANSITIVE"
LEVELS = (
    NONE,
    *(kind + suffix for kind in (BACKWARD, FORWARD, FULL) for suffix in ("", TRANSITIVE)),
)
"""BACKWARD: the new one can read what the latest has written. FORWARD: the other way around. FULL: both. TRANSITIVE: all, instead of the latest."""

DEFAULT_LEVEL = BACKWARD
