"""
Random orders of events, and mistakes that the checkers find. C{python -m tests.coordinator} runs
more seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.classicgroup import ClassicGroup
from pylogbroker.coordinator.groupmessages import SyncGroup
from pylogbroker.coordinator.grouptable import GroupTable
from pylogbroker.coordinator.membership import ClassicMembership
from pylogbroker.coordinator.positions import GroupPositions
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.groupsimulation import BrokenPromiseError, simulate

SEED_COUNT = 300
PLANTED_SEED_COUNT_MAX = 500


class SimulationTests(SynchronousTestCase):
    """What must hold, holds."""

    def test_seeds(self) -> None:
        """All promises hold in each of the first seeds, and what is to be tested happens."""
        counts = simulate(range(SEED_COUNT))
        for name in ("committed", "refused", "old", "fenced", "replaced", "crashed", "synced"):
            self.assertTrue(counts[name] > 5, counts)


class PlantedTests(SynchronousTestCase):
    """A mistake that somebody could make is found."""

    def found(self, text: str) -> None:
        """Some seed shows what is wrong."""
        error = self.assertRaises(BrokenPromiseError, simulate, range(PLANTED_SEED_COUNT_MAX))
        self.assertIn(text, str(error))

    def test_oldGenerationCommits(self) -> None:
        """Commits of old generations are accepted."""
        self.patch(GroupPositions, "_commitError", lambda *_: ErrorCode.NONE)
        self.patch(ClassicMembership, "showedLife", lambda *_: None)
        self.found("got through")

    def test_fencedCommits(self) -> None:
        """One whose place was taken may commit for the other."""

        def commitError(self: GroupPositions, context: Any, request: Any, group: Any) -> ErrorCode:
            error = original(self, context, request, group)
            return ErrorCode.NONE if error is ErrorCode.FENCED_INSTANCE_ID else error

        original: Callable[..., ErrorCode] = GroupPositions._commitError
        self.patch(GroupPositions, "_commitError", commitError)
        self.patch(ClassicMembership, "showedLife", lambda *_: None)
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
        self.patch(ClassicGroup, "setPosition", lambda *_: None)
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
