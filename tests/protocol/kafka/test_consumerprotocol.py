"""
Tests of L{pylogbroker.protocol.kafka.consumerprotocol}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka.consumerprotocol import (
    byTopic,
    decodeAssignment,
    decodeAssignmentAndUserData,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from pylogbroker.types import MemberSubscription, TopicPartition

PLACES = st.lists(
    st.builds(TopicPartition, st.sampled_from(("a", "b")), st.integers(0, 9)), unique=True
).map(lambda found: sorted(found))


class ProtocolTests(SynchronousTestCase):
    """Subscriptions and assignments."""

    @given(
        st.lists(st.text(max_size=5), max_size=3),
        PLACES,
        st.integers(-1, 100),
        st.none() | st.text(max_size=3),
        st.none() | st.binary(max_size=5),
    )
    def test_subscription(
        self,
        topics: list[str],
        owned: list[TopicPartition],
        generation: int,
        rack: str | None,
        userData: bytes | None,
    ) -> None:
        """What is encoded is decoded."""
        given = MemberSubscription(
            "m", tuple(topics), tuple(owned), generation, "i", rack, userData
        )
        self.assertEqual(decodeSubscription(encodeSubscription(given), "m", "i"), given)

    @given(PLACES, st.none() | st.binary())
    def test_assignment(self, places: list[TopicPartition], userData: bytes | None) -> None:
        """What is encoded is decoded; no bytes are no partitions."""
        encoded = encodeAssignment(places, userData)
        self.assertEqual(decodeAssignment(encoded), places)
        self.assertEqual(decodeAssignmentAndUserData(encoded), (places, userData))
        self.assertEqual(decodeAssignment(b""), [])

    def test_java(self) -> None:
        """The bytes of Java's client for version 0, and a later version than ours."""
        data = bytes.fromhex("0000 00000001 0001 61 ffffffff")
        self.assertEqual(decodeSubscription(data, "m"), MemberSubscription("m", ("a",)))
        encoded = encodeSubscription(MemberSubscription("m", ("a",)))
        later = b"\0\x09" + encoded[2:] + b"more"
        self.assertEqual(decodeSubscription(later, "m"), MemberSubscription("m", ("a",)))
        self.assertEqual(
            encodeAssignment([TopicPartition("a", 1)]).hex(),
            "0000000000010001610000000100000001ffffffff",
        )

    def test_wrong(self) -> None:
        """What cannot be read is refused, with the member."""
        for data in (b"", b"\0", b"\xff\xff", b"\0\0\0\0\0\x05"):
            error = self.assertRaises(WireError, decodeSubscription, data, "m7")
            self.assertIn("'m7'", str(error))
        self.assertRaises(WireError, decodeAssignment, b"\0\0\0")

    def test_byTopic(self) -> None:
        """Numbers keep their order."""
        places = [TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("b", 0)]
        self.assertEqual(byTopic(places), {"b": [1, 0], "a": [2]})
