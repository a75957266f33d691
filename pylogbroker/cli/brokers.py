"""
C{pylogbroker brokers}: the brokers that are registered in ZooKeeper, what they hold, and whether they answer.
"""

from __future__ import annotations

import argparse
from typing import Any

from pylogbroker.cli.arguments import addJson, addRequiredZookeeper
from pylogbroker.cli.clustersession import ClusterSession
from pylogbroker.cli.streams import Streams
from pylogbroker.cli.tables import asJson, show, table
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherAll

_EXAMPLES = """\
examples:
  pylogbroker brokers --zookeeper zk1:2181
  pylogbroker brokers --zookeeper zk1:2181 --json

TOPICS and PARTITIONS are those that are registered; ANSWERS says whether the broker answered a request just now. The exit code is 1 when
one does not.
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    addRequiredZookeeper(parser)
    addJson(parser)


async def brokers(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print them.

    @return: the exit code: 1 when one of them does not answer.
    @raise PylogbrokerError: ZooKeeper cannot be read.
    """
    async with ClusterSession(
        reactor, options.zookeeper, options.timeoutMs, options.access
    ) as cluster:
        found = await cluster.registries.brokers()
        partitions = await cluster.registries.partitions(await cluster.registries.topics())
        answers: dict[int, bool] = {}
        await gatherAll(_ask(cluster, number, broker, answers) for number, broker in found.items())
    reports = []
    for number, broker in found.items():
        own = [topic for topic, partition in partitions if partition.broker == number]
        place: dict[str, Any] = {"broker": number, "host": broker.host, "port": broker.port}
        reports.append(
            {
                **place,
                "topicCount": len(set(own)),
                "partitionCount": len(own),
                "answers": answers[number],
            }
        )
    if options.isJson:
        text = asJson({"brokers": reports, "problems": cluster.problems})
    else:
        rows = [
            [*list(report.values())[:-1], "yes" if report["answers"] else "no"]
            for report in reports
        ]
        text = (
            table(("BROKER", "HOST", "PORT", "TOPICS", "PARTITIONS", "ANSWERS"), rows)
            if rows
            else ""
        )
        for problem in cluster.problems:
            streams.say(f"pylogbroker: {problem}")
        if not rows:
            streams.say("there are no brokers")
    await show(reactor, streams, text)
    return 0 if all(answers.values()) else 1


async def _ask(
    cluster: ClusterSession, number: int, broker: BrokerRegistration, answers: dict[int, bool]
) -> None:
    """With a request for nothing, of which a broker has no work."""
    answers[number] = False
    try:
        await (await cluster.ends.consumer(number)).multifetch([])
        answers[number] = True
    except PylogbrokerError as error:
        cluster.problems.append(
            f"broker {number} at {broker.host}:{broker.port} does not answer: {error}"
        )
