"""
C{twistd pylogbroker}: the broker as a twistd plugin.

What an operator gets: a start that fails says why in one line and exits with 1; C{SIGTERM} and C{SIGINT} flush everything, write the clean-shutdown
mark, and exit with 0. (twistd by itself would let the process die of the signal after an orderly stop.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.application.service import IService

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.console.service import brokerConsole
from pylogbroker.programs.lifecycle import HttpEndpointMixin, PropertyOptions, TwistdLifecycle


class Options(PropertyOptions):
    """The options of C{twistd pylogbroker}."""

    synopsis = "[options] --config FILE [--set KEY=VALUE ...]"
    longdesc = "Runs a broker that speaks the protocol of Kafka 0.7. Example: twistd -n pylogbroker --config etc/broker.properties --set port=9093"
    optParameters = [["config", "c", None, "The property file, with Kafka's property names."]]

    def read(self, properties: Mapping[str, str], warn: Callable[[str], None]) -> BrokerSettings:
        """The settings of a broker."""
        return BrokerSettings.fromProperties(properties, warn)


class TwistdBrokerService(TwistdLifecycle, HttpEndpointMixin, BrokerService):
    """A broker under C{twistd}, with its console if it has one."""


def makeService(options: Options) -> IService:
    """Called by twistd."""
    from twisted.internet import reactor

    service: Any = TwistdBrokerService(reactor, options.settings)
    service.logLevels = options.logLevels
    service.isLogShown = options.isLogShown
    service.site = brokerConsole(reactor, options.settings, service)
    return service  # type: ignore[no-any-return]
