"""
What the process of a metrics manager does. A module of its own, since a process imports it for its
role.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from pylogbroker.net.deferreds import asDeferred, closeAll
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.programs.topologies.executor import HOST, adoptListener
from pylogbroker.programs.topologies.process import RoleContext
from pylogbroker.programs.topologies.zookeepersession import connectedStates
from pylogbroker.topologies.connection import tcpEndpoints
from pylogbroker.topologies.metrics.manager import MetricsManager
from pylogbroker.topologies.metrics.sinks import FileSink, IMetricsSink, PrometheusSink, TopicSink

METRICS_FILE = "metrics.jsonl"


class MetricsManagerRole:
    """The role of a metrics manager; see L{IRole}."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        self._reactor = reactor
        self._spec, self._settings, _config, self._random = context
        self._ending: Deferred[None] = Deferred()
        self._worker = ThreadPoolWorker(reactor, "metrics", 1)
        self._ports: list[Any] = []

    @asDeferred
    async def run(self) -> None:
        """See L{IRole}."""
        spec, reactor = self._spec, self._reactor
        client, states = await connectedStates(reactor, self._settings, self._random)
        definition = await states.definition(spec.topology)
        [container] = [
            each for each in definition.packing.containers if each.number == spec.container
        ]
        self._worker.start()
        manager = MetricsManager(
            reactor,
            spec.topology,
            spec.container,
            [each.task for each in container.instances],
            self._random.getrandbits(62) + 1,
            tcpEndpoints(reactor),
            self._random.random,
            self._sinks(),
        )
        self._ports.append(adoptListener(reactor, manager.factory))
        watch = states.watchMaster(spec.topology, manager.setMaster)
        await self._ending
        watch.stop()
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        await manager.stop()
        self._worker.stop()
        await closeAll(client.close())

    def stop(self) -> None:
        """See L{IRole}."""
        if not self._ending.called:
            self._ending.callback(None)

    def _sinks(self) -> list[IMetricsSink]:
        settings, spec = self._settings, self._spec
        sinks: list[IMetricsSink] = []
        if settings.metricsFileSizeMax:
            path = os.path.join(spec.directory, METRICS_FILE)
            sinks.append(FileSink(self._worker, path, settings.metricsFileSizeMax))
        if settings.metricsTopic:
            # What is not used is not imported: it would be half of the process's memory.
            from pylogbroker.producer.kafka.producer import KafkaProducer

            producer = KafkaProducer(
                self._reactor, {"bootstrap.servers": settings.metricsBootstrapServers}
            )
            sinks.append(TopicSink(producer, settings.metricsTopic, spec.topology))
        if settings.metricsPrometheusPort:
            sinks.append(self._prometheus())
        return sinks

    def _prometheus(self) -> PrometheusSink:
        from pylogbroker.metrics.exposition import CONTENT_TYPE
        from pylogbroker.net.httpserver import HttpResponse, HttpSite

        sink = PrometheusSink(self._spec.topology)
        site = HttpSite(
            self._reactor, {"/metrics": lambda _: HttpResponse(200, CONTENT_TYPE, sink.text())}
        )
        port = self._settings.metricsPrometheusPort + self._spec.container - 1
        self._ports.append(self._reactor.listenTCP(port, site, interface=HOST))
        return sink
