"""
A site as a Twisted service, and the site of a broker.

It listens before the broker touches anything, so that a taken port fails early, and stops listening
before the broker stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker import __version__
from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.routes import pageRoutes
from pylogbroker.errors import ConfigurationError
from pylogbroker.metrics.brokermetrics import brokerFamilies
from pylogbroker.metrics.exposition import CONTENT_TYPE, Family, render
from pylogbroker.net.httpserver import HttpResponse, HttpSite, Query, Route
from pylogbroker.net.listeners import formatAddress, listenerDescription


class ConsoleService(Service):
    """
    Serves a site.

    @ivar port: the listening port; L{None} before and after.
    """

    _log = Logger()
    name = "pylogbroker-console"

    def __init__(
        self,
        reactor: Any,
        listener: str,
        web: HttpSite,
        view: ClusterView | None = None,
        called: str = "http.listener",
    ) -> None:
        """
        @param listener: see L{listenerDescription}.
        @param view: closed when the service stops.
        @param called: the name of the setting, for errors.
        """
        self._reactor = reactor
        self._description = listenerDescription(listener)
        self.web = web
        self._view = view
        self._called = called
        self.port: Any = None

    def listen(self) -> Deferred[None]:
        """
        Listen and serve.

        @return: fails with L{ConfigurationError} if the port cannot be used.
        """
        return Deferred.fromCoroutine(self._listen())

    async def _listen(self) -> None:
        if self.port is not None:
            return
        try:
            self.port = await serverFromString(self._reactor, self._description).listen(self.web)
        except Exception as error:
            raise ConfigurationError(
                f"cannot listen on {self._description!r} ({self._called}): {error}"
            ) from error
        self._log.info(
            "Metrics and console are served on {listener}",
            listener=formatAddress(self.port.getHost()),
        )

    def privilegedStartService(self) -> None:
        """
        For twistd, before the reactor runs.

        @raise ConfigurationError: the port cannot be had.
        """
        outcomes: list[Any] = []
        self.listen().addBoth(outcomes.append)
        if not outcomes:
            raise ConfigurationError(
                f"the endpoint in {self._called} needs a running reactor before it listens; twistd cannot wait for it"
            )
        if isinstance(outcomes[0], Failure):
            outcomes[0].raiseException()

    def stopService(self) -> Deferred[None]:
        """
        @return: fires with L{None} when the port is free and all connections are closed; never
            fails.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self.running:
            super().stopService()
        port, self.port = self.port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        self.web.closeAll()
        if self._view is not None:
            await self._view.close()


def metricsRoute(broker: BrokerService) -> Route:
    """The route of a broker's metrics."""

    def metrics(query: Query) -> HttpResponse:
        return HttpResponse(
            200, CONTENT_TYPE, render(brokerFamilies(broker.picture(), __version__))
        )

    return metrics


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
        routes: dict[str, Route] = {
            "/metrics": lambda query: HttpResponse(200, CONTENT_TYPE, render(collect()))
        }
        super().__init__(
            reactor, listener, HttpSite(reactor, routes, hosts, "hosts"), called="listener"
        )


def brokerConsole(
    reactor: Any, settings: BrokerSettings, broker: BrokerService
) -> ConsoleService | None:
    """
    The HTTP service of a broker.

    @return: L{None} without C{http.listener}.
    """
    if not settings.httpListener.strip():
        return None
    routes: dict[str, Route] = {"/metrics": metricsRoute(broker)}
    view = None
    if settings.httpConsole:
        view = ClusterView(reactor, broker, lambda: broker.zookeeper, settings.brokerEndpoint)
        routes.update(pageRoutes(reactor, view, settings.httpMessages))
    return ConsoleService(
        reactor, settings.httpListener, HttpSite(reactor, routes, settings.httpHosts), view
    )
