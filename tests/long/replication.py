"""
The long form of C{tests.integration.test_replication}::

    python -m tests.long.replication --seeds 10 --seconds 40 --output docs/results/replication.md

or, with all clients of today's Kafka at their default settings
(L{tests.long.allclusterclients})::

    python -m tests.long.replication --clients all --seeds 10 --seconds 60

or with those of Go, JavaScript and Rust (L{tests.long.kafkaclients.cluster})::

    python -m tests.long.replication --clients others --seeds 3 --seconds 0

(C{--zookeeper apache}: with Apache's ZooKeeper instead of ours)

prints what is done while it is done, and writes a page with seeds, versions and figures; the exit
status is 0 if nothing was broken. Where something was, the directory with the data, the logs and
the records of all processes is kept, and named.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.metadata import version

from tests.integration import clusterclients
from tests.integration.clusterclients import ClusterClientsTrial
from tests.integration.zookeeperprocess import ApacheZookeeperProcess, ZookeeperProcess
from tests.long.allclusterclients import AllClientsTrial
from tests.long.chaosruns import ChaosPage, runChaos
from tests.long.kafkaclients.cluster import VERSIONS, OtherClientsTrial
from tests.long.replicationchaos import MESSAGE_COLUMNS, SETTINGS, ReplicationTrial
from tests.oracle.apachebroker import VERSION

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
    SETTINGS,
    (
        "`acks=all` is",
        "compaction",
        *MESSAGE_COLUMNS,
    ),
)


def cells(trial: ReplicationTrial) -> list[str]:
    """The figures of a run, for the table."""
    figures = trial.figures
    return [
        "flushed" if figures.isFlushed else "written",
        "yes" if figures.isCompacting else "no",
        *figures.messageCells,
    ]


ALL_CLIENTS_PAGE = ChaosPage(
    (
        "Three brokers and our ZooKeeper server as processes; each topic has three replicas, of",
        "which two must be in sync. All clients of today's Kafka go on at their default settings:",
        "producers, groups and applications that copy a topic in transactions, of pylogbroker,",
        "confluent-kafka, aiokafka, kafka-python and Java, and Apache's console tools. One broker",
        "at a time is killed (-9), stopped for longer than its session, restarted in order, or cut",
        "off, in both directions or in one. What must hold is in",
        "[testing](../testing.md#all-clients-with-replicas).",
    ),
    (
        f"confluent-kafka {version('confluent-kafka')}",
        f"aiokafka {version('aiokafka')}",
        f"kafka-python {version('kafka-python')}",
        f"Apache Kafka {VERSION}",
    ),
    (f"brokers: {clusterclients.BROKER_PROPERTIES}",),
    (
        "sent",
        "acknowledged",
        "copied",
        "delivered",
        "delivered again",
        "tools",
        "in sync, and all clients go on (s)",
        "bytes compared",
    ),
)


OTHER_CLIENTS_PAGE = ALL_CLIENTS_PAGE._replace(
    text=(
        "As [with all clients](replication.md), with others: franz-go, sarama, kafka-go, kafkajs",
        "and rdkafka (Rust).",
    ),
    versions=tuple(VERSIONS.values()),
)


def clientsCells(trial: ClusterClientsTrial) -> list[str]:
    """The figures of a run with many clients, for the table."""
    figures = trial.figures
    return [
        f"{figures.sentCount:,}",
        f"{figures.okCount:,}",
        f"{figures.copiedCount:,}",
        f"{figures.deliveredCount:,}",
        f"{figures.againCount:,}",
        f"{figures.toolCount:,}",
        " ".join(map(str, figures.recoverySeconds)),
        f"{figures.comparedCount:,}",
    ]


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--clients", choices=["some", "all", "others"], default="some")
    parser.add_argument("--zookeeper", choices=["ours", "apache"], default="ours")
    options, rest = parser.parse_known_args()
    kind = ApacheZookeeperProcess if options.zookeeper == "apache" else ZookeeperProcess
    if options.clients == "all":
        return runChaos(
            "tests.long.replication --clients all",
            "As without --clients, with all clients of today's Kafka at their defaults.",
            10,
            60,
            ALL_CLIENTS_PAGE,
            partial(AllClientsTrial, makeZookeeper=kind),
            clientsCells,
            rest,
        )
    if options.clients == "others":
        return runChaos(
            "tests.long.replication --clients others",
            "As with all clients, with those of Go, JavaScript and Rust.",
            3,
            0,
            OTHER_CLIENTS_PAGE,
            partial(OtherClientsTrial, makeZookeeper=kind),
            clientsCells,
            rest,
        )
    return runChaos(
        "tests.long.replication",
        "Take brokers of a cluster away one after another, and see whether anything is lost.",
        10,
        40,
        PAGE,
        ReplicationTrial,
        cells,
        rest,
    )


if __name__ == "__main__":
    raise SystemExit(main())
