"""
Where a site listens: on the loopback interface unless it is told otherwise, and before the reactor runs, so that a taken port fails the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
_LOOPBACKS = {"tcp": LOOPBACK, "ssl": LOOPBACK, "tls": LOOPBACK, "tcp6": r"\:\:1"}


def listenerDescription(text: str) -> str:
    """
    An endpoint string that says where to listen: on the loopback interface, if nothing else was said.

    @param text: an endpoint string, or only a port.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,5}", text):
        text = f"tcp:{text}"
    loopback = _LOOPBACKS.get(text.partition(":")[0])
    return (
        text
        if loopback is None or re.search(r"(?<!\\):interface=", text)
        else f"{text}:interface={loopback}"
    )


def formatAddress(address: Any) -> str:
    """
    An address of Twisted's for log lines: C{127.0.0.1:9092}, C{[::1]:9092}, or C{unix:PATH}.
    """
    if not hasattr(address, "host"):
        return f"unix:{os.fsdecode(address.name)}" if hasattr(address, "name") else str(address)
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


def listenNow(listen: Callable[[], Deferred[Any]], setting: str) -> Any:
    """
    Take a port there and then.

    @param listen: an endpoint's C{listen} with its factory; whatever it raises is told.
    @param setting: key and value that say where, for texts.
    @return: the port.
    @raise ConfigurationError: it cannot be had, or not before the reactor runs.
    """
    outcomes: list[Any] = []
    try:
        listen().addBoth(outcomes.append)
    except Exception as error:
        raise ConfigurationError(f"{setting}: {error}") from error
    [outcome] = outcomes or [None]
    if not hasattr(outcome, "stopListening"):
        raise ConfigurationError(
            f"{setting}: {getattr(outcome, 'value', 'it needs a running reactor')}"
        )
    return outcome
