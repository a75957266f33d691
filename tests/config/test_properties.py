"""Tests for L{pylogbroker.config.properties}."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.properties import (
    Properties,
    formatProperties,
    parseProperties,
    readProperties,
)
from pylogbroker.errors import ConfigurationError


class ParseTests(SynchronousTestCase):
    """A text gives the pairs that C{java.util.Properties.load} gives."""

    def check(self, text: str, **pairs: str) -> None:
        self.assertEqual(dict(parseProperties(text)), pairs)

    def test_formatted(self) -> None:
        """A text that was written from pairs gives these."""
        pairs = {"a": "C:\\n", "b.c": "two\nlines", "d": "x = y: z", "e": ""}
        self.assertEqual(formatProperties(pairs).count("\n"), len(pairs))
        self.check(formatProperties(pairs), **pairs)

    def test_separators(self) -> None:
        """
        A key ends at the first equals sign, colon or white space; white space around one separator
        is dropped.
        """
        self.check(
            "a=1\nb:2\nc 3\nd\t=\t4\ne : 5\nf\f6\ng", a="1", b="2", c="3", d="4", e="5", f="6", g=""
        )

    def test_onlyOneSeparator(self) -> None:
        """A second separator belongs to the value."""
        self.check("a==1\nb = :2\nc:=3\nd  e=4", a="=1", b=":2", c="=3", d="e=4")

    def test_whiteSpaceAtTheEnd(self) -> None:
        """White space at the end of a value is part of it; before the key it is not."""
        self.check("  \t\fa = 1 \t", a="1 \t")

    def test_comments(self) -> None:
        """
        Lines whose first visible character is # or ! are comments; such a character elsewhere is
        itself.
        """
        self.check("#a=1\n ! b=2\n\n   \nc=3#4\nd=5\n", c="3#4", d="5")

    def test_commentsDoNotContinue(self) -> None:
        """A backslash at a comment's end does nothing."""
        self.check("# a \\\nb=1", b="1")

    def test_continuation(self) -> None:
        """
        A line that ends in a backslash goes on in the next, without the white space at its
        beginning; no comment can stand inside.
        """
        self.check("a=1,\\\n  \t2,\\\n# 3\nb=4", a="1,2,# 3", b="4")

    def test_evenBackslashes(self) -> None:
        """
        Two backslashes at the end are one backslash and no continuation; three are one and a
        continuation.
        """
        self.check("a=1\\\\\nb=2\\\\\\\n3", a="1\\", b="2\\3")

    def test_continuationEndsAtABlankLine(self) -> None:
        """A blank line after a backslash ends the value."""
        self.check("a=1\\\n\nb=2", a="1", b="2")

    def test_continuationOfNothing(self) -> None:
        """Backslashes that continue nothing make no pair."""
        self.check("\\\n\nb=2\n\\", b="2")

    def test_backslashAtTheEnd(self) -> None:
        """A continuation that the end of the file cuts off keeps what was there."""
        self.check("a=1\\", a="1")

    def test_lineEnds(self) -> None:
        """LF, CR and CRLF end a line, after a backslash, too."""
        self.check("a=1\r\nb=2\rc=3\\\r\n4\nd=5\\\r6", a="1", b="2", c="34", d="56")

    def test_escapes(self) -> None:
        """The escapes of white space are those of Java; any other escaped character is itself."""
        self.check('a=\\t\\n\\r\\f\\q\\\\\\"\\b', a='\t\n\r\fq\\"b')

    def test_escapedKey(self) -> None:
        """Escaped separators belong to the key."""
        self.assertEqual(parseProperties("a\\=b\\:c\\ d = e"), {"a=b:c d": "e"})

    def test_unicode(self) -> None:
        """
        A u escape is the character of that number; two halves are one character; a lone half stays.
        """
        self.check("a=\\u00e9\\u20AC\\ud83d\\ude00x\\ud83d", a="é€😀x\ud83d")

    def test_brokenUnicode(self) -> None:
        """A u escape without four digits is an error that names file and line."""
        error = self.assertRaises(
            ConfigurationError, parseProperties, "a=1\n\nb=\\u12g4", "x.properties"
        )
        self.assertEqual(
            str(error), "x.properties:3: \\u must be followed by four hexadecimal digits"
        )

    def test_emptyKey(self) -> None:
        """A line without a key has the empty key, as in Java."""
        self.assertEqual(parseProperties("=1"), {"": "1"})

    def test_twice(self) -> None:
        """Of a key that comes twice the last one counts, with a warning that names both lines."""
        warnings: list[str] = []
        self.assertEqual(
            parseProperties("a=1\nb=2\na=3", "f", warnings.append), {"a": "3", "b": "2"}
        )
        self.assertEqual(warnings, ["f:3: a was set before (f:1); this line counts"])

    def test_twiceUnheard(self) -> None:
        """Who does not listen for warnings gets none."""
        self.check("a=1\na=2", a="2")

    def test_places(self) -> None:
        """Each key knows the line on which it begins."""
        properties = parseProperties("# x\na=1\\\n2\nb=3", "f")
        self.assertEqual([properties.location(key) for key in ("a", "b", "c")], ["f:2", "f:4", ""])
        self.assertEqual(parseProperties("a=1").location("a"), "line 1")


class OverlayTests(SynchronousTestCase):
    """What C{--set} says stands above the file."""

    def test_overlay(self) -> None:
        """
        Assignments replace and add; the original stays as it was; the rest of the places is kept.
        """
        original = parseProperties("a=1\nb=2", "f")
        withOverrides = original.withOverrides(["a=3=4 ", " c ="])
        self.assertEqual(withOverrides, {"a": "3=4 ", "b": "2", "c": ""})
        self.assertEqual([withOverrides.location(key) for key in "abc"], ["--set", "f:2", "--set"])
        self.assertEqual(original, {"a": "1", "b": "2"})
        self.assertEqual(original.location("a"), "f:1")

    def test_noAssignment(self) -> None:
        """Without an equals sign or without a key it is an error that repeats the words."""
        for wrong in ("port", "=1", " =1"):
            error = self.assertRaises(ConfigurationError, Properties().withOverrides, [wrong])
            self.assertEqual(str(error), f"--set {wrong}: must be key=value")

    def test_fromMapping(self) -> None:
        """Pairs can come from anywhere; then nobody knows a place."""
        properties = Properties({"a": "1"})
        self.assertEqual((properties["a"], properties.location("a")), ("1", ""))


class ReadTests(SynchronousTestCase):
    """Property files."""

    def write(self, data: bytes) -> str:
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(data)
        return path

    def test_utf8(self) -> None:
        """A file in UTF-8 is read as such; a mark at its beginning is not part of the first key."""
        self.assertEqual(readProperties(self.write("\ufeffa=é€".encode())), {"a": "é€"})

    def test_latin1(self) -> None:
        """A file that is not UTF-8 is read as ISO 8859-1, as Java does."""
        self.assertEqual(readProperties(self.write("a=é".encode("latin-1"))), {"a": "é"})

    def test_place(self) -> None:
        """Places and warnings name the file."""
        path = self.write(b"a=1\na=2")
        warnings: list[str] = []
        self.assertEqual(readProperties(path, warnings.append).location("a"), f"{path}:2")
        self.assertEqual(warnings, [f"{path}:2: a was set before ({path}:1); this line counts"])

    def test_missing(self) -> None:
        """A file that cannot be read is an error that names it and why."""
        path = os.path.join(self.mktemp(), "none")
        error = self.assertRaises(ConfigurationError, readProperties, path)
        self.assertEqual(str(error), f"cannot read {path}: No such file or directory")
