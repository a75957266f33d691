"""
A member of a group of the consumer protocol (KIP-848): carries out what
L{ConsumerMembershipManager} decides. A module of its own, since that one is pure.

What must be true: one heartbeat is under way at a time, and heartbeats go on while a reader is slow
or a listener works. None is under way that does not name partitions which are being taken in: the
coordinator would give them to another member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.consumermembership import ConsumerMembershipManager, ConsumerStep
from pylogbroker.consumer.kafka.groupmember import BaseGroupMember, IGroupReader
from pylogbroker.consumer.kafka.groupmembership import Phase
from pylogbroker.errors import PylogbrokerError, UnsupportedVersionError
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode

OWN_ID_VERSION = 1
"""The first version of ConsumerGroupHeartbeat in which a member names itself."""

_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT


class ConsumerGroupMember(BaseGroupMember):
    """
    A member of a group whose coordinator assigns the partitions.

    @ivar membership: a L{ConsumerMembershipManager}.
    """

    membership: ConsumerMembershipManager

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        reader: IGroupReader,
        random: Callable[[], float],
    ) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        """
        membership = ConsumerMembershipManager(
            settings.groupId,
            settings.groupInstanceId or None,
            maxPollIntervalMs=settings.maxPollIntervalMs,
            rackId=settings.clientRack or None,
            assignor=settings.groupRemoteAssignor or None,
        )
        self._random = random
        self._turn = DeferredLock()
        super().__init__(clock, settings, cluster, reader, membership)

    def _next(self) -> ConsumerStep:
        return self.membership.step(self._nowMs(), self._cluster.metadata.names)

    def _isAdopting(self) -> bool:
        return self.membership.isAdopting

    async def _step(self) -> None:
        self._see()
        member, names, step = self.membership, self._cluster.metadata.names, self._next()
        if step is ConsumerStep.LOSE:
            await self._lose()
        elif step is ConsumerStep.LEAVE:
            await self._leaveSince()
        elif step is ConsumerStep.BEAT:
            await self._heartbeat()
        elif step is ConsumerStep.REVOKE:
            leaving = member.leaving()
            if await self._reader.revoke(leaving):
                member.revoked(leaving)
        elif step is ConsumerStep.ADOPT:
            await self._adopt()
        else:
            if member.hasUnknown(names):
                self._cluster.refreshSoon()
            await self._restWell()

    async def _adopt(self) -> None:
        member, isDone = self.membership, False
        await self._turn.acquire()
        try:
            if self._next() is not ConsumerStep.ADOPT:
                return  # the answer to the heartbeat that was under way says otherwise
            coming = member.coming(self._cluster.metadata.names)
            member.beginAdoption(coming)
        finally:
            self._turn.release()
        try:
            await self._reader.adopt(list(coming))
            isDone = True
        finally:
            member.endAdoption(isDone)

    def _onMetadata(self) -> None:
        if self.membership.hasUnknown(self._cluster.metadata.names) or self._hasWork():
            self.wake()

    # -- heartbeats, and the end

    async def _heartbeat(self) -> None:
        await self._turn.acquire()
        try:
            await self._cluster.coordinators.ask(
                CoordinatorKind.GROUP, self.membership.groupId, self._exchange
            )
        except PylogbrokerError:
            self.membership.failed()
            raise
        finally:
            self._turn.release()
        self._beaten()

    async def _exchange(self, connection: NegotiatedConnection) -> None:
        member = self.membership
        if not connection.supports(_KEY):
            raise UnsupportedVersionError(
                f"{connection.name} does not have {_KEY.apiName}, which group.protocol=consumer"
                " needs; group.protocol=classic does without"
            )
        if not member.memberId and connection.supports(_KEY, OWN_ID_VERSION):
            data = bytes(int(self._random() * 256) for _byte in range(16))
            member.memberId = str(UUID(bytes=data, version=4))
        body = member.request()
        answer: Any = await connection.request(_KEY, body)
        if ErrorPolicy.FIND_COORDINATOR in policyOf(answer.errorCode):
            raise ResponseError(answer.errorCode, f"group {member.groupId}")
        member.beaten(body, answer)

    def _beatIntervalMs(self) -> float:
        return self.membership.intervalMs

    def _hasWork(self) -> bool:
        return self._next() is not ConsumerStep.REST

    def _isKnown(self) -> bool:
        return bool(self.membership.memberId) and self.membership.phase is not Phase.OUT

    async def _tellLeaving(self, connection: NegotiatedConnection, _reason: str) -> None:
        self._stopBeating()
        answer = await connection.request(_KEY, self.membership.leaveRequest())
        checkCode(answer.errorCode, f"leaving group {self.membership.groupId}")
