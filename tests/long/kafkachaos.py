"""
The long form of C{tests.integration.test_kafkachaos}::

    python -m tests.long.kafkachaos --seeds 20 --seconds 60 --output docs/results/kafka-chaos.md

prints what is done while it is done, and writes a page with seeds, versions and figures; the exit
status is 0 if nothing was broken. Where something was, the directory with the data, the logs and
the records of all processes is kept, and named.
"""

from __future__ import annotations

from tests.integration.kafkachaos import (
    BROKER_PROPERTIES,
    CLASSIC_PROPERTIES,
    CONSUMER_PROPERTIES,
    PRODUCERS,
    SETTLE_SECONDS,
    TRANSACTION_MS,
    KafkaChaosTrial,
)
from tests.integration.kafkachaosrun import CLIENT_PROPERTIES
from tests.long.chaosruns import ChaosPage, runChaos

PAGE = ChaosPage(
    (
        (
            "A broker of today's protocol and clients for Twisted, as processes: three idempotent"
            " producers, a classic group of three members with a static one, a"
        ),
        (
            "group of two members by KIP-848, and two applications that copy a topic in"
            " transactions. From the seed, members join, leave, are killed (-9) and stopped"
        ),
        (
            "for longer than a session; producers and applications are killed; the broker is"
            " killed, stopped and restarted; connections are cut in the middle of a"
        ),
        (
            "frame; requests are answered late, with errors that pass, or not at all. What must"
            " hold is in [testing](../testing.md#chaos-with-todays-clients)."
        ),
    ),
    (),
    (
        f"stable within {SETTLE_SECONDS} s after the last fault",
        f"broker: {BROKER_PROPERTIES}",
        f"clients: {CLIENT_PROPERTIES}",
        f"members: {CONSUMER_PROPERTIES}, classic: {CLASSIC_PROPERTIES}",
        f"producers: {PRODUCERS}, transactions of at most {TRANSACTION_MS} ms",
    ),
    (
        "assignor",
        "`acks=all` is",
        "sent",
        "acknowledged",
        "failed",
        "unknown",
        "unknown, in the log",
        "in the log",
        "copied",
        "aborted",
        "delivered",
        "delivered again",
        "two owners, as allowed",
        "settled (s)",
    ),
)


def cells(trial: KafkaChaosTrial) -> list[str]:
    """The figures of a run, for the table."""
    figures = trial.figures
    numbers = (
        figures.sentCount,
        figures.okCount,
        figures.failedCount,
        figures.unknownCount,
        figures.unknownLoggedCount,
        figures.loggedCount,
        figures.copiedCount,
        figures.abortedCount,
        figures.deliveredCount,
        figures.againCount,
        figures.overlapCount,
    )
    return [
        figures.assignor,
        "flushed" if figures.isFlushed else "written",
        *(f"{number:,}" for number in numbers),
        f"{figures.settledSeconds:.1f}",
    ]


def main() -> int:
    """Run it; returns the exit status."""
    return runChaos(
        "tests.long.kafkachaos",
        "Disturb a broker and its clients, and see whether the books balance.",
        20,
        60,
        PAGE,
        KafkaChaosTrial,
        cells,
    )


if __name__ == "__main__":
    raise SystemExit(main())
