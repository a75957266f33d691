"""
The console of a cluster without a broker in this process. It finds the cluster in ZooKeeper, and
has the lags of groups as metrics. A module of its own, since the console inside a broker does
without it.

ZooKeeper may be unavailable at the start and later. The page and the log say so, and the console
retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.config.connectionsettings import PLAIN, ConnectionSettings
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.routes import pageRoutes
from pylogbroker.console.service import ConsoleService
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.metrics.exposition import CONTENT_TYPE, GAUGE, Family, Sample, render
from pylogbroker.net.httpserver import HttpResponse, HttpSite, Query
from pylogbroker.zookeeper.client import ZookeeperClient

CONNECT_TIMEOUT_MS = 10_000
RETRY_MS = 5_000


def lagFamilies(found: dict[str, Any]) -> list[Family]:
    """
    The metrics of groups.

    @param found: from L{ClusterView.groups}.
    """
    rows = [
        (
            {
                "group": group["name"],
                "topic": row["topic"],
                "broker": str(row["broker"]),
                "partition": str(row["partition"]),
            },
            row,
        )
        for group in found["groups"]
        for row in group["partitions"]
    ]
    return [
        Family("pylogbroker_group_members", GAUGE, "Members of a consumer group.", [
            Sample(len(group["members"]), {"group": group["name"]}) for group in found["groups"]
        ]),
        Family("pylogbroker_group_offset", GAUGE, "The offset that a group has stored.", [
            Sample(row["offset"], labels) for labels, row in rows if row["offset"] is not None
        ]),
        Family("pylogbroker_group_lag_bytes", GAUGE, "How far a group is behind what can be read.", [
            Sample(row["lag"], labels) for labels, row in rows if row["lag"] is not None
        ]),
        Family("pylogbroker_group_owned", GAUGE, "Whether a member owns the partition.", [Sample(int(bool(row["owner"])), labels) for labels, row in rows]),
    ]  # fmt: skip


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
        access: ConnectionSettings = PLAIN,
    ) -> None:
        """
        @param listener: see L{pylogbroker.net.listeners.listenerDescription}.
        @param servers: ZooKeeper's, with a chroot.
        @param hosts: allowed names in the Host header.
        @param zookeeper: makes an unconnected client.
        @param access: credentials for ZooKeeper, and the way to brokers.
        """
        self._make = zookeeper or (lambda: ZookeeperClient.fromSettings(reactor, access, servers))
        self._servers = servers
        self.zookeeper: IZookeeper | None = None
        self._connecting: Deferred[None] | None = None
        self._retry: Any = None
        self._isOver = False
        self._cluster = ClusterView(reactor, None, lambda: self.zookeeper, access.brokerEndpoint)
        routes = pageRoutes(reactor, self._cluster, hasMessages)
        routes["/metrics"] = lambda query: Deferred.fromCoroutine(self._metrics(query))
        super().__init__(
            reactor, listener, HttpSite(reactor, routes, hosts, "--host"), self._cluster, "--listen"
        )

    async def _metrics(self, query: Query) -> HttpResponse:
        isConnected = self.zookeeper is not None and self.zookeeper.connected
        connected = Family(
            "pylogbroker_console_zookeeper_connected",
            GAUGE,
            "Whether the console has a connection to ZooKeeper. Without it there are no other metrics.",
            [Sample(int(isConnected))],
        )
        groups = await self._cluster.groups()
        return HttpResponse(200, CONTENT_TYPE, render([connected, *lagFamilies(groups)]))

    def startService(self) -> None:
        """Serve, and connect to ZooKeeper."""
        super().startService()
        self._tryConnecting()

    def _tryConnecting(self) -> None:
        self._retry = None
        self._connecting = Deferred.fromCoroutine(self._connect())

    async def _connect(self) -> None:
        client = self._make()
        client.add_session_listener(self._sessionChanged)
        self.zookeeper = client
        try:
            await client.connect(CONNECT_TIMEOUT_MS)
        except PylogbrokerError as error:
            if not self._isOver:
                self._log.warn(
                    "ZooKeeper at {servers} cannot be reached: {error}. It is tried again",
                    servers=self._servers,
                    error=error,
                )
                client.close()
                self._retry = self._reactor.callLater(RETRY_MS / 1000, self._tryConnecting)

    def _sessionChanged(self, event: SessionEvent) -> None:
        if self._isOver:
            return
        if event is SessionEvent.CONNECTED:
            self._log.info("Connected to ZooKeeper at {servers}", servers=self._servers)
        elif event is SessionEvent.SUSPENDED:
            self._log.warn(
                "The connection to ZooKeeper at {servers} is lost. It is tried again",
                servers=self._servers,
            )

    async def _stop(self) -> None:
        self._isOver = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        await super()._stop()
        if self.zookeeper is not None:
            isConnected = self.zookeeper.connected
            closed = self.zookeeper.close()
            if isConnected:
                await closed
