"""
A program with a Spark session that loads when it is told to, so that tests can kill it: C{python -m tests.integration.loaderapp FOLDER ZOOKEEPER}.

It says C{ready}, and then, for each line that it reads, loads the topic and says what came of it, in a line of JSON. A line C{flaky} lets half of the
tasks fail at their first attempt, in the middle of their rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pylogbroker.errors import PylogbrokerError

TOPIC = "clicks"


def _failing(batches: Iterator[Any]) -> Iterator[Any]:
    """Rows as they are; tasks with even numbers fail behind the first of them, once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        if context.attemptNumber() == 0 and context.partitionId() % 2 == 0:
            raise RuntimeError("this task was made to fail")


def flaky(rows: Any) -> Any:
    """A transform whose tasks fail."""
    return rows.mapInArrow(_failing, rows.schema)


def startSession(folder: str) -> Any:
    """Two threads, small, and quiet."""
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_DIRS=folder, SPARK_CONF_DIR=folder)
    with open(f"{folder}/log4j2.properties", "w", encoding="utf-8") as file:
        file.write("rootLogger.level=off\n")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("loaderapp")
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "700m", "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(folder: str, zookeeper: str) -> None:
    """See the module."""
    spark = startSession(folder)
    from pylogbroker.spark.loading import load

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        transform = flaky if line.strip() == "flaky" else None
        try:
            result = load(spark, f"{folder}/table", zookeeper=zookeeper, subscribe=TOPIC, minPartitions="6", transform=transform)
            said: dict[str, Any] = {"rowCount": 0 if result.manifest is None else result.manifest.rowCount, "notes": list(result.notes)}
        except PylogbrokerError as error:
            said = {"error": type(error).__name__, "text": str(error)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
