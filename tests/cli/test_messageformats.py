"""Tests for L{pylogbroker.cli.output}."""

from __future__ import annotations

import argparse
import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.output import FORMAT_OPTIONS, MESSAGE_FORMATS, payloadAsJson
from pylogbroker.records.messageset import MessageSet, encodeMessage
from pylogbroker.types import BrokerPartition


class FormatTests(SynchronousTestCase):
    """How a message is shown."""

    def test_payload(self) -> None:
        """As it is."""
        self.assertEqual(MESSAGE_FORMATS["payload"](b"a\xff", "t", 0, 5), b"a\xff")

    def test_checksum(self) -> None:
        """By the CRC-32 that stands in its header, with 0.7's word before it."""
        [found] = MessageSet(encodeMessage(b"payload"))
        self.assertEqual(
            MESSAGE_FORMATS["checksum"](b"payload", "t", 0, 5),
            b"checksum:%d" % found.message.checksum,
        )

    def test_json(self) -> None:
        """
        With its place, of one broker or of a cluster; what is not UTF-8 is told in base 64. It is
        one line.
        """
        shape = MESSAGE_FORMATS["json"]
        self.assertEqual(
            json.loads(shape(b"a\n\xc3\xa4", "t", 1, 5)),
            {"topic": "t", "partition": 1, "nextOffset": 5, "payload": "a\nä"},
        )
        self.assertEqual(shape(b"a\nb", "t", 1, 5).count(b"\n"), 0)
        found = json.loads(shape(b"\xff", "t", BrokerPartition(2, 1), 5))
        self.assertEqual(
            found,
            {"topic": "t", "broker": 2, "partition": 1, "nextOffset": 5, "payloadBase64": "/w=="},
        )

    def test_payloadAsJson(self) -> None:
        """A key says which of both it is."""
        self.assertEqual(
            (payloadAsJson(b"a"), payloadAsJson(b"\x80")),
            ({"payload": "a"}, {"payloadBase64": "gA=="}),
        )

    def test_arguments(self) -> None:
        """C{--json} is C{--format json}; without either the payload is shown."""
        parser = argparse.ArgumentParser()
        for argument in FORMAT_OPTIONS:
            argument(parser)
        self.assertEqual(
            [
                parser.parse_args(words).format
                for words in ([], ["--json"], ["--format", "checksum"])
            ],
            ["payload", "json", "checksum"],
        )
