"""
The registry as a Twisted service.

Its port is taken before anything else, so that a taken one fails the start. Clients are answered with 503 until the topic has been read. A topic that was cut
before that ends the service; one that is cut later leaves it answering questions and refusing changes, and says so in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import InvalidRegistryTopicError
from pylogbroker.net.listeners import formatAddress, listenerDescription, listenNow, serverEndpoint
from pylogbroker.net.workers import IWorker, ThreadWorker
from pylogbroker.schemaregistry.registry import Registry
from pylogbroker.schemaregistry.routes import RegistryWeb
from pylogbroker.schemaregistry.topiclog import TopicLog


def newRequest() -> str:
    """A text that nobody else has."""
    return uuid4().hex


class RegistryService(Service):
    """
    @ivar registry: does the work.
    @ivar web: serves it.
    @ivar port: what it listens on, once it does.
    """

    _log = Logger()
    name = "pylogbroker-registry"

    def __init__(
        self,
        reactor: Any,
        settings: RegistrySettings,
        *,
        worker: IWorker | None = None,
        request: Callable[[], str] = newRequest,
    ) -> None:
        """
        @param worker: for what takes time with schemas; by default a thread of its own.
        @param request: gives texts that nobody else has.
        @raise ConfigurationError: C{broker} is no endpoint.
        """
        self._reactor = reactor
        self._settings = settings
        self._worker = ThreadWorker(reactor, "schemas", 1) if worker is None else worker
        timeoutMs = settings.timeoutMs
        self._topicLog = TopicLog(
            reactor, settings.topic,
            SimpleConsumer(reactor, settings.broker, timeoutMs=timeoutMs),
            SyncProducer(reactor, settings.broker, timeoutMs=timeoutMs),
            settings.pollIntervalMs, settings.checkIntervalMs,
        )  # fmt: skip
        self.registry = Registry(reactor, self._topicLog, self._worker, request, timeoutMs)
        self.web = RegistryWeb(
            reactor,
            self.registry,
            settings.hosts,
            settings.requestSizeMax,
            settings.requestsMax,
        )
        self.port: Any = None
        self._following: Deferred[None] | None = None

    def privilegedStartService(self) -> None:
        """
        Listen.

        @raise ConfigurationError: C{listen} is no endpoint, or it cannot be had.
        """
        super().privilegedStartService()
        if self.port is None:
            description = listenerDescription(self._settings.listen)
            self.port = listenNow(
                lambda: serverEndpoint(self._reactor, description).listen(self.web),
                f"listen={self._settings.listen}",
            )

    def startService(self) -> None:
        """Begin to read the topic; nothing is waited for."""
        self.privilegedStartService()
        super().startService()
        self._worker.start()
        self._log.info(
            "The registry in {topic} at {broker} is served on {listener}",
            topic=self._settings.topic, broker=self._settings.broker, listener=formatAddress(self.port.getHost()),
        )  # fmt: skip
        self._following = self.registry.follow()
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
        """The topic was cut, or is none of ours, before the service could begin. To be overridden by whoever can end."""
        self._log.error("The registry cannot begin: {error}", error=error)

    def stopService(self) -> Deferred[None]:
        """
        @return: fires when the port is free and the connections are closed; does not fail. Changes under way may still come to be.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await maybeDeferred(super().stopService)
        port, self.port = self.port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        self.web.closeAll()
        if self._following is not None:
            self._following.cancel()
        await self._topicLog.close()
        self._worker.stop()
