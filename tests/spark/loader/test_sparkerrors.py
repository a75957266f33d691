"""
Tests for L{pylogbroker.spark.loader.sparkerrors}.
"""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import LoadError
from pylogbroker.spark.loader.sparkerrors import reason, sparkErrors


class FailingTests(SynchronousTestCase):
    """What Spark says, in short."""

    def test_ours(self) -> None:
        """The last error of ours in a worker's traceback is the reason."""
        text = "An error occurred\nTraceback …\npylogbroker.errors.WireError: first\n  at x\npylogbroker.errors.DataLossError: it is gone\n\tat org.apache"
        self.assertEqual(reason(text), "it is gone (DataLossError)")

    def test_sparks(self) -> None:
        """Otherwise the first line that says something; never more than somebody reads."""
        self.assertEqual(
            reason(
                "An error occurred while calling o4.load.\n: java.io.IOException: no space\n\tat x"
            ),
            "java.io.IOException: no space",
        )
        self.assertEqual(reason("\n [NO_COLUMN] there is none\n"), "[NO_COLUMN] there is none")
        self.assertEqual(reason(""), "Spark does not say why")
        self.assertEqual(len(reason("x" * 9_999)), 500)

    def test_raised(self) -> None:
        """Whatever Spark raises is a load that came to nothing; what is not Spark's goes through."""
        for error in (PySparkException("a reason"), Py4JError("a reason")):
            with self.assertRaises(LoadError) as caught, sparkErrors():
                raise error
            self.assertIn("nothing was committed: a reason", str(caught.exception))
        with self.assertRaises(ZeroDivisionError), sparkErrors():
            raise ZeroDivisionError
