"""
Tests for L{pylogbroker.cluster.javaregex}.

What Java says in these tables was asked of C{java.util.regex} (OpenJDK 17), each pattern with each name, with C{matches()}.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.boundedregex import boundedMatcher
from pylogbroker.cluster.javaregex import WIDE_COUNT_MAX, incompatibility
from pylogbroker.cluster.subscription import compilePattern, whitelist
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
(a)\1b  aab
(?:(a)|b)\1  aa
(a)(b)?\1  aa
(?i)LOG7  log7
(?i)[A-Z]+  a b A aa ab aab clicks
(?i:A)b  ab
(?i)(?-i:a)B  ab
(?is)a.b  aab a.b a-b a|b
(?m)^a$  a
(?!a).*  b A 1 - _ ] [ # ☃ log7 {a} clicks
(?=a).*  a aa ab aab a.b a-b a|b a{2
.*(?<=b)  b ab aab a.b a-b a|b
.*(?<!b)  a A 1 - _ ] [ # ☃ aa log7 a{2 {a} clicks
(?>a|ab)b  ab
a++b  ab aab
a*+a  -none
[ab]{2}+  aa ab
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
[\d-x]
\1a
\z
(?<=(?:(a)){2})b
[\01]
"""
"""Java knows them; Python does not, or reads them otherwise."""

PIECES = st.lists(
    st.sampled_from(
        [*"ab1-_.|()[]{}*+?^$\\&,☃", "(?", "(?<", "(?i", "\\u", "\\1", "{2", "{2}", "[^", "&&"]
    ),
    max_size=12,
).map("".join)


class JavaPatternTests(SynchronousTestCase):
    """Java's verdicts, and ours."""

    def test_alike(self) -> None:
        """What is let through matches the names that it matches to Java."""
        for line in ALIKE.strip("\n").split("\n"):
            pattern, _, matched = line.partition("  ")
            matches = boundedMatcher(compilePattern(pattern))
            self.assertEqual(
                [name for name in NAMES if matches(name)],
                [] if matched == "-none" else matched.split(),
                pattern,
            )

    def test_refusedByJava(self) -> None:
        """What Java refuses is refused, though Python may take it: other members would fail of it."""
        for pattern in REFUSED_BY_JAVA.split():
            self.assertRaises(InvalidPatternError, compilePattern, pattern)

    def test_otherwise(self) -> None:
        """What only Java knows, or Python reads otherwise, is refused."""
        for pattern in OTHERWISE.strip("\n").split("\n"):
            self.assertRaises(InvalidPatternError, compilePattern, pattern)

    def test_named(self) -> None:
        """What it is about is said."""
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
            ("(a)*+", "does not give back (*+)"),
            (r"(a)(?<!(b)\1)", "in a look-behind"),
            ("(?<=(a){2})b", "in a look-behind"),
            ("a\\", "the escape \\"),
        ):
            self.assertIn(text, str(incompatibility(pattern)), pattern)

    def test_comma(self) -> None:
        """C{{1,3}} cannot be written in a list of topics, where commas mean C{|}, and that is what is said."""
        error = self.assertRaises(InvalidPatternError, whitelist, "log[0-9]{1,3}")
        self.assertIn(
            "{1|3}, which Java refuses: in a list of topics a comma means 'or', so {1,3} cannot be written",
            str(error),
        )

    def test_wide(self) -> None:
        """Classes of characters beyond Latin-1 keep Python busy when it compiles them: there may be some, not thousands."""
        for part in ("[!-～]", r"[\u0100-a]", r"[\～]"):
            self.assertIsNone(incompatibility(part * WIDE_COUNT_MAX))
            self.assertIn(
                "takes Python too long", str(incompatibility(part * (WIDE_COUNT_MAX + 1)))
            )
        self.assertIsNone(incompatibility("～[a]" * 1_000))

    @settings(max_examples=500, deadline=None)
    @given(PIECES, st.text(st.sampled_from([*"ab1-☃"]), max_size=5))
    @example("(" * 5_000, "a")
    @example(f"a{{{'9' * 5_000}}}", "a")
    def test_anything(self, pattern: str, name: str) -> None:
        """Any text is a pattern, or refused as one."""
        try:
            boundedMatcher(compilePattern(pattern))(name)
        except InvalidPatternError as error:
            self.assertIn("the pattern", str(error))
