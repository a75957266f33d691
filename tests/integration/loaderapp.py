"""
A program with a Spark session that loads when it is told to, so that tests can kill it: C{python -m
tests.integration.loaderapp FOLDER OPTIONS}. The options of the source are JSON.

It says C{ready}, and then, for each line that it reads, loads the topic and says what came of it,
in a line of JSON. A line C{flaky} lets half of the tasks fail at their first attempt, in the middle
of their rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pylogbroker.errors import PylogbrokerError
from tests.integration.sparksession import startSession

TOPIC = "clicks"
FAILED = "failed.txt"
"""In the folder: a line for each task that was made to fail."""


def _failing(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows as they are; tasks with even numbers fail behind the first of them, once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        if context.attemptNumber() == 0 and context.partitionId() % 2 == 0:
            with open(f"{os.environ['SPARK_CONF_DIR']}/{FAILED}", "a", encoding="ascii") as file:
                file.write("x\n")
            raise RuntimeError("this task was made to fail")


def flaky(rows: Any) -> Any:
    """A transform whose tasks fail."""
    return rows.mapInArrow(_failing, rows.schema)


def main(folder: str, source: str) -> None:
    """See the module."""
    spark = startSession(folder)
    from pylogbroker.spark.loader import load

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        transform = flaky if line.strip() == "flaky" else None
        try:
            result = load(
                spark,
                f"{folder}/table",
                **json.loads(source),
                subscribe=TOPIC,
                minPartitions="6",
                transform=transform,
            )
            said: dict[str, Any] = {
                "rowCount": 0 if result.manifest is None else result.manifest.rowCount,
                "notes": list(result.notes),
            }
        except PylogbrokerError as error:
            said = {"error": type(error).__name__, "text": str(error)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
