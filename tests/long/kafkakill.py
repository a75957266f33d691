"""
The long form of C{tests.integration.test_kafkakill}::

    python -m tests.long.kafkakill --rounds 200 --seed 7

prints the seed, the versions, and what the rounds were made of; the exit status is 0 if nothing
acknowledged was lost.
"""

from __future__ import annotations

import confluent_kafka

from tests.integration.kafkakills import PROPERTIES, KafkaKillTrial
from tests.long.killtrials import runKillTrial


def main() -> int:
    """Run it; returns the exit status."""
    return runKillTrial(
        "tests.long.kafkakill",
        "Kill a broker of today's protocol and look for what was lost.",
        "the moments",
        KafkaKillTrial,
        f"librdkafka {confluent_kafka.libversion()[0]}",
        PROPERTIES,
        "acknowledged",
    )


if __name__ == "__main__":
    raise SystemExit(main())
