"""
How a command says that it did not work out.
"""

from __future__ import annotations

from pylogbroker.errors import PylogbrokerError


class CommandError(PylogbrokerError):
    """A command ends with exit code 1; the text is for the person who typed it."""
