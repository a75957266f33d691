"""What classic members tell each other in bytes."""

from __future__ import annotations

from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import MetadataImage, TopicRecord
from pylogbroker.coordinator.consumergroups.consumerprotocol import (
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    placesOf,
)
from pylogbroker.errors import FormatError

T, U = UUID(int=1), UUID(int=2)


def image() -> MetadataImage:
    """Two topics."""
    made = MetadataImage()
    for name, topicId in (("t", T), ("u", U)):
        made.apply(TopicRecord(name, str(topicId), 4))
    return made


class ConsumerProtocolTests(SynchronousTestCase):
    """Subscriptions and assignments."""

    def test_subscription(self) -> None:
        """A version that is not known yet is read as the last one; what is behind, not at all."""
        body = b"\0\0\0\1\0\1t\xff\xff\xff\xff"
        owned = b"\0\0\0\1\0\1u\0\0\0\1\0\0\0\3"
        for version, data in (
            (0, body + b"more"),
            (1, body + owned),
            (3, body + owned + b"\0\0\0\x07\0\1r"),
            (9, body + owned + b"\0\0\0\x07\0\1rmore"),
        ):
            found = decodeSubscription(version.to_bytes(2, "big") + data)
            self.assertEqual(found.topics, ["t"])
            places = {U.bytes: frozenset([3])} if version else {}
            self.assertEqual(placesOf(found.ownedPartitions, image()), places)
            self.assertEqual(found.rackId, "r" if version >= 3 else None)

    def test_broken(self) -> None:
        """Bytes that are cut, or of a version that cannot be, are refused."""
        for data in (b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\1", b"\0\0\x7f\0\0\0"):
            self.assertRaises(FormatError, decodeSubscription, data)
            self.assertRaises(FormatError, decodeAssignment, data)

    def test_assignment(self) -> None:
        """An assignment has the version of the member's subscription, 0 if that has none."""
        places = {T.bytes: [2, 0], U.bytes: [], bytes(16): [1]}
        body = b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\2\xff\xff\xff\xff"
        for metadata, version in (
            (b"\0\1x", b"\0\1"),
            (b"\0\x09", b"\0\3"),
            (b"", b"\0\0"),
            (b"\xff\0", b"\0\0"),
        ):
            made = encodeAssignment(places, metadata, image())
            self.assertEqual(made, version + body)
            found = decodeAssignment(made)
            self.assertEqual(
                placesOf(found.assignedPartitions, image()), {T.bytes: frozenset([0, 2])}
            )

    def test_twice(self) -> None:
        """A topic that comes twice has both parts; one that is not there has none."""
        data = b"\0\0\0\0\0\3\0\1t\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\2\0\1x\0\0\0\0\0\0\0\0"
        found = placesOf(decodeAssignment(data).assignedPartitions, image())
        self.assertEqual(found, {T.bytes: frozenset([1, 2])})
