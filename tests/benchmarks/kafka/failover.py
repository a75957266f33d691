"""
C{python -m tests.benchmarks.kafka.failover}: time without a leader when that is killed (-9), and
when it stops in order, of three of our brokers and three of Apache Kafka's at the same session
time-out, in turns.

One partition has three replicas, C{min.insync.replicas=2}. What ends a time is seen from outside:

  - I{elected}: a broker that is left names another leader. It is asked every 20 ms.
  - I{serving}: that leader has acknowledged a message with C{acks=all}. It is sent again every 20
  ms until then, without a client that could wait for anything.
  - I{silence}: the longest time between two acknowledgements of a producer of confluent-kafka's,
  idempotent, which sends all the time. It adds waits of its own: while the metadata name a leader
  that it does not reach, librdkafka asks for them once a second; and where the lost broker is not
  among the brokers any more, it often waits for the next second before it takes the new leader.

Apache's brokers are controllers, too: a third of those that are taken away is the active one. Ours
may be the controller as well.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.compression import NONE
from tests.benchmarks.kafka.clusters import BROKERS, ApacheCluster, Cluster, OurCluster
from tests.benchmarks.kafka.frames import (
    PRODUCE_VERSION,
    BlockingClient,
    batch,
)
from tests.benchmarks.machine import load
from tests.benchmarks.report import table

APACHE, FLUSHED, WRITTEN = SIDES = ("apache", "flushed", "written")
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}
FIGURES = ("elected", "serving", "silence")
TOPIC = "failover"
MIN_IN_SYNC = {"min.insync.replicas": "2"}
POLL_SECONDS = 0.02
WAIT_SECONDS_MAX = 60.0
SETTLE_SECONDS = 1.0
"""From the moment when all replicas are in sync to the next fault, and from the new leader's first
acknowledgement to the end of a trial."""


def creators(sessionMs: int) -> dict[str, Callable[[Path], Cluster]]:
    """
    What starts each side.

    @param sessionMs: the session time-out. Apache's heartbeats are as much shorter as in its
        defaults (9,000 ms and 2,000 ms); our ZooKeeper client sends three in a session.
    """
    apache = {
        "broker.session.timeout.ms": str(sessionMs),
        "broker.heartbeat.interval.ms": str(sessionMs * 2 // 9),
    }
    ours = {"zk.sessiontimeout.ms": str(sessionMs)}
    return {
        APACHE: lambda folder: ApacheCluster(folder, apache),
        FLUSHED: lambda folder: OurCluster(folder, ours),
        WRITTEN: lambda folder: OurCluster(folder, {**ours, "log.flush.acks.all": "false"}),
    }


class _Producer:
    """Sends all the time, from a thread of its own, and notes when it is acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.times: list[float] = []
        self._isEnding = False
        servers = ",".join(f"127.0.0.1:{each}" for each in cluster.ports.values())
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._isEnding:
            try:
                self._client.produce(TOPIC, b"x" * 100, on_delivery=self._told)
            except BufferError:
                pass  # it waits for the new leader
            self._client.poll(0.005)

    def _told(self, error: Any, _message: Any) -> None:
        if error is None:
            self.times.append(time.monotonic())

    def silence(self, since: float) -> float:
        """The longest time between two acknowledgements."""
        times = list(self.times)
        return max((b - a for a, b in pairwise(times) if b > since), default=float("nan"))

    def close(self) -> None:
        self._isEnding = True
        self._thread.join()
        self._client.flush(WAIT_SECONDS_MAX)


def _awaitLeader(port: int) -> int:
    """The leader, when a broker says that all replicas are in sync."""
    with BlockingClient(port) as client:
        return client.awaitLeader(TOPIC, len(BROKERS))


def _ask(port: int, ask: Callable[[BlockingClient], Any]) -> Any:
    """L{None}: the broker does not answer."""
    try:
        with BlockingClient(port) as client:
            return ask(client)
    except OSError:
        return None


def _until(found: Callable[[], Any]) -> Any:
    """
    Ask until there is something.

    @raise RuntimeError: it takes too long.
    """
    until = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < until:
        answer = found()
        if answer is not None:
            return answer
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"nothing within {WAIT_SECONDS_MAX:.0f} s")


def _isAcknowledged(client: BlockingClient) -> bool | None:
    cls = messages.ProduceRequest
    data = cls.TopicProduceData(
        name=TOPIC, partitionData=[cls.PartitionProduceData(records=batch(1, NONE))]
    )
    body = cls(transactionalId=None, acks=-1, timeoutMs=10_000, topicData=[data])
    answer = client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, body)
    return None if answer.responses[0].partitionResponses[0].errorCode else True


def trial(cluster: Cluster, how: signal.Signals) -> dict[str, float]:
    """
    Take the leader away, and start it again.

    @return: the seconds of L{FIGURES}.
    """
    leader, *_ = [_awaitLeader(port) for port in cluster.ports.values()]
    producer = _Producer(cluster)
    _until(lambda: producer.times or None)
    time.sleep(SETTLE_SECONDS)
    left = [port for number, port in cluster.ports.items() if number != leader]
    ended = threading.Thread(target=cluster.end, args=(leader, how))
    begun = time.monotonic()
    ended.start()
    asked = iter(range(1 << 30))

    def elected() -> int | None:
        port = left[next(asked) % len(left)]
        found = _ask(port, lambda client: client.metadata(TOPIC)[0])
        parts = [] if found is None or found.errorCode else found.partitions
        named = [each.leaderId for each in parts if each.leaderId not in (-1, leader)]
        return named[0] if named else None

    successor = _until(elected)
    figures = {"elected": time.monotonic() - begun}
    _until(lambda: _ask(cluster.ports[successor], _isAcknowledged))
    figures["serving"] = time.monotonic() - begun
    count = len(producer.times)
    _until(lambda: True if len(producer.times) > count else None)
    time.sleep(SETTLE_SECONDS)
    figures["silence"] = producer.silence(begun)
    producer.close()
    ended.join()
    cluster.startBroker(leader)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kafka.failover",
        description="Measure the time without a leader beside three brokers of Apache Kafka.",
    )
    parser.add_argument("--trials", type=int, default=10, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--session", type=int, default=3_000, help="time-out (ms)")
    parser.add_argument("--directory", type=Path, help="where the data go")
    options = parser.parse_args(arguments)
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="pylogbroker-kafka-", dir=options.directory) as name,
        ExitStack() as stack,
    ):
        made = creators(options.session)
        sides = {each: stack.enter_context(made[each](Path(name, each))) for each in options.sides}
        for cluster in sides.values():
            with BlockingClient(cluster.ports[BROKERS[0]]) as client:
                client.createTopics([TOPIC], MIN_IN_SYNC, len(BROKERS))
        for number in range(options.trials):
            for kind in options.kinds:
                for side, cluster in sides.items():
                    one = trial(cluster, KINDS[kind])
                    found[side, kind].append(one)
                    text = ", ".join(f"{key} {value:.2f}" for key, value in one.items())
                    print(f"{number + 1}: {side}, {kind}: {text}; load {load()}", file=sys.stderr)
    rows = []
    for (side, kind), trials in found.items():
        row = [side, kind]
        for figure in FIGURES:
            values = [each[figure] for each in trials]
            row += [f"{median(values):.2f}", f"{max(values):.2f}"]
        rows.append(row)
    columns = ["side", "leader"]
    for figure in FIGURES:
        columns += [f"{figure}: p50", "worst"]
    print("\n".join(table(columns, rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
