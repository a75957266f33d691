"""
What Spark raises, as an error of ours: one line that says why, where Spark says it in eighty.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pylogbroker.errors import LoadError

_OURS = re.compile(r"^(?:pylogbroker\.errors\.)(\w+): (.+)$", re.MULTILINE)
_TEXT_SIZE_MAX = 500


_NO_JAVA_PROCESS = "JAVA_GATEWAY_EXITED"
"""What PySpark says if the Java process that it starts ends at once, for whatever reason."""

JAVA_VERSION_MIN = 17


def reason(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    One line of what Spark says: the last error of ours that a worker has told of; if there is none, the first line that says anything.

    @param environment: of the program that starts Spark; names its Java runtime.
    """
    if _NO_JAVA_PROCESS in text:
        return _javaProblem(environment)
    found = _OURS.findall(text)
    if found:
        return f"{found[-1][1]} ({found[-1][0]})"
    lines = [
        line.strip(" \t:")
        for line in text.splitlines()
        if line.strip() and not line.startswith("An error occurred while calling")
    ]
    return (lines[0] if lines else "Spark does not say why")[:_TEXT_SIZE_MAX]


def _javaProblem(environment: Mapping[str, str]) -> str:
    """Why there is no Java process. Spark takes the runtime of C{JAVA_HOME}, or the first one in the path if that is not set."""
    home = environment.get("JAVA_HOME")
    path = environment.get("PATH", os.defpath)
    java = shutil.which(f"{home}/bin/java" if home else "java", path=path)
    if java is None:
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        return (
            f"it needs a Java runtime, and {where}: install one of version {JAVA_VERSION_MIN} or later"
            " (Debian: default-jre-headless)"
        )
    return f"its Java process has ended at once; is {java} of version {JAVA_VERSION_MIN} or later?"


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
