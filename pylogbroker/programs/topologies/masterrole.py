"""
What the process of a topology's master does. A module of its own, since a process imports it for
its role.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.net.deferreds import asDeferred, closeAll
from pylogbroker.programs.topologies.process import RoleContext
from pylogbroker.programs.topologies.zookeepersession import connectedStates
from pylogbroker.topologies.master.service import TopologyMaster


class MasterRole:
    """The role of a master; see L{IRole}."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        self._reactor = reactor
        self._spec, self._settings, _config, self._random = context
        self._isStopping = False
        self._waiting: Deferred[Any] | None = None

    @asDeferred
    async def run(self) -> None:
        """See L{IRole}."""
        client, states = await connectedStates(self._reactor, self._settings, self._random)
        master = TopologyMaster(
            self._reactor,
            client,
            states,
            self._spec.topology,
            self._random.getrandbits(62) + 1,
        )
        try:
            for step in (master.start, master.whenDeposed):
                if self._isStopping:
                    return
                self._waiting = step()
                await self._waiting
        except CancelledError:
            pass
        finally:
            await closeAll(master.stop())
            await closeAll(client.close())

    def stop(self) -> None:
        """See L{IRole}."""
        self._isStopping = True
        if self._waiting is not None:
            self._waiting.cancel()
