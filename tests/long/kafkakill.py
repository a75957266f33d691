"""
The long form of C{tests.integration.test_kafkakill}::

    python -m tests.long.kafkakill --rounds 200 --seed 7

prints the seed, the versions, and what the rounds were made of; the exit status is 0 if nothing
acknowledged was lost.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from time import monotonic

import confluent_kafka

from tests.integration.kafkakills import PROPERTIES, KafkaKillTrial, LostError
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.kafkakill",
        description="Kill a broker of today's protocol and look for what was lost.",
    )
    parser.add_argument("--rounds", type=int, default=200, help="how many kills (200)")
    addSeed(parser, "the moments")
    options = parser.parse_args()
    seed = seedOf(options)
    library = f"librdkafka {confluent_kafka.libversion()[0]}"
    tellStart(f"seed {seed}, {options.rounds} rounds", library, properties=PROPERTIES)
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = KafkaKillTrial(folder + "/logs", seed)
    try:
        trial.run(options.rounds)
    except LostError as error:
        tell(f"LOST: {error}\nthe directory is {folder}")
        return 1
    finally:
        tellFigures({**trial.figures._asdict(), "seconds": monotonic() - begun})
    shutil.rmtree(folder)
    tell("nothing that was acknowledged is lost")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
