"""
Which registry of several on a topic writes: a membership in the group that Confluent's registries
have, too (L{pylogbroker.schemas.kafka.election}). Only the registry that leads writes. A module of
its own, since it knows nothing of schemas.

What must be true:

  - A rebalance waits: this registry joins again only when the change that it writes is done. So
  members that the coordinator knows never write at the same time.
  - A member whose session may have ended does not write. The coordinator counts from the last
  heartbeat or SyncGroup that it answered; here the time counts from when that was sent. A write
  begins only while the rest of it is longer than the producer tries (C{marginMs}).

What is left is a request that a broker has received, and stores only after the session's end. The
next leader reads the topic up to a record of its own before it writes, and writes a record again
that lost its place to such a request (L{pylogbroker.schemaregistry.kafka.registry}).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.groupmember import ClassicGroupMember
from pylogbroker.consumer.kafka.groupmembership import GroupMembership, Phase
from pylogbroker.errors import ClosedError, NotLeaderError, PylogbrokerError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.schemas.kafka.election import (
    DUPLICATE_URLS,
    NO_ERROR,
    PROTOCOL,
    PROTOCOL_TYPE,
    LeaderAssignment,
    RegistryIdentity,
    decodeAssignment,
    elect,
    encodeAssignment,
    encodeIdentity,
)
from pylogbroker.types import TopicPartition

UNKNOWN_LEADER = 50004
_MEMBERSHIP = ("registries",)
"""Stands for the topics of a consumer: while there are some, it is a member."""

log = Logger()


class RegistryMembership(GroupMembership):
    """Membership in the group of registries."""

    protocolType = PROTOCOL_TYPE

    def __init__(self, settings: KafkaConsumerSettings, identity: RegistryIdentity) -> None:
        super().__init__(
            settings.groupId,
            None,
            (),
            sessionTimeoutMs=settings.sessionTimeoutMs,
            maxPollIntervalMs=settings.maxPollIntervalMs,
        )
        self.identity = identity

    def _protocols(self, owned: Collection[TopicPartition]) -> dict[str, bytes]:
        return {PROTOCOL: encodeIdentity(self.identity)}


class _RegistryMember(ClassicGroupMember):
    """A member whose leader chooses the registry that leads."""

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaConsumerSettings,
        cluster: ClusterClient,
        leadership: Leadership,
    ) -> None:
        super().__init__(
            clock, settings, cluster, leadership, RegistryMembership(settings, leadership.identity)
        )
        self._leadership = leadership
        self._syncSentAtMs = 0.0

    async def _assign(self) -> dict[str, bytes]:
        members = {each.memberId: bytes(each.metadata) for each in self.membership.members}
        assignment = encodeAssignment(elect(members))
        return dict.fromkeys(members, assignment)

    async def _sync(self) -> None:
        self._syncSentAtMs = self._nowMs()
        await super()._sync()

    def _decodeAssignment(self, data: bytes) -> LeaderAssignment | None:
        return decodeAssignment(data) if data else None

    async def _assigned(self, assigned: LeaderAssignment | None) -> None:
        self._renew(self._syncSentAtMs)
        self._leadership.assigned(assigned, self.membership.memberId)

    async def _heartbeat(self) -> None:
        sentAtMs = self._nowMs()
        await super()._heartbeat()
        if self.membership.phase is Phase.STABLE:
            self._renew(sentAtMs)

    def _renew(self, sentAtMs: float) -> None:
        """@param sentAtMs: when the request was sent that the coordinator has answered."""
        endsAtMs = sentAtMs + self._settings.sessionTimeoutMs
        # The heartbeat may be older than a SyncGroup that was answered before it.
        self._leadership.leaseEndsAtMs = max(self._leadership.leaseEndsAtMs, endsAtMs)

    def _onMetadata(self) -> None:
        """The election does not depend on topics."""


class Leadership:
    """
    Which registry leads, and whether this one may write. It is a group member's reader that owns
    nothing (L{pylogbroker.consumer.kafka.groupmember.IGroupReader}).

    @ivar identity: of this registry.
    @ivar leader: the registry that leads; L{None}: none is known.
    @ivar isLeading: whether that is this one.
    @ivar term: how often this registry became the leader.
    @ivar leaseEndsAtMs: when the coordinator may choose another leader without this one.
    """

    owned: tuple[TopicPartition, ...] = ()
    isWaiting = True

    def __init__(
        self,
        reactor: Any,
        settings: KafkaConsumerSettings,
        identity: RegistryIdentity,
        marginMs: float,
    ) -> None:
        """
        @param settings: of the member: C{group.id}, times, and how to reach the cluster.
        @param marginMs: how long a write may take; see the module.
        """
        self.identity = identity
        self.leader: RegistryIdentity | None = None
        self.isLeading = False
        self.term = 0
        self.leaseEndsAtMs = 0.0
        self._clock = reactor
        self._marginMs = marginMs
        self._isElecting = True
        self._isEnded = False
        self._elected: Waiters[None] = Waiters()
        self._writeCount = 0
        self._idle: Waiters[None] = Waiters()
        self._problem = ""
        self._cluster = ClusterClient(reactor, settings, isCreatingTopics=False)
        self._member = _RegistryMember(reactor, settings, self._cluster, self)

    def start(self) -> None:
        """Join the group."""
        self._member.subscribe(_MEMBERSHIP)

    async def close(self) -> None:
        """Leave the group, when the change that is written is done, and close the connections."""
        self._isEnded = True
        self._elected.fire(None)
        await self._member.close()
        self._cluster.abort()
        try:
            await self._cluster.close()
        except ClosedError:
            pass  # requests under way were cut

    # -- what the group says

    def assigned(self, assignment: LeaderAssignment | None, memberId: str) -> None:
        """An election is over."""
        leader = None if assignment is None else assignment.leader
        if assignment is None or assignment.error != NO_ERROR:
            leader = None
            problem = (
                f"two registries of the group have the same URL, such as {self.identity.url}. Set"
                " host.name in each, to a name by which the others reach it"
                if assignment is not None and assignment.error == DUPLICATE_URLS
                else "the group's leader has sent an error in place of the registry that leads"
            )
        elif leader is None:
            problem = "no registry of the group may lead (leader.eligibility)"
        else:
            problem = ""
        self._problem = problem
        self.leader = leader
        self.isLeading = (
            leader is not None and assignment is not None and assignment.memberId == memberId
        )
        self.term += self.isLeading
        self._isElecting = False
        if problem:
            log.error("Nothing can be registered: {problem}", problem=problem)
        else:
            log.info(
                "The registry at {url} leads{own}",
                url=leader and leader.url,
                own=", which is this one" if self.isLeading else "",
            )
        self._elected.fire(None)

    async def revoke(self, partitions: Collection[TopicPartition]) -> bool:
        """A rebalance: begin no change, and wait for the end of the one that is written."""
        self._isElecting = True
        while self._writeCount:
            await self._idle.wait()
        self._forget()
        return True

    async def lose(self) -> None:
        """This is no member any more: another registry may lead."""
        self._forget()

    def _forget(self) -> None:
        self._isElecting = True
        self.leader, self.isLeading = None, False

    async def adopt(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: there are no partitions."""

    def failed(self, error: PylogbrokerError) -> None:
        """The coordinator refuses this member."""
        self._problem = str(error)
        log.error("This registry cannot take part in the election: {error}", error=error)

    # -- who may write

    async def begin(self) -> int:
        """
        Begin a change: wait until an election is over. To be followed by L{end}.

        @return: the term.
        @raise NotLeaderError: another registry leads, or none.
        """
        while self._isElecting and not self._isEnded:
            await self._elected.wait()
        self.check(self.term, 0)
        self.hold()
        return self.term

    def hold(self) -> None:
        """
        A record is sent, which cannot be taken back: a rebalance waits for its outcome, also if the
        change is given up before. To be followed by L{end}.
        """
        self._writeCount += 1

    def end(self) -> None:
        """A change, or a record, is done."""
        self._writeCount -= 1
        if not self._writeCount:
            self._idle.fire(None)

    def checkBefore(self, term: int) -> None:
        """
        Before a record is written.

        @raise NotLeaderError: the term is over, or could end before the producer gives up.
        """
        self.check(term, self._marginMs)

    def check(self, term: int, marginMs: float = 0) -> None:
        """
        @param marginMs: how long the term must last still.
        @raise NotLeaderError: it does not.
        """
        nowMs = self._clock.seconds() * 1000
        if self.isLeading and term == self.term and nowMs + marginMs <= self.leaseEndsAtMs:
            return
        if self.leader is None:
            raise NotLeaderError(
                UNKNOWN_LEADER,
                f"No registry is known to lead now: {self._problem or 'an election'}",
            )
        if self.isLeading:
            raise NotLeaderError(
                UNKNOWN_LEADER,
                "This registry led, and has not heard of the coordinator for too long to write",
            )
        raise NotLeaderError(
            UNKNOWN_LEADER, f"The registry at {self.leader.url} leads", self.leader.url
        )
