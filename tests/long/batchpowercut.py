"""
The long form of the power cuts of L{tests.storage.test_batchrecovery}::

    python -m tests.long.batchpowercut --operations 1000000 --seed 7

Lives of a partition of record batches (appends of idempotent and transactional producers, flushes,
rolls, DeleteRecords, checkpoints), each ended by a power cut before a random file operation, half
of them with a second one during the recovery. The exit status is 0 if nothing that was flushed is
lost.
"""

from __future__ import annotations

import argparse
from time import monotonic

from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart
from tests.storage.test_batchrecovery import PowerCutTests


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.batchpowercut",
        description="Cut the power of partitions of record batches, and look for what was lost.",
    )
    parser.add_argument(
        "--operations", type=int, default=1_000_000, help="file operations (a million)"
    )
    addSeed(parser, "the lives")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.operations} file operations")
    tests = PowerCutTests("test_nothingFlushedIsLost")
    begun = monotonic()
    cutCount = operationCount = 0
    try:
        while operationCount < options.operations:
            tests.setUp()
            operationCount += tests.checkLife(seed + cutCount)
            cutCount += 1
    except AssertionError as error:
        tell(f"LOST, in the life {seed + cutCount}: {error}")
        return 1
    finally:
        figures = {"lifeCount": cutCount, "operationCount": operationCount}
        tellFigures({**figures, "seconds": monotonic() - begun})
    tell("nothing that was flushed is lost")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
