"""
What Spark raises, as an error of ours: one line that says why, where Spark says it in eighty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pylogbroker.errors import LoadError

_OURS = re.compile(r"^(?:pylogbroker\.errors\.)(\w+): (.+)$", re.MULTILINE)
_TEXT_SIZE_MAX = 500


def reason(text: str) -> str:
    """The last error of ours that a worker has told of; if there is none, the first line that says anything."""
    found = _OURS.findall(text)
    if found:
        return f"{found[-1][1]} ({found[-1][0]})"
    lines = [
        line.strip(" \t:")
        for line in text.splitlines()
        if line.strip() and not line.startswith("An error occurred while calling")
    ]
    return (lines[0] if lines else "Spark does not say why")[:_TEXT_SIZE_MAX]


@contextmanager
def sparkErrors() -> Iterator[None]:
    """
    @raise LoadError: for whatever Spark raises.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise LoadError(
            f"Spark has given up, and nothing was committed: {reason(str(error))}"
        ) from error
