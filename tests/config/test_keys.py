"""Tests for L{pylogbroker.config.keys}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.__main__ import asMarkdown
from pylogbroker.config.keys import ConfigKey, Settings, ignoredKey, ownKey
from pylogbroker.config.properties import parseProperties
from pylogbroker.config.propertytypes import BarSeparatedList, Integer, SecretText, Text, TopicMap
from pylogbroker.errors import ConfigurationError


class PrinterSettings(Settings):
    """The settings of a printer."""

    paperSize = ConfigKey("paper.size", Integer(1, 9), None, "How large.", isRequired=True)
    ink = ConfigKey("ink", Text(), "black", "Which ink.")
    copiesByReader = ownKey("copies.by.reader", TopicMap(), "", "How many.")
    trays = ownKey(
        "trays", BarSeparatedList(), None, "Which trays, with `|` between.", derived="all"
    )
    smell = ignoredKey("smell", Integer(), None, "Nothing smells here.")


class SafeSettings(Settings):
    """The settings of a safe."""

    key = ConfigKey("key", SecretText(), "", "A key.")


class ReadTests(SynchronousTestCase):
    """Values are read by their rows."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def read(self, text: str) -> dict[str, object]:
        settings = PrinterSettings.fromProperties(parseProperties(text, "f"), self.warnings.append)
        return vars(settings)

    def test_values(self) -> None:
        """
        What is given is read by its kind; what is not has its default, or L{None}; keys without
        effect give nothing.
        """
        self.assertEqual(
            self.read("paper.size=4\ntrays=a|b\nsmell=3"),
            {"paperSize": 4, "ink": "black", "copiesByReader": {}, "trays": ("a", "b")},
        )
        self.assertEqual(self.read("paper.size=4\nink=\n")["ink"], "")
        self.assertIs(self.read("paper.size=4")["trays"], None)
        self.assertEqual(self.warnings, [])

    def test_secretsAreNotShown(self) -> None:
        """What is wrong with a secret is said without it."""
        error = self.assertRaises(
            ConfigurationError,
            SafeSettings.fromProperties,
            parseProperties("key=hidden", "f"),
            self.fail,
        )
        self.assertEqual(str(error), "f:1: key=…: must be user:password")

    def test_allProblems(self) -> None:
        """
        All mistakes are named at once, a line each, with place, key, value and reason, in the order
        of the table.
        """
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
        """
        A key that nobody knows is reported together with the one that it resembles; nothing else
        happens.
        """
        self.read("paper.size=4\npapersize=5\nzzz=1")
        self.assertEqual(
            self.warnings,
            [
                (
                    "f:2: papersize=5: there is no such key and it has no effect; did you mean"
                    " paper.size?"
                ),
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
            ConfigurationError,
            PrinterSettings.fromProperties,
            {"paper.size": "10"},
            self.warnings.append,
        )
        self.assertEqual(str(error), "paper.size=10: must be from 1 to 9")


class MarkdownTests(SynchronousTestCase):
    """The reference page is made of the rows."""

    def test_markdown(self) -> None:
        """
        Each row stands in the table of its origin with type, range, default and sentence; bars do
        not break the table.
        """
        head = "| key | type | default | meaning |\n|---|---|---|---|\n"
        self.assertEqual(
            asMarkdown(PrinterSettings.keys),
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
        text = asMarkdown(PrinterSettings.keys[2:3])
        self.assertEqual(len(text.splitlines()), 3)
        self.assertNotIn("#", text)


class SettingsTests(SynchronousTestCase):
    """A settings object."""

    def setUp(self) -> None:
        self.settings = PrinterSettings.fromProperties({"paper.size": "4"})

    def test_names(self) -> None:
        """
        The Python name must be the key in camelCase; another one is refused where the class is
        made.
        """
        with self.assertRaises(TypeError):
            type("Wrong", (Settings,), {"sizeOfPaper": ConfigKey("paper.size", Text(), "", "")})

    def test_declaredAgain(self) -> None:
        """A key that a subclass declares again replaces the inherited one."""

        class RedPrinterSettings(PrinterSettings):
            ink = ConfigKey("ink", Text(), "red", "Another ink.")

        self.assertEqual(RedPrinterSettings.fromProperties({"paper.size": "4"}).ink, "red")
        self.assertEqual(
            [key.doc for key in RedPrinterSettings.keys if key.key == "ink"], ["Another ink."]
        )
        self.assertEqual(self.settings.ink, "black")

    def test_onTheClass(self) -> None:
        """On the class, a name gives the key, and not a value."""
        self.assertEqual((PrinterSettings.ink.key, PrinterSettings.ink.doc), ("ink", "Which ink."))

    def test_immutable(self) -> None:
        """Values cannot be changed; a copy may have others."""
        with self.assertRaises(AttributeError):
            self.settings.ink = "red"
        changed = self.settings.replace(ink="red")
        self.assertEqual((changed.ink, changed.paperSize, self.settings.ink), ("red", 4, "black"))
        self.assertRaises(TypeError, self.settings.replace, glue="much")

    def test_absent(self) -> None:
        """A setting without a value is no attribute."""
        with self.assertRaises(AttributeError):
            SafeSettings({}).key

    def test_equal(self) -> None:
        """Settings with the same values are equal, and have the same hash."""
        again = PrinterSettings.fromProperties({"paper.size": "4"})
        self.assertEqual(self.settings, again)
        self.assertEqual(hash(self.settings), hash(again))
        self.assertNotEqual(self.settings, again.replace(ink="red"))

    def test_shown(self) -> None:
        """Its repr shows names and values, but no secret."""
        self.assertIn("PrinterSettings(paperSize=4, ink='black'", repr(self.settings))
        self.assertEqual(repr(SafeSettings({"key": "me:secret"})), "SafeSettings(key=…)")
