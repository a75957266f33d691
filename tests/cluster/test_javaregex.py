"""
Tests for L{pylogbroker.cluster.javaregex}.

What Java says in these tables was asked of C{java.util.regex} (OpenJDK 17), each pattern with each
name, with C{matches()}.
"""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.javaregex import NAME_LENGTH_MAX, PATTERN_SIZE_MAX, TopicPattern
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.errors import InvalidPatternError

NAMES = [
    "a",
    "b",
    "A",
    "1",
    "-",
    "_",
    "]",
    "[",
    "#",
    "☃",
    "aa",
    "ab",
    "aab",
    "log7",
    "a.b",
    "a-b",
    "a|b",
    "a{2",
    "{a}",
    "clicks",
]

ALIKE = r"""
a  a
.*  a b A 1 - _ ] [ # ☃ aa ab aab log7 a.b a-b a|b a{2 {a} clicks
a|b  a b
a|  a
log\d+  log7
log[0-9]{1,3}  log7
log[0-9]{1}  log7
.{3,}  aab log7 a.b a-b a|b a{2 {a} clicks
[]a]  a ]
[^]a]  b A 1 - _ [ # ☃
[a^b]  a b
[^^]  a b A 1 - _ ] [ # ☃
[-a]  a -
[a-]  a -
[\d-]  1 -
[\d-x]  1 -
[a\]]  a ]
[a&b]  a b
]  ]
a]  -none
a}  -none
\{a\}  {a}
[{]a[}]  {a}
a\{2  a{2
\w+  a b A 1 _ aa ab aab log7 clicks
\W  - ] [ # ☃
\D+  a b A - _ ] [ # ☃ aa ab aab a.b a-b a|b {a} clicks
[^\W_]  a b A 1
\x61  a
\u0061  a
\☃  ☃
[a-☃]  a b ☃
\-  -
\#  #
\.  -none
a\.b  a.b
(?i)LOG7  log7
(?i)[A-Z]+  a b A aa ab aab clicks
(?i:A)b  ab
(?i)(?-i:a)B  ab
(?is)a.b  aab a.b a-b a|b
(?m)^a$  a
a??  a
(|a)+  a aa
(a?)*  a aa
()  -none
a{0}  -none
^a|b$  a b
\Aa\Z  a
a\b.b  a.b a-b a|b
\Ba|a\B.  aa ab
"""
"""Each with the names that match it to Java."""

REFUSED_BY_JAVA = r"""
a{2
{a}
a{
a{1|3}
log[0-9]{1|3}
a{,2}
a{x}
a{2000000000000}
(?P<n>a)
(?P<n>a)(?P=n)
(?#x)a
(?a)a
(?L)a
(a)?(?(1)b|c)
[\b]
[\1]
[\A]
[\0]
\0
\0a
\08
\U00000061
\y
a**
[
(
a)
[b-a]
(?<=(a)\1)b
[^]a[b]
(?sx)[ab#]
"""

OTHERWISE = r"""
[--a]
[a||b]
[a~~b]
\141
\0141
\012
\v
\h
\e
\cA
\p{Alpha}+
\Qa.b\E
\N{LATIN SMALL LETTER A}
\x{61}
\ud83d\ude00
\101
[a-z&&[^b]]
[a&&b]
[a[bc]]
[[:alpha:]]
(?u)a
(?iu)a
(?x)a#b
(?d)a
(?<n>a)
(?-i)a
a|(?i)b
a{1}{1}
(a)*+b
(?:a|ab)++b
\1a
\z
(?<=(?:(a)){2})b
[\01]
"""
"""Java knows them; RE2 does not, or reads them differently."""

UNBOUNDED = r"""
(a)\1b
(?:(a)|b)\1
(a)(b)?\1
(?!a).*
(?=a).*
.*(?<=b)
.*(?<!b)
(?>a|ab)b
a++b
a*+a
[ab]{2}+
"""
"""Java knows them; no engine matches them in linear time."""

PIECES = st.lists(
    st.sampled_from(
        [*"ab1-_.|()[]{}*+?^$\\&,☃", "(?", "(?<", "(?i", "\\u", "\\1", "{2", "{2}", "[^", "&&"]
    ),
    max_size=12,
).map("".join)


CHARACTERS = st.sampled_from(
    [
        *"ab-_.1",
        "ä",
        "[ab]",
        "[^a]",
        r"\d",
        r"\w",
        r"\W",
        r"\S",
        r"\s",
        r"\D",
        "[a-b_]",
        r"[\d-]",
        r"[^\w]",
        ".",
        "^",
        "$",
        r"\b",
        r"\A",
    ]
)
REGULAR = st.recursive(
    CHARACTERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?", "{2,}"])
        ).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)
NAMES_OF_ASCII = st.text(st.sampled_from([*"ab-_.1"]), max_size=8)


class JavaPatternTests(SynchronousTestCase):
    """Java's verdicts, and ours."""

    def test_alike(self) -> None:
        """What is let through matches the names that it matches to Java."""
        for line in ALIKE.strip("\n").split("\n"):
            pattern, _, matched = line.partition("  ")
            matches = TopicPattern(pattern).matches
            self.assertEqual(
                [name for name in NAMES if matches(name)],
                [] if matched == "-none" else matched.split(),
                pattern,
            )

    def test_refusedByJava(self) -> None:
        """What Java refuses is refused, though RE2 may take it: other members would fail."""
        for pattern in REFUSED_BY_JAVA.split():
            self.assertRaises(InvalidPatternError, TopicPattern, pattern)

    def test_otherwise(self) -> None:
        """What only Java knows, or RE2 reads differently, is refused."""
        for pattern in OTHERWISE.strip("\n").split("\n"):
            self.assertRaises(InvalidPatternError, TopicPattern, pattern)

    def test_unbounded(self) -> None:
        """What Java matches by trying is refused, and the text says what it is."""
        for pattern in UNBOUNDED.strip("\n").split("\n"):
            error = self.assertRaises(InvalidPatternError, TopicPattern, pattern)
            self.assertIn("which takes unbounded time", str(error))

    def test_named(self) -> None:
        """The text names the part that is refused."""
        for pattern, text in (
            (r"a\v", r"the escape \v,"),
            (r"[\b]", r"the escape \b in a character class"),
            ("x(?P<n>a)", "a group that begins with (?P<n"),
            ("(?iu)a", "a group that begins with (?iu,"),
            ("a{b}", "{b}, which is no number of repeats to Java"),
            ("a{", "{, which is no number"),
            ("[a[b]]", "a character class inside another"),
            ("[a&&b]", "an intersection (&&) in a character class"),
            ("[a||b]", "|| in a character class"),
            ("(a)*+", "*+ does not give back"),
            (r"(a)(?<!(b)\1)", "looks behind"),
            ("(?<=(a){2})b", "looks behind"),
            ("(?!a)b", "looks ahead"),
            (r"(a)\1", r"refers back to a group (\1)"),
            ("a\\", "the escape \\"),
            ("(a){1001}", "{1001} repeats more than 1000 times"),
            ("a(?i)b", "the flags (?i) are not at its beginning"),
            ("(?i)ä", "ignores case and has characters beyond ASCII"),
        ):
            error = self.assertRaises(InvalidPatternError, TopicPattern, pattern)
            self.assertIn(text, str(error), pattern)

    def test_comma(self) -> None:
        """
        C{{1,3}} cannot be written in a list of topics, where commas mean C{|}, and that is what is
        said.
        """
        error = self.assertRaises(InvalidPatternError, whitelist, "log[0-9]{1,3}")
        self.assertIn(
            "{1|3}, which Java refuses: in a list of topics a comma means 'or', so {1,3} cannot "
            "be written",
            str(error),
        )

    def test_case(self) -> None:
        """
        C{(?i)} ignores the case of ASCII letters only, as in Java: not that of the Kelvin sign and
        the long s.
        """
        for pattern, good, bad in (
            ("(?i)k", "kK", "\u212a"),
            ("(?i)s", "sS", "ſ"),
            ("(?i)[^k]", "\u212aä", "K"),
        ):
            matches = TopicPattern(pattern).matches
            self.assertTrue(all(map(matches, good)), pattern)
            self.assertFalse(any(map(matches, bad)), pattern)

    def test_wide(self) -> None:
        """
        Thousands of classes of characters beyond Latin-1 are compiled, or refused as too large.
        """
        for part in ("[!-～]", r"[\u0100-\u0200]", r"[\～]"):
            self.assertIsNotNone(TopicPattern(part * 100))
        self.assertIsNotNone(TopicPattern("～[a]" * 1_000))

    @settings(max_examples=500, deadline=None)
    @given(PIECES, st.text(st.sampled_from([*"ab1-☃"]), max_size=5))
    @example("(" * 5_000, "a")
    @example(f"a{{{'9' * 5_000}}}", "a")
    def test_anything(self, pattern: str, name: str) -> None:
        """Any text is a pattern, or refused as one."""
        try:
            TopicPattern(pattern).matches(name)
        except InvalidPatternError as error:
            self.assertIn("the pattern", str(error))


class MatcherTests(SynchronousTestCase):
    """Names and patterns."""

    @settings(max_examples=1_000, deadline=None)
    @given(REGULAR, st.lists(NAMES_OF_ASCII, max_size=5))
    def test_asRe(self, pattern: str, names: list[str]) -> None:
        """A name of ASCII without a line feed matches as with Python's C{re}."""
        compiled = re.compile(pattern, re.ASCII)
        matches = TopicPattern(pattern).matches
        for name in names:
            self.assertEqual(matches(name), compiled.fullmatch(name) is not None, (pattern, name))

    def test_nothingManyTimes(self) -> None:
        """What takes no character is not repeated for ever."""
        for pattern in (
            "(){1000000000}",
            "(^){1000000000}",
            "(?:){4000000000}",
            "(?:a{0}){4000000000}",
            "(?=a){1000000000}a",
            "((){65535}){65535}",
            "(|a){1000000000}",
            "(?=(?:(?:){60000}a|b)*c)",
            "(a+)+" + "()" * 4_000 + "(){20000}",
            ".*.*" + "(?=a*)" * 900,
        ):
            self.assertRaises(InvalidPatternError, TopicPattern, pattern)
        for pattern in ("(){1000}a", "(^){9}a", "(?:){1000}a", "(|a){20}", "((){9}a|b)*"):
            matches = TopicPattern(pattern).matches
            self.assertEqual((matches("a"), matches("c")), (True, False), pattern)

    def test_catastrophes(self) -> None:
        """Patterns that take C{re} longer than a life are answered, and rightly."""
        for pattern, good in (
            ("(a+)+b", "a" * 900 + "b"),
            ("(a|a)*b", "a" * 900 + "b"),
            ("(a|aa)+[b]", "a" * 900 + "b"),
            ("a?" * 300 + "a" * 300, "a" * 450),
            ("(.*)(.*)(.*)(.*)(.*)x", "a" * 900 + "x"),
            ("((a{1,9}){1,9}){1,9}b", "a" * 90 + "b"),
            ("(a*?)*?b", "a" * 900 + "b"),
            (r"(\w+\s?)*!", "a" * 900 + "!"),
            ("(?i)(A+)+b", "a" * 900 + "b"),
            ("(?s)(a+)+b", "a" * 900 + "b"),
        ):
            matches = TopicPattern(pattern).matches
            self.assertTrue(matches(good), pattern)
            self.assertFalse(matches(good + "?"), pattern)

    def test_usual(self) -> None:
        """What people write matches."""
        for pattern, good, bad in (
            (".*", "a", "a\n"),
            ("a|b|c", "b", "d"),
            (r"log\..*-(eu|us)-.*", "log.a-eu-1", "log.a-as-1"),
            ("(?i)LOG.*", "log", "lag"),
        ):
            matches = TopicPattern(pattern).matches
            self.assertEqual((matches(good), matches(bad)), (True, False), pattern)

    def test_refused(self) -> None:
        """What can only be tried is refused, and so is what would be too long."""
        for pattern in (
            "(?!__).*",
            "(?!x)(a+)+b",
            r"(a|b)\1",
            r"(a+)+\1",
            "((?:a+)++)+b",
            "(?>a+)b",
            "(?>(a+)+)b",
            "(?s:a.)(?<=[^x])",
            "(a)?(?(1)b|c)",
            "(x)?(?(1)(a+)+|b)",
            "(((a{0,99}){0,99}){0,99})b",
            "a" * (PATTERN_SIZE_MAX + 1),
        ):
            self.assertRaises(InvalidPatternError, TopicPattern, pattern)

    def test_longNames(self) -> None:
        """A name that no broker takes matches nothing."""
        for pattern in (".*", "(.*)(.*)(.*)"):
            matches = TopicPattern(pattern).matches
            self.assertEqual(
                (matches("x" * NAME_LENGTH_MAX), matches("x" * (NAME_LENGTH_MAX + 1))),
                (True, False),
            )
