"""Tests of L{pylogbroker.cluster.subscription}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.javaregex import PATTERN_SIZE_MAX, TopicPattern
from pylogbroker.cluster.subscription import (
    StaticSubscription,
    WildcardSubscription,
    blacklist,
    decodeSubscription,
    normalisePattern,
    whitelist,
)
from pylogbroker.errors import InvalidPatternError, ZnodeError


class StaticTests(SynchronousTestCase):
    """A map of topics to streams."""

    def test_form(self) -> None:
        """It is written as 0.7.2 writes it, to the byte."""
        self.assertEqual(StaticSubscription({"alpha": 1}).encode(), b'{ "alpha": 1 }')
        self.assertEqual(
            StaticSubscription({"topicA": 2, "topicB": 1}).encode(), b'{ "topicA": 2,"topicB": 1 }'
        )
        self.assertEqual(StaticSubscription({}).encode(), b"{  }")

    def test_roundTrip(self) -> None:
        """What is written is read, also a name with quotes in it, or in another script."""
        for streams in ({}, {"a": 1}, {'a"b\\': 3, "café": 1}):
            self.assertEqual(
                decodeSubscription("/c", StaticSubscription(streams).encode()),
                StaticSubscription(streams),
            )

    def test_anyJson(self) -> None:
        """Any JSON object of whole numbers is read: C# and other clients have their own spacing."""
        self.assertEqual(
            decodeSubscription("/c", b'{"a":1, "b" :\n2}'), StaticSubscription({"a": 1, "b": 2})
        )

    def test_streamCounts(self) -> None:
        """The named topics are wanted whether they exist or not."""
        self.assertEqual(StaticSubscription({"a": 2}).streamCounts(["b"]), {"a": 2})

    def test_garbage(self) -> None:
        """What is no subscription is refused with its path."""
        for value in (
            None,
            b"",
            b"[1]",
            b'{"a": 1.5}',
            b'{"a": true}',
            b'{"a": "1"}',
            b'{"a": -1}',
            b'{"a": 100001}',
            b"{",
            b"\xff",
            b"[" * 100_000,
        ):
            self.assertEqual(
                self.assertRaises(ZnodeError, decodeSubscription, "/consumers/g/ids/c", value).path,
                "/consumers/g/ids/c",
            )


class WildcardTests(SynchronousTestCase):
    """Whitelists and blacklists."""

    def test_form(self) -> None:
        """They are written as 0.7.2 writes them, to the byte."""
        self.assertEqual(whitelist("alpha|beta").encode(), b"*1*alpha|beta")
        self.assertEqual(blacklist("beta").encode(), b"!1!beta")

    def test_roundTrip(self) -> None:
        """What is written is read, also with markers in the pattern."""
        for subscription in (whitelist("a.*", 3), blacklist("a!b"), whitelist("a*2*b")):
            self.assertEqual(decodeSubscription("/c", subscription.encode()), subscription)

    def test_garbage(self) -> None:
        """Markers that do not fit, or no number between them, are no subscription."""
        for value in (
            b"*1!a",
            b"**a",
            b"*x*a",
            b"*-1*a",
            b"*1*a\nb",
            b"*100001*a",
            "*١*a".encode(),
        ):
            self.assertRaises(ZnodeError, decodeSubscription, "/c", value)

    def test_whitelist(self) -> None:
        """TopicFilterTest: a whitelist wants the topics whose whole name matches."""
        topics = ["white1", "white2", "black1", "xwhite1", "white11"]
        self.assertEqual(
            whitelist("white1,white2", 2).streamCounts(topics), {"white1": 2, "white2": 2}
        )

    def test_blacklist(self) -> None:
        """TopicFilterTest: a blacklist wants all others."""
        self.assertEqual(
            blacklist("black.*").streamCounts(["white1", "black1", "ablack"]),
            {"white1": 1, "ablack": 1},
        )


class PatternTests(SynchronousTestCase):
    """Java's patterns."""

    def test_normalised(self) -> None:
        """Commas become bars; spaces and quotes around it go (spec-0.7 zookeeper §4.2)."""
        for given, stored in (
            (" a,b ", "a|b"),
            ('"a, b"', "a|b"),
            ("'\"a\"'", "a"),
            ("a'b", "a'b"),
            ("a b", "ab"),
        ):
            self.assertEqual(normalisePattern(given), stored)

    def test_ascii(self) -> None:
        """C{\\w} and C{\\d} know ASCII only, as in Java."""
        self.assertFalse(TopicPattern(r"\w+").matches("café"))
        self.assertFalse(TopicPattern(r"\d").matches("١"))

    def test_readOtherwise(self) -> None:
        """What both accept and mean differently is refused by name."""
        for pattern, name in (
            ("[a[bc]]", "class inside another"),
            ("[a-z&&[^b]]", "&&"),
            ("[^]a[b]", "class inside"),
            ("x[a&&b]", "&&"),
        ):
            self.assertIn(name, str(self.assertRaises(InvalidPatternError, whitelist, pattern)))

    def test_unknown(self) -> None:
        """What Java knows and Python does not is refused, and so is what is no pattern at all."""
        for pattern in (
            r"\p{Alpha}+",
            r"(?<name>a)",
            r"\Qa\E",
            "(",
            "a**",
            "[",
            r"\h",
            "(?u)a",
            "(?iu)a",
            "(?L)a",
            f"a{{{'9' * 5_000}}}",
        ):
            self.assertIn(
                "pattern", str(self.assertRaises(InvalidPatternError, whitelist, pattern))
            )
        self.assertRaises(InvalidPatternError, TopicPattern, "a" * (PATTERN_SIZE_MAX + 1))

    def test_alike(self) -> None:
        """
        Brackets that only look like a class in a class are fine: escaped, or behind the end of one.
        """
        for pattern, name in (
            (r"\[a\]", "[a]"),
            (r"[a\[b]+", "a[b"),
            ("[a][b]", "ab"),
            ("[]a]+", "]a"),
            ("[^]a]", "b"),
            (r"\\[a]", "\\a"),
            ("a&&b", "a&&b"),
        ):
            self.assertTrue(TopicPattern(pattern).matches(name), pattern)

    def test_unused(self) -> None:
        """
        A member's pattern that we cannot use is an error when it is used, not when it is read.
        """
        subscription = decodeSubscription("/c", b"*1*(")
        self.assertIsInstance(subscription, WildcardSubscription)
        self.assertRaises(InvalidPatternError, subscription.streamCounts, ["a"])
