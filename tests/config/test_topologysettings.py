"""
Tests for L{pylogbroker.config.topologies.topologysettings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.properties import Properties
from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import ConfigurationError


class TopologySettingsTests(SynchronousTestCase):
    """What one key says of another."""

    def test_topologyKeys(self) -> None:
        """Other keys are the topology's; one that looks like ours is told of."""
        warnings: list[str] = []
        properties = Properties().withOverrides(
            ["topology.stmgrs=5", "zk.connect= zk1:2181 ", "metrics.intervall.ms=7", "words=x"]
        )
        settings, config = TopologySettings.split(properties, warnings.append)
        self.assertEqual(
            config, {"topology.stmgrs": "5", "metrics.intervall.ms": "7", "words": "x"}
        )
        self.assertEqual(settings.zkConnect, "zk1:2181")
        [warning] = warnings
        self.assertIn("did you mean metrics.interval.ms?", warning)

    def test_where(self) -> None:
        """A wrong value is named with its place."""
        properties = Properties().withOverrides(["metrics.interval.ms=0"])
        error = self.assertRaises(ConfigurationError, TopologySettings.split, properties)
        self.assertIn("--set: metrics.interval.ms=0", str(error))

    def test_contradictions(self) -> None:
        """Marks in the wrong order, and a topic without brokers."""
        for properties, reason in (
            ({"stream.manager.low.water.mark": "4194304"}, "low.water.mark=4194304 must be below"),
            ({"stream.manager.queue.size.max": "4194304"}, "queue.size.max=4194304"),
            ({"metrics.topic": "metrics"}, "metrics.topic needs metrics.bootstrap.servers"),
        ):
            error = self.assertRaises(
                ConfigurationError, TopologySettings.fromProperties, properties
            )
            self.assertIn(reason, str(error))
