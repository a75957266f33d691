"""
The consoles of a cluster without a broker in this process: of a cluster of Kafka 0.7, which is
found in ZooKeeper, and of one of today's Kafka, which is found by its brokers. Both have the lags
of groups as metrics. A module of its own, since the console inside a broker does without it.

ZooKeeper and the brokers may be unavailable at the start and later. The page and the metrics say
so, and the console retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.config.securitysettings import PLAIN, SecuritySettings
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.kafkacluster import KafkaClusterView
from pylogbroker.console.service import ConsoleService, pageRoutes
from pylogbroker.console.tasks import TASK_TOPICS
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.metrics.exposition import CONTENT_TYPE, Family, Sample, render, scalar
from pylogbroker.net.httpserver import HttpResponse, HttpSite, Query
from pylogbroker.zookeeper.client import ZookeeperClient

CONNECT_TIMEOUT_MS = 10_000
RETRY_MS = 5_000


def lagFamilies(found: dict[str, Any], unit: str = "bytes") -> list[Family]:
    """
    The metrics of groups.

    @param found: from L{ClusterView.groups}.
    @param unit: of the lag: C{bytes}; C{records} in today's Kafka.
    """
    rows = [
        (
            {
                "group": group["name"],
                "topic": row["topic"],
                "broker": str(row["broker"]),
                "partition": str(row["partition"]),
            },
            {**row, "isOwned": bool(row["owner"])},
        )
        for group in found["groups"]
        for row in group["partitions"]
    ]

    def samples(key: str) -> list[Sample]:
        return [Sample(row[key], labels) for labels, row in rows if row[key] is not None]

    return [
        Family(
            "pylogbroker_group_members",
            "Members of a consumer group.",
            [Sample(len(group["members"]), {"group": group["name"]}) for group in found["groups"]],
        ),
        Family(
            "pylogbroker_group_offset", "The offset that a group has stored.", samples("offset")
        ),
        Family(
            f"pylogbroker_group_lag_{unit}",
            "How far a group is behind what can be read.",
            samples("lag"),
        ),
        Family(
            "pylogbroker_group_owned", "Whether a member owns the partition.", samples("isOwned")
        ),
    ]


class ClusterConsole(ConsoleService):
    """
    Serves the console of a cluster.

    @ivar zookeeper: the client.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        listener: str,
        servers: str,
        hosts: tuple[str, ...] = (),
        hasMessages: bool = True,
        zookeeper: Callable[[], IZookeeper] | None = None,
        access: SecuritySettings = PLAIN,
        pageTemplate: str = "",
    ) -> None:
        """
        @param listener: see L{pylogbroker.net.listeners.listenerDescription}.
        @param servers: ZooKeeper's, with a chroot.
        @param hosts: allowed names in the Host header.
        @param zookeeper: makes an unconnected client.
        @param access: credentials for ZooKeeper, and the way to brokers.
        @param pageTemplate: the URL of a broker's own console, with C{{host}}; C{""}: not known.
        """
        self._make = zookeeper or (lambda: ZookeeperClient.fromSettings(reactor, access, servers))
        self._servers = servers
        self.zookeeper: IZookeeper | None = None
        self._connecting: Deferred[Any] | None = None
        self._cluster = ClusterView(
            reactor, None, lambda: self.zookeeper, access.brokerEndpoint, pageTemplate
        )
        routes = pageRoutes(reactor, self._cluster, hasMessages)
        routes["/metrics"] = self._metrics
        super().__init__(
            reactor, listener, HttpSite(reactor, routes, hosts, "--host"), self._cluster, "--listen"
        )

    async def _metrics(self, query: Query) -> HttpResponse:
        isConnected = self.zookeeper is not None and self.zookeeper.connected
        connected = scalar(
            "pylogbroker_console_zookeeper_connected",
            "Whether the console has a connection to ZooKeeper. Without it there are no other"
            " metrics.",
            isConnected,
        )
        groups = await self._cluster.groups()
        return HttpResponse(200, CONTENT_TYPE, render([connected, *lagFamilies(groups)]))

    def startService(self) -> None:
        """Serve, and connect to ZooKeeper."""
        super().startService()
        self._connecting = Deferred.fromCoroutine(self._connect())
        self._connecting.addErrback(lambda failure: failure.trap(CancelledError))

    async def _connect(self) -> None:
        while True:
            self.zookeeper = client = self._make()
            client.add_session_listener(self._sessionChanged)
            try:
                await client.connect(CONNECT_TIMEOUT_MS)
                return
            except PylogbrokerError as error:
                self._log.warn(
                    "ZooKeeper at {servers} cannot be reached: {error}. It is tried again",
                    servers=self._servers,
                    error=error,
                )
                client.close()
            await deferLater(self._reactor, RETRY_MS / 1000)

    def _sessionChanged(self, event: SessionEvent) -> None:
        if not self.running:
            return
        if event is SessionEvent.CONNECTED:
            self._log.info("Connected to ZooKeeper at {servers}", servers=self._servers)
        elif event is SessionEvent.SUSPENDED:
            self._log.warn(
                "The connection to ZooKeeper at {servers} is lost. It is tried again",
                servers=self._servers,
            )

    async def _stop(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        await super()._stop()
        if self.zookeeper is not None:
            isConnected = self.zookeeper.connected
            closed = self.zookeeper.close()
            if isConnected:
                await closed


class KafkaClusterConsole(ConsoleService):
    """Serves the console of a cluster of today's Kafka."""

    def __init__(
        self,
        reactor: Any,
        listener: str,
        properties: dict[str, str],
        hosts: tuple[str, ...] = (),
        hasMessages: bool = True,
        pageTemplate: str = "",
        taskTopics: tuple[str, str] = TASK_TOPICS,
    ) -> None:
        """
        @param listener: see L{pylogbroker.net.listeners.listenerDescription}.
        @param properties: see L{KafkaClusterView}.
        @param hosts: allowed names in the Host header.
        @param pageTemplate: the URL of a broker's own console, with C{{host}}; C{""}: not known.
        @param taskTopics: C{config.topic} and C{metrics.topic} of the containers of tasks.
        @raise ConfigurationError: a property is wrong.
        """
        self._cluster = KafkaClusterView(reactor, properties, pageTemplate, taskTopics=taskTopics)
        routes = pageRoutes(reactor, self._cluster, hasMessages)
        routes["/metrics"] = self._metrics
        super().__init__(
            reactor, listener, HttpSite(reactor, routes, hosts, "--host"), self._cluster, "--listen"
        )

    async def _metrics(self, query: Query) -> HttpResponse:
        groups = await self._cluster.groups()
        connected = scalar(
            "pylogbroker_console_cluster_reachable",
            "Whether the cluster has answered. Without it there are no other metrics.",
            groups["isKnown"],
        )
        return HttpResponse(200, CONTENT_TYPE, render([connected, *lagFamilies(groups, "records")]))
