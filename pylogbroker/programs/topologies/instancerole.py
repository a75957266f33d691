"""
What the process of an instance does. A module of its own, since a process imports it for its role;
it knows no ZooKeeper, since there are many instances.
"""

from __future__ import annotations

from random import Random
from typing import Any

from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.topologies.process import RoleContext
from pylogbroker.programs.topologies.topologychoice import chosenTopology
from pylogbroker.topologies.connection import tcpEndpoints
from pylogbroker.topologies.instance.executors import ThreadExecutor
from pylogbroker.topologies.instance.gateway import Gateway
from pylogbroker.topologies.instance.runners import InstanceSettings
from pylogbroker.topologies.messages import INSTANCE, Hello
from pylogbroker.topologies.metrics.reporter import MetricsReporter


class InstanceRole:
    """The role of an instance; see L{IRole}."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        spec, settings, config, random = context
        topology = chosenTopology(spec.file, spec.topology, config)
        endpointTo = tcpEndpoints(reactor)
        self._streamManager = spec.streamManager
        instanceSettings = InstanceSettings(
            flushSize=settings.instanceFlushSize, flushDelay=settings.instanceFlushDelayMs / 1000
        )
        self._gateway = Gateway(
            reactor,
            topology,
            spec.task,
            endpointTo,
            ThreadExecutor(reactor, instanceSettings.outputSizeMax),
            Random(random.getrandbits(64)),
            instanceSettings,
        )
        hello = Hello(spec.topology, INSTANCE, spec.task, self._gateway.incarnation)
        self._reporter = MetricsReporter(
            reactor,
            endpointTo,
            random.random,
            spec.metricsManager,
            hello,
            self._gateway.metrics,
            settings.metricsIntervalMs,
        )

    @asDeferred
    async def run(self) -> None:
        """See L{IRole}."""
        self._gateway.goTo(self._streamManager)
        self._reporter.start()
        try:
            await self._gateway.done
        finally:
            self._reporter.stop()

    def stop(self) -> None:
        """See L{IRole}."""
        self._gateway.stop()
