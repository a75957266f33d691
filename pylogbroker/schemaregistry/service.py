"""
The registry as a Twisted service. A module of its own, because programs and C{twistd} start it.

It takes its port first, so that a taken port fails the start. Until the topic is read, requests are
answered with status 503. A topic that is truncated before that ends the service. A topic that is
truncated later leaves the service answering reads, refusing changes and logging the reason.

On a topic of today's Kafka a change is passed on to the registry that leads, with the header
C{X-Forward}, as by Confluent's registry. What has that header is not passed on again.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import gethostname
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import (
    InvalidRegistryTopicError,
    PylogbrokerError,
    RegistryRefusalError,
)
from pylogbroker.net.httpserver import HttpRequest, HttpResponse, HttpService
from pylogbroker.net.listeners import formatAddress
from pylogbroker.net.workers import IWorker, ThreadPoolWorker
from pylogbroker.schemaregistry.kafka.registry import KafkaRegistry
from pylogbroker.schemaregistry.registry import Registry
from pylogbroker.schemaregistry.routes import RegistrySite
from pylogbroker.schemaregistry.topiclog import TopicLog
from pylogbroker.schemas.kafka.election import RegistryIdentity
from pylogbroker.schemas.rest import MEDIA_TYPE

NOT_FORWARDED = 50003
_ANY_ADDRESS = ("0.0.0.0", "::")


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
        self.registry: Registry | KafkaRegistry
        if settings.bootstrapServers:
            self.registry = KafkaRegistry(reactor, settings, self._worker)
        else:
            topicLog = TopicLog(
                reactor, settings.topic,
                SimpleConsumer(reactor, settings.broker, timeoutMs=timeoutMs),
                SyncProducer(reactor, settings.broker, timeoutMs=timeoutMs),
                settings.pollIntervalMs, settings.checkIntervalMs,
            )  # fmt: skip
            self.registry = Registry(reactor, topicLog, self._worker, request, timeoutMs)
        web = RegistrySite(
            reactor,
            self.registry,
            settings.hosts,
            settings.requestSizeMax,
            settings.requestsMax,
            self._forward,
        )
        super().__init__(reactor, web, settings.listen, f"listen={settings.listen}")
        self._following: Deferred[None] | None = None

    def startService(self) -> None:
        """Begin to read the topic, without waiting."""
        self.privilegedStartService()
        super().startService()
        self._worker.start()
        settings = self._settings
        self._log.info(
            "The registry in {topic} at {broker} is served on {listener}",
            topic=settings.topic,
            broker=settings.broker or ",".join(settings.bootstrapServers),
            listener=formatAddress(self.port.getHost()),
        )
        if isinstance(self.registry, KafkaRegistry):
            identity = self._identity()
            self.web.names |= {identity.host.lower()}  # by which the others pass changes on
            following = self.registry.follow(identity)
        else:
            following = self.registry.follow()
        self._following = Deferred.fromCoroutine(following)
        self._following.addErrback(self._ended)

    def _identity(self) -> RegistryIdentity:
        """This registry, as the others reach it."""
        settings, address = self._settings, self.port.getHost()
        host = settings.hostName or address.host
        if host in _ANY_ADDRESS:
            host = gethostname()
        scheme = "https" if settings.listen.startswith("tls:") else "http"
        return RegistryIdentity(host, address.port, settings.leaderEligibility, scheme)

    async def _forward(self, url: str, asked: HttpRequest) -> HttpResponse:
        """
        Pass a change on to the registry that leads.

        @raise RegistryRefusalError: it does not answer.
        """
        leader = RegistryClient(self._reactor, url, timeoutMs=self._settings.timeoutMs)
        headers = {"Accept": MEDIA_TYPE, "X-Forward": "true"}
        if asked.kind:
            headers["Content-Type"] = asked.kind
        path = asked.path + (f"?{urlencode(asked.query)}" if asked.query else "")
        try:
            status, body = await leader.exchange(
                asked.method, path, headers, asked.body if asked.kind else None
            )
        except PylogbrokerError as error:
            raise RegistryRefusalError(
                NOT_FORWARDED,
                f"The registry that leads, {url}, did not answer the forwarded request: {error}",
            ) from error
        try:
            await self.registry.refresh()  # so that this one knows, too, what the client was told
        except RegistryRefusalError as error:
            self._log.info("A forwarded change is not read yet: {error}", error=error)
        return HttpResponse(status, MEDIA_TYPE, body)

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
        await self.registry.close()
        self._worker.stop()
