"""
The address that others are told to reach a broker by (C{hostname}, spec-0.7 zookeeper §1): found, and judged.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address

from pylogbroker.config.settings import BrokerSettings
from pylogbroker.errors import ConfigurationError

EVERYWHERE = ("", "0.0.0.0")
"""Interfaces that are all of them."""


def advertisedHost(
    settings: BrokerSettings,
    warn: Callable[[str], None],
    ownName: Callable[[], str] = socket.gethostname,
    resolve: Callable[[str], str] = socket.gethostbyname,
) -> str:
    """
    C{hostname}; or the address to listen on, if there is one; or the address of the host's name, as 0.7 does it. May block, to look up a name.

    @param warn: called with a sentence when others will not reach this broker by it, though it listens for them.
    @raise ConfigurationError: the host's name has no address; or it is an IPv6 address, which the value in ZooKeeper cannot carry.
    """
    host = settings.hostName
    source = "hostname"
    if host is None and settings.listenInterface not in EVERYWHERE:
        host, source = settings.listenInterface, "listen.interface"
    elif host is None:
        name = ownName()
        source = f"the address of this host's name, {name},"
        try:
            host = resolve(name)
        except OSError as error:
            raise ConfigurationError(f"hostname is not set, and this host's name, {name}, has no address ({error}): set hostname") from error
    if ":" in host:
        raise ConfigurationError(
            f"{source}={host}: the value in ZooKeeper cannot carry an IPv6 address, since its readers split at colons: set hostname to a name"
        )
    if isLocal(host) and (settings.listenInterface in EVERYWHERE or not isLocal(settings.listenInterface)):
        warn(f"{source} is {host}: others are told to reach this broker there, and will find themselves. Set hostname to a name or address that they can reach")
    return host


def isLocal(host: str) -> bool:
    """Whether a host is what every machine calls itself."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return address.is_loopback or address.is_unspecified
