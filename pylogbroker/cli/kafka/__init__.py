"""
What commands do with C{--bootstrap-server}: topics, groups and records of today's Kafka. The
commands themselves, with their arguments, are in L{pylogbroker.cli.commands}.

Everything here blocks, over L{pylogbroker.syncclient.kafka}, without a reactor.
"""

from __future__ import annotations

from argparse import Namespace

from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.net.endpointstrings import brokerEndpoint, endpoint
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.syncclient.kafka.cluster import KafkaCluster


def openCluster(options: Namespace) -> KafkaCluster:
    """
    The cluster of C{--bootstrap-server}, which connects at its first request.

    @raise ConfigurationError: an address is none.
    """
    template: str = options.access.brokerEndpoint
    addresses = [
        endpoint(brokerEndpoint(template, each.strip()))
        for each in options.bootstrapServer.split(",")
    ]
    access, login = options.access, None
    if access.saslUsername:
        login = SaslLogin(access.saslMechanism, access.saslUsername, access.saslPassword)
    return KafkaCluster(addresses, timeoutMs=options.timeoutMs, login=login)


def show(streams: Streams, text: str) -> None:
    """Write a result, whose names may hold lone surrogates."""
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
