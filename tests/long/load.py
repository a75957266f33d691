"""
The long form of C{tests.integration.test_load}::

    python -m tests.long.load --kills 20
    python -m tests.long.load --kills 20 --today

prints the seed, the versions, and what the run was made of; the exit status is 0 if the table
equals the topic after each kill, and in the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from time import monotonic

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.loadtrial import (
    PARTITION_COUNT,
    Kafka07Topic,
    KafkaTopic,
    LoadTrial,
    LoadTrialError,
    TrialTopic,
)
from tests.integration.sparksession import SparkCluster
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.load",
        description="Kill a loader again and again, and compare table and topic.",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=20_000,
        help="how many messages are published before each load (20000)",
    )
    parser.add_argument("--kills", type=int, default=20, help="how often the loader is killed (20)")
    parser.add_argument(
        "--today", action="store_true", help="a topic of today's Kafka, not of Kafka 0.7"
    )
    addSeed(parser, "the moments")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seed {seed}, {options.messages} messages a load, {options.kills} kills,"
        f" {'today' if options.today else 'Kafka 0.7'}",
        f"PySpark {version('pyspark')}",
    )
    folder = tempfile.mkdtemp(prefix="pylogbroker-load-")
    os.makedirs(f"{folder}/trial")
    begun = monotonic()
    topic: TrialTopic
    if options.today:
        broker = BackgroundBroker({"num.partitions": str(PARTITION_COUNT)}).start()
        topic, end = KafkaTopic(broker.bootstrapServers), broker.close
    else:
        cluster = SparkCluster(2, num_partitions="2", log_file_size="400000")
        topic, end = Kafka07Topic(cluster), cluster.end
    trial = LoadTrial(f"{folder}/trial", topic, seed, _progress)
    try:
        trial.run(options.messages, options.kills)
    except LoadTrialError as error:
        tell(f"WRONG: {error}\nthe directory is {folder}")
        return 1
    finally:
        end()
        tellFigures(trial.figures._asdict())
        tellFigures({"seconds": monotonic() - begun})
    shutil.rmtree(folder)
    tell("the table was what its offsets said after each kill, and equals the topic, row for row")
    return 0


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<79}")


if __name__ == "__main__":
    raise SystemExit(main())
