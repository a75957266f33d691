"""
Records the rows that Spark's own Kafka source gives for the jobs of L{tests.integration.sparkjobs}.

    python -m tests.long.sparkrows

Needs Maven, which fetches the connector of Spark 4.2.0, the newest that Maven Central has whole; it
runs with the installed PySpark. The broker is ours: recorded is what Spark makes of records.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.sparkjobs import JOBS, PROPERTIES, RECORDED, fill, run
from tests.integration.sparksession import startSession
from tests.long.telling import tell

JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
SOURCE = "kafka"


def fetchJars(folder: str) -> list[str]:
    """The connector and what it needs that PySpark does not have."""
    needed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, name, version in JARS
    )
    Path(folder, "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>sparkrows</artifactId><version>1</version>"
        f"<dependencies>{needed}</dependencies></project>",
        encoding="ascii",
    )
    goal = "dependency:copy-dependencies"
    subprocess.run(
        ["mvn", "-q", "-B", goal, f"-DoutputDirectory={folder}/jars"], cwd=folder, check=True
    )
    return sorted(map(str, Path(folder, "jars").glob("*.jar")))


def main() -> None:
    """Write L{RECORDED}."""
    with tempfile.TemporaryDirectory() as folder:
        jars = ",".join(fetchJars(folder))
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
        spark = startSession(folder)
        found = {}
        with BackgroundBroker(PROPERTIES) as broker:
            fill(broker.bootstrapServers)
            for number, name in enumerate(JOBS):
                found[name] = run(
                    spark, SOURCE, name, broker.bootstrapServers, f"{folder}/{number}"
                )
                tell(f"{name}: {len(found[name]['rows'])} rows")
        spark.stop()
    lines = [
        f'{json.dumps(name)}: {{"columns": {json.dumps(each["columns"])}, "rows": [\n'
        + ",\n".join(map(json.dumps, each["rows"]))
        + "\n]}"
        for name, each in found.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
