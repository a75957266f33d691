"""
A site as a Twisted service, the site of a broker, and the routes of the console: the page's files
and its API.

It listens before the broker touches anything, so that a taken port fails early, and stops listening
before the broker stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from pylogbroker import __version__
from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.console.cluster import ClusterView, TtlCache
from pylogbroker.console.peek import COUNT_MAX, Work
from pylogbroker.errors import ConfigurationError, PylogbrokerError, describeError
from pylogbroker.metrics.brokermetrics import brokerFamilies
from pylogbroker.metrics.exposition import CONTENT_TYPE, Family, render
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.httpserver import (
    BadRequestError,
    HttpResponse,
    HttpService,
    HttpSite,
    Query,
    Route,
    jsonReply,
)
from pylogbroker.net.listeners import formatAddress, listenerDescription, listenError

PAGE = Path(__file__).with_name("page")
FILES = (
    ("/", "console.html", "text/html; charset=utf-8"),
    ("/console.css", "console.css", "text/css; charset=utf-8"),
    ("/console.js", "console.js", "text/javascript; charset=utf-8"),
    ("/tasks", "tasks.html", "text/html; charset=utf-8"),
    ("/tasks.js", "tasks.js", "text/javascript; charset=utf-8"),
    ("/graph.js", "graph.js", "text/javascript; charset=utf-8"),
    ("/elements.js", "elements.js", "text/javascript; charset=utf-8"),
    ("/chart.js", "chart.js", "text/javascript; charset=utf-8"),
    ("/icon.svg", "icon.svg", "image/svg+xml"),
)
TASKS_AGE_MS = 1_000
"""For how long an answer of tasks is kept; containers report each ten seconds by default."""

_OFFSET_MAX = 2**63 - 1


class IClusterView(Protocol):
    """What the page shows of a cluster: L{ClusterView}, or that of a cluster of today's Kafka."""

    async def state(self) -> dict[str, Any]:
        """Brokers, topics, partitions and waiting clients."""
        ...

    async def groups(self) -> dict[str, Any]:
        """Groups with their members, and owner, offset and lag of each partition."""
        ...

    async def tasks(self, work: Work) -> dict[str, Any]:
        """Jobs, and their containers with tasks."""
        ...

    async def messages(
        self, broker: int, topic: str, partition: int, offset: int | None, countMax: int, work: Work
    ) -> dict[str, Any]:
        """Messages of a partition from an offset; L{None}: the last ones."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ConsoleService(HttpService):
    """Serves a site."""

    _log = Logger()
    name = "pylogbroker-console"

    def __init__(
        self,
        reactor: Any,
        listener: str,
        web: HttpSite,
        view: IClusterView | None = None,
        called: str = "http.listener",
    ) -> None:
        """
        @param listener: see L{pylogbroker.net.listeners.listenerDescription}.
        @param view: the console's, closed when the service stops; L{None}: metrics only.
        @param called: the name of the setting, for errors.
        """
        setting = f"cannot listen on {listenerDescription(listener)!r} ({called})"
        super().__init__(reactor, web, listener, setting)
        self._view = view

    @asDeferred
    async def listen(self) -> None:
        """
        Listen and serve.

        @return: fires when the port is open. Fails with L{ConfigurationError} if the port cannot be
            used.
        """
        if self.port is None:
            try:
                self.port = await self.takePort()
            except Exception as error:
                raise ConfigurationError(f"{self._setting}: {listenError(error)}") from error

    def takePort(self) -> Deferred[Any]:
        """As L{HttpService.takePort}; logs the address."""
        return super().takePort().addCallback(self._onPort)

    def _onPort(self, port: Any) -> Any:
        self._log.info(
            "Metrics{andConsole} are served on {listener}",
            andConsole="" if self._view is None else " and console",
            listener=formatAddress(port.getHost()),
        )
        return port

    async def _stop(self) -> None:
        await super()._stop()
        if self._view is not None:
            await self._view.close()


def metricsRoute(collect: Callable[[], Iterable[Family]]) -> Route:
    """
    A route that serves metrics.

    @param collect: called for each scrape.
    """
    return lambda query: HttpResponse(200, CONTENT_TYPE, render(collect()))


class MetricsService(ConsoleService):
    """Serves metrics alone: those of an application's producers and consumers, or of a mirror."""

    def __init__(
        self,
        reactor: Any,
        listener: str,
        collect: Callable[[], Iterable[Family]],
        hosts: tuple[str, ...] = (),
    ) -> None:
        """
        @param listener: see L{listenerDescription}.
        @param collect: called for each scrape.
        @param hosts: allowed names in the Host header.
        """
        web = HttpSite(reactor, {"/metrics": metricsRoute(collect)}, hosts, "hosts")
        super().__init__(reactor, listener, web, called="listener")


def brokerConsole(
    reactor: Any, settings: BrokerSettings, broker: BrokerService
) -> ConsoleService | None:
    """
    The HTTP service of a broker.

    @return: L{None} without C{http.listener}.
    """
    if not settings.httpListener.strip():
        return None
    routes = {"/metrics": metricsRoute(lambda: brokerFamilies(broker.picture(), __version__))}
    view = None
    if settings.httpConsole:
        view = ClusterView(
            reactor,
            broker,
            lambda: broker.zookeeper,
            settings.brokerEndpoint,
            taskTopics=(settings.httpTaskConfigTopic, settings.httpTaskMetricsTopic),
        )
        routes.update(pageRoutes(reactor, view, settings.httpMessages))
    return ConsoleService(
        reactor, settings.httpListener, HttpSite(reactor, routes, settings.httpHosts), view
    )


def pageRoutes(reactor: Any, view: IClusterView, hasMessages: bool) -> dict[str, Route]:
    """
    @param reactor: its threads decode messages, one request after the other.
    @param hasMessages: whether the console may show messages.
    """
    routes = {path: _file(name, kind) for path, name, kind in FILES}
    routes["/api/state"] = lambda query: _state(view, hasMessages)
    routes["/api/groups"] = lambda query: _groups(view)
    turn = DeferredLock()

    def work(decode: Callable[[], Any]) -> Deferred[Any]:
        return turn.run(lambda: deferToThreadPool(reactor, reactor.getThreadPool(), decode))

    tasks = TtlCache(reactor, lambda: view.tasks(work), TASKS_AGE_MS)
    routes["/api/tasks"] = lambda query: _tasks(tasks)
    if hasMessages:
        routes["/api/messages"] = lambda query: _messages(view, query, work)
    return routes


def _file(name: str, kind: str) -> Route:
    reply = HttpResponse(200, kind, (PAGE / name).read_bytes())
    return lambda query: reply


async def _state(view: IClusterView, hasMessages: bool) -> HttpResponse:
    return jsonReply({**await view.state(), "version": __version__, "hasMessages": hasMessages})


async def _groups(view: IClusterView) -> HttpResponse:
    return jsonReply(await view.groups())


async def _tasks(tasks: TtlCache[dict[str, Any]]) -> HttpResponse:
    return jsonReply({**await tasks.get(), "version": __version__})


async def _messages(view: IClusterView, query: Query, work: Work) -> HttpResponse:
    topic = query.get("topic", "")
    broker, partition = _number(query, "broker", 2**31 - 1), _number(query, "partition", 2**31 - 1)
    count = max(1, min(_number(query, "count", COUNT_MAX, 20), COUNT_MAX))
    isLast = query.get("offset", "last") == "last"
    offset = None if isLast else _number(query, "offset", _OFFSET_MAX)
    try:
        found = await view.messages(broker, topic, partition, offset, count, work)
    except PylogbrokerError as error:
        raise BadRequestError(describeError(error)) from error
    return jsonReply(found)


def _number(query: Query, name: str, most: int, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise BadRequestError(f"{name} must be a number from 0 to {most}")
    return int(text)
