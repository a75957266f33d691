"""Tests for L{pylogbroker.config.allowlist}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.allowlist import FETCH, FILE_SIZE_MAX, PRODUCE, AllowList, readAllowList
from pylogbroker.errors import ConfigurationError

RULES = """
# who           what      topics
loader          produce   clicks views-*
"web front"     both      web-*     # with a blank in its name
*               fetch     public-*
-               fetch     status
loader          fetch     own
"""


class AllowListTests(SynchronousTestCase):
    """Who may what."""

    def setUp(self) -> None:
        self.rules = AllowList.parse(RULES)

    def may(self, name: str | None, right: str) -> list[str]:
        topics = (
            "clicks",
            "clicks2",
            "views-",
            "views-a",
            "web-x",
            "public-1",
            "status",
            "own",
            "",
        )
        return [topic for topic in topics if self.rules.allows(name, right, topic)]

    def test_rules(self) -> None:
        """
        A topic is a name or a beginning; a rule gives one right or both; rules for one client add
        up; everybody has what C{*} has.
        """
        self.assertEqual(self.may("loader", PRODUCE), ["clicks", "views-", "views-a"])
        self.assertEqual(self.may("loader", FETCH), ["public-1", "own"])
        self.assertEqual(
            (self.may("web front", PRODUCE), self.may("web front", FETCH)),
            (["web-x"], ["web-x", "public-1"]),
        )

    def test_others(self) -> None:
        """Who is not named has what everybody has; who has no certificate, what C{-} has, too."""
        self.assertEqual(
            (self.may("stranger", PRODUCE), self.may("stranger", FETCH)), ([], ["public-1"])
        )
        self.assertEqual(
            (self.may(None, PRODUCE), self.may(None, FETCH)), ([], ["public-1", "status"])
        )

    def test_namesThatAreSigns(self) -> None:
        """A certificate whose name is one of the signs wins nothing by it."""
        for name in ("-", "*"):
            self.assertEqual(self.may(name, FETCH), ["public-1"])

    def test_everything(self) -> None:
        """C{*} for a topic is all topics; no rules allow nothing."""
        self.assertTrue(AllowList.parse("a both *").allows("a", PRODUCE, "anything"))
        self.assertFalse(AllowList.parse("# nothing\n").allows("a", PRODUCE, "anything"))

    def test_wrong(self) -> None:
        """A line that is no rule is named."""
        wrongs = {
            "a both": "a rule is",
            "a reads b": "'reads'",
            'a both "b': "quotation",
            "a both b*c": "at the end",
            "a fetch **": "at the end",
        }
        for line, reason in wrongs.items():
            with self.assertRaisesRegex(ValueError, f"line 2: .*{reason}"):
                AllowList.parse(f"a both b\n{line}\n")


class FileTests(SynchronousTestCase):
    """The file of the rules."""

    def test_read(self) -> None:
        """It is UTF-8."""
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write("ü both ü*\n")
        self.assertTrue(readAllowList(path).allows("ü", FETCH, "üü"))

    def test_wrong(self) -> None:
        """
        A file that is not there, is not text, is too large, or has a line that is no rule: the
        error names it.
        """
        path = self.mktemp()
        for content in (None, b"\xff", b"a", b" " * (FILE_SIZE_MAX + 1)):
            if content is not None:
                with open(path, "wb") as file:
                    file.write(content)
            with self.assertRaisesRegex(ConfigurationError, f"allow.file={path}"):
                readAllowList(path)
