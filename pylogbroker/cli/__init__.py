"""
The command C{pylogbroker}: L{pylogbroker.cli.main} holds the table of its commands.
"""

from __future__ import annotations

from pylogbroker.errors import PylogbrokerError


class CommandError(PylogbrokerError):
    """A command failed: its exit code is 1, and the text is for the person who typed it."""
