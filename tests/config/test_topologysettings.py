"""
Tests for L{pylogbroker.config.topologies.topologysettings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import ConfigurationError


class TopologySettingsTests(SynchronousTestCase):
    """What one key says of another."""

    def test_topologyKeys(self) -> None:
        """Keys of the topology are kept as they are."""
        settings = TopologySettings.fromProperties(
            {"topology.message.timeout.secs": "5", "zk.connect": " zk1:2181 "}, self.fail
        )
        self.assertEqual(settings.topology, {"message.timeout.secs": "5"})
        self.assertEqual(settings.zkConnect, "zk1:2181")

    def test_contradictions(self) -> None:
        """Marks in the wrong order, and a topic without brokers."""
        for properties, reason in (
            ({"stream.manager.low.water.mark": "4194304"}, "low.water.mark=4194304 must be below"),
            ({"stream.manager.queue.size.max": "4194304"}, "queue.size.max=4194304"),
            ({"metrics.topic": "metrics"}, "metrics.topic needs bootstrap.servers"),
        ):
            error = self.assertRaises(
                ConfigurationError, TopologySettings.fromProperties, properties
            )
            self.assertIn(reason, str(error))
