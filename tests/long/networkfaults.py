"""
The chaos trial with replicas (L{tests.long.replication}) in a network of namespaces, with an
ensemble of Apache's ZooKeeper::

    python -m tests.long.networkfaults --seeds 50 --output docs/results/network-faults.md

It needs Linux, root, C{ip}, C{unshare}, C{nsenter} and Java, and prints what is done while it is
done; the exit status is 0 if nothing was broken. Several can run at the same time, each in
namespaces of its own, which go with it. Where something was broken, the directory with the data,
the logs and the records of all processes is kept, and named.
"""

from __future__ import annotations

from importlib.metadata import version

from tests.long.chaosruns import ChaosPage, runChaos
from tests.long.namespacechaos import NamespaceTrial
from tests.long.namespaces import isolate
from tests.long.replicationchaos import MESSAGE_COLUMNS, SETTINGS

PROGRAM = "tests.long.networkfaults"
PAGE = ChaosPage(
    (
        "Three brokers, three members of Apache's ZooKeeper, and clients, each in a network",
        "namespace of its own. One fault after another, from the seed: brokers are killed (-9),",
        "paused, restarted in order, cut off (from all, in one direction, from one another, from",
        "ZooKeeper); the cluster is cut in two; members of ZooKeeper are killed, paused, cut off;",
        "disks are full; wall clocks are stepped; applications with transactions are paused. What",
        "must hold is in [testing](../testing.md#chaos-in-network-namespaces).",
    ),
    (f"confluent-kafka {version('confluent-kafka')}",),
    SETTINGS,
    (
        "`acks=all` is",
        "faults",
        *MESSAGE_COLUMNS,
        "transactions on lists, committed",
        "not committed",
        "reads of lists",
        "edges",
    ),
)


def cells(trial: NamespaceTrial) -> list[str]:
    """The figures of a run, for the table."""
    figures, transactions = trial.figures, trial.transactions
    return [
        "flushed" if figures.isFlushed else "written",
        f"{sum(figures.faults.values())}",
        *figures.messageCells,
        f"{transactions.committedCount:,}",
        f"{transactions.abortedCount:,}",
        f"{transactions.readCount:,}",
        f"{transactions.edgeCount:,}",
    ]


def main() -> int:
    """Run it; returns the exit status."""
    isolate(PROGRAM)
    return runChaos(
        PROGRAM,
        "Cut a cluster's network, stop its processes, fill its disks, step its clocks, and see"
        " whether anything is lost.",
        50,
        300,
        PAGE,
        NamespaceTrial,
        cells,
    )


if __name__ == "__main__":
    raise SystemExit(main())
