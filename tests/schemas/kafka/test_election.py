"""
Tests for L{pylogbroker.schemas.kafka.election}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidEntryError
from pylogbroker.schemas.kafka.election import (
    DUPLICATE_URLS,
    LeaderAssignment,
    RegistryIdentity,
    decodeAssignment,
    decodeIdentity,
    elect,
    encodeAssignment,
    encodeIdentity,
)

IDENTITIES = st.builds(
    RegistryIdentity,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.integers(1, 65_535),
    st.booleans(),
    st.sampled_from(("http", "https")),
)
CONFLUENT = b'{"host":"sr1","port":8081,"master_eligibility":true,"scheme":"http","version":1}'
KARAPACE = (
    b'{"version":2,"karapace_version":"4.1.0","host":"sr0","port":8081,"scheme":"http",'
    b'"master_eligibility":true}'
)


class IdentityTests(SynchronousTestCase):
    """What a registry says of itself."""

    @given(IDENTITIES)
    def test_roundTrip(self, identity: RegistryIdentity) -> None:
        """Any identity, and any assignment, is decoded as it was encoded."""
        self.assertEqual(decodeIdentity(encodeIdentity(identity)), identity)
        assignment = LeaderAssignment(0, "m", identity)
        self.assertEqual(decodeAssignment(encodeAssignment(assignment)), assignment)

    def test_bytes(self) -> None:
        """The bytes are those of Confluent's registry; karapace's are understood."""
        identity = RegistryIdentity("sr1", 8081, True, "http")
        self.assertEqual(encodeIdentity(identity), CONFLUENT)
        self.assertEqual(decodeIdentity(KARAPACE), identity._replace(host="sr0"))
        self.assertEqual(
            encodeAssignment(LeaderAssignment(0, "sr-1-abc", identity)),
            b'{"error":0,"master":"sr-1-abc","master_identity":' + CONFLUENT + b',"version":1}',
        )
        self.assertEqual(
            encodeAssignment(LeaderAssignment(0, "", None)), b'{"error":0,"version":1}'
        )
        self.assertEqual(
            decodeAssignment(b'{"version":1,"master":null,"master_identity":null,"later":1}'),
            LeaderAssignment(0, "", None),
        )

    def test_url(self) -> None:
        """An IPv6 address stands in brackets."""
        self.assertEqual(RegistryIdentity("::1", 1, True, "https").url, "https://[::1]:1")

    def test_wrong(self) -> None:
        """What is no identity or no assignment is refused."""
        for data in (
            b"\xff",
            b"[]",
            b"{}",
            b'{"host":"","port":1}',
            b'{"host":"a","port":0}',
            b'{"host":"a","port":"1"}',
            b'{"host":"a","port":1,"scheme":"file"}',
        ):
            self.assertRaises(InvalidEntryError, decodeIdentity, data)
        for data in (b"{", b'{"error":"x"}', b'{"master":1}', b'{"master_identity":1}'):
            self.assertRaises(InvalidEntryError, decodeAssignment, data)


class ElectionTests(SynchronousTestCase):
    """Which registry leads."""

    def test_smallest(self) -> None:
        """The smallest URL of those that may lead; what cannot be read does not."""
        members = {
            "a": CONFLUENT,
            "b": KARAPACE,
            "c": CONFLUENT.replace(b"sr1", b"aa").replace(b"true", b"false"),
            "d": b"nonsense",
        }
        found = elect(members)
        self.assertEqual((found.error, found.memberId), (0, "b"))
        del members["b"]
        self.assertEqual(elect(members).memberId, "a")
        del members["a"]
        self.assertEqual(elect(members), LeaderAssignment(0, "", None))

    def test_duplicates(self) -> None:
        """Two members with one URL are an error."""
        self.assertEqual(elect({"a": CONFLUENT, "b": CONFLUENT}).error, DUPLICATE_URLS)
