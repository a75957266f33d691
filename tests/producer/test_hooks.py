"""
Tests for L{pylogbroker.producer.hooks}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.batching import QueueItem
from pylogbroker.producer.hooks import Hooks


class HooksTests(SynchronousTestCase):
    """Hooks to inherit from."""

    def test_doNothing(self) -> None:
        """Each gives back what it was given."""
        hooks, item = Hooks(), QueueItem("t", b"x")
        hooks.init({})
        self.assertIs(hooks.beforeEnqueue(item), item)
        hooks.afterEnqueue(item, True)
        self.assertEqual(hooks.afterDequeuingExistingData(item), [item])
        self.assertEqual(hooks.afterDequeuingExistingData(None), [])
        self.assertEqual(hooks.beforeSendingData([item]), [item])
        self.assertEqual(hooks.lastBatchBeforeClose(), [])
        hooks.close()
