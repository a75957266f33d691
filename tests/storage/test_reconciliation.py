"""
How a follower finds where its log and the leader's part: by the epochs of both alone.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import OffsetOutOfRangeError
from pylogbroker.storage.kafka.epochs import (
    UNDEFINED,
    EpochStart,
    LeaderEpochs,
    Truncation,
    divergence,
    truncationFor,
)


def epochsOf(log: list[int]) -> LeaderEpochs:
    """The epochs of a log, which is told as the epoch of each record."""
    found = LeaderEpochs()
    for offset, epoch in enumerate(log):
        if epoch != found.latest:
            found.assign(epoch, offset)
    return found


def reconciled(follower: list[int], leader: list[int], leaderEpoch: int) -> tuple[list[int], int]:
    """
    What is left of a follower's log when the leader lets it go on, and how often it was told to
    truncate.
    """
    answers = epochsOf(leader)
    answers.assign(leaderEpoch, len(leader))
    left, count = list(follower), 0
    while left:
        epochs = epochsOf(left)
        found = divergence(answers, len(leader), len(left), epochs.lastOf(len(left)))
        if found is None:
            break
        truncation = truncationFor(epochs, len(left), found)
        assert truncation.offset < len(left), (left, leader, found)
        del left[truncation.offset :]
        count += 1
        if truncation.isComplete:
            assert left == leader[: len(left)], (left, leader, found)
    return left, count


class ReconciliationTests(SynchronousTestCase):
    """Epochs tell how far two logs are the same."""

    def test_same(self) -> None:
        """A log that is a part of the leader's goes on where it is."""
        for end in range(6):
            self.assertEqual(reconciled([0, 0, 1, 1, 4][:end], [0, 0, 1, 1, 4], 5)[1], 0)

    def test_behindWatermark(self) -> None:
        """
        KIP-101, scenario 1: a follower that restarts with a watermark behind its log, and becomes
        leader, keeps what was acknowledged: nothing diverges, so nothing is cut.
        """
        self.assertEqual(reconciled([0, 0], [0, 0], 1), ([0, 0], 0))

    def test_tail(self) -> None:
        """KIP-101, scenario 2: the tail of an earlier leader is replaced by the later one's."""
        self.assertEqual(reconciled([0, 0], [0, 1], 2), ([0], 1))
        self.assertEqual(reconciled([0, 0, 0, 0], [0, 0, 1], 1), ([0, 0], 1))

    def test_unknownEpoch(self) -> None:
        """
        KIP-279: the follower has an epoch that the leader does not know, and the leader one that
        the follower does not know. The first answer is not enough.
        """
        follower, leader = [0, 0, 1, 2], [0, 0, 0, 3]
        answers = epochsOf(leader)
        self.assertEqual(divergence(answers, 4, 4, 2), (0, 3))
        self.assertEqual(truncationFor(epochsOf(follower), 4, EpochStart(0, 3)), (2, True))
        self.assertEqual(reconciled(follower, leader, 3), ([0, 0], 1))
        follower, leader = [0, 2, 2, 5], [0, 1, 1, 3, 3]
        answer = EpochStart(3, 5)
        self.assertEqual(truncationFor(epochsOf(follower), 4, answer), Truncation(3, False))
        self.assertEqual(reconciled(follower, leader, 6), ([0], 2))

    def test_allDiffers(self) -> None:
        """A log with nothing of the leader's ends empty."""
        self.assertEqual(reconciled([2, 2], [1, 1], 3), ([], 1))
        self.assertEqual(truncationFor(epochsOf([2, 2]), 2, EpochStart(1, 2)), (0, True))

    def test_withoutEpochs(self) -> None:
        """A follower without epochs takes the leader's offset, as far as its log goes."""
        self.assertEqual(truncationFor(LeaderEpochs(), 7, EpochStart(3, 5)), (5, True))
        self.assertEqual(truncationFor(LeaderEpochs(), 4, EpochStart(3, 5)), (4, True))

    def test_undefined(self) -> None:
        """Nothing follows from a leader that knows no such epoch; nothing is cut."""
        self.assertRaises(ValueError, truncationFor, epochsOf([0, 1]), 2, UNDEFINED)
        self.assertRaises(OffsetOutOfRangeError, divergence, epochsOf([0, 1]), 2, 2, 2)
        self.assertRaises(OffsetOutOfRangeError, divergence, LeaderEpochs(), 0, 0, 0)

    def test_histories(self) -> None:
        """
        Any leaders, each with the log of a replica that had some part of an earlier leader's: every
        replica keeps exactly what it has in common with the leader, in no more steps than it has
        epochs.
        """
        random = Random(14)
        mostSteps = 0
        for _ in range(2000):
            logs: list[list[int]] = [[], [], []]
            epoch = 0
            for _ in range(random.randint(1, 12)):
                leader = random.choice(logs)
                epoch += random.randint(1, 3)
                leader += [epoch] * random.randint(0, 3)
                for follower in logs:
                    if follower is leader or random.random() < 0.5:
                        continue
                    same = 0
                    while follower[same : same + 1] == leader[same : same + 1] != []:
                        same += 1
                    epochCount = len(epochsOf(follower).entries)
                    left, steps = reconciled(follower, leader, epoch)
                    self.assertEqual(left, leader[:same])
                    self.assertLessEqual(steps, epochCount)
                    mostSteps = max(mostSteps, steps)
                    follower[:] = leader[: random.randint(same, len(leader))]
        self.assertGreater(mostSteps, 2)
