"""
What commands do with C{--bootstrap-server}: topics, groups and records of today's Kafka. The
commands themselves, with their arguments, are in L{pylogbroker.cli.commands}.

Everything here blocks, over L{pylogbroker.syncclient.kafka}, without a reactor.
"""

from __future__ import annotations

from argparse import Namespace

from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.config.securitysettings import ToolSettings
from pylogbroker.net.endpointstrings import brokerEndpoint, endpoint
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.syncclient.kafka.cluster import KafkaCluster


def openCluster(
    options: Namespace, servers: str | None = None, access: ToolSettings | None = None
) -> KafkaCluster:
    """
    A cluster, which connects at its first request.

    @param servers: brokers; by default, C{--bootstrap-server}.
    @param access: credentials; by default, those of C{--config}.
    @raise ConfigurationError: an address is none.
    """
    access = access or options.access
    addresses = [
        endpoint(brokerEndpoint(access.brokerEndpoint, each.strip()))
        for each in (servers or options.bootstrapServer).split(",")
    ]
    login = None
    if access.saslUsername:
        login = SaslLogin(access.saslMechanism, access.saslUsername, access.saslPassword)
    return KafkaCluster(addresses, timeoutMs=options.timeoutMs, login=login)


def show(streams: Streams, text: str) -> None:
    """Write a result, whose names may hold lone surrogates."""
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
