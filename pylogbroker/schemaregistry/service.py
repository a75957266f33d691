"""
The registry as a Twisted service. A module of its own, because programs and C{twistd} start it.

It takes its port first, so that a taken port fails the start. Until the topic is read, requests are
answered with status 503. A topic that is truncated before that ends the service. A topic that is
truncated later leaves the service answering reads, refusing changes and logging the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import InvalidRegistryTopicError
from pylogbroker.net.httpserver import HttpService
from pylogbroker.net.listeners import formatAddress
from pylogbroker.net.workers import IWorker, ThreadPoolWorker
from pylogbroker.schemaregistry.registry import Registry
from pylogbroker.schemaregistry.routes import RegistrySite
from pylogbroker.schemaregistry.topiclog import TopicLog


def newRequest() -> str:
    """A unique id."""
    return uuid4().hex


class RegistryService(HttpService):
    """A registry and its HTTP server."""

    _log = Logger()
    name = "pylogbroker-registry"
    web: RegistrySite

    def __init__(
        self,
        reactor: Any,
        settings: RegistrySettings,
        *,
        worker: IWorker | None = None,
        request: Callable[[], str] = newRequest,
    ) -> None:
        """
        @param worker: for parsing and comparing schemas; by default a thread of its own.
        @param request: returns unique ids.
        @raise ConfigurationError: C{broker} is not an endpoint.
        """
        self._settings = settings
        self._worker = ThreadPoolWorker(reactor, "schemas", 1) if worker is None else worker
        timeoutMs = settings.timeoutMs
        self._topicLog = TopicLog(
            reactor, settings.topic,
            SimpleConsumer(reactor, settings.broker, timeoutMs=timeoutMs),
            SyncProducer(reactor, settings.broker, timeoutMs=timeoutMs),
            settings.pollIntervalMs, settings.checkIntervalMs,
        )  # fmt: skip
        self.registry = Registry(reactor, self._topicLog, self._worker, request, timeoutMs)
        web = RegistrySite(
            reactor,
            self.registry,
            settings.hosts,
            settings.requestSizeMax,
            settings.requestsMax,
        )
        super().__init__(reactor, web, settings.listen, f"listen={settings.listen}")
        self._following: Deferred[None] | None = None

    def startService(self) -> None:
        """Begin to read the topic, without waiting."""
        self.privilegedStartService()
        super().startService()
        self._worker.start()
        self._log.info(
            "The registry in {topic} at {broker} is served on {listener}",
            topic=self._settings.topic,
            broker=self._settings.broker,
            listener=formatAddress(self.port.getHost()),
        )
        self._following = Deferred.fromCoroutine(self.registry.follow())
        self._following.addErrback(self._ended)

    def _ended(self, failure: Failure) -> None:
        error = failure.value
        if not isinstance(error, InvalidRegistryTopicError):
            self._log.failure("The registry has stopped reading its topic: this is a bug", failure)
        elif self.registry.isReady:
            self._log.error("Nothing can be registered any more: {error}", error=error)
        else:
            self.unusable(error)

    def unusable(self, error: InvalidRegistryTopicError) -> None:
        """The topic is truncated, or not a registry's. Overridden by the program, which exits."""
        self._log.error("The registry cannot start: {error}", error=error)

    async def _stop(self) -> None:
        """Changes in flight may still take effect."""
        await super()._stop()
        if self._following is not None:
            self._following.cancel()
        await self._topicLog.close()
        self._worker.stop()
