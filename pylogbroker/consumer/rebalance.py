"""
Rebalancing as a pure state machine: events in, effects out (spec-0.7 zookeeper §4.4, §4.5).

Every member of a group runs it for itself. L{Rebalance} decides;
L{Member<pylogbroker.consumer.member.Member>} executes the effects and reports their results. So
tests can try thousands of failures between members in one process, on a clock.

What must be true: a member fetches a partition only while the partition's owner node is its own. It
releases a partition (stops fetching, commits if C{autocommit.enable} is set, deletes the owner
node, in this order) before another member can claim it. After any failure it comes back to owning
what is assigned to it, or tries again. No event is lost, whatever the timing.

  ================= ============================ ================================= =================
  state             on                           effect                            then
  ================= ============================ ================================= =================
  idle              started                      L{ReadGroup}                      reading
  reading           L{GroupRead}, as owned       L{FetchOnly}                      owning
  reading           L{GroupRead}, another one    L{Release} what is another's      releasing
  reading           L{GroupRead}, nodes missing  L{Release} what is another's      releasing
  releasing         L{Released}                  L{Claim} what is new or missing   claiming
  claiming          L{Claimed}, all              L{FetchOnly}                      owning
  claiming          L{Claimed}, not all          L{Release} what was claimed       releasing partial
  claiming          L{Claimed}, not all, last    L{FetchOnly} the rest, L{BackOff} waiting
  releasing partial L{Released}                  L{BackOff}                        waiting
  waiting           time is over, changed,       L{ReadGroup}                      reading
                    connected
  owning            changed                      L{ReadGroup}                      reading
  these, but owning L{Failed}                    L{BackOff}                        waiting
  any               expired                      L{DropAll}                        suspended
  suspended         connected                    L{ReadGroup}                      reading
  any               stopped                      L{Release} all                    stopping
  stopping          L{Released}, L{Failed}       L{Leave}                         stopped
  ================= ============================ ================================= =================

A change on the way to owning is acted on when owning is reached. Unlike 0.7.2, which releases
everything each time, a member releases only what it has to; other members see no difference.

Any client can delete owner nodes. The member claims such a partition again and fetches on
meanwhile. If another session has claimed it, the member stops fetching it and commits nothing: the
position is now the other member's.

After C{retryCountMax} attempts 0.7.2 owns nothing until the next event (gotcha 51). Here the member
tries again, with growing delays, and keeps and fetches what it could claim. Otherwise one
partition that can never be claimed would stop the others: its owner node is persistent, or its
owner reads the list differently (a pattern that only Java knows).

A partition whose broker is not registered is assigned and claimed, since 0.7 counts it too. It is
fetched when its broker is back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pylogbroker.cluster.assignment import assign, threadCountsByTopic
from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.types import BrokerPartition, PartitionId

BACKOFF_FACTOR_MAX = 10
"""After many failures a member waits at most this multiple of the back-off time."""


class GroupState(NamedTuple):
    """
    The content of ZooKeeper as a member has read it.

    @ivar topics: with all partitions.
    @ivar brokers: by number.
    """

    members: Mapping[str, ISubscription]
    topics: Mapping[str, Sequence[BrokerPartition]]
    brokers: Mapping[int, BrokerRegistration]


Assignment = dict[PartitionId, str]
"""Partitions, and the member's consumer thread that each belongs to."""


# -- results of effects


@dataclass(frozen=True)
class GroupRead:
    """
    The result of L{ReadGroup}.

    @ivar missing: owned partitions whose owner nodes are no longer this member's.
    """

    state: GroupState
    missing: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True)
class Released:
    """The result of L{Release}."""


@dataclass(frozen=True)
class Claimed:
    """
    The result of L{Claim}.

    @ivar partitions: this member's now; other sessions have the others.
    """

    partitions: frozenset[PartitionId]


@dataclass(frozen=True)
class Failed:
    """The result of an effect that was not executed, or only in part."""

    reason: str


EffectResult = GroupRead | Released | Claimed | Failed


# -- effects


@dataclass(frozen=True)
class ReadGroup:
    """Watch and read the group and the cluster."""


@dataclass(frozen=True)
class Release:
    """Stop fetching, commit if C{autocommit.enable} is set, delete owner nodes. May be empty."""

    assignment: Assignment = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Create owner nodes."""

    assignment: Assignment


@dataclass(frozen=True)
class FetchOnly:
    """
    Fetch these partitions, and no others.

    @ivar brokers: by number; some may be missing.
    """

    assignment: Assignment
    brokers: Mapping[int, BrokerRegistration]


@dataclass(frozen=True)
class BackOff:
    """
    Wait, then call C{backoffElapsed}.

    @ivar factor: of the back-off time.
    @ivar attempt: failures in a row, with this one.
    """

    factor: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class DropAll:
    """
    The session and its owner nodes are gone: stop fetching, keep the positions, ignore earlier
    results.
    """


@dataclass(frozen=True)
class Leave:
    """Everything is released."""


Effect = ReadGroup | Release | Claim | FetchOnly | BackOff | DropAll | Leave


class State(Enum):
    """The state of a member."""

    IDLE = "idle"
    READING = "reading"
    RELEASING = "releasing"
    CLAIMING = "claiming"
    RELEASING_PARTIAL = "releasing partial"
    WAITING = "waiting"
    OWNING = "owning"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Rebalance:
    """
    One member's state machine. Each method returns the effects to execute, in order, before the
    next event.

    @ivar owned: as far as this member knows, also while it is claiming or releasing.
    """

    def __init__(self, consumerId: str, retryCountMax: int) -> None:
        """@param retryCountMax: failures in a row after which the delays grow."""
        self.state = State.IDLE
        self.owned: Assignment = {}
        self._consumerId = consumerId
        self._retryCountMax = retryCountMax
        self._wanted: Assignment = {}
        self._missing: frozenset[PartitionId] = frozenset()
        self._releasing: Assignment = {}
        # Perhaps ours in ZooKeeper: a claim or release was not answered. Not fetched.
        self._uncertain: Assignment = {}
        self._brokers: Mapping[int, BrokerRegistration] = {}
        self._isChanged = False
        self._attempt = 0

    # -- events from outside

    def started(self) -> list[Effect]:
        return self._read()

    def changed(self) -> list[Effect]:
        """A watch has fired: members, topics, brokers, partitions or owner nodes have changed."""
        if self.state is State.WAITING:
            self._attempt = 0
        if self.state in (State.OWNING, State.WAITING):
            return self._read()
        self._isChanged = True
        return []

    def backoffElapsed(self) -> list[Effect]:
        return self._read() if self.state is State.WAITING else []

    def expired(self) -> list[Effect]:
        self.owned = {}
        if self.state in (State.STOPPING, State.STOPPED):
            return []
        self.state, self._isChanged = State.SUSPENDED, False
        self._wanted, self._releasing, self._uncertain = {}, {}, {}
        return [DropAll()]

    def connected(self) -> list[Effect]:
        if self.state not in (State.SUSPENDED, State.WAITING):
            return []
        self._attempt = 0
        return self._read()

    def stopped(self) -> list[Effect]:
        """
        The application stops the member. A running effect must not report a result after this.
        """
        if self.state in (State.STOPPING, State.STOPPED):
            return []
        claiming = self._wanted if self.state is State.CLAIMING else {}
        held = {**self._uncertain, **claiming, **self._releasing, **self.owned}
        self.state = State.STOPPING
        return [Release(held)]

    # -- results

    def completed(self, result: EffectResult) -> list[Effect]:
        """The last effect with a result was executed, or failed."""
        match self.state, result:
            case State.STOPPING, _:
                self.state, self.owned = State.STOPPED, {}
                return [Leave()]
            case _, Failed(reason):
                if self.state is State.CLAIMING:
                    self._uncertain.update(_without(self._wanted, self.owned))
                self._uncertain.update(self._releasing)
                self._dropReleased()
                return self._backOff(reason)
            case State.READING, GroupRead(state, missing):
                return self._groupRead(state, missing)
            case State.RELEASING, Released():
                return self._released()
            case State.CLAIMING, Claimed(partitions):
                return self._claimed(partitions)
            case State.RELEASING_PARTIAL, Released():
                self._dropReleased()
                if self._isChanged:
                    return self._read()
                return self._backOff("other members have not released yet what is ours")
        raise ValueError(f"{result} came in state {self.state.value}")

    # -- steps

    def _read(self) -> list[Effect]:
        self.state, self._isChanged = State.READING, False
        return [ReadGroup()]

    def _groupRead(self, state: GroupState, missing: frozenset[PartitionId]) -> list[Effect]:
        assignment = computeAssignment(self._consumerId, state)
        if assignment is None:
            return self._backOff("this member is not registered")
        self._wanted, self._missing, self._brokers = assignment, missing, state.brokers
        if assignment == self.owned and not self._uncertain and not missing:
            return self._own()
        held = {**self._uncertain, **self.owned}
        return self._release(
            State.RELEASING,
            {each: thread for each, thread in held.items() if assignment.get(each) != thread},
        )

    def _release(self, state: State, assignment: Assignment) -> list[Effect]:
        self.state, self._releasing = state, assignment
        return [Release(dict(assignment))]

    def _released(self) -> list[Effect]:
        self._dropReleased()
        self._uncertain = {}
        self.state = State.CLAIMING
        kept = self.owned.keys() - self._missing
        return [Claim(_without(self._wanted, kept))]

    def _dropReleased(self) -> None:
        self.owned = _without(self.owned, self._releasing)
        self._releasing = {}

    def _claimed(self, partitions: frozenset[PartitionId]) -> list[Effect]:
        lost = (self.owned.keys() & self._missing) - partitions
        before = _without(self.owned, lost)
        # In the order of the wanted ones: hashes of text differ from run to run.
        new = {each: thread for each, thread in self._wanted.items() if each in partitions}
        self.owned = {**before, **new}
        if self.owned == self._wanted:
            return self._own()
        if self._attempt + 1 >= self._retryCountMax:
            self._wanted = dict(self.owned)
            if self._isChanged:
                return self._fetch() + self._read()
            return self._fetch() + self._backOff(
                "other members have not released what is ours; going on with the rest"
            )
        # What we had stays ours. What is new is released all together, so that members that read
        # different lists do not hold each other up.
        stop: list[Effect] = [FetchOnly(before, self._brokers)] if lost else []
        return stop + self._release(State.RELEASING_PARTIAL, _without(self.owned, before))

    def _own(self) -> list[Effect]:
        self.state, self._attempt = State.OWNING, 0
        return self._fetch() + (self._read() if self._isChanged else [])

    def _fetch(self) -> list[Effect]:
        return [FetchOnly(dict(self.owned), self._brokers)]

    def _backOff(self, reason: str) -> list[Effect]:
        if self._isChanged:
            self._attempt = 0
        self.state = State.WAITING
        self._attempt += 1
        factor = min(max(self._attempt - self._retryCountMax, 0) + 1, BACKOFF_FACTOR_MAX)
        return [BackOff(factor, self._attempt, reason)]


def _without(assignment: Assignment, partitions: Collection[PartitionId]) -> Assignment:
    return {each: thread for each, thread in assignment.items() if each not in partitions}


def computeAssignment(consumerId: str, state: GroupState) -> Assignment | None:
    """
    A member's partitions; L{None} for a non-member. Every member computes the same from the same
    state.
    """
    if consumerId not in state.members:
        return None
    assignment: Assignment = {}
    for topic, threadCounts in threadCountsByTopic(state.members, state.topics).items():
        if consumerId not in threadCounts:
            continue
        for thread, partitions in assign(state.topics.get(topic, ()), threadCounts).items():
            if thread.rpartition("-")[0] == consumerId:
                assignment.update({PartitionId(topic, each): thread for each in partitions})
    return assignment
