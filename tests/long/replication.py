"""
The long form of C{tests.integration.test_replication}::

    python -m tests.long.replication --seeds 10 --seconds 40 --output docs/results/replication.md

prints what is done while it is done, and writes a page with seeds, versions and figures; the exit
status is 0 if nothing was broken. Where something was, the directory with the data, the logs and
the records of all processes is kept, and named.
"""

from __future__ import annotations

from importlib.metadata import version

from tests.integration.kafkachaosrun import CLIENT_PROPERTIES
from tests.long.chaosruns import ChaosPage, runChaos
from tests.long.replicationchaos import (
    BROKER_PROPERTIES,
    CONFLUENT_PROPERTIES,
    CONSUMER_PROPERTIES,
    RECOVERY_SECONDS,
    ReplicationTrial,
)

PAGE = ChaosPage(
    (
        "Three brokers and our ZooKeeper server as processes; each topic has three replicas, of",
        "which two must be in sync. An idempotent producer of ours and one of confluent-kafka, a",
        "classic group of two members and a group by KIP-848 of ours, a group of confluent-kafka,",
        "and an application that copies a topic in transactions go on while, from the seed, one",
        "broker after another is killed (-9), stopped for longer than its session, or restarted",
        "in order. What must hold is in [testing](../testing.md#chaos-with-replicas).",
    ),
    (f"confluent-kafka {version('confluent-kafka')}",),
    (
        f"in sync within {RECOVERY_SECONDS} s after the last fault",
        f"brokers: {BROKER_PROPERTIES}",
        f"clients: {CLIENT_PROPERTIES}",
        f"members: {CONSUMER_PROPERTIES}",
        f"confluent-kafka: {CONFLUENT_PROPERTIES}",
    ),
    (
        "`acks=all` is",
        "compaction",
        "sent",
        "acknowledged",
        "copied",
        "aborted",
        "delivered",
        "delivered again",
        "longest time without an acknowledgement (s)",
        "in sync (s)",
        "bytes compared",
    ),
)


def cells(trial: ReplicationTrial) -> list[str]:
    """The figures of a run, for the table."""
    figures = trial.figures
    return [
        "flushed" if figures.isFlushed else "written",
        "yes" if figures.isCompacting else "no",
        f"{figures.sentCount:,}",
        f"{figures.okCount:,}",
        f"{figures.copiedCount:,}",
        f"{figures.abortedCount:,}",
        f"{figures.deliveredCount:,}",
        f"{figures.againCount:,}",
        f"{figures.ackSecondsMax:.1f}",
        f"{figures.recoverySeconds:.1f}",
        f"{figures.comparedCount:,}",
    ]


def main() -> int:
    """Run it; returns the exit status."""
    return runChaos(
        "tests.long.replication",
        "Take brokers of a cluster away one after another, and see whether anything is lost.",
        10,
        40,
        PAGE,
        ReplicationTrial,
        cells,
    )


if __name__ == "__main__":
    raise SystemExit(main())
