"""Tests of L{pylogbroker.spark.tasks.jobquery}, without Spark."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.tasks.jobquery import JobPlace, JobQuery, checkJob
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import Input, Job


class Waiting(StreamTask):
    """Has a coroutine function."""

    async def process(self, *given: Any) -> None:
        """Does nothing."""


class CheckTests(SynchronousTestCase):
    """What Spark cannot run is refused."""

    def test_coroutines(self) -> None:
        """Tasks that await."""
        checkJob(Job("j", StreamTask, [Input("in"), Input("other", isBootstrap=True)]))
        with self.assertRaisesRegex(ConfigurationError, "job j: its task has coroutine functions"):
            checkJob(Job("j", Waiting, [Input("in")]))

    def test_latest(self) -> None:
        """A beginning at the latest messages, where the others begin behind the bootstrap."""
        job = Job("j", StreamTask, [Input("in"), Input("table", isBootstrap=True)])
        place = JobPlace("", {}, {"startingOffsets": "latest"}, {}, 1)
        noSession: Any = None
        with self.assertRaisesRegex(ConfigurationError, r"a bootstrapped input \(table\) begins"):
            JobQuery(noSession, job, place, 1)
