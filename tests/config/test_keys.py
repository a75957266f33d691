"""Tests for L{pylogbroker.config.keys}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.keys import ConfigKey, asMarkdown, readSettings
from pylogbroker.config.properties import parseProperties
from pylogbroker.config.propertytypes import Integer, SecretText, Text, TextList, TopicMap
from pylogbroker.errors import ConfigurationError

ROWS = (
    ConfigKey("paper.size", "paperSize", Integer(1, 9), None, "How large.", required=True),
    ConfigKey("ink", "inkName", Text(), "black", "Which ink."),
    ConfigKey(
        "copies.by.reader", "copyCountByReader", TopicMap(), "", "How many.", isKafkaKey=False
    ),
    ConfigKey(
        "trays",
        "trays",
        TextList(),
        None,
        "Which trays, with `|` between.",
        isKafkaKey=False,
        derived="all",
    ),
    ConfigKey("smell", "", Integer(), None, "Nothing smells here.", used=False),
)


class ReadTests(SynchronousTestCase):
    """Values are read by their rows."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def read(self, text: str) -> dict[str, object]:
        return readSettings(ROWS, parseProperties(text, "f"), self.warnings.append)

    def test_values(self) -> None:
        """What is given is read by its kind; what is not has its default, or L{None}; keys without effect give nothing."""
        self.assertEqual(
            self.read("paper.size=4\ntrays=a|b\nsmell=3"),
            {"paperSize": 4, "inkName": "black", "copyCountByReader": {}, "trays": ("a", "b")},
        )
        self.assertEqual(self.read("paper.size=4\nink=\n")["inkName"], "")
        self.assertIs(self.read("paper.size=4")["trays"], None)
        self.assertEqual(self.warnings, [])

    def test_secretsAreNotShown(self) -> None:
        """What is wrong with a secret is said without it."""
        rows = (ConfigKey("key", "key", SecretText(), "", "A key."),)
        error = self.assertRaises(
            ConfigurationError, readSettings, rows, parseProperties("key=hidden", "f"), self.fail
        )
        self.assertEqual(str(error), "f:1: key=…: must be user:password")

    def test_allProblems(self) -> None:
        """All mistakes are named at once, a line each, with place, key, value and reason, in the order of the table."""
        error = self.assertRaises(ConfigurationError, self.read, "smell=x\ncopies.by.reader=a:0")
        self.assertEqual(
            str(error).split("\n"),
            [
                "paper.size is missing: How large.",
                "f:2: copies.by.reader=a:0: a must have a value above 0",
                "f:1: smell=x: is not a whole number",
            ],
        )

    def test_unknownKey(self) -> None:
        """A key that nobody knows is reported together with the one that it resembles; nothing else happens."""
        self.read("paper.size=4\npapersize=5\nzzz=1")
        self.assertEqual(
            self.warnings,
            [
                "f:2: papersize=5: there is no such key and it has no effect; did you mean paper.size?",
                "f:3: zzz=1: there is no such key and it has no effect",
            ],
        )

    def test_skipped(self) -> None:
        """What a kind skips is reported with place, key and value."""
        self.read("paper.size=4\ncopies.by.reader=a")
        self.assertEqual(
            self.warnings, ["f:2: copies.by.reader=a: skipped 'a', which is not topic:number"]
        )

    def test_plainMapping(self) -> None:
        """Pairs that do not know their place are read the same way."""
        error = self.assertRaises(
            ConfigurationError, readSettings, ROWS, {"paper.size": "10"}, self.warnings.append
        )
        self.assertEqual(str(error), "paper.size=10: must be from 1 to 9")


class MarkdownTests(SynchronousTestCase):
    """The reference page is made of the rows."""

    def test_markdown(self) -> None:
        """Each row stands in the table of its origin with type, range, default and sentence; bars do not break the table."""
        head = "| key | type | default | meaning |\n|---|---|---|---|\n"
        self.assertEqual(
            asMarkdown(ROWS),
            f"### Kafka's own\n\n{head}"
            "| `paper.size` | int, 1 … 9 | required | How large. |\n"
            "| `ink` | string | `black` | Which ink. |\n"
            f"\n### pylogbroker's\n\n{head}"
            "| `copies.by.reader` | topic map, values > 0 | none | How many. |\n"
            "| `trays` | list, separated by `\\|` | all | Which trays, with `\\|` between. |\n"
            f"\n### Known, without effect in this release\n\n{head}"
            "| `smell` | int | none | Nothing smells here. |\n",
        )

    def test_brief(self) -> None:
        """Briefly: without headings, and without tables that have no rows."""
        text = asMarkdown(ROWS[2:3], isBrief=True)
        self.assertEqual(len(text.splitlines()), 3)
        self.assertNotIn("#", text)
