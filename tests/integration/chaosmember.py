"""
The programs of the chaos run (L{tests.integration.chaos}): a producer that publishes numbered
messages, and a member of a group that reads them. Each is a process of its own
(L{tests.integration.chaosprogram}), and writes down what it sees::

    sent N                      before it is given to the producer
    view PARTITIONS             before the first message sent after the producer's list changed
    ok N / failed N / unknown N what the producer made of it
    got PLACE NEXT VALUE        handed out by a stream
    owned STATE PLACES          when it changes
    session ID PASSWORD         of each session with ZooKeeper
    end {...}                   the last; the producer's counters
"""

from __future__ import annotations

import json
from dataclasses import asdict
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, deferLater

from pylogbroker.client.brokerclient import BrokerClient, BrokerClientPool
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.discovery import ZookeeperDiscovery
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import PylogbrokerError, UnknownOutcomeError
from pylogbroker.producer.producer import Producer
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.integration.chaosprogram import Record, start

TOPIC = "clicks"
LOOK_SECONDS = 0.02
JOIN_AGAIN_SECONDS = 0.3
KEY_COUNT = 20
CONNECT_MS = 1_000
"""Shorter than a broker may be away, so that messages fail, too."""


class ProxiedConnections(BrokerClientPool):
    """Reaches brokers by way of the test's proxies."""

    def __init__(self, reactor: Any, ports: dict[int, int]) -> None:
        super().__init__(
            reactor,
            connectTimeoutMs=CONNECT_MS,
            limits=ConnectionLimits(
                waitingCountMax=100_000, waitingSizeMax=1 << 30, stallMs=10_000
            ),
        )
        self._ports = ports

    def _proxied(self, endpoint: str) -> str:
        host, _colon, port = endpoint.rpartition(":")
        return f"{host}:{self._ports[int(port)]}"

    def get(self, endpoint: str) -> BrokerClient:
        return super().get(self._proxied(endpoint))

    def forget(self, endpoint: str) -> Deferred[None]:
        """Also of one that is proxied already, from C{close}."""
        return super().forget(
            self._proxied(endpoint) if int(endpoint.rpartition(":")[2]) in self._ports else endpoint
        )


class SessionRecord:
    """Writes down sessions, with the passwords that let somebody else end them."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._last = None

    def look(self, zookeeper: ZookeeperClient) -> None:
        """Of a client that may not have a session yet."""
        clientId = (
            zookeeper._kazoo.client_id if zookeeper.session_id else None
        )  # which nobody but a test wants to know
        if clientId is not None and clientId != self._last:
            self._last = clientId
            self._record.write("session", clientId[0], clientId[1].hex())


async def publish(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """Publish numbered messages until it is C{over}."""
    settings = {
        "producer.type": "async",
        "confirm": "true",
        "batch.size": "20",
        "queue.time": "50",
        "queue.size": "2000",
        "socket.timeout.ms": "10000",
        "close.timeout.ms": "30000",
        "reconnect.interval": "300",
        **options["properties"],
    }
    random = Random(options["seed"])
    zookeeper = ZookeeperClient(
        reactor, settings["zk.connect"], int(settings["zk.sessiontimeout.ms"])
    )
    await zookeeper.connect()
    connections = ProxiedConnections(
        reactor, {int(port): to for port, to in options["ports"].items()}
    )
    discovery = ZookeeperDiscovery(reactor, zookeeper)
    producer = Producer(reactor, settings, connectionPool=connections, discovery=discovery)
    await producer.start()
    view: list[BrokerPartition] = []
    sessions = SessionRecord(record)
    unsettled: set[int] = set()
    number = 0

    def settled(word: str, number: int, why: object = "") -> None:
        unsettled.discard(number)
        record.write(word, number, why)

    while not over.called:
        sessions.look(zookeeper)
        await deferLater(reactor, random.uniform(0.02, 0.12))
        for _message in range(random.randrange(1, 9)):
            await producer.whenReady()
            key = random.randrange(KEY_COUNT)
            padding = "x" * (
                random.randrange(20_000) if random.random() < 0.01 else random.randrange(200)
            )
            if discovery.partitions(TOPIC) != view:
                view = discovery.partitions(TOPIC).copy()
                record.write("view", ",".join(map(str, view)))
            record.write("sent", number)
            unsettled.add(number)
            sending = producer.send(
                TOPIC,
                f"{options['name']}.{number}.{key}.{padding}".encode(),
                key=f"key {key}" if key else None,
            )
            sending.addCallbacks(
                lambda _none, number=number: settled("ok", number),
                lambda failure, number=number: settled(
                    "unknown" if failure.check(UnknownOutcomeError) else "failed",
                    number,
                    failure.getErrorMessage(),
                ),
            )
            number += 1
    try:
        await producer.close()
    except PylogbrokerError as error:
        record.write("closing", error)
    await zookeeper.close()
    record.write("end", json.dumps({**asdict(producer.counters), "unsettledCount": len(unsettled)}))


async def consume(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """Be a member of a group until it is C{over}."""
    ports = {int(port): to for port, to in options["ports"].items()}

    def endpointFor(broker: BrokerRegistration) -> str:
        return f"{broker.host}:{ports[broker.port]}"

    settings = {
        "socket.timeout.ms": "10000",
        "fetcher.backoff.ms": "50",
        "fetch.size": "65536",
        **options["properties"],
    }
    sessions = SessionRecord(record)
    current: list[ConsumerConnector] = []

    def end(_none: None) -> None:
        current[0].shutdown()

    over.addCallback(end)
    while not over.called:
        zookeeper = ZookeeperClient(
            reactor, settings["zk.connect"], int(settings["zk.sessiontimeout.ms"])
        )
        consumer = ConsumerConnector(reactor, settings, zookeeper, endpointFor=endpointFor)
        current[:] = [consumer]
        last = ""

        def look(
            consumer: ConsumerConnector = consumer, zookeeper: ZookeeperClient = zookeeper
        ) -> None:
            nonlocal last
            sessions.look(zookeeper)
            now = (
                f"{'owning' if consumer.isOwning else 'changing'}"
                f" {','.join(f'{each.topic}/{each.partition}' for each in sorted(consumer.owned))}"
            )
            if now != last:
                last = now
                record.write("owned", now)

        looking = LoopingCall(look)
        looking.clock = reactor
        looking.start(LOOK_SECONDS)
        try:
            await zookeeper.connect()
            await consumer.connect()
            record.write("joining", consumer.consumerId)
            streams: dict[str, list[MessageStream]] = await consumer.createMessageStreams(
                {TOPIC: 1}
            )
            record.write("joined")
            await drain(streams[TOPIC][0], record)
        except PylogbrokerError as error:
            record.write("error", type(error).__name__, error)
        finally:
            await consumer.shutdown()
            await zookeeper.close()
            look()
            looking.stop()
        if not over.called:
            await deferLater(reactor, JOIN_AGAIN_SECONDS)
    record.write("end", "{}")


async def drain(stream: MessageStream, record: Record) -> None:
    """Read to the end; what is wrong with a partition is written down."""
    while True:
        try:
            async for message in stream:
                record.write(
                    "got",
                    f"{message.topic}/{message.partition}",
                    message.nextOffset,
                    message.value.decode().rpartition(".")[0],
                )
            return
        except PylogbrokerError as error:
            record.write("trouble", type(error).__name__, error)


if __name__ == "__main__":
    start({"producer": publish, "consumer": consume})
