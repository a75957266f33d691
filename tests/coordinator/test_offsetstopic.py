"""
The records of C{__consumer_offsets}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.offsetstopic import (
    CommittedOffset,
    GroupMetadataKey,
    OffsetCommitKey,
    StoredGroup,
    StoredMember,
    decodeCommittedOffset,
    decodeKey,
    decodeStoredGroup,
    encodeCommittedOffset,
    encodeGroupMetadataKey,
    encodeOffsetCommitKey,
    encodeStoredGroup,
    partitionFor,
)
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.goldenfiles import GOLDEN as GOLDEN_FOLDER

ID = bytes.fromhex("00112233445566778899aabbccddeeff")
GOLDEN = {
    name: bytes.fromhex(data)
    for name, data in (
        line.split()
        for line in (GOLDEN_FOLDER / "kafka43" / "offsetstopic.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
}
"""Records as Apache Kafka 4.3.1 encodes them, by name."""

COMMITTED = CommittedOffset(123456789012, 5, "méta", 1_700_000_000_123)
EXPIRING = COMMITTED._replace(leaderEpoch=-1, expireTimestampMs=1_700_000_099_999)
GROUP = StoredGroup(
    "consumer", 7, "range", "m-1", 1_700_000_000_123,
    (
        StoredMember("m-1", "i-1", "c", "/127.0.0.1", 300_000, 45_000, b"\1\2", b"\3\4\5"),
        StoredMember("m-2", None, "c2", "/127.0.0.1", 300_000, 45_000, b"", b""),
    ),
)  # fmt: skip

TEXT = st.text(max_size=40)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMBERS = st.builds(
    StoredMember,
    TEXT, st.none() | TEXT, TEXT, TEXT, st.integers(0, 2**31 - 1), INT32,
    st.binary(max_size=40), st.binary(max_size=40),
)  # fmt: skip
GROUPS = st.builds(
    StoredGroup,
    TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64,
    st.lists(MEMBERS, max_size=3).map(tuple),
)  # fmt: skip
COMMITS = st.builds(
    CommittedOffset, INT64, INT32, TEXT, INT64, st.just(-1), st.binary(min_size=16, max_size=16)
) | st.builds(
    CommittedOffset, INT64, st.just(-1), TEXT, INT64, st.integers(0, 2**63 - 1), st.just(ZERO_UUID)
)


class PartitionTests(SynchronousTestCase):
    """Which partition holds a group."""

    def test_javasHash(self) -> None:
        """The partition is Java's hash of the name, as Kafka's coordinator computes it."""
        for groupId, partition in {"": 0, "group-id": 13, "foo": 24, "grün": 49, "a😀": 16}.items():
            self.assertEqual(partitionFor(groupId, 50), partition)


class KeyTests(SynchronousTestCase):
    """Keys."""

    def test_bytes(self) -> None:
        """Keys are Apache's bytes."""
        self.assertEqual(encodeOffsetCommitKey("grüppe", "t😀", 17), GOLDEN["offsetCommitKey"])
        self.assertEqual(encodeGroupMetadataKey("grüppe"), GOLDEN["groupMetadataKey"])

    @given(TEXT, TEXT, INT32)
    def test_roundTrip(self, groupId: str, topic: str, partition: int) -> None:
        """A key is decoded to what was encoded."""
        self.assertEqual(
            decodeKey(encodeOffsetCommitKey(groupId, topic, partition)),
            OffsetCommitKey(groupId, topic, partition),
        )
        self.assertEqual(decodeKey(encodeGroupMetadataKey(groupId)), GroupMetadataKey(groupId))

    def test_oldType(self) -> None:
        """Type 0 is an old form of the key of an offset."""
        self.assertEqual(decodeKey(b"\0\0\0\1g\0\1t\0\0\0\3"), OffsetCommitKey("g", "t", 3))

    def test_otherType(self) -> None:
        """Keys of other kinds of groups are skipped."""
        self.assertIs(decodeKey(b"\0\3\0\1g"), None)

    def test_tooLong(self) -> None:
        """A name longer than two bytes can count is refused."""
        self.assertRaises(FormatError, encodeGroupMetadataKey, "x" * 32_768)


class ValueTests(SynchronousTestCase):
    """Values."""

    def test_commitBytes(self) -> None:
        """
        A committed offset is written in version 4, with its topic id if it is known; with an expiry
        time of its own, in version 1. Both are Apache's bytes.
        """
        for name, committed in (
            ("commit4", COMMITTED),
            ("commitTopicId", COMMITTED._replace(topicId=ID)),
            ("commitLong", COMMITTED._replace(metadata="x" * 300)),
            ("commitExpiring", EXPIRING),
        ):
            self.assertEqual(encodeCommittedOffset(committed), GOLDEN[name], name)
            self.assertEqual(decodeCommittedOffset(GOLDEN[name]), committed, name)

    def test_oldCommits(self) -> None:
        """Apache's older versions of a committed offset are read."""
        for version in range(5):
            self.assertEqual(
                decodeCommittedOffset(GOLDEN[f"commit{version}"]),
                COMMITTED if version >= 3 else COMMITTED._replace(leaderEpoch=-1),
                version,
            )

    def test_groupBytes(self) -> None:
        """A group is written in version 3, as Apache's bytes."""
        self.assertEqual(encodeStoredGroup(GROUP), GOLDEN["group3"])
        empty = StoredGroup("", 0, None, None, 1_700_000_000_123)
        self.assertEqual(encodeStoredGroup(empty), GOLDEN["groupEmpty"])

    def test_oldGroups(self) -> None:
        """
        Apache's versions 0 to 4 of a group are read. Where there was no rebalance time-out, it is
        the session's.
        """
        for version in range(5):
            expected = GROUP
            if version < 3:
                expected = expected._replace(
                    members=tuple(each._replace(groupInstanceId=None) for each in GROUP.members)
                )
            if version < 2:
                expected = expected._replace(currentStateTimestampMs=-1)
            if version < 1:
                expected = expected._replace(
                    members=tuple(
                        each._replace(rebalanceTimeoutMs=45_000) for each in expected.members
                    )
                )
            self.assertEqual(decodeStoredGroup(GOLDEN[f"group{version}"]), expected, version)

    def test_unknownTags(self) -> None:
        """Tags that are not known are skipped."""
        self.assertEqual(decodeCommittedOffset(GOLDEN["commit4"][:-1] + b"\1\7\2zz"), COMMITTED)

    @given(COMMITS)
    def test_commitRoundTrip(self, committed: CommittedOffset) -> None:
        """A committed offset is decoded to what was encoded."""
        self.assertEqual(decodeCommittedOffset(encodeCommittedOffset(committed)), committed)

    @given(GROUPS)
    def test_groupRoundTrip(self, group: StoredGroup) -> None:
        """A group is decoded to what was encoded."""
        self.assertEqual(decodeStoredGroup(encodeStoredGroup(group)), group)

    def test_cutAnywhere(self) -> None:
        """A value or key that is cut anywhere, or has a byte too many, is refused."""
        for decode, data in (
            (
                decodeCommittedOffset,
                encodeCommittedOffset(CommittedOffset(5, 2, "hi", 9, topicId=ID)),
            ),
            (decodeStoredGroup, encodeStoredGroup(GROUP)),
            (decodeKey, encodeOffsetCommitKey("g", "t", 1)),
        ):
            for size in range(len(data)):
                self.assertRaises(FormatError, decode, data[:size])
            self.assertRaises(FormatError, decode, data + b"\0")

    @given(st.binary(max_size=60))
    def test_anyBytes(self, data: bytes) -> None:
        """Whatever the bytes are, the only error is a format error."""
        for decode in (decodeKey, decodeCommittedOffset, decodeStoredGroup):
            for version in range(5):
                try:
                    decode(bytes((0, version)) + data)
                except FormatError:
                    pass

    def test_refused(self) -> None:
        """
        Unknown versions, null strings, wrong topic ids, counts above what the bytes can hold and
        numbers that do not end are refused.
        """
        commit = b"\0\4" + bytes(12) + b"\1" + bytes(8)
        for decode, data in (
            (decodeCommittedOffset, b"\0\5" + bytes(40)),
            (decodeCommittedOffset, b"\xff\xff" + bytes(40)),
            (decodeCommittedOffset, commit + b"\1\0\2zz"),
            (decodeCommittedOffset, commit + b"\x80\x80\x80\x80\x80\x01"),
            (decodeStoredGroup, b"\0\3\xff\xff" + bytes(40)),
            (decodeStoredGroup, b"\0\3" + bytes(18) + b"\x7f\xff\xff\xff" + bytes(40)),
        ):
            self.assertRaises(FormatError, decode, data)
