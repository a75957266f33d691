"""
The address that others are told to reach a broker by (C{hostname}, spec-0.7 zookeeper §1): found, and judged.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from pylogbroker.config.brokersettings import BrokerSettings, listener
from pylogbroker.errors import ConfigurationError

EVERYWHERE = ("", "0.0.0.0", "::")
"""Interfaces that are all of them."""


async def advertisedHost(
    settings: BrokerSettings,
    listening: Sequence[str],
    warn: Callable[[str], None],
    resolve: Callable[[str], Awaitable[str]],
    ownName: Callable[[], str] = socket.gethostname,
) -> str:
    """
    C{hostname}; or the address to listen on, if there is one; or the address of the host's name, as 0.7 does it.

    @param listening: the addresses that are listened on, that of the port which others are told first. Where C{listeners} is not set,
        C{listen.interface} stands for it, as it was written.
    @param warn: called with a sentence when others will not reach this broker by it, though it listens for them.
    @param resolve: gives a name's address; fails with L{OSError}.
    @raise ConfigurationError: the host's name has no address; or it is an IPv6 address, which the value in ZooKeeper cannot carry.
    """
    source = "listeners"
    if settings.listeners == (listener(settings.port, settings.listenInterface),):
        source, listening = "listen.interface", [settings.listenInterface]
    interface = next(
        (each for each in listening if ":" not in each), listening[0] if listening else ""
    )
    host = settings.hostName
    if host is not None:
        source = "hostname"
    elif interface not in EVERYWHERE:
        host = interface
    else:
        name = ownName()
        source = f"the address of this host's name, {name},"
        try:
            host = await resolve(name)
        except OSError as error:
            raise ConfigurationError(
                f"hostname is not set, and this host's name, {name}, has no address ({error}): set hostname"
            ) from error
    if ":" in host:
        raise ConfigurationError(
            f"{source}={host}: the value in ZooKeeper cannot carry an IPv6 address, since its readers split at colons: set hostname to a name"
        )
    if isLocal(host) and not (
        listening and all(isLocal(each) and each not in EVERYWHERE for each in listening)
    ):
        warn(
            f"{source} is {host}: others are told to reach this broker there, and will find themselves. Set hostname to a name or address that they can reach"
        )
    return host


def isLocal(host: str) -> bool:
    """Whether a host is what every machine calls itself."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return address.is_loopback or address.is_unspecified
