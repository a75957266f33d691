"""
The status of a topology, as its master has it.
"""

from __future__ import annotations

import json
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.httpget import httpGet
from pylogbroker.errors import PylogbrokerError
from pylogbroker.topologies.plan import MasterLocation

TIMEOUT_MS = 5_000


class NoStatusError(PylogbrokerError):
    """A master does not answer, or answers something else. The text says where."""


async def readStatus(reactor: Any, location: MasterLocation) -> dict[str, Any]:
    """
    Ask a master.

    @return: what L{pylogbroker.topologies.master.state.MasterState.status} says.
    @raise NoStatusError: there is no such answer.
    """
    url = f"http://{location.host}:{location.statusPort}/status"
    try:
        status = json.loads(await httpGet(reactor, url, TIMEOUT_MS))
    except CommandError as error:
        raise NoStatusError(str(error)) from error
    except ValueError as error:
        raise NoStatusError(f"{url}: {error}") from error
    if not isinstance(status, dict):
        raise NoStatusError(f"{url}: status 200, but no object of JSON")
    return status
