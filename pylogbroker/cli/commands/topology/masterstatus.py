"""
The status of a topology, as its master has it.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.web.client import Agent, readBody

from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.topologies.plan import MasterLocation

TIMEOUT_SECONDS = 5


class NoStatusError(PylogbrokerError):
    """A master does not answer, or answers something else. The text says where."""


@asDeferred
async def readStatus(reactor: Any, location: MasterLocation) -> dict[str, Any]:
    """
    Ask a master.

    @return: fires with what L{pylogbroker.topologies.master.state.MasterState.status} says. Fails
        with L{NoStatusError}.
    """
    url = f"http://{location.host}:{location.statusPort}/status"
    try:
        asking = Agent(reactor, connectTimeout=TIMEOUT_SECONDS).request(b"GET", url.encode())
        answer = await asking.addTimeout(TIMEOUT_SECONDS, reactor)
        body = await readBody(answer).addTimeout(TIMEOUT_SECONDS, reactor)
        status = json.loads(body)
    except Exception as error:
        raise NoStatusError(f"{url}: {error}") from error
    if answer.code != 200 or not isinstance(status, dict):
        raise NoStatusError(f"{url}: status {answer.code}")
    return status
