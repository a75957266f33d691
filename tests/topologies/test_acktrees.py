"""
The acker's trees against a model that keeps all edges.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.topologies.acktrees import AckTrees


class AckTreesTests(SynchronousTestCase):
    """Trees come to their end once, and rightly."""

    def test_completed(self) -> None:
        """A tree is completed when each of its edges has come in twice."""
        trees = AckTrees()
        trees.announce([1, 10 ^ 11, 2, 20])
        self.assertEqual(trees.acknowledge([1, 10 ^ 12 ^ 13]), [])
        self.assertEqual(trees.acknowledge([1, 13, 2, 20]), [2])
        self.assertEqual(trees.acknowledge([1, 11]), [])
        self.assertEqual(len(trees), 1)
        self.assertEqual(trees.acknowledge([1, 12]), [1])
        self.assertEqual(trees.acknowledge([1, 12, 3, 0]), [])
        self.assertEqual(len(trees), 0)

    def test_failed(self) -> None:
        """A failed tree is at its end."""
        trees = AckTrees()
        trees.announce([1, 10, 2, 20])
        trees.rotate()
        self.assertEqual(trees.fail([1, 1, 5]), [1])
        self.assertEqual(trees.acknowledge([1, 10]), [])
        self.assertEqual(len(trees), 1)

    def test_timedOut(self) -> None:
        """A tree times out once the wheel has turned, and part of one bucket more."""
        trees = AckTrees(3)
        trees.announce([1, 10])
        self.assertEqual([trees.rotate() for _ in range(2)], [[], []])
        trees.announce([2, 20])
        self.assertEqual(trees.acknowledge([1, 5]), [])  # it does not make it younger
        self.assertEqual(trees.rotate(), [])
        self.assertEqual(trees.rotate(), [1])
        self.assertEqual(trees.acknowledge([1, 10 ^ 5]), [])
        self.assertEqual([trees.rotate(), trees.rotate()], [[], [2]])

    def test_random(self) -> None:
        """No tree ends before all of its edges are acknowledged, and none is late."""
        random = Random(16)
        trees = AckTrees(4)
        live: dict[int, set[int]] = {}
        ended: list[int] = []
        for root in range(2000):
            edges = {random.getrandbits(64) for _ in range(random.randrange(1, 4))}
            value = 0
            for edge in edges:
                value ^= edge
            trees.announce([root, value])
            live[root] = edges
            while len(live) > 20:
                root, edges = random.choice(list(live.items()))
                edge = edges.pop()
                more = {random.getrandbits(64) for _ in range(random.choice((0, 0, 0, 1, 2)))}
                edges |= more
                for each in more:
                    edge ^= each
                completed = trees.acknowledge([root, edge])
                self.assertEqual(completed, [] if edges else [root])
                if not edges:
                    del live[root]
                    ended.append(root)
            if random.random() < 0.01:
                for root in trees.rotate():
                    del live[root]
                    ended.append(root)
            self.assertEqual(len(trees), len(live))
        self.assertEqual(len(ended), len(set(ended)))
