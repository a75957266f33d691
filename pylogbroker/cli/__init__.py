"""
The command C{pylogbroker}: publish the lines of a file, read messages, ask for offsets, look into a segment file, see it all work.

L{pylogbroker.cli.main} knows the arguments, the exit codes and the errors; each command is a module of its own.
"""

from __future__ import annotations

from pylogbroker.errors import PylogbrokerError


class CommandError(PylogbrokerError):
    """A command ends with exit code 1; the text is for the person who typed it."""
