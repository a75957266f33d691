"""
Tests of L{pylogbroker.client.kafka.metadata} and L{pylogbroker.client.kafka.errorpolicy}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.client.kafka.metadata import MetadataCache, PartitionLeader, address
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

RESPONSE = messages.MetadataResponse


def response(
    *leaders: tuple[int, int], topicId: bytes = b"i" * 16, code: int = 0, name: str | None = "t"
) -> Any:
    """Metadata of one topic and of the brokers 1 and 2."""
    return RESPONSE(
        brokers=[
            RESPONSE.MetadataResponseBroker(nodeId=1, host="a", port=1),
            RESPONSE.MetadataResponseBroker(nodeId=2, host="::1", port=2),
        ],
        topics=[
            RESPONSE.MetadataResponseTopic(
                errorCode=code,
                name=name,
                topicId=topicId,
                partitions=[
                    RESPONSE.MetadataResponsePartition(
                        partitionIndex=index, leaderId=node, leaderEpoch=epoch
                    )
                    for index, (node, epoch) in reversed(list(enumerate(leaders)))
                ],
            )
        ],
    )


class MetadataTests(SynchronousTestCase):
    """L{MetadataCache}."""

    def setUp(self) -> None:
        self.cache = MetadataCache()

    def test_leaders(self) -> None:
        """Partitions are in order; a leader counts while its broker is known."""
        self.cache.update(response((1, 3), (9, 3), (-1, 3)))
        self.assertEqual(list(self.cache.topics["t"].partitions), [0, 1, 2])
        self.assertEqual(self.cache.leader("t", 0), (1, 3))
        for partition in (1, 2, 3):
            self.assertIsNone(self.cache.leader("t", partition))
        self.assertIsNone(self.cache.leader("u", 0))
        self.assertEqual(self.cache.brokers, {1: "a:1", 2: "[::1]:2"})
        self.assertEqual(self.cache.names, {b"i" * 16: "t"})

    def test_olderNews(self) -> None:
        """News from a broker that lags behind are ignored, and those of an old broker are not."""
        self.cache.update(response((1, 3)))
        self.cache.update(response((2, 2)))
        self.assertEqual(self.cache.leader("t", 0), (1, 3))
        self.cache.update(response((2, 4)))
        self.assertEqual(self.cache.leader("t", 0), (2, 4))
        self.cache.update(response((1, -1)))
        self.assertEqual(self.cache.leader("t", 0), (1, -1))

    def test_newTopic(self) -> None:
        """A topic with another id begins with its own epochs."""
        self.cache.update(response((1, 3)))
        self.cache.update(response((2, 0), topicId=b"j" * 16))
        self.assertEqual(self.cache.leader("t", 0), (2, 0))
        self.assertEqual(self.cache.names, {b"j" * 16: "t"})

    def test_errors(self) -> None:
        """A topic that is gone is forgotten; one that has an error is as it was."""
        self.cache.update(response((1, 3)))
        self.cache.update(response(code=ErrorCode.LEADER_NOT_AVAILABLE))
        self.assertEqual(self.cache.errors, {"t": ErrorCode.LEADER_NOT_AVAILABLE})
        self.assertEqual(self.cache.leader("t", 0), (1, 3))
        self.cache.update(response(code=ErrorCode.UNKNOWN_TOPIC_ID, name=None))
        self.assertEqual((self.cache.topics, self.cache.names), ({}, {}))
        self.cache.update(response(code=ErrorCode.UNKNOWN_TOPIC_ID, name=None))
        self.cache.update(response((1, 3)))
        self.assertEqual(self.cache.errors, {})

    def test_moveLeader(self) -> None:
        """A response may name a new leader, and where it is."""
        endpoints = [messages.ProduceResponse.NodeEndpoint(nodeId=5, host="b", port=5)]
        move = self.cache.moveLeader
        self.assertFalse(move("t", 0, PartitionLeader(5, 4), endpoints))
        self.cache.update(response((1, 3)))
        self.assertFalse(move("t", 0, PartitionLeader(5, 3), endpoints))
        self.assertFalse(move("t", 0, PartitionLeader(-1, 4), endpoints))
        self.assertFalse(move("t", 0, PartitionLeader(5, 4), []))
        self.assertTrue(move("t", 0, PartitionLeader(5, 4), endpoints))
        self.assertEqual(self.cache.leader("t", 0), (5, 4))
        self.assertEqual(self.cache.brokers[5], "b:5")

    def test_address(self) -> None:
        """An IPv6 address has brackets."""
        self.assertEqual((address("a.b", 1), address("fe80::1", 2)), ("a.b:1", "[fe80::1]:2"))


class PolicyTests(SynchronousTestCase):
    """What follows from an error code."""

    def test_retriable(self) -> None:
        """Exactly Kafka's retriable codes are tried again; unknown ones are not."""
        for code in ErrorCode:
            self.assertEqual(ErrorPolicy.RETRY in policyOf(code), code.isRetriable, code)
        self.assertEqual(policyOf(9999), ErrorPolicy.NONE)

    def test_contradictions(self) -> None:
        """What ends the producer is not tried again; whoever refreshes tries again."""
        for code in ErrorCode:
            policy = policyOf(code)
            self.assertFalse(ErrorPolicy.FATAL in policy and ErrorPolicy.RETRY in policy, code)
            if policy & (ErrorPolicy.REFRESH | ErrorPolicy.FIND_COORDINATOR):
                self.assertIn(ErrorPolicy.RETRY, policy, code)
