"""
The long form of C{tests.integration.test_chaos}::

    python -m tests.long.chaos --seeds 10 --seconds 120 --output docs/results/chaos.md

prints what is done while it is done, and writes a page with seeds, versions and figures; the exit
status is 0 if nothing was broken. Where something was, the directory with the logs and records of
all processes is kept, and named.
"""

from __future__ import annotations

from importlib.metadata import version

from pylogbroker.records.compression import zlib
from tests.integration.chaos import (
    BACKOFF_MS,
    BROKER_PROPERTIES,
    COMMIT_MS,
    SESSION_MS,
    SETTLE_SECONDS,
    ChaosTrial,
)
from tests.long.chaosruns import ChaosPage, runChaos

PAGE = ChaosPage(
    (
        (
            "Three brokers of four partitions, four producers, a group of three members and one of"
            " one, all as processes at a real ZooKeeper. From the seed,"
        ),
        (
            "members join, leave, are killed (-9) and stopped for longer than a session; brokers"
            " are killed and started again, or stopped; sessions are ended"
        ),
        (
            "by others; ZooKeeper is restarted; connections are cut in the middle of a frame. What"
            " must hold is in [testing](../testing.md#chaos)."
        ),
    ),
    (f"kazoo {version('kazoo')}", f"CRC by {zlib.__name__}"),
    (
        (
            f"session {SESSION_MS} ms, back-off {BACKOFF_MS} ms, commit every {COMMIT_MS} ms;"
            f" stable within {SETTLE_SECONDS} s after the last fault"
        ),
        *(f"{key}={value}" for key, value in BROKER_PROPERTIES.items()),
    ),
    (
        "sent",
        "confirmed",
        "failed",
        "unknown",
        "unknown, in a log",
        "sent again, told",
        "twice in a log",
        "in the logs",
        "delivered",
        "delivered again",
        "settled (s)",
    ),
)


def cells(trial: ChaosTrial) -> list[str]:
    """The figures of a run, for the table."""
    figures = trial.figures
    again = ", ".join(f"{kind}: {count:,}" for kind, count in figures.duplicates.items()) or "0"
    numbers = (
        figures.sentCount,
        figures.okCount,
        figures.failedCount,
        figures.unknownCount,
        figures.unknownLoggedCount,
        figures.repeatedCount,
        figures.twiceLoggedCount,
        figures.loggedCount,
        figures.deliveredCount,
    )
    return [*(f"{number:,}" for number in numbers), again, f"{figures.settledSeconds:.1f}"]


def main() -> int:
    """Run it; returns the exit status."""
    return runChaos(
        "tests.long.chaos",
        "Disturb a cluster of processes, and see whether the books balance.",
        10,
        120,
        PAGE,
        ChaosTrial,
        cells,
    )


if __name__ == "__main__":
    raise SystemExit(main())
