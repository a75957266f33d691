"""Tests for L{pylogbroker.consumer.owning}."""

from __future__ import annotations

from tests.consumer.groupcase import GroupCase, drain, place


class OwnershipTests(GroupCase):
    """Owners' nodes are ours, or left alone."""

    def test_owner(self) -> None:
        """An owner's node of no session keeps its partition from us, and nothing else; when it goes, so does the matter."""
        self.broker.log("t", 0).append(b"a")
        self.broker.log("t", 1).append(b"b")
        self.cluster.write("/consumers/g/owners/t/0-0", b"nobody")
        member = self.member()
        (stream,) = self.streams(member)
        self.assertEqual(set(member.owned), {place("0-1")})
        self.assertEqual(drain(stream), [b"b"])
        self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-0"))
        self.cluster.advance(2.1)
        self.assertEqual(drain(stream), [b"a"])

    def test_ownersNodeTakenAway(self) -> None:
        """An owner's node that is another's by now is not deleted at the end."""
        member = self.member()
        self.streams(member)
        self.cluster.do(self.cluster.admin.delete("/consumers/g/owners/t/0-0"))
        self.cluster.do(self.cluster.admin.create("/consumers/g/owners/t/0-0", b"somebody", flags=1))
        self.cluster.do(member.shutdown())
        self.assertEqual(self.owners(), {"0-0": "somebody"})
