"""
Tests for L{pylogbroker.consumer.rebalance}: one member step by step, and many that must agree
whatever happens.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.subscription import StaticSubscription, whitelist
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.consumer.rebalance import (
    BackOff,
    Claim,
    Claimed,
    DropAll,
    Failed,
    FetchOnly,
    GroupRead,
    GroupState,
    Leave,
    ReadGroup,
    Rebalance,
    Release,
    Released,
    State,
    computeAssignment,
)
from pylogbroker.types import BrokerPartition, PartitionId

BROKERS = {number: BrokerRegistration("c", f"host{number}", 9092) for number in (200, 300, 400)}


def place(text: str, topic: str = "t") -> PartitionId:
    broker, _, partition = text.partition("-")
    return PartitionId(topic, BrokerPartition(int(broker), int(partition)))


def partitions(*texts: str) -> list[BrokerPartition]:
    return [place(text).partition for text in texts]


def view(members: Any, *texts: str) -> GroupState:
    return GroupState(
        {member: StaticSubscription({"t": 1}) for member in members},
        {"t": partitions(*texts)},
        BROKERS,
    )


class ShareTests(SynchronousTestCase):
    """Who reads what."""

    def test_shippedExample(self) -> None:
        """
        spec-0.7 zookeeper §4.5's examples, and ZKLoadBalanceTest.testLoadBalance: brokers come and
        go, the shares are as listed.
        """
        both = ("g_consumer1", "g_consumer2")
        seen = view(both, "200-0", "200-1", "300-0", "300-1", "400-0")
        self.assertEqual(
            computeAssignment("g_consumer1", seen),
            dict.fromkeys(map(place, ("200-0", "200-1", "300-0")), "g_consumer1-0"),
        )
        self.assertEqual(
            computeAssignment("g_consumer2", seen),
            dict.fromkeys(map(place, ("300-1", "400-0")), "g_consumer2-0"),
        )
        seen = view(both, "200-0", "200-1", "300-0", "300-1")
        self.assertEqual(
            computeAssignment("g_consumer1", seen),
            dict.fromkeys(map(place, ("200-0", "200-1")), "g_consumer1-0"),
        )
        self.assertEqual(
            computeAssignment("g_consumer2", seen),
            dict.fromkeys(map(place, ("300-0", "300-1")), "g_consumer2-0"),
        )

    def test_moreMembersThanPartitions(self) -> None:
        """A member beyond the number of partitions gets none; it is idle, not missing."""
        self.assertEqual(computeAssignment("b", view("ab", "400-0")), {})

    def test_notAMember(self) -> None:
        """Who is not registered has no share at all."""
        self.assertIsNone(computeAssignment("z", view("ab", "400-0")))

    def test_kindsMix(self) -> None:
        """A static and a wildcard member share a topic that both want; threads count one by one."""
        seen = GroupState(
            {"a": StaticSubscription({"t": 2}), "b": whitelist("t|u", 1)},
            {"t": partitions("0-0", "0-1", "0-2")},
            {},
        )
        self.assertEqual(computeAssignment("a", seen), {place("0-0"): "a-0", place("0-1"): "a-1"})
        self.assertEqual(computeAssignment("b", seen), {place("0-2"): "b-0"})


class RebalanceTests(SynchronousTestCase):
    """One member, step by step."""

    def owning(self, *texts: str, retryCountMax: int = 4) -> Rebalance:
        """Alone in its group."""
        member = Rebalance("a", retryCountMax)
        self.assertEqual(member.started(), [ReadGroup()])
        wanted = {place(text): "a-0" for text in texts}
        if not texts:
            self.assertEqual(member.completed(GroupRead(view("a"))), [FetchOnly({}, BROKERS)])
            return member
        self.assertEqual(member.completed(GroupRead(view("a", *texts))), [Release({})])
        self.assertEqual(member.completed(Released()), [Claim(wanted)])
        self.assertEqual(member.completed(Claimed(frozenset(wanted))), [FetchOnly(wanted, BROKERS)])
        self.assertIs(member.state, State.OWNING)
        return member

    def test_noChange(self) -> None:
        """
        A change elsewhere costs one look; nothing is let go, and fetching goes on with the brokers
        of now.
        """
        member = self.owning("200-0")
        self.assertEqual(member.changed(), [ReadGroup()])
        self.assertEqual(
            member.completed(GroupRead(view("a", "200-0"))),
            [FetchOnly({place("200-0"): "a-0"}, BROKERS)],
        )

    def test_onlyWhatIsAnothers(self) -> None:
        """A member lets go only of what becomes another's."""
        member = self.owning("200-0", "200-1")
        member.changed()
        self.assertEqual(
            member.completed(GroupRead(view("ab", "200-0", "200-1"))),
            [Release({place("200-1"): "a-0"})],
        )
        self.assertEqual(member.completed(Released()), [Claim({})])
        self.assertEqual(
            member.completed(Claimed(frozenset())), [FetchOnly({place("200-0"): "a-0"}, BROKERS)]
        )

    def test_changedMeanwhile(self) -> None:
        """A change while a rebalance goes on is acted on at its end; two are acted on once."""
        member = self.owning("200-0")
        member.changed()
        self.assertEqual(member.changed(), [])
        self.assertEqual(member.changed(), [])
        self.assertEqual(
            member.completed(GroupRead(view("a", "200-0"))),
            [FetchOnly({place("200-0"): "a-0"}, BROKERS), ReadGroup()],
        )

    def test_yields(self) -> None:
        """
        Who does not get all gives back what it got, keeps what it had, waits, and looks again.
        """
        member = self.owning("200-0")
        member.changed()
        member.completed(GroupRead(view("a", "200-0", "200-1", "300-0")))
        self.assertEqual(
            member.completed(Released()), [Claim({place("200-1"): "a-0", place("300-0"): "a-0"})]
        )
        self.assertEqual(
            member.completed(Claimed(frozenset([place("300-0")]))),
            [Release({place("300-0"): "a-0"})],
        )
        (effect,) = member.completed(Released())
        assert isinstance(effect, BackOff)
        self.assertEqual((effect.factor, effect.attempt), (1, 1))
        self.assertEqual(member.owned, {place("200-0"): "a-0"})
        self.assertEqual(member.backoffElapsed(), [ReadGroup()])

    def test_yieldsAndHasNews(self) -> None:
        """Who does not get all, and hears of a change meanwhile, looks again at once."""
        member = self.owning()
        member.changed()
        member.completed(GroupRead(view("a", "200-0")))
        member.completed(Released())
        member.completed(Claimed(frozenset()))
        member.changed()
        self.assertEqual(member.completed(Released()), [ReadGroup()])

    def test_keepsInTheEnd(self) -> None:
        """
        What can never be claimed does not stop the rest: after the retries what there is is kept
        and fetched, and the trying goes on, later and later.
        """
        member = self.owning(retryCountMax=2)
        member.changed()
        wanted, had = view("a", "200-0", "200-1"), frozenset([place("200-0")])
        member.completed(GroupRead(wanted))
        member.completed(Released())
        member.completed(Claimed(had))
        member.completed(Released())
        member.backoffElapsed()
        member.completed(GroupRead(wanted))
        member.completed(Released())
        fetch, backOff = member.completed(Claimed(had))
        self.assertEqual(fetch, FetchOnly({place("200-0"): "a-0"}, BROKERS))
        assert isinstance(backOff, BackOff)
        self.assertEqual((backOff.factor, backOff.attempt), (1, 2))
        for attempt in range(3, 20):
            member.backoffElapsed()
            member.completed(GroupRead(wanted))
            self.assertEqual(member.completed(Released()), [Claim({place("200-1"): "a-0"})])
            _fetch, backOff = member.completed(Claimed(frozenset()))
            assert isinstance(backOff, BackOff)
            self.assertEqual((backOff.factor, backOff.attempt), (min(attempt - 1, 10), attempt))
        member.backoffElapsed()
        member.completed(GroupRead(wanted))
        member.completed(Released())
        self.assertEqual(member.changed(), [])
        self.assertIsInstance(member.completed(Claimed(frozenset()))[1], ReadGroup)

    def test_newsResetsWaiting(self) -> None:
        """
        A change, or a connection that is back, ends the waiting, and attempts count from one again.
        """
        for news in ("changed", "connected"):
            member = self.owning()
            member.changed()
            for attempt in range(1, 10):
                (effect,) = member.completed(Failed("no answer"))
                assert isinstance(effect, BackOff)
                self.assertEqual(effect.attempt, attempt)
                member.backoffElapsed()
            member.completed(Failed("no answer"))
            self.assertEqual(getattr(member, news)(), [ReadGroup()])
            (effect,) = member.completed(Failed("no answer"))
            assert isinstance(effect, BackOff)
            self.assertEqual(effect.attempt, 1)

    def test_newsDuringFailure(self) -> None:
        """A failure after a change was heard of is a first one."""
        member = self.owning()
        member.changed()
        member.completed(Failed("x"))
        member.backoffElapsed()
        member.changed()
        (effect,) = member.completed(Failed("x"))
        assert isinstance(effect, BackOff)
        self.assertEqual(effect.attempt, 1)

    def test_missingOwnerNode(self) -> None:
        """
        A partition whose owner node is not ours any more is claimed again, though nothing else has
        changed, and is not interrupted.
        """
        member = self.owning("200-0", "200-1")
        member.changed()
        missing = frozenset([place("200-1")])
        self.assertEqual(
            member.completed(GroupRead(view("a", "200-0", "200-1"), missing)), [Release({})]
        )
        self.assertEqual(member.completed(Released()), [Claim({place("200-1"): "a-0"})])
        self.assertEqual(set(member.owned), {place("200-0"), place("200-1")})
        self.assertEqual(
            member.completed(Claimed(missing)),
            [FetchOnly(dict.fromkeys((place("200-0"), place("200-1")), "a-0"), BROKERS)],
        )
        self.assertIs(member.state, State.OWNING)

    def test_missingAndAnothers(self) -> None:
        """
        One whose owner node is missing, and that is to be another's, is let go of like any other.
        """
        member = self.owning("200-0", "200-1")
        member.changed()
        seen = GroupRead(view("ab", "200-0", "200-1"), frozenset([place("200-0"), place("200-1")]))
        self.assertEqual(member.completed(seen), [Release({place("200-1"): "a-0"})])
        self.assertEqual(member.completed(Released()), [Claim({place("200-0"): "a-0"})])

    def test_missingAndTaken(self) -> None:
        """
        One that another has claimed meanwhile is fetched no more, in that moment: it is neither
        committed nor deleted, and claimed again later.
        """
        member = self.owning("200-0", "200-1")
        member.changed()
        wanted, missing = view("a", "200-0", "200-1"), frozenset([place("200-0"), place("200-1")])
        member.completed(GroupRead(wanted, missing))
        self.assertEqual(
            member.completed(Released()),
            [Claim(dict.fromkeys((place("200-0"), place("200-1")), "a-0"))],
        )
        self.assertEqual(
            member.completed(Claimed(frozenset([place("200-0")]))),
            [FetchOnly({place("200-0"): "a-0"}, BROKERS), Release({})],
        )
        self.assertEqual(member.owned, {place("200-0"): "a-0"})
        member.completed(Released())
        member.backoffElapsed()
        member.completed(GroupRead(wanted))
        self.assertEqual(member.completed(Released()), [Claim({place("200-1"): "a-0"})])

    def test_missingUnanswered(self) -> None:
        """
        After a claim that was not answered, those that are still missing are claimed again, and all
        that may be ours is let go of at the end.
        """
        member = self.owning("200-0")
        member.changed()
        seen = GroupRead(view("a", "200-0"), frozenset([place("200-0")]))
        member.completed(seen)
        member.completed(Released())
        member.completed(Failed("connection lost"))
        member.backoffElapsed()
        member.completed(seen)
        self.assertEqual(member.completed(Released()), [Claim({place("200-0"): "a-0"})])
        self.assertEqual(member.stopped(), [Release({place("200-0"): "a-0"})])

    def test_unregistered(self) -> None:
        """Who is not among the members waits and looks again."""
        member = Rebalance("a", 4)
        member.started()
        (effect,) = member.completed(GroupRead(view("b", "200-0")))
        self.assertIsInstance(effect, BackOff)

    def test_claimUnanswered(self) -> None:
        """
        A claim whose answer was lost may have worked: it is claimed again if it is still ours, and
        let go of if not.
        """
        mine = {place("200-0"): "a-0"}
        cases: list[tuple[tuple[str, ...], Any, Any]] = [(("200-0",), {}, mine), ((), mine, {})]
        for texts, released, claimed in cases:
            member = self.owning()
            member.changed()
            member.completed(GroupRead(view("a", "200-0")))
            member.completed(Released())
            member.completed(Failed("connection lost"))
            member.backoffElapsed()
            self.assertEqual(member.completed(GroupRead(view("a", *texts))), [Release(released)])
            self.assertEqual(member.completed(Released()), [Claim(claimed)])

    def test_releaseUnanswered(self) -> None:
        """
        A release that was not answered may have worked: what was to be let go is not taken to be
        ours any more without a new claim.
        """
        member = self.owning("200-0", "200-1")
        member.changed()
        member.completed(GroupRead(view("ab", "200-0", "200-1")))
        member.completed(Failed("connection lost"))
        self.assertEqual(member.owned, {place("200-0"): "a-0"})
        member.backoffElapsed()
        self.assertEqual(member.completed(GroupRead(view("a", "200-0", "200-1"))), [Release({})])
        self.assertEqual(member.completed(Released()), [Claim({place("200-1"): "a-0"})])

    def test_expiry(self) -> None:
        """
        The end of the session ends the fetching, in every state; the new session begins with a
        look.
        """
        for steps in range(4):
            member = self.owning("200-0")
            member.changed()
            for answer in (
                GroupRead(view("a", "200-0", "200-1")),
                Released(),
                Claimed(frozenset()),
            )[:steps]:
                member.completed(answer)
            self.assertEqual(member.expired(), [DropAll()])
            self.assertEqual(member.owned, {})
            self.assertEqual(member.backoffElapsed(), [])
            self.assertEqual(member.changed(), [])
            self.assertEqual(member.connected(), [ReadGroup()])
            self.assertEqual(member.completed(GroupRead(view("a", "200-0"))), [Release({})])

    def test_stopped(self) -> None:
        """
        Who stops lets go of all that is its own, or may be, also in the middle of a claim or a
        release.
        """
        mine, more = {place("200-0"): "a-0"}, {place("200-0"): "a-0", place("200-1"): "a-0"}
        member = self.owning("200-0")
        self.assertEqual(member.stopped(), [Release(mine)])
        self.assertEqual(member.stopped(), [])
        self.assertEqual(member.changed(), [])
        self.assertEqual(member.connected(), [])
        self.assertEqual(member.expired(), [])
        self.assertEqual(member.completed(Failed("gone")), [Leave()])
        self.assertIs(member.state, State.STOPPED)
        claiming = self.owning("200-0")
        claiming.changed()
        claiming.completed(GroupRead(view("a", "200-0", "200-1")))
        claiming.completed(Released())
        self.assertEqual(claiming.stopped(), [Release(more)])
        releasing = self.owning("200-0", "200-1")
        releasing.changed()
        releasing.completed(GroupRead(view("ab", "200-0", "200-1")))
        self.assertEqual(releasing.stopped(), [Release(more)])

    def test_nonsense(self) -> None:
        """An answer that nobody waits for is an error of ours, and is raised."""
        member = self.owning()
        with self.assertRaises(ValueError):
            member.completed(Released())


class Group:
    """
    Members and a ZooKeeper that is a dictionary; effects are carried out one at a time, in an order
    that the test chooses, and may fail.
    """

    def __init__(self, names: list[str], partitionCount: int) -> None:
        self.partitions = [BrokerPartition(200, index) for index in range(partitionCount)]
        self.owners: dict[PartitionId, str] = {}
        self.registered: set[str] = set()
        self.fetching: dict[str, set[PartitionId]] = {name: set() for name in names}
        self.members = {name: Rebalance(name, 3) for name in names}
        self.pending: dict[str, list[Any]] = {name: [] for name in names}
        self.waiting: set[str] = set()
        self.isMeddledWith = False  # whether somebody has deleted owner nodes

    def delete(self, number: int) -> None:
        """An operator deletes the owner node of a partition, whose owner watches it."""
        self.isMeddledWith = True
        thread = self.owners.pop(PartitionId("t", BrokerPartition(200, number)), None)
        if thread is not None:
            name = thread.rpartition("-")[0]
            self.take(name, self.members[name].changed())

    def tellOthers(self) -> None:
        for name, member in self.members.items():
            if name in self.registered:
                self.take(name, member.changed())

    def join(self, name: str) -> None:
        if self.members[name].state in (State.IDLE, State.STOPPED):
            self.members[name] = Rebalance(name, 3)
            self.pending[name] = []
            self.registered.add(name)
            self.take(name, self.members[name].started())
            self.tellOthers()

    def leave(self, name: str) -> None:
        if name in self.registered and self.members[name].state is not State.STOPPING:
            self.pending[name] = []
            self.take(name, self.members[name].stopped())

    def expire(self, name: str) -> None:
        if name in self.registered and self.members[name].state not in (
            State.SUSPENDED,
            State.STOPPING,
            State.STOPPED,
        ):
            self.pending[name] = []
            self.owners = {
                each: thread for each, thread in self.owners.items() if not thread.startswith(name)
            }
            self.registered.discard(name)
            self.take(name, self.members[name].expired())
            self.tellOthers()

    def reconnect(self, name: str) -> None:
        if self.members[name].state is State.SUSPENDED:
            self.registered.add(name)
            self.take(name, self.members[name].connected())
            self.tellOthers()

    def resize(self, count: int) -> None:
        self.partitions = [BrokerPartition(200, index) for index in range(count)]
        self.tellOthers()

    def take(self, name: str, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, FetchOnly):
                self.fetching[name] = set(effect.assignment)
                for each in effect.assignment:
                    assert self.isMeddledWith or self.owners.get(each) == effect.assignment[each], (
                        f"{name} fetches {each}, which is {self.owners.get(each)}'s"
                    )
            elif isinstance(effect, DropAll):
                self.fetching[name] = set()
            elif isinstance(effect, BackOff):
                self.waiting.add(name)
            elif isinstance(effect, Leave):
                self.registered.discard(name)
                self.owners = {
                    each: thread
                    for each, thread in self.owners.items()
                    if not thread.startswith(name)
                }
                self.tellOthers()
            else:
                if isinstance(effect, Release):
                    self.fetching[name] -= set(effect.assignment)
                self.pending[name].append(effect)

    def perform(self, name: str, isFailing: bool = False, isHalf: bool = False) -> bool:
        """
        Carry out the effect that a member waits for: not at all, in half, or whole, and answer it.
        """
        if not self.pending[name]:
            return False
        effect = self.pending[name].pop(0)
        answer: Any = Failed("lost")
        if isinstance(effect, ReadGroup):
            seen = GroupState(
                {member: StaticSubscription({"t": 1}) for member in self.registered},
                {"t": list(self.partitions)},
                {200: BROKERS[200]},
            )
            if not isFailing:
                answer = GroupRead(
                    seen,
                    frozenset(
                        each
                        for each, thread in self.members[name].owned.items()
                        if self.owners.get(each) != thread
                    ),
                )
        else:
            share = list(effect.assignment.items())
            done = share if not isFailing else share[: len(share) // 2] if isHalf else []
            if isinstance(effect, Release):
                for each, thread in done:
                    if self.owners.get(each) == thread:
                        del self.owners[each]
                if not isFailing:
                    answer = Released()
            else:
                got = {
                    each for each, thread in done if self.owners.setdefault(each, thread) == thread
                }
                if not isFailing:
                    answer = Claimed(frozenset(got))
        self.take(name, self.members[name].completed(answer))
        fetched = [each for places in self.fetching.values() for each in places]
        assert self.isMeddledWith or len(fetched) == len(set(fetched)), "two fetch the same"
        return True

    def wake(self) -> bool:
        waiting, self.waiting = self.waiting, set()
        for name in sorted(waiting):
            self.take(name, self.members[name].backoffElapsed())
        return bool(waiting)


NAMES = ["a", "b", "c", "d"]
STEP = st.tuples(
    st.sampled_from(
        [
            "join",
            "leave",
            "expire",
            "reconnect",
            "resize",
            "perform",
            "perform",
            "perform",
            "fail",
            "half",
            "wake",
        ]
    ),
    st.sampled_from(NAMES),
    st.integers(0, 7),
)
STEPS = st.lists(STEP, max_size=60)


class ConvergenceTests(SynchronousTestCase):
    """Many members."""

    @given(STEPS)
    @settings(
        max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    def test_converges(self, steps: list[tuple[str, str, int]]) -> None:
        """
        Whatever the order of joins, ends, expiries, failures half way and changes: nobody ever
        fetches what is not its own or what another fetches, and once nothing happens any more, the
        members have exactly their shares.
        """
        self.converge(steps)

    @given(
        st.lists(
            st.one_of(STEP, st.tuples(st.just("delete"), st.just(""), st.integers(0, 7))),
            max_size=60,
        )
    )
    @settings(
        max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    def test_convergesWhenMeddledWith(self, steps: list[tuple[str, str, int]]) -> None:
        """
        So it is in the end when somebody deletes owner nodes meanwhile, but for the while until
        their owners and those who claim them have noticed.
        """
        self.converge(steps)

    def converge(self, steps: list[tuple[str, str, int]]) -> None:
        group = Group(NAMES, 3)
        for step, name, number in steps:
            if step == "perform":
                group.perform(name)
            elif step in ("fail", "half"):
                group.perform(name, isFailing=True, isHalf=step == "half")
            elif step == "wake":
                group.wake()
            elif step in ("resize", "delete"):
                getattr(group, step)(number)
            else:
                getattr(group, step)(name)
        for name in NAMES:
            group.reconnect(name)
        for _round in range(200):
            busy = [group.perform(name) for name in NAMES]
            if not any(busy) and not group.wake():
                break
        else:
            self.fail("the group does not come to rest")
        wanted = GroupState(
            {member: StaticSubscription({"t": 1}) for member in group.registered},
            {"t": group.partitions},
            {},
        )
        for name in NAMES:
            self.assertEqual(group.fetching[name], set(computeAssignment(name, wanted) or ()), name)
        self.assertEqual(
            set(group.owners),
            {PartitionId("t", each) for each in group.partitions} if group.registered else set(),
        )
