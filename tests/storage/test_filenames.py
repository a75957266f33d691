"""
Tests of names.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import InvalidTopicError
from pylogbroker.storage.filenames import (
    directoryName,
    parseDirectoryName,
    parseSegmentName,
    segmentName,
    validateTopic,
)
from pylogbroker.types import TopicPartition


class TopicNameTests(SynchronousTestCase):
    """spec-0.7 log-storage §12."""

    def refused(self, name: str, lengthMax: int = 255) -> str:
        return str(self.assertRaises(InvalidTopicError, validateTopic, name, lengthMax))

    def test_invalidTopicNames(self) -> None:
        """
        LogManagerTest.testInvalidTopicName: empty, dots, too long, and names with a slash, a
        control or a private character are refused.
        """
        for name in ("", ".", "..", "x" * 256):
            self.refused(name)
        for character in "/\u0000\u0001\u0018\u001f\u008f\ud805\ufffa":
            self.assertIn(f"U+{ord(character):04X}", self.refused(f"Is{character}illegal"))

    def test_edgesOfTheForbiddenRanges(self) -> None:
        """
        The first and last character of each forbidden range is refused, its neighbours are not.
        """
        for character in "\x00\x1f\x7f\x9f\ud800\udfff\ue000\uf8ff\ufff0\ufffd\uffff/":
            self.refused(character)
        for character in "\x20\x7e\xa0\ud7ff\uf900\uffef.0":
            validateTopic(f"a{character}")

    def test_everythingElseIsAllowed(self) -> None:
        """
        Spaces, dashes, dots, quotes, stars, backslashes, letters of all scripts and emoji are
        allowed.
        """
        for name in (
            "a b",
            "-",
            "a-0",
            "...",
            ".a",
            "_",
            "a:b,c",
            "*",
            "'\"\\",
            "café",
            "日本語",
            "\U0001f600",
            "x" * 255,
        ):
            validateTopic(name)

    def test_lengthIsInUtf16Units(self) -> None:
        """
        A character beyond the basic plane counts twice, and a letter once whatever its UTF-8 size.
        """
        validateTopic("é" * 4, 4)
        validateTopic("\U0001f600" * 2, 4)
        self.assertIn("5 long, at most 4", self.refused("\U0001f600" * 2 + "a", 4))

    @given(st.text(max_size=20))
    def test_validOrRefused(self, name: str) -> None:
        """Any text is either refused, or has a directory name that leads back to it."""
        try:
            validateTopic(name)
        except InvalidTopicError:
            return
        self.assertEqual(
            parseDirectoryName(directoryName(TopicPartition(name, 7))), TopicPartition(name, 7)
        )


class DirectoryNameTests(SynchronousTestCase):
    """spec-0.7 log-storage §1."""

    def test_splitAtTheLastDash(self) -> None:
        """Topics may contain dashes."""
        self.assertEqual(parseDirectoryName("a-b--3"), TopicPartition("a-b-", 3))
        self.assertEqual(directoryName(TopicPartition("a-b-", 3)), "a-b--3")

    def test_oddNames(self) -> None:
        """
        What is not C{<topic>-<number>} is no partition; nor is a number that no broker would write:
        too large, padded, signed, of other digits.
        """
        for name in (
            "lost+found",
            "a",
            "a-",
            "-0",
            "a-b",
            "a-2147483648",
            "a-00",
            "a-07",
            "a-+1",
            "a-1 ",
            "a-\u0661",
        ):
            self.assertIsNone(parseDirectoryName(name), name)
        self.assertEqual(parseDirectoryName("a-2147483647"), TopicPartition("a", 2147483647))
        self.assertEqual(parseDirectoryName("a\n-1"), TopicPartition("a\n", 1))

    def test_tooLongForAnyFileSystem(self) -> None:
        """A directory name over 255 bytes is refused before anything is made (gotcha 21)."""
        self.assertEqual(len(directoryName(TopicPartition("x" * 253, 0))), 255)
        self.assertRaises(InvalidTopicError, directoryName, TopicPartition("x" * 253, 10))
        self.assertRaises(InvalidTopicError, directoryName, TopicPartition("é" * 127, 0))


class SegmentNameTests(SynchronousTestCase):
    """spec-0.7 log-storage §1."""

    def test_twentyDigits(self) -> None:
        """A segment is named by its offset with twenty digits."""
        self.assertEqual(segmentName(137222, ".kafka"), "00000000000000137222.kafka")

    def test_anyNumberOfDigitsIsRead(self) -> None:
        """Any number of ASCII digits is an offset, up to 2^63-1."""
        self.assertEqual(parseSegmentName("7.kafka", ".kafka"), 7)
        self.assertEqual(parseSegmentName("0" * 50 + "7.kafka", ".kafka"), 7)
        self.assertEqual(parseSegmentName("9223372036854775807.kafka", ".kafka"), 2**63 - 1)

    def test_otherNames(self) -> None:
        """Anything else is none."""
        for name in (
            "9223372036854775808.kafka",
            "-1.kafka",
            "+1.kafka",
            "a.kafka",
            ".kafka",
            "1.kafka.deleted",
            "1_0.kafka",
            "\u0661.kafka",
        ):
            self.assertIsNone(parseSegmentName(name, ".kafka"), name)
