"""Tests for L{pylogbroker.spark.offsetmaps}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.model import BrokerPartition
from pylogbroker.spark.offsetmaps import formatOffsets, parseAssignment, parseOffsets

PARTITIONS = st.builds(BrokerPartition, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))


class OffsetMapTests(SynchronousTestCase):
    """Offsets and assignments as JSON."""

    def refusal(self, parse: object, text: str) -> str:
        """Why a text is refused."""
        return str(self.assertRaises(ConfigurationError, parse, "startingOffsets", text))

    @given(st.dictionaries(st.sampled_from(("a", "b.c", "ü")), st.dictionaries(PARTITIONS, st.integers(-2, 2**63 - 1), max_size=3), min_size=1, max_size=3))
    def test_roundTrip(self, offsets: dict[str, dict[BrokerPartition, int]]) -> None:
        """What is written is read."""
        self.assertEqual(parseOffsets("startingOffsets", formatOffsets(offsets)), offsets)

    def test_assignment(self) -> None:
        """A topic has a list of partitions, each of which counts once."""
        self.assertEqual(parseAssignment("assign", '{"t": ["1-0", "0-3", "1-0"]}'), {"t": (BrokerPartition(0, 3), BrokerPartition(1, 0))})

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
        ):
            self.assertIn(reason, self.refusal(parseOffsets, text))
        for text, reason in (('{"t": []}', "t should have a list"), ('{"t": ["0"]}', "is not <broker>-<partition>"), ('{"": ["0-0"]}', "cannot be the name")):
            self.assertIn(reason, self.refusal(parseAssignment, text))
