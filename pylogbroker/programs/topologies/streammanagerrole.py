"""
What the process of a stream manager does. A module of its own, since a process imports it for its
role.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from pylogbroker.net.deferreds import asDeferred, closeAll
from pylogbroker.net.timer import wallMs
from pylogbroker.programs.topologies.executor import adoptListener
from pylogbroker.programs.topologies.process import RoleContext
from pylogbroker.programs.topologies.zookeepersession import connectedStates
from pylogbroker.topologies.connection import tcpEndpoints
from pylogbroker.topologies.messages import STREAM_MANAGER, Hello, Metrics
from pylogbroker.topologies.metrics.reporter import MetricsReporter
from pylogbroker.topologies.plan import MasterLocation
from pylogbroker.topologies.streammanager.manager import StreamManager
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings
from pylogbroker.topologies.topology import TopologyOptions

log = Logger()


class StreamManagerRole:
    """The role of a stream manager; see L{IRole}."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        self._reactor = reactor
        self._spec, self._settings, _config, self._random = context
        self._ending: Deferred[None] = Deferred()

    @asDeferred
    async def run(self) -> None:
        """See L{IRole}."""
        spec, settings, reactor = self._spec, self._settings, self._reactor
        client, states = await connectedStates(reactor, settings, self._random)
        definition = await states.definition(spec.topology)
        options = TopologyOptions.of(definition.config, f"topology {spec.topology}")
        endpointTo = tcpEndpoints(reactor)
        manager = StreamManager(
            reactor,
            spec.topology,
            spec.container,
            endpointTo,
            Random(self._random.getrandbits(64)),
            StreamManagerSettings(
                messageTimeout=options.messageTimeoutMs / 1000,
                highWaterMark=settings.streamManagerHighWaterMark,
                lowWaterMark=settings.streamManagerLowWaterMark,
                queueSizeMax=settings.streamManagerQueueSizeMax,
            ),
        )

        def announced(location: MasterLocation | None) -> None:
            if location is None:
                return  # the one that was there may be there still; the next one is announced
            log.info(
                "The master is {host}:{port}, with epoch {epoch:#x}",
                host=location.host,
                port=location.port,
                epoch=location.epoch,
            )
            manager.setMaster(f"{location.host}:{location.port}", location.epoch)

        def metrics() -> Metrics:
            return Metrics(
                spec.container,
                STREAM_MANAGER,
                "",
                manager.incarnation,
                wallMs(reactor),
                manager.metricValues(),
            )

        hello = Hello(spec.topology, STREAM_MANAGER, spec.container, manager.incarnation)
        reporter = MetricsReporter(
            reactor,
            endpointTo,
            self._random.random,
            spec.metricsManager,
            hello,
            metrics,
            settings.metricsIntervalMs,
        )
        manager.whenInstancesChange = reporter.report
        manager.start(spec.streamManager)
        port = adoptListener(reactor, manager.factory)
        reporter.start()
        watch = states.watchMaster(spec.topology, announced)
        log.info("Stream manager at {address}", address=spec.streamManager)
        await self._ending
        watch.stop()
        reporter.stop()
        await maybeDeferred(port.stopListening)
        manager.stop()
        await closeAll(client.close())

    def stop(self) -> None:
        """See L{IRole}."""
        if not self._ending.called:
            self._ending.callback(None)
