"""
The long form of C{tests.integration.test_kafkaaudittrial}::

    python -m tests.long.kafkaaudit --seeds 5 --seconds 60 --seed 7

prints the versions, and what each run was made of; the exit status is 0 if each audit said what is
so.
"""

from __future__ import annotations

import argparse
from time import monotonic
from typing import Any

import confluent_kafka
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from tests.integration.kafkaaudittrial import PROPERTIES, AuditError, KafkaAuditTrial
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


async def runAll(seeds: range, seconds: float) -> None:
    """Run a trial for each seed. @raise SystemExit: one has failed."""
    for seed in seeds:
        begun = monotonic()
        trial = KafkaAuditTrial(seed, seconds)
        try:
            await trial.run()
        except AuditError as error:
            tell(f"seed {seed}: WRONG: {error}")
            raise SystemExit(1) from error
        finally:
            tellFigures({"seed": seed, **trial.figures._asdict(), "seconds": monotonic() - begun})
    tell("every audit said what is so")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.kafkaaudit",
        description="Kill the broker of audited producers, and compare the audit with the books.",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many runs (5)")
    parser.add_argument("--seconds", type=float, default=60, help="of work in each (60)")
    addSeed(parser, "the moments, the transactions and the losses")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seeds {seed} to {seed + options.seeds - 1}, {options.seconds:g} s each",
        f"librdkafka {confluent_kafka.libversion()[0]}",
        properties=PROPERTIES,
    )

    def begin(_reactor: Any) -> Deferred[None]:
        return Deferred.fromCoroutine(runAll(range(seed, seed + options.seeds), options.seconds))

    react(begin)


if __name__ == "__main__":
    main()
