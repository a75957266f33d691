"""
The settings of a schema registry. 0.7 has none, so all keys are ours.
"""

from __future__ import annotations

from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.propertytypes import BAR_SEPARATED_LIST, NOT_EMPTY, POSITIVE, Integer


class RegistrySettings(Settings):
    """The settings of a schema registry; sizes are bytes."""

    broker = ownKey(
        "broker",
        NOT_EMPTY,
        None,
        "The broker that holds the schemas topic: `host:port`, or a Twisted client endpoint"
        " string: `tls:HOST:PORT:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`.",
        isRequired=True,
    )
    topic = ownKey(
        "topic",
        NOT_EMPTY,
        "_schemas",
        "The schemas topic; the registry uses its partition 0. The broker must keep it for ever.",
    )
    listen = ownKey(
        "listen",
        NOT_EMPTY,
        "tcp:8081:interface=127.0.0.1",
        "The HTTP listener, as a Twisted endpoint string, with `tls:` as for brokers; on "
        "the loopback interface unless it names one.",
    )
    hosts = ownKey(
        "hosts",
        BAR_SEPARATED_LIST,
        "",
        "Host names that clients may use, with `|` between them, beside `localhost` and "
        "every IP address.",
    )
    timeoutMs = ownKey(
        "timeout.ms",
        POSITIVE,
        "10000",
        "The longest time in milliseconds until a change comes back from the topic, which "
        "includes the broker's flush.",
    )
    pollIntervalMs = ownKey(
        "poll.interval.ms",
        POSITIVE,
        "100",
        "The pause in milliseconds between reads of the topic when it brings nothing new.",
    )
    checkIntervalMs = ownKey(
        "check.interval.ms",
        POSITIVE,
        "60000",
        "The interval in milliseconds at which the registry checks that the topic still "
        "begins at the same offset.",
    )
    requestSizeMax = ownKey(
        "request.size.max",
        Integer(1, 1 << 26),
        "1048576",
        "The largest body of a request in bytes.",
    )
    requestsMax = ownKey(
        "requests.max",
        Integer(1, 100_000),
        "100",
        "The largest number of requests in progress; further ones get status 429.",
    )
