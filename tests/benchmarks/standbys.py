"""
How long a task stands still when its container is killed, with and without a stand-by::

    python -m tests.benchmarks.standbys --keys 200000

A container counts words, each of which is another key; a second one, with a folder of its own, is
ready. The first is killed. The figures are the second one's, from its rebalance on: until its task
runs, and the changes that it has read from the changelog for that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import sleep
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, react

from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.serdes import INTEGER
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.taskmember import INPUT
from tests.tasks.jobs import countWords

POLL_SECONDS = 0.01
TIMEOUT_SECONDS = 120
SETTINGS = {
    "commit.interval.ms": "1000",
    "consumer.session.timeout.ms": "1000",
    "consumer.heartbeat.interval.ms": "200",
}


async def member(reactor: Any, properties: dict[str, str]) -> None:
    """A container, which prints a line for each change of what it is doing."""
    container = TaskContainer(reactor, countWords("rocksdb"), properties)
    said: list[Any] = []

    def say() -> None:
        status = container.status()
        found = [
            [each.phase for each in status],
            container.handledCount,
            [each.lag for each in container.standbys()],
            container.restoredCount,
        ]
        if found != said:
            said[:] = found
            print(json.dumps([reactor.seconds(), *found]), flush=True)

    LoopingCall(say).start(POLL_SECONDS)
    await container.run()


class _Member:
    """A process of a container."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--member", json.dumps(properties)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def until(self, isTrue: Any) -> list[Any]:
        """The first line that is as it shall be."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found: list[Any] = json.loads(line)
            if isTrue(*found[1:]):
                return found
        raise RuntimeError("a container has ended")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(keyCount: int, standbyCount: int, settleSeconds: float) -> tuple[float, int]:
    """
    Seconds from the rebalance until the task runs, and the changes that were read meanwhile.

    @param settleSeconds: until the first container has committed, and the second has followed.
    """
    broker = BackgroundBroker({"group.min.session.timeout.ms": "500"})
    broker.start()
    members: list[_Member] = []
    try:
        servers: dict[str, Any] = {"bootstrap.servers": broker.bootstrapServers}
        admin = AdminClient(servers)
        for waiting in admin.create_topics([NewTopic(INPUT, 1)]).values():
            waiting.result(TIMEOUT_SECONDS)
        producer = Producer({**servers, "queue.buffering.max.messages": keyCount + 1})
        for number in range(keyCount):
            producer.produce(INPUT, INTEGER.encode(1), f"word{number}".encode(), partition=0)
        producer.flush(TIMEOUT_SECONDS)
        with tempfile.TemporaryDirectory(prefix="pylogbroker-standbys-") as folder:
            for number in range(2):
                properties = {
                    **SETTINGS,
                    **servers,
                    "num.standby.replicas": str(standbyCount),
                    "state.dir": str(Path(folder, str(number))),
                }
                members.append(_Member(properties))
                if not number:
                    members[0].until(lambda _phases, handled, *_: handled == keyCount)
            second = members[1]
            second.until(lambda _phases, _handled, lags, _restored: lags == [0] * standbyCount)
            sleep(settleSeconds)
            members[0].kill()
            begun = second.until(lambda phases, *_: phases)
            running = begun  # unless it was seen while it started
            if begun[1] != ["running"]:
                running = second.until(lambda phases, *_: phases == ["running"])
            return running[0] - begun[0], running[-1]
    finally:
        for each in members:
            each.kill()
        broker.close()


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.standbys",
        description="Takeovers of a task with and without a stand-by.",
    )
    parser.add_argument("--keys", type=int, default=200_000, help="of the store (200000)")
    parser.add_argument("--settle", type=float, default=4, help="seconds for commits (4)")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member is not None:
        properties = json.loads(options.member)
        react(lambda reactor: Deferred.fromCoroutine(member(reactor, properties)))
    for standbyCount in (0, 1):
        seconds, restored = measure(options.keys, standbyCount, options.settle)
        print(
            f"{options.keys:,} keys, {standbyCount} stand-bys: the task runs {seconds:.2f} s behind"
            f" the rebalance, with {restored:,} changes read",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
