"""
What commands do with C{--bootstrap-server}: topics, groups and records of today's Kafka. The
commands themselves, with their arguments, are in L{pylogbroker.cli.commands}.

Everything here blocks, over L{pylogbroker.syncclient.kafka}, without a reactor.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from math import inf

from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.config.securitysettings import ToolSettings
from pylogbroker.net.endpointstrings import brokerEndpoint, endpoint
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.syncclient.connection import monotonic, sleep
from pylogbroker.syncclient.kafka.cluster import KafkaCluster

NOTICE_SECONDS = 1.5
"""A command announces that it waits when it has tried again for longer than this."""

_ATTEMPT_SECONDS = 2
"""Attempts that are further apart than this do not belong to one wait."""


def openCluster(
    options: Namespace,
    streams: Streams,
    servers: str | None = None,
    access: ToolSettings | None = None,
) -> KafkaCluster:
    """
    A cluster, which connects at its first request. While it tries again, a line says so.

    @param servers: brokers; by default, C{--bootstrap-server}.
    @param access: credentials; by default, those of C{--config}.
    @raise ConfigurationError: an address is none.
    """
    access = access or options.access
    servers = servers or options.bootstrapServer
    addresses = [
        endpoint(brokerEndpoint(access.brokerEndpoint, each.strip())) for each in servers.split(",")
    ]
    login = None
    if access.saslUsername:
        login = SaslLogin(access.saslMechanism, access.saslUsername, access.saslPassword)
    text = f"waiting for the cluster at {servers}; gives up after {options.timeoutMs / 1000:g} s"
    pause = WaitNotice(partial(streams.warn, text))
    return KafkaCluster(addresses, timeoutMs=options.timeoutMs, pause=pause, login=login)


class WaitNotice:
    """
    Pauses between attempts, as a function of seconds, and announces once that they take long.
    """

    def __init__(
        self,
        announce: Callable[[], object],
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        """
        @param clock: seconds.
        @param pause: waits for a number of seconds.
        """
        self._announce: Callable[[], object] | None = announce
        self._clock = clock
        self._pause = pause
        self._since = self._endedAt = -inf

    def __call__(self, seconds: float) -> None:
        now = self._clock()
        if now - self._endedAt > _ATTEMPT_SECONDS:
            self._since = now
        if self._announce is not None and now - self._since >= NOTICE_SECONDS:
            self._announce()
            self._announce = None
        self._pause(seconds)
        self._endedAt = self._clock()


def show(streams: Streams, text: str) -> None:
    """Write a result, whose names may hold lone surrogates."""
    writeAtOnce(streams.output, text.encode("utf-8", "surrogatepass"))
