"""
C{twistd pylogbroker}: the broker. C{SIGTERM} and C{SIGINT} flush everything and write the
clean-shutdown marker.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.programs.clocksteps import bootSeconds
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.programs.lifecycle import (
    HttpServiceMixin,
    PropertyOptions,
    TwistdLifecycle,
    brokerSite,
)


class Options(PropertyOptions):
    """The options of C{twistd pylogbroker}."""

    synopsis = "[options] --config FILE [--set KEY=VALUE ...]"
    longdesc = (
        "Runs a broker that speaks the protocol of Kafka 0.7. Example: twistd -n pylogbroker "
        "--config etc/broker.properties --set port=9093"
    )
    optParameters = [["config", "c", None, "The property file, with Kafka's property names."]]
    read = staticmethod(BrokerSettings.fromProperties)


class TwistdBrokerService(TwistdLifecycle, HttpServiceMixin, BrokerService):
    """A broker under C{twistd}, with its console."""


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    service: Any = TwistdBrokerService(
        reactor,
        options.settings,
        connectBroker=interBrokerClients(reactor, options.settings),
        elapsed=bootSeconds,
    )
    service.site = brokerSite(reactor, options.settings, service)
    return options.configure(service)
