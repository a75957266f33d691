"""
A thousand lives of a simulated cluster; and tests of that test: faults are planted, and found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.planted import PLANTS
from tests.simulation.simulation import STEPS, simulate

ROOT = Path(__file__).resolve().parent.parent.parent
SEED_COUNT = 1000
DELETED_SEED_COUNT = 100
EACH_COUNT = 50
REPEAT_COUNT = 20
FOUND_SEEDS = (58071,)
"""Seeds beyond the first thousand that have found something out."""
PLANT_SEED_COUNT_MAX = 100
"""Within so many seeds each planted fault is found."""


class SeedTests(SynchronousTestCase):
    """
    Two brokers, two producers, a group of up to three consumers, a dozen steps: sent = in the logs
    + reported failed or unknown; nothing flushed is missing in the group; order holds; nothing
    comes twice without a reason; each partition has one owner soon after the last fault
    (C{tests.simulation.simulation}).
    """


class DeletedGroupTests(SynchronousTestCase):
    """
    The same lives, in which an operator deletes all nodes of the group now and then, in the midst
    of rebalances too: registrations, owner nodes and stored offsets come back.
    """


def _seeds(seeds: range, isGroupDeleted: bool = False) -> Callable[[SynchronousTestCase], None]:
    option = " --delete-group" if isGroupDeleted else ""

    def test(self: SynchronousTestCase) -> None:
        for seed in seeds:
            outcome = simulate(seed, isGroupDeleted=isGroupDeleted)
            if outcome.faults:
                story = "\n".join([*outcome.steps, *outcome.faults])
                self.fail(f"python -m tests.simulation --seed {seed}{option}\n{story}")

    test.__doc__ = f"What must hold holds for seeds {seeds.start} to {seeds.stop - 1}."
    return test


for _first in FOUND_SEEDS:
    setattr(SeedTests, f"test_found{_first}", _seeds(range(_first, _first + 1)))
for _first in range(0, SEED_COUNT, EACH_COUNT):
    setattr(SeedTests, f"test_from{_first:03}", _seeds(range(_first, _first + EACH_COUNT)))
for _first in range(0, DELETED_SEED_COUNT, EACH_COUNT):
    setattr(
        DeletedGroupTests,
        f"test_from{_first:03}",
        _seeds(range(_first, _first + EACH_COUNT), isGroupDeleted=True),
    )


class PlantedTests(SynchronousTestCase):
    """Mistakes that somebody could make in a consumer are found, each within a hundred seeds."""

    def find(self, name: str, told: str) -> None:
        """Run seeds until the fault is found, and found for the right reason."""
        for seed in range(PLANT_SEED_COUNT_MAX):
            if any(told in fault for fault in simulate(seed, PLANTS[name]).faults):
                return
        self.fail(f"{name}: nobody noticed within {PLANT_SEED_COUNT_MAX} seeds")

    def test_releaseForgotten(self) -> None:
        """
        A member that lets go of a partition and leaves its owner's node there keeps the next one
        out.
        """
        self.find("a release forgotten", "is not settled")

    def test_commitTooEarly(self) -> None:
        """
        A position that is committed when a chunk has arrived, and not when it was handed out, loses
        messages.
        """
        self.find("a commit too early", "was delivered to anybody")

    def test_unsortedList(self) -> None:
        """A member that shares out an unsorted list claims what others have."""
        self.find("an unsorted list", "is not settled")

    def test_watchNotArmedAgain(self) -> None:
        """A member that watches only once does not see who comes and goes later."""
        self.find("a watch not armed again", "0 members say that they have it")


class ItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_everythingHappens(self) -> None:
        """
        Within a hundred seeds each kind of step is done, and each kind of outcome comes about.
        """
        figures: Counter[str] = Counter()
        for seed in range(100):
            figures.update(simulate(seed).figures)
        wanted = [
            *STEPS,
            "sent",
            "failed",
            "unknown",
            "sent again",
            "in the logs again",
            "delivered again",
            "in wrappers",
            "rolled",
        ]
        self.assertEqual([name for name in wanted if not figures[name]], [])

    def test_reproducible(self) -> None:
        """
        A seed does the same in every process, to the last message, however Python's own hashes
        fall.
        """
        program = (
            "from tests.simulation.simulation import simulate; print([simulate(seed).fingerprint"
            f" for seed in range({REPEAT_COUNT})])"
        )
        outputs = []
        for hashSeed in ("1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": hashSeed}
            outputs.append(
                subprocess.run(
                    [sys.executable, "-c", program],
                    cwd=ROOT,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(outputs[0].count(","), REPEAT_COUNT - 1)

    def test_commandForOne(self) -> None:
        """C{--seed N} tells a seed step by step."""
        command = [sys.executable, "-m", "tests.simulation", "--seed", "7"]
        output = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        self.assertIn("no more faults", output)
        self.assertTrue(output.endswith("it holds\n"), output)

    def test_command(self) -> None:
        """C{--seeds A-B} runs all of them, and says what they were made of."""
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "3-8", "--jobs", "2"]
        output = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        self.assertTrue(output.endswith("all 6 seeds hold\n"), output)
        self.assertIn("publish", output)
