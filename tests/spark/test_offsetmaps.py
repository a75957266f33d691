"""Tests for L{pylogbroker.spark.offsetmaps}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.offsetmaps import parseAssignment, parseOffsets
from pylogbroker.types import BrokerPartition


class OffsetMapTests(SynchronousTestCase):
    """Offsets and assignments as JSON."""

    def refusal(self, parse: object, text: str) -> str:
        """Why a text is refused."""
        return str(self.assertRaises(ConfigurationError, parse, "startingOffsets", text))

    def test_offsets(self) -> None:
        """A topic has offsets by partition; -1 and -2 are some, and so is the largest that there can be."""
        text = '{"b.c": {"1-0": -2, "0-2147483647": 9223372036854775807}, "\u00fc": {"0-0": -1}, "a": {}}'
        large = BrokerPartition(0, 2**31 - 1)
        expected = {
            "b.c": {BrokerPartition(1, 0): -2, large: 2**63 - 1},
            "ü": {BrokerPartition(0, 0): -1},
            "a": {},
        }
        self.assertEqual(parseOffsets("startingOffsets", text), expected)

    def test_assignment(self) -> None:
        """A topic has a list of partitions, each of which counts once."""
        self.assertEqual(
            parseAssignment("assign", '{"t": ["1-0", "0-3", "1-0"]}'),
            {"t": (BrokerPartition(0, 3), BrokerPartition(1, 0))},
        )

    def test_refusals(self) -> None:
        """What is no map of offsets is refused, and the text says what is wrong."""
        for text, reason in (
            ("soon", "neither a word that is known nor JSON"),
            ("[1]", "should be an object of topics"),
            ("{}", "should be an object of topics"),
            ('{"t": 7}', "t should have an object of partitions"),
            ('{"t": {"0": 7}}', "'0' is not <broker>-<partition>"),
            ('{"t": {"0-0": -3}}', "which is no offset"),
            ('{"t": {"0-0": true}}', "which is no offset"),
            ('{"a/b": {}}', "has '/' in it"),
            ('{"t": {"0-0": 1}, "u": {}, "t": {"0-1": 2}}', "t stands there twice"),
            ('{"t": {"0-0": 1, "0-0": 2}}', "0-0 stands there twice"),
            ('{"t": {"0-0": 1, "00-0": 2}}', "t 0-0 stands there twice, once as '00-0'"),
        ):
            self.assertIn(reason, self.refusal(parseOffsets, text))
        for text, reason in (
            ('{"t": []}', "t should have a list"),
            ('{"t": ["0"]}', "is not <broker>-<partition>"),
            ('{"": ["0-0"]}', "cannot be the name"),
            ('{"t": ["0-0"], "t": ["0-1"]}', "t stands there twice"),
        ):
            self.assertIn(reason, self.refusal(parseAssignment, text))
