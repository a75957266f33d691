"""Tests of L{pylogbroker.spark.tasks.jobquery}, without Spark."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.tasks.jobquery import checkJob
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import Input, Job


class CheckTests(SynchronousTestCase):
    """What Spark cannot run is refused."""

    def test_inputs(self) -> None:
        """Inputs that come before others, or to all tasks."""
        checkJob(Job("j", StreamTask, [Input("in"), Input("other")]))
        for kind, given in (
            ("bootstrapped", Input("t", isBootstrap=True)),
            ("broadcast", Input("t", isBootstrap=True, isBroadcast=True)),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                checkJob(Job("j", StreamTask, [Input("in"), given]))
            self.assertIn(f"job j: {kind} input t: the engine spark", str(caught.exception))
