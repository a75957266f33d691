"""
Coordinators in random orders of events, and mistakes that the checkers find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.classicgroup import ClassicGroup
from pylogbroker.coordinator.committedoffsets import CommittedOffsets
from pylogbroker.coordinator.consumergroups import (
    consumergroup,
    consumermembership,
    groupmigration,
)
from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.consumergroups.consumermembership import ConsumerMembership
from pylogbroker.coordinator.group import Group, GroupLog
from pylogbroker.coordinator.groupmessages import SyncGroup
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.coordinator.membership import ClassicMembership
from pylogbroker.coordinator.offsetstopic import OffsetCommitKey, decodeKey
from pylogbroker.coordinator.pendingoffsets import PendingOffsets
from pylogbroker.coordinator.transactions import transactioncoordinator
from pylogbroker.coordinator.transactions.transactioncoordinator import TransactionCoordinator
from pylogbroker.coordinator.transactions.transactionstopic import TransactionState
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.storage.kafka.producerstate import ProducerStateManager
from tests.simulation.coordinators.classicmember import ClassicConsumer
from tests.simulation.coordinators.consumermember import ModernConsumer
from tests.simulation.coordinators.groups import GroupWorld
from tests.simulation.coordinators.migration import MigrationWorld, groupWorld
from tests.simulation.coordinators.transactions import TransactionWorld
from tests.simulation.coordinators.world import CoordinatorWorld
from tests.simulation.seeds import simulateSeed
from tests.simulation.seedtests import addSeedTests, outputsByHashes

SEED_COUNT = 2_000
EACH_COUNT = 200
PLANTED_SEED_COUNT_MAX = 500
FOUND_SEEDS = (37202, 39115, 43974)
FOUND_MIGRATION_SEEDS = (71, 304, 504, 864, 1092, 1205, 3408)
REPEAT_COUNT = 10
MUST_HAPPEN = (
    "committed",
    "compacted",
    "crashed",
    "downgraded",
    "fenced",
    "given",
    "heartbeats fenced",
    "log failed",
    "lost bytes",
    "old",
    "other protocol",
    "refused",
    "replaced",
    "synced",
    "unreleased",
    "upgraded",
)
TRANSACTIONS_MUST_HAPPEN = (
    "aborted",
    "committed",
    "compacted",
    "crashed",
    "fenced",
    "log failed",
    "lost bytes",
    "epochs used up",
    "late",
    "late refused",
    "markers",
    "offsets",
    "records",
    "repeated",
    "sent again",
)


MakeWorld = Callable[[int, bool], CoordinatorWorld]


class GroupSeedTests(SynchronousTestCase):
    """What must hold of groups, holds (C{tests.simulation.coordinators.groups})."""

    def test_found(self) -> None:
        """Seeds that found a mistake hold."""
        for seed in FOUND_SEEDS:
            self.assertEqual(simulateSeed(GroupWorld, seed).faults, [])
        for seed in FOUND_MIGRATION_SEEDS:
            self.assertEqual(simulateSeed(MigrationWorld, seed).faults, [])


class TransactionSeedTests(SynchronousTestCase):
    """What must hold of transactions, holds (C{tests.simulation.coordinators.transactions})."""


COMMAND = "python -m tests.simulation"
addSeedTests(GroupSeedTests, groupWorld, SEED_COUNT, EACH_COUNT, MUST_HAPPEN, f"{COMMAND} --groups")
addSeedTests(
    TransactionSeedTests,
    TransactionWorld,
    SEED_COUNT,
    EACH_COUNT,
    TRANSACTIONS_MUST_HAPPEN,
    f"{COMMAND} --transactions",
)


class PlantedCase(SynchronousTestCase):
    """Mistakes that somebody could make."""

    makeWorld: MakeWorld

    def found(
        self,
        text: str,
        make: MakeWorld | None = None,
        seeds: Iterable[int] = range(PLANTED_SEED_COUNT_MAX),
    ) -> None:
        """Some seed shows what is wrong, for the right reason."""
        make = make or type(self).makeWorld
        for seed in seeds:
            if any(text in fault for fault in simulateSeed(make, seed).faults):
                return
        self.fail(f"nobody noticed within {PLANTED_SEED_COUNT_MAX} seeds")


class PlantedTransactionTests(PlantedCase):
    """A mistake in the coordinator of transactions is found."""

    makeWorld = TransactionWorld

    def test_fencedProducerAdds(self) -> None:
        """Partitions of a fenced producer are accepted."""

        def addError(*values: Any) -> ErrorCode:
            error = original(*values)
            return ErrorCode.NONE if error is ErrorCode.PRODUCER_FENCED else error

        original = TransactionCoordinator._addError
        setattr(TransactionCoordinator, "_addError", staticmethod(addError))  # noqa: B010
        self.addCleanup(setattr, TransactionCoordinator, "_addError", staticmethod(original))
        self.found("a partition of")

    def test_fencedProducerEnds(self) -> None:
        """The end of a fenced producer is accepted."""

        def end(*values: Any) -> tuple[ErrorCode, bool]:
            error, isDone = original(*values)
            if error is ErrorCode.PRODUCER_FENCED:
                return ErrorCode.NONE, True
            return error, isDone

        original = transactioncoordinator._endWithBump
        self.patch(transactioncoordinator, "_endWithBump", end)
        self.found("an end of")

    def test_markersNotTriedAgain(self) -> None:
        """Markers that could not be written are forgotten."""
        original = TransactionCoordinator._written
        self.patch(
            TransactionCoordinator, "_written", lambda self, found, left: original(self, found, ())
        )
        self.found("no rest")

    def test_answeredTooEarly(self) -> None:
        """A decision is answered before it is appended."""

        def decide(self: TransactionCoordinator, *values: Any) -> None:
            *others, done = values
            original(self, *others, lambda error: None)
            done(ErrorCode.NONE)

        original: Callable[..., None] = TransactionCoordinator._decide
        self.patch(TransactionCoordinator, "_decide", decide)
        self.found("was answered otherwise")

    def test_abortedByRestart(self) -> None:
        """A start aborts what was committed."""

        def loaded(self: TransactionCoordinator, partition: int, epoch: int) -> None:
            for each in self._transactions.values():
                if each.stored.state is TransactionState.PREPARE_COMMIT:
                    each.stored = each.stored._replace(state=TransactionState.PREPARE_ABORT)
            original(self, partition, epoch)

        original = TransactionCoordinator.loaded
        self.patch(TransactionCoordinator, "loaded", loaded)
        self.found("was answered otherwise")

    def test_lostOffsets(self) -> None:
        """The offsets of a committed transaction are forgotten."""

        def end(self: PendingOffsets, partition: int, producerId: int) -> tuple[()]:
            original(self, partition, producerId)
            return ()

        original = PendingOffsets.end
        self.patch(PendingOffsets, "end", end)
        self.found("the group has []")

    def test_withoutVerification(self) -> None:
        """Partitions take whatever producers send."""

        def verify(self: Any, name: str, producerId: int, epoch: int, places: Any) -> Any:
            return [ErrorCode.NONE for _ in places]

        self.patch(TransactionCoordinator, "verify", verify)
        self.found("")

    def test_notCompletedAfterRestart(self) -> None:
        """A decided transaction is not completed after a restart."""
        self.patch(transactioncoordinator, "_PREPARED", ())
        self.found("no rest")

    def test_withoutFence(self) -> None:
        """A transaction is aborted with the epoch of its producer."""

        def fence(self: Any, found: Any, done: Any) -> None:
            decide(self, found, False, 0, False, -1, done)

        decide = TransactionCoordinator._decide
        self.patch(TransactionCoordinator, "_fence", fence)
        self.found("transaction ")

    def test_decisionNotAwaited(self) -> None:
        """Markers are written before the decision is appended."""

        def early(self: Any, found: Any, new: Any, lastEpoch: int, done: Any) -> None:
            if new.state.value.startswith("Prepare"):
                self._take(found, new)
                done(ErrorCode.NONE)
            else:
                store(self, found, new, lastEpoch, done)

        store = TransactionCoordinator._store
        self.patch(TransactionCoordinator, "_store", early)
        self.found("")

    def test_epochOfMarkers(self) -> None:
        """Producers get every epoch that there is."""
        self.patch(transactioncoordinator, "EPOCH_MAX", 2**15)
        self.found("the epoch of markers")

    def test_repeatedRecord(self) -> None:
        """A record that is sent again is appended again."""

        def check(self: Any, header: Any) -> None:
            original(self, header)

        original = ProducerStateManager.check
        self.patch(ProducerStateManager, "check", check)
        self.found("is committed twice")

    def test_commitOfTimedOut(self) -> None:
        """A transaction that takes too long is committed."""

        def fence(self: Any, found: Any, done: Any) -> None:
            decide(self, found, True, found.stored.clientVersion, True, -1, done)

        decide = TransactionCoordinator._decide
        self.patch(TransactionCoordinator, "_fence", fence)
        self.found("nobody has asked")

    def test_noTimeouts(self) -> None:
        """A transaction whose producer is gone is never aborted."""
        self.patch(TransactionCoordinator, "_abortTimedOut", TransactionCoordinator._expectTimeouts)
        self.found("no rest")


class PlantedTests(PlantedCase):
    """A mistake in the coordinator of classic groups is found."""

    makeWorld = partial(GroupWorld, protocols=(ClassicConsumer,))

    def test_oldGenerationCommits(self) -> None:
        """Commits of old generations are accepted."""
        self.patch(CommittedOffsets, "_commitError", lambda *_: ErrorCode.NONE)
        self.patch(ClassicMembership, "rescheduleHeartbeat", lambda *_: None)
        self.found("got through")

    def test_fencedCommits(self) -> None:
        """One whose place was taken may commit for the other."""

        def commitError(
            self: CommittedOffsets, context: Any, request: Any, group: Any
        ) -> ErrorCode:
            error = original(self, context, request, group)
            return ErrorCode.NONE if error is ErrorCode.FENCED_INSTANCE_ID else error

        original: Callable[..., ErrorCode] = CommittedOffsets._commitError
        self.patch(CommittedOffsets, "_commitError", commitError)
        self.patch(ClassicMembership, "rescheduleHeartbeat", lambda *_: None)
        self.found("got through")

    def test_assignedTooEarly(self) -> None:
        """Assignments are given out before they are appended."""

        def assign(self: ClassicMembership, group: ClassicGroup, request: SyncGroup) -> None:
            original(self, group, request)
            assignments = {each.memberId: each.assignment for each in request.assignments}
            given = {each: assignments.get(each, b"") for each in group.members}
            self._assignmentAppended(group, given, group.generation, ErrorCode.NONE)

        original = ClassicMembership._assign
        self.patch(ClassicMembership, "_assign", assign)
        self.found("is not in the log")

    def test_twoAssignments(self) -> None:
        """A second assignment of a leader counts, too."""
        always = property(lambda group: False, lambda group, isAssigning: None)
        setattr(ClassicGroup, "isAssigning", always)  # noqa: B010
        self.addCleanup(delattr, ClassicGroup, "isAssigning")
        self.found("another generation is in the log than in memory")

    def test_twoOwners(self) -> None:
        """A member that comes back in a stable generation gets the leader's assignment."""

        def assigned(self: ClassicMembership, group: ClassicGroup, member: Any) -> Any:
            leader = group.members[group.leaderId or ""]
            return original(self, group, leader if len(group.members) > 2 else member)

        original = ClassicMembership._assigned
        self.patch(ClassicMembership, "_assigned", assigned)
        self.found("own")

    def test_rebalanceWithoutEnd(self) -> None:
        """A rebalance waits for members that never come."""
        self.patch(ClassicMembership, "_expectJoins", lambda *_: None)
        self.found("nothing ends the rebalance")

    def test_sessionWithoutEnd(self) -> None:
        """A session that has ended while its member waited does not begin anew."""

        def staticReplaced(self: ClassicMembership, *values: Any) -> None:
            expect, self._expectHeartbeat = self._expectHeartbeat, lambda *_: None  # type: ignore[method-assign]
            original(self, *values)
            self._expectHeartbeat = expect  # type: ignore[method-assign]

        original = ClassicMembership._staticReplaced
        self.patch(ClassicMembership, "_staticReplaced", staticReplaced)
        self.found("nothing ends the session")

    def test_lostCommits(self) -> None:
        """A commit is acknowledged and not kept."""
        self.patch(ClassicGroup, "setOffset", lambda *_: None)
        self.found("was shown, not")

    def test_acknowledgedTooEarly(self) -> None:
        """A commit is acknowledged before it is flushed."""

        def append(
            self: CoordinatorWorld, incarnation: int, index: int, records: Any, done: Any
        ) -> None:
            isCommit = isinstance(decodeKey(records[0][0]), OffsetCommitKey)
            later = (lambda error: None) if isCommit else done
            original(self, incarnation, index, records, later)
            if isCommit:
                done(ErrorCode.NONE)

        original = CoordinatorWorld.append
        self.patch(CoordinatorWorld, "append", append)
        self.patch(GroupWorld, "check", lambda world: None)
        self.found("was shown, not")

    def test_unstoredGeneration(self) -> None:
        """A generation without assignments is appended."""

        def store(
            self: GroupTable, group: ClassicGroup, given: Mapping[str, bytes], done: Any
        ) -> Any:
            return original(self, group, {}, done)

        original = GroupTable.storeGroup
        self.patch(GroupTable, "storeGroup", store)
        self.found("another generation is in the log")

    def test_wrongCounts(self) -> None:
        """Ids that were given are counted for ever."""
        self.patch(
            ClassicGroup, "dropPending", lambda group, each: group.pendingMembers.discard(each)
        )
        self.found("does not count")


class PlantedConsumerTests(PlantedCase):
    """A mistake in the coordinator of KIP-848's groups is found."""

    makeWorld = partial(GroupWorld, protocols=(ModernConsumer,))

    def test_heldPartitions(self) -> None:
        """A member gets partitions that another one has not given up."""

        def following(self: ConsumerGroup, *values: Any) -> Any:
            holders, self._holders = self._holders, {}
            try:
                return original(self, *values)
            finally:
                self._holders = holders

        original = ConsumerGroup._next
        self.patch(ConsumerGroup, "_next", following)
        self.found("has two owners")

    def test_revocationNotAwaited(self) -> None:
        """What a member has to give up counts as given up."""
        self.patch(consumergroup, "_meet", lambda *_: False)
        self.found("has two owners")

    def test_livingInstance(self) -> None:
        """A process takes the place of one that lives."""

        def memberFor(self: ConsumerMembership, group: ConsumerGroup, request: Any) -> Any:
            static = group.members.get(group.staticMembers.get(request.instanceId, ""))
            if static is None or request.memberEpoch or static.memberId == request.memberId:
                return original(self, group, request)
            return replace(static, epoch=0, previousEpoch=0), static

        original = ConsumerMembership._memberFor
        self.patch(ConsumerMembership, "_memberFor", memberFor)
        self.found("has two owners")

    def test_oldEpochBeats(self) -> None:
        """Heartbeats of every epoch are accepted."""
        self.patch(consumermembership, "_checkEpoch", lambda *_: None)
        self.found("got through")

    def test_strangerCommits(self) -> None:
        """Commits of members that were removed are accepted."""
        self.patch(ConsumerGroup, "commitError", lambda *_: ErrorCode.NONE)
        self.found("got through")

    def test_answeredTooEarly(self) -> None:
        """A heartbeat is answered before what it changes is appended."""

        def store(self: ConsumerMembership, group: ConsumerGroup) -> None:
            original(self, group)

        original = ConsumerMembership.store
        self.patch(ConsumerMembership, "store", store)
        self.found("is not in the log")

    def test_refusalForgotten(self) -> None:
        """What was refused is not appended again."""
        self.patch(GroupLog, "refused", lambda *_: None)
        self.found("in the log than in memory")

    def test_lostCommits(self) -> None:
        """A commit is acknowledged and not kept."""
        self.patch(ConsumerGroup, "setOffset", lambda *_: None)
        self.found("was shown, not")

    def test_lostPositions(self) -> None:
        """A group that goes on with another protocol forgets its offsets."""

        def succeed(self: Group, before: Group) -> None:
            original(self, before)
            self.forgotten()

        original = Group.succeed
        self.patch(Group, "succeed", succeed)
        self.found("was shown, not", GroupWorld)

    def test_revocationWithoutEnd(self) -> None:
        """A member has for ever to give up partitions."""
        self.patch(ConsumerMembership, "_expectRevocation", lambda *_: None)
        self.found("nothing ends the revocation")

    def test_sessionWithoutEnd(self) -> None:
        """A member that is silent stays."""
        self.patch(ConsumerMembership, "expectHeartbeat", lambda *_: None)
        self.found("nothing ends the session")

    def test_topicsNotSeen(self) -> None:
        """Partitions that come later are given to no member."""
        self.patch(ConsumerMembership, "topicsChanged", lambda _: None)
        self.found("no rest")

    def test_unsubscribedByNobody(self) -> None:
        """A member that leaves does not set off another assignment."""

        def bump(self: ConsumerGroup) -> None:
            if len(self.members) > 1:
                original(self)

        original = ConsumerGroup.bump
        self.patch(ConsumerGroup, "bump", bump)
        self.found("no rest")

    def test_patternOfOthers(self) -> None:
        """A new pattern does not count where the topics of the group stay the same."""

        def setPattern(self: ConsumerGroup, *values: Any) -> bool:
            original(self, *values)
            return False

        original = ConsumerGroup.setPattern
        self.patch(ConsumerGroup, "setPattern", setPattern)
        self.found("no rest")

    def test_pendingNotRead(self) -> None:
        """A start forgets what members have to give up."""

        def replayCurrent(self: ConsumerGroup, memberId: str, value: bytes | None) -> None:
            original(self, memberId, value)
            self.put(replace(self.members[memberId], pending={}))

        original = ConsumerGroup._replayCurrent
        self.patch(ConsumerGroup, "_replayCurrent", replayCurrent)
        self.found("in the log than in memory")


class PlantedMigrationTests(PlantedCase):
    """A mistake in what a group does that goes on with the other protocol is found."""

    makeWorld = MigrationWorld

    def test_ownedForgotten(self) -> None:
        """Classic members own nothing when the group goes on with KIP-848."""
        self.patch(groupmigration, "_merged", lambda *_: {})
        self.found("has two owners")

    def test_oldGroupGoesOn(self) -> None:
        """The classic group that was begins a rebalance of its own."""

        def succeeded(self: ClassicMembership, group: ClassicGroup) -> None:
            state = group.state
            original(self, group)
            group.state = state

        original = ClassicMembership.succeeded
        self.patch(ClassicMembership, "succeeded", succeeded)
        self.found("in the log than in memory", seeds=(3191, 3408))

    def test_failureForgotten(self) -> None:
        """A group is classic in memory alone."""
        self.patch(ClassicMembership, "_takenOver", lambda *_: None)
        self.found("in the log than in memory", seeds=(1092, 1722, 2194))

    def test_neverJoinsAgain(self) -> None:
        """A classic member is not told that it shall own other partitions."""
        self.patch(ConsumerGroup, "mustJoinAgain", lambda *_: False)
        self.found("no rest")


class ReproducibleTests(SynchronousTestCase):
    """A seed is a seed."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        program = (
            "from tests.simulation.coordinators.groups import GroupWorld\n"
            "from tests.simulation.seeds import simulateSeed\n"
            f"for seed in range({REPEAT_COUNT}):"
            " print(simulateSeed(GroupWorld, seed).fingerprint)"
        )
        outputs = set(outputsByHashes(program))
        self.assertEqual(len(outputs), 1)
        self.assertEqual(outputs.pop().count("\n"), REPEAT_COUNT)
