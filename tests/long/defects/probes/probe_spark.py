"""Spark's data source and loader, without Spark."""

from __future__ import annotations

import os
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import NoBrokersError
from pylogbroker.spark.batch import BatchReader
from pylogbroker.spark.loading.failing import reason
from tests.spark import sourcecase


class BatchProbes(sourcecase.SourceCase):
    def test_noSuchTopic(self) -> None:
        self.broker.log("impressions")
        reader = BatchReader(self.options(subscribe="impressions,clicks"))
        error = self.assertRaises(NoBrokersError, reader.partitions)
        self.assertIn("topic clicks does not exist", str(error))


class LoadProbes(SynchronousTestCase):
    def test_noJava(self) -> None:
        self.enterContext(patch.dict(os.environ, {"PATH": "/nowhere"}, clear=True))
        text = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
        self.assertIn("it needs a Java runtime, and there is none", reason(text))
