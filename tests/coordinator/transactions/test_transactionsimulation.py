"""
The simulation of the coordinator of transactions, in short; C{python -m
tests.coordinator.transactions} has more seeds.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.transactions import transactioncoordinator
from pylogbroker.coordinator.transactions.transactioncoordinator import TransactionCoordinator
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.coordinator.transactions.transactionsimulation import BrokenRuleError, Simulation

SEED_COUNT = 2_000
PLANTED_SEED_COUNT = 200


class SimulationTests(SynchronousTestCase):
    """Worlds without defects."""

    def test_seeds(self) -> None:
        """No rule is broken; transactions of every outcome occur."""
        outcomes = set()
        for seed in range(SEED_COUNT):
            world = Simulation(seed)
            world.run()
            outcomes |= {each.isCommitted for each in world.transactions if each.values}
        self.assertEqual(outcomes, {True, False, None})


class PlantedTests(SynchronousTestCase):
    """A coordinator with a defect breaks a rule in one of some seeds."""

    def broken(self) -> str:
        """The first rule that is broken, or nothing."""
        for seed in range(PLANTED_SEED_COUNT):
            try:
                Simulation(seed).run()
            except BrokenRuleError as error:
                return str(error)
        return ""

    def test_withoutVerification(self) -> None:
        """Partitions take whatever producers send."""

        def verify(self: Any, name: str, producerId: int, epoch: int, places: Any) -> Any:
            return [ErrorCode.NONE for _ in places]

        self.patch(TransactionCoordinator, "verify", verify)
        self.assertNotEqual(self.broken(), "")

    def test_markersNotTriedAgain(self) -> None:
        """A marker that cannot be written is forgotten."""

        def written(self: Any, found: Any, left: Any) -> None:
            if self._has(found):
                self._complete(found)
            self._effects.deliver()

        self.patch(TransactionCoordinator, "_written", written)
        self.assertNotEqual(self.broken(), "")

    def test_notCompletedAfterRestart(self) -> None:
        """A decided transaction is not completed after a restart."""
        self.patch(transactioncoordinator, "_PREPARED", ())
        self.assertNotEqual(self.broken(), "")

    def test_withoutFence(self) -> None:
        """A transaction is aborted with the epoch of its producer."""
        decide = TransactionCoordinator._decide

        def fence(self: Any, found: Any, done: Any) -> None:
            decide(self, found, False, 0, False, -1, done)

        self.patch(TransactionCoordinator, "_fence", fence)
        self.assertNotEqual(self.broken(), "")

    def test_decisionNotAwaited(self) -> None:
        """Markers are written before the decision is appended."""
        store = TransactionCoordinator._store

        def early(self: Any, found: Any, new: Any, lastEpoch: int, done: Any) -> None:
            if new.state.value.startswith("Prepare"):
                self._take(found, new)
                done(ErrorCode.NONE)
            else:
                store(self, found, new, lastEpoch, done)

        self.patch(TransactionCoordinator, "_store", early)
        self.assertNotEqual(self.broken(), "")
