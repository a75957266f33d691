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
  idle         started                          L{Look}                            looking
  looking      L{Seen}, the same as owned                                          owning             back off
  looking      L{Seen}, another share           L{Release} what is another's       releasing          back off
  releasing    L{Released}                      L{Claim} what is new               claiming           back off
  claiming     L{Claimed}, all                  L{Fetch}                           owning             back off
  claiming     L{Claimed}, not all              L{Release} what was claimed        yielding           back off
  yielding     L{Released}                      L{BackOff}                         waiting            back off
  waiting      woken                            L{Look}                            looking
  owning       changed                          L{Look}                            looking
  any          expired                          L{Forget}                          suspended
  suspended    connected                        L{Look}                            looking
  any          stopped                          L{Release} all                     stopping
  stopping     L{Released}, failed              L{Finish}                          stopped            stopped
  ============ ================================ ================================== ================== ===================

"Changed" in a state that is on its way to owning is remembered, and acted on there. Unlike 0.7.2, a member lets go only of what it has to (0.7.2: of all, each
time), so that a partition that stays where it is flows on; what others see is the same. After C{retryCountMax} attempts 0.7.2 gives up and owns
nothing until the next event (gotcha 51); here it goes on trying, a little later each time, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pylogbroker.cluster.assignment import assign
from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.model import BrokerPartition

BACKOFF_FACTOR_MAX = 10
"""How many times the back-off time a member waits at the most, after many failures."""


class Place(NamedTuple):
    """One partition of one topic in the cluster."""

    topic: str
    partition: BrokerPartition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class View(NamedTuple):
    """
    What a member saw in ZooKeeper.

    @ivar members: the group's members and what they want.
    @ivar topics: all topics and their partitions.
    @ivar brokers: where they are.
    """

    members: Mapping[str, ISubscription]
    topics: Mapping[str, Sequence[BrokerPartition]]
    brokers: Mapping[int, BrokerRegistration]


Share = dict[Place, str]
"""Places, and which of the member's threads each belongs to."""


# -- events that answer effects -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A L{Look} was answered."""

    view: View


@dataclass(frozen=True)
class Released:
    """A L{Release} was carried out."""


@dataclass(frozen=True)
class Claimed:
    """
    A L{Claim} was carried out.

    @ivar places: those that are ours now; the others are somebody else's.
    """

    places: frozenset[Place]


@dataclass(frozen=True)
class Failed:
    """An effect could not be carried out, or not to its end."""

    reason: str


Answer = Seen | Released | Claimed | Failed


# -- effects ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """Watch and read the group and the cluster."""


@dataclass(frozen=True)
class Release:
    """
    Stop fetching places, commit their positions if that is wished, delete their owner nodes.

    @ivar share: which; may be empty.
    """

    share: Share = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Make owner nodes."""

    share: Share


@dataclass(frozen=True)
class Fetch:
    """
    All is ours: fetch this, and nothing else.

    @ivar brokers: where the brokers are.
    """

    share: Share
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
class Forget:
    """The session is over, and with it all owner nodes: stop fetching. Positions are kept. Answers to earlier effects count no more."""


@dataclass(frozen=True)
class Finish:
    """All is let go."""


Effect = Look | Release | Claim | Fetch | BackOff | Forget | Finish


class State(Enum):
    """Where a member is."""

    IDLE = "idle"
    LOOKING = "looking"
    RELEASING = "releasing"
    CLAIMING = "claiming"
    YIELDING = "yielding"
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
        self.owned: Share = {}
        self._consumerId = consumerId
        self._retryCountMax = retryCountMax
        self._wanted: Share = {}
        self._doubtful: Share = {}  # claimed, perhaps: the claim was not answered
        self._brokers: Mapping[int, BrokerRegistration] = {}
        self._changed = False
        self._attempt = 0

    # -- events from outside

    def started(self) -> list[Effect]:
        """The member is registered."""
        return self._look()

    def changed(self) -> list[Effect]:
        """A watch has fired: members, topics or partitions are not what they were."""
        if self.state is State.OWNING:
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
        self.state, self.owned, self._wanted, self._doubtful, self._changed = State.SUSPENDED, {}, {}, {}, False
        return [Forget()]

    def connected(self) -> list[Effect]:
        """There is a session again, and the member is registered in it."""
        return self._look() if self.state is State.SUSPENDED else []

    def stopped(self) -> list[Effect]:
        """The application wants no more. An effect that is under way must have been answered, or else its answer does not come any more."""
        if self.state in (State.STOPPING, State.STOPPED):
            return []
        self.state = State.STOPPING
        return [Release({**self._doubtful, **self.owned})]

    # -- answers

    def answered(self, answer: Answer) -> list[Effect]:
        """What became of the last effect that has an answer."""
        if self.state is State.STOPPING:
            self.state, self.owned = State.STOPPED, {}
            return [Finish()]
        if isinstance(answer, Failed):
            if self.state is State.CLAIMING:
                self._doubtful.update({place: thread for place, thread in self._wanted.items() if place not in self.owned})
            return self._backOff(answer.reason)
        if self.state is State.LOOKING and isinstance(answer, Seen):
            return self._seen(answer.view)
        if self.state is State.RELEASING and isinstance(answer, Released):
            return self._released()
        if self.state is State.CLAIMING and isinstance(answer, Claimed):
            return self._claimed(answer.places)
        if self.state is State.YIELDING and isinstance(answer, Released):
            self._dropUnwanted()
            return self._backOff("others have not let go yet of what is ours")
        raise ValueError(f"{answer} came in state {self.state.value}")

    # -- steps

    def _look(self) -> list[Effect]:
        self.state, self._changed = State.LOOKING, False
        return [Look()]

    def _seen(self, view: View) -> list[Effect]:
        share = shareOf(self._consumerId, view)
        if share is None:
            return self._backOff("this member is not registered")
        missing = {place.partition.broker for place in share} - view.brokers.keys()
        if missing:
            return self._backOff(f"the brokers {sorted(missing)} have partitions and are not registered")
        self._wanted, self._brokers = share, view.brokers
        if share == self.owned and not self._doubtful:
            return self._own()
        self.state = State.RELEASING
        held = {**self._doubtful, **self.owned}
        return [Release({place: thread for place, thread in held.items() if share.get(place) != thread})]

    def _released(self) -> list[Effect]:
        self._dropUnwanted()
        self._doubtful = {}
        claim = {place: thread for place, thread in self._wanted.items() if place not in self.owned}
        self.state = State.CLAIMING
        return [Claim(claim)]

    def _dropUnwanted(self) -> None:
        self.owned = {place: thread for place, thread in self.owned.items() if self._wanted.get(place) == thread}

    def _claimed(self, places: frozenset[Place]) -> list[Effect]:
        before = dict(self.owned)
        self.owned.update({place: self._wanted[place] for place in places})
        if self.owned == self._wanted:
            return self._own()
        self._wanted = before  # those that we had stay ours; the new ones are given up together, so that two members cannot hold each other up
        self.state = State.YIELDING
        return [Release({place: thread for place, thread in self.owned.items() if place not in before})]

    def _own(self) -> list[Effect]:
        self.state, self._attempt = State.OWNING, 0
        effects: list[Effect] = [Fetch(dict(self.owned), self._brokers)]
        return effects + self._look() if self._changed else effects

    def _backOff(self, reason: str) -> list[Effect]:
        self.state = State.WAITING
        self._attempt += 1
        factor = min(max(self._attempt - self._retryCountMax, 0) + 1, BACKOFF_FACTOR_MAX)
        return [BackOff(factor, self._attempt, reason)]


def shareOf(consumerId: str, view: View) -> Share | None:
    """
    What of the cluster is a member's.

    @return: L{None}: it is not among the members.
    """
    if consumerId not in view.members:
        return None
    counts = {member: subscription.streamCounts(view.topics) for member, subscription in view.members.items()}
    share: Share = {}
    for topic in counts[consumerId]:
        threads = [f"{member}-{index}" for member, wanted in counts.items() for index in range(wanted.get(topic, 0))]
        mine = {f"{consumerId}-{index}" for index in range(counts[consumerId][topic])}
        for thread, partitions in assign(view.topics.get(topic, ()), threads).items():
            if thread in mine:
                share.update({Place(topic, partition): thread for partition in partitions})
    return share
