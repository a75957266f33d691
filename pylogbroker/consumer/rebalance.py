"""
Rebalancing, as a state machine without hands: events in, effects out (spec-0.7 zookeeper §4.4, §4.5).

Every member of a group does this for itself. L{Rebalance} decides; L{pylogbroker.consumer.group} carries out what it says and tells it what came of it. So
that all that can go wrong between members can be tried in one process, by the thousand, on a clock.

What must be true: a partition is fetched only while its owner node is ours; it is let go of (not fetched, its position committed if that is wished, its
node deleted, in this order) before another can claim it; whatever happens in the middle, a member comes back to owning what the group's list
says is its own, or tries again; an event is never lost, however the times fall.

  ============ ================================ ================================== ================== ===================
  state        on                               effect                             then               failed
  ============ ================================ ================================== ================== ===================
  idle         started                          L{ReadGroup}                            looking
  looking      L{GroupRead}, the same as owned       L{Fetch}                           owning             back off
  looking      L{GroupRead}, another share           L{Release} what is another's       releasing          back off
  looking      L{GroupRead}, owner nodes missing     L{Release} what is another's       releasing          back off
  releasing    L{Released}                      L{Claim} what is new or missing    claiming           back off
  claiming     L{Claimed}, all                  L{Fetch}                           owning             back off
  claiming     L{Claimed}, not all              L{Release} what was claimed        yielding           back off
  claiming     L{Claimed}, not all, once more   L{Fetch} what there is, L{BackOff} waiting
  yielding     L{Released}                      L{BackOff}                         waiting            back off
  waiting      woken, changed, connected        L{ReadGroup}                            looking
  owning       changed                          L{ReadGroup}                            looking
  any          expired                          L{DropAll}                          suspended
  suspended    connected                        L{ReadGroup}                            looking
  any          stopped                          L{Release} all                     stopping
  stopping     L{Released}, failed              L{Finish}                          stopped            stopped
  ============ ================================ ================================== ================== ===================

Owner nodes can be missing since anybody can delete them. Nobody else has fetched such a partition yet, so that it is claimed again while it flows on. When
another has claimed it meanwhile, we stop fetching it, and commit nothing of it: its position is the other's.

"Changed" in a state that is on its way to owning is remembered, and acted on there. Unlike 0.7.2, a member lets go only of what it has to (0.7.2: of all, each
time), so that a partition that stays where it is flows on; what others see is the same.

After C{retryCountMax} attempts 0.7.2 gives up and owns nothing until the next event (gotcha 51). Here it goes on trying, a little later each time, as long as
nothing changes; and from then on it keeps and fetches what it could claim. That is for the partition that can never be claimed: a member who reads the
list differently has it (a pattern that only Java knows), or somebody has written a node of no session in its place. It must not stop the others.

A partition whose broker is not registered is shared out and claimed like any other, since 0.7 counts it, too; it is fetched when its broker is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pylogbroker.cluster.assignment import assign
from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.types import BrokerPartition, PartitionId

BACKOFF_FACTOR_MAX = 10
"""How many times the back-off time a member waits at the most, after many failures."""


class GroupState(NamedTuple):
    """
    What a member saw in ZooKeeper.

    @ivar members: the group's members and what they want.
    @ivar topics: all topics and their partitions.
    @ivar brokers: where they are.
    """

    members: Mapping[str, ISubscription]
    topics: Mapping[str, Sequence[BrokerPartition]]
    brokers: Mapping[int, BrokerRegistration]


Assignment = dict[PartitionId, str]
"""Places, and which of the member's threads each belongs to."""


# -- events that answer effects -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRead:
    """
    A L{ReadGroup} was answered.

    @ivar missing: partitions that we own, and whose owner nodes are not ours any more: somebody has deleted them.
    """

    view: GroupState
    missing: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True)
class Released:
    """A L{Release} was carried out."""


@dataclass(frozen=True)
class Claimed:
    """
    A L{Claim} was carried out.

    @ivar places: those that are ours now; the others are somebody else's.
    """

    places: frozenset[PartitionId]


@dataclass(frozen=True)
class Failed:
    """An effect could not be carried out, or not to its end."""

    reason: str


Answer = GroupRead | Released | Claimed | Failed


# -- effects ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadGroup:
    """Watch and read the group and the cluster."""


@dataclass(frozen=True)
class Release:
    """
    Stop fetching places, commit their positions if that is wished, delete their owner nodes.

    @ivar share: which; may be empty.
    """

    share: Assignment = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Make owner nodes."""

    share: Assignment


@dataclass(frozen=True)
class Fetch:
    """
    This is ours: fetch it, and nothing else.

    @ivar brokers: where the brokers are; some may be missing.
    """

    share: Assignment
    brokers: Mapping[int, BrokerRegistration]


@dataclass(frozen=True)
class BackOff:
    """
    Wait, then say C{woken}.

    @ivar factor: so many times the back-off time.
    @ivar attempt: how often it failed in a row.
    """

    factor: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class DropAll:
    """The session is over, and with it all owner nodes: stop fetching. Positions are kept. Answers to earlier effects count no more."""


@dataclass(frozen=True)
class Finish:
    """All is let go."""


Effect = ReadGroup | Release | Claim | Fetch | BackOff | DropAll | Finish


class State(Enum):
    """Where a member is."""

    IDLE = "idle"
    LOOKING = "looking"
    RELEASING = "releasing"
    CLAIMING = "claiming"
    RELEASING_PARTIAL = "yielding"
    WAITING = "waiting"
    OWNING = "owning"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Rebalance:
    """
    One member's part in it. Each method returns the effects to carry out, in order, before the next event.

    @ivar state: where it is.
    @ivar owned: what is ours now, as far as we know: also while it is being claimed or let go.
    """

    def __init__(self, consumerId: str, retryCountMax: int) -> None:
        """
        @param retryCountMax: failures in a row after which the waiting grows.
        """
        self.state = State.IDLE
        self.owned: Assignment = {}
        self._consumerId = consumerId
        self._retryCountMax = retryCountMax
        self._wanted: Assignment = {}
        self._missing: frozenset[PartitionId] = frozenset()
        self._releasing: Assignment = {}
        self._doubtful: Assignment = {}  # ours in ZooKeeper, perhaps: a claim or a release was not answered; not fetched
        self._brokers: Mapping[int, BrokerRegistration] = {}
        self._changed = False
        self._attempt = 0

    # -- events from outside

    def started(self) -> list[Effect]:
        """The member is registered."""
        return self._look()

    def changed(self) -> list[Effect]:
        """A watch has fired: members, topics or partitions are not what they were."""
        if self.state is State.WAITING:
            self._attempt = 0
        if self.state in (State.OWNING, State.WAITING):
            return self._look()
        self._changed = True
        return []

    def woken(self) -> list[Effect]:
        """The time of a L{BackOff} is over."""
        return self._look() if self.state is State.WAITING else []

    def expired(self) -> list[Effect]:
        """The session is over."""
        if self.state in (State.STOPPING, State.STOPPED):
            self.owned = {}
            return []
        self.state, self.owned, self._wanted, self._releasing, self._doubtful, self._changed = (
            State.SUSPENDED,
            {},
            {},
            {},
            {},
            False,
        )
        return [DropAll()]

    def connected(self) -> list[Effect]:
        """ZooKeeper can be asked again, and the member is registered in the session of now."""
        if self.state not in (State.SUSPENDED, State.WAITING):
            return []
        self._attempt = 0
        return self._look()

    def stopped(self) -> list[Effect]:
        """The application wants no more. An effect that is under way must have been answered, or else its answer does not come any more."""
        if self.state in (State.STOPPING, State.STOPPED):
            return []
        held = {
            **self._doubtful,
            **(self._wanted if self.state is State.CLAIMING else {}),
            **self._releasing,
            **self.owned,
        }
        self.state = State.STOPPING
        return [Release(held)]

    # -- answers

    def answered(self, answer: Answer) -> list[Effect]:
        """What became of the last effect that has an answer."""
        if self.state is State.STOPPING:
            self.state, self.owned = State.STOPPED, {}
            return [Finish()]
        if isinstance(answer, Failed):
            if self.state is State.CLAIMING:
                self._doubtful.update(
                    {
                        place: thread
                        for place, thread in self._wanted.items()
                        if place not in self.owned
                    }
                )
            self._doubtful.update(self._releasing)
            self._dropReleased()
            return self._backOff(answer.reason)
        if self.state is State.LOOKING and isinstance(answer, GroupRead):
            return self._seen(answer.view, answer.missing)
        if self.state is State.RELEASING and isinstance(answer, Released):
            return self._released()
        if self.state is State.CLAIMING and isinstance(answer, Claimed):
            return self._claimed(answer.places)
        if self.state is State.RELEASING_PARTIAL and isinstance(answer, Released):
            self._dropReleased()
            return (
                self._look()
                if self._changed
                else self._backOff("others have not let go yet of what is ours")
            )
        raise ValueError(f"{answer} came in state {self.state.value}")

    # -- steps

    def _look(self) -> list[Effect]:
        self.state, self._changed = State.LOOKING, False
        return [ReadGroup()]

    def _seen(self, view: GroupState, missing: frozenset[PartitionId]) -> list[Effect]:
        share = computeAssignment(self._consumerId, view)
        if share is None:
            return self._backOff("this member is not registered")
        self._wanted, self._missing, self._brokers = share, missing, view.brokers
        if share == self.owned and not self._doubtful and not missing:
            return self._own()
        held = {**self._doubtful, **self.owned}
        return self._release(
            State.RELEASING,
            {place: thread for place, thread in held.items() if share.get(place) != thread},
        )

    def _release(self, state: State, share: Assignment) -> list[Effect]:
        self.state, self._releasing = state, share
        return [Release(dict(share))]

    def _released(self) -> list[Effect]:
        self._dropReleased()
        self._doubtful = {}
        claim = {
            place: thread
            for place, thread in self._wanted.items()
            if place not in self.owned or place in self._missing
        }
        self.state = State.CLAIMING
        return [Claim(claim)]

    def _dropReleased(self) -> None:
        self.owned = {
            place: thread for place, thread in self.owned.items() if place not in self._releasing
        }
        self._releasing = {}

    def _claimed(self, places: frozenset[PartitionId]) -> list[Effect]:
        before = {
            place: thread
            for place, thread in self.owned.items()
            if place in places or place not in self._missing
        }
        lostCount = len(self.owned) - len(before)
        self.owned = dict(before)
        self.owned.update(
            {place: thread for place, thread in self._wanted.items() if place in places}
        )  # in this order: hashes of text differ from run to run
        if self.owned == self._wanted:
            return self._own()
        if self._attempt + 1 >= self._retryCountMax:
            self._wanted = dict(self.owned)
            return self._fetch() + (
                self._look()
                if self._changed
                else self._backOff("others have not let go of what is ours; going on with the rest")
            )
        # Those that we had stay ours. The new ones are given up together, so that members who saw different things do not hold each other up.
        stop: list[Effect] = [Fetch(before, self._brokers)] if lostCount else []
        return stop + self._release(
            State.RELEASING_PARTIAL,
            {place: thread for place, thread in self.owned.items() if place not in before},
        )

    def _own(self) -> list[Effect]:
        self.state, self._attempt = State.OWNING, 0
        return self._fetch() + (self._look() if self._changed else [])

    def _fetch(self) -> list[Effect]:
        return [Fetch(dict(self.owned), self._brokers)]

    def _backOff(self, reason: str) -> list[Effect]:
        if self._changed:
            self._attempt = 0
        self.state = State.WAITING
        self._attempt += 1
        factor = min(max(self._attempt - self._retryCountMax, 0) + 1, BACKOFF_FACTOR_MAX)
        return [BackOff(factor, self._attempt, reason)]


def computeAssignment(consumerId: str, view: GroupState) -> Assignment | None:
    """
    What of the cluster is a member's.

    @return: L{None}: it is not among the members.
    """
    if consumerId not in view.members:
        return None
    counts = {
        member: subscription.streamCounts(view.topics)
        for member, subscription in view.members.items()
    }
    share: Assignment = {}
    for topic in counts[consumerId]:
        threadCounts = {
            member: wanted[topic] for member, wanted in counts.items() if topic in wanted
        }
        for thread, partitions in assign(view.topics.get(topic, ()), threadCounts).items():
            if thread.rpartition("-")[0] == consumerId:
                share.update({PartitionId(topic, partition): thread for partition in partitions})
    return share
