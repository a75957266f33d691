"""
Tests of logging every request.
"""

from __future__ import annotations

from twisted.logger import capturedLogs, formatEvent

from pylogbroker.broker.kafka07 import REQUEST_LOG
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeSet
from tests.broker.manualbroker import LeadBroker, LeadTestCase

A = encodeSet([b"a"])


class RequestLogTests(LeadTestCase):
    """What is told."""

    def logged(self, lead: LeadBroker, *frames: bytes) -> list[str]:
        with capturedLogs() as events:
            lead.connect().send(*frames)
            lead.settle()
        return [formatEvent(event) for event in events if event["log_namespace"] == REQUEST_LOG]

    def test_each(self) -> None:
        """
        Each request is a line with its fields, those within others too; a topic's name cannot begin
        another line.
        """
        lead = self.broker({"log.requests": "true"})
        lines = self.logged(
            lead,
            encodeProduce("t", 0, A),
            encodeMultiProduce([("t", 0, A), ("u", 0, A)]),
            encodeFetch("t", 0, 0, 100),
            encodeMultiFetch([("t", 0, 11, 100), ("bad\nname", 1, 0, 5)]),
            encodeOffsets("t", 0, -1, 1),
        )
        self.assertEqual(
            lines,
            [
                "PRODUCE 't' 0: 11 bytes, requests: 1",
                "PRODUCE 't' 0: 11 bytes, requests: 1",
                "PRODUCE 'u' 0: 11 bytes, requests: 1",
                "FETCH 't' 0 from 0: at most 100 bytes",
                "FETCH 't' 0 from 11: at most 100 bytes",
                "FETCH 'bad\\nname' 1 from 0: at most 5 bytes",
                "OFFSETS 't' 0 before -1: at most 1",
            ],
        )
        self.assertEqual((lead.log().logEndOffset, lead.counters.requests.fetchCount), (22, 2))

    def test_off(self) -> None:
        """Unless it is asked for, nothing is told."""
        self.assertEqual(
            self.logged(self.broker(), encodeProduce("t", 0, A), encodeOffsets("t", 0, -1, 1)), []
        )

    def test_waiting(self) -> None:
        """Who waits, and for what, is known all the same."""
        lead = self.broker({"log.requests": "true"})
        lead.connect().send(encodeProduce("t", 0, A))
        [waiting] = lead.service.picture().waiting
        self.assertEqual((waiting.what, waiting.topic), ("produce", "t"))
