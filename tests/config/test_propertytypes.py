"""Tests for L{pylogbroker.config.propertytypes}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.propertytypes import (
    LONG_MAX,
    AddressMap,
    BarSeparatedList,
    Boolean,
    EndpointTemplate,
    Enum,
    Host,
    Integer,
    Nullable,
    PrincipalList,
    PropertyList,
    PropertyType,
    Secret,
    SecretText,
    Text,
    TopicMap,
    ZookeeperServers,
)


class KindCase(SynchronousTestCase):
    """What the cases below share."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def parse(self, kind: PropertyType, text: str) -> object:
        return kind.parse(text, self.warnings.append)

    def refused(self, kind: PropertyType, text: str) -> str:
        error = self.assertRaises(ValueError, kind.parse, text, self.warnings.append)
        return str(error)


class IntegerTests(KindCase):
    """Whole numbers are read strictly."""

    def test_numbers(self) -> None:
        """Digits with or without a sign are a number."""
        for text, number in (
            ("0", 0),
            ("007", 7),
            ("-12", -12),
            ("+5", 5),
            ("2147483647", 2**31 - 1),
            ("-2147483648", -(2**31)),
        ):
            self.assertEqual(self.parse(Integer(), text), number)

    def test_noNumbers(self) -> None:
        """Nothing, letters, other digits than ASCII's and Python's own spellings are errors."""
        for text in ("", "x", "1x", "1.0", "0x10", "1_000", "٣", "--1"):
            self.assertEqual(self.refused(Integer(), text), "is not a whole number")

    def test_whiteSpace(self) -> None:
        """
        White space around a number is an error that says so, since nobody sees it in the file.
        """
        for text in (" 1", "1 ", "1\t"):
            self.assertIn("white space", self.refused(Integer(), text))

    def test_range(self) -> None:
        """The bounds are in; what is beyond them is an error that names them."""
        kind = Integer(5, 10)
        self.assertEqual([self.parse(kind, text) for text in ("5", "10")], [5, 10])
        for text in ("4", "11"):
            self.assertEqual(self.refused(kind, text), "must be from 5 to 10")

    def test_32Bits(self) -> None:
        """Unless it says otherwise, a number has 32 bits, as in Kafka."""
        self.assertIn("2147483647", self.refused(Integer(), "2147483648"))
        self.assertEqual(self.parse(Integer(0, LONG_MAX), "2147483648"), 2147483648)

    def test_described(self) -> None:
        """Type and range are given for people."""
        kinds = (
            Integer(),
            Integer(1),
            Integer(0, 9),
            Integer(-1, LONG_MAX),
            Integer(-LONG_MAX - 1, LONG_MAX),
        )
        self.assertEqual(
            [(kind.name, kind.range) for kind in kinds],
            [("int", ""), ("int", "≥ 1"), ("int", "0 … 9"), ("long", "≥ -1"), ("long", "")],
        )


class HostTests(KindCase):
    """Where something is."""

    def test_hosts(self) -> None:
        """
        Names and addresses are hosts, and so is nothing, where that is allowed; what nobody could
        connect to is refused, before others are told of it.
        """
        for text in (
            "",
            "log1",
            "log-1.example.org.",
            "my_host",
            "10.0.0.5",
            "::1",
            "fe80::1%eth0",
        ):
            self.assertEqual(self.parse(Host(), text), text)
        for text in ("ev[il", "[::1]", "a b", "a ", "a:1", "::g", "a/b", "h\u00f6st"):
            self.assertIn("must be a host's name or address", self.refused(Host(), text))
        self.assertEqual(self.parse(Host(), ""), "")

    def test_nullable(self) -> None:
        """An empty text is no value; another one is judged by the type inside."""
        self.assertIs(self.parse(Nullable(Host()), ""), None)
        self.assertEqual(self.parse(Nullable(Host()), "log1"), "log1")
        self.refused(Nullable(Host()), "a b")
        self.assertEqual(Nullable(Host()).range, Host().range)

    def test_servers(self) -> None:
        """
        ZooKeeper's servers have ports or not, and a path behind them all; one that is none is
        shown.
        """
        for text in (
            "",
            "zk1:2181",
            "zk1",
            "zk1:2181, zk2:2181 ,[::1]:2183/kafka/a:b",
            "127.0.0.1",
        ):
            self.assertEqual(self.parse(ZookeeperServers(), text), text)
        for text, wrong in (
            ("ev[il:2181", "ev[il:2181"),
            ("zk1:2181,zk]:1", "zk]:1"),
            ("zk1:2181,", ""),
            ("zk1:0", "zk1:0"),
            ("zk1:65536", "zk1:65536"),
            ("host:port", "host:port"),
            ("[zk1]:2181", "[zk1]:2181"),
            ("/kafka", ""),
            ("a b", "a b"),
        ):
            self.assertEqual(
                self.refused(ZookeeperServers(), text), f"{wrong!r} is not a host with a port"
            )

    def test_described(self) -> None:
        """They are given for people."""
        self.assertEqual(
            [(kind.name, bool(kind.range)) for kind in (Host(), ZookeeperServers())],
            [("string", True)] * 2,
        )


class BooleanTests(KindCase):
    """Yes and no."""

    def test_boolean(self) -> None:
        """Only the two words of Kafka are booleans."""
        self.assertEqual([self.parse(Boolean(), text) for text in ("true", "false")], [True, False])
        for text in ("", "True", "TRUE", "yes", "1", "true "):
            self.assertEqual(self.refused(Boolean(), text), "must be exactly true or false")


class TextTests(KindCase):
    """Texts and lists of texts."""

    def test_text(self) -> None:
        """A text is taken as it is."""
        self.assertEqual([self.parse(Text(), text) for text in ("", " a ")], ["", " a "])
        self.assertEqual(Text().range, "")

    def test_notEmpty(self) -> None:
        """Where a text is needed, none is an error."""
        self.assertEqual(self.refused(Text(empty=False), ""), "must not be empty")
        self.assertEqual(self.parse(Text(empty=False), "a"), "a")
        self.assertEqual(Text(empty=False).range, "not empty")

    def test_list(self) -> None:
        """Texts are separated by bars; blanks inside one stay."""
        self.assertEqual(
            self.parse(BarSeparatedList(), "tcp:1 | ssl:2:privateKey=/my keys/a.pem|| "),
            ("tcp:1", "ssl:2:privateKey=/my keys/a.pem"),
        )
        self.assertEqual(self.parse(BarSeparatedList(), ""), ())


class PrincipalTests(KindCase):
    """Users."""

    def test_principals(self) -> None:
        """Names with their type, which may have commas, as those of certificates do."""
        found = self.parse(PrincipalList(), "User:admin; User:CN=b,O=example;;")
        self.assertEqual(found, {"User:admin", "User:CN=b,O=example"})
        self.assertEqual(self.parse(PrincipalList(), ""), frozenset())
        self.assertIn("User:admin", self.refused(PrincipalList(), "User:a;admin"))


class AddressMapTests(KindCase):
    """L{AddressMap}."""

    def test_addresses(self) -> None:
        """Addresses are written as connections have them; brackets may be left out."""
        text = "10.0.0.7:200, 2001:db8:0::7:50,[::1]:0"
        found = {"10.0.0.7": 200, "2001:db8::7": 50, "::1": 0}
        self.assertEqual(self.parse(AddressMap(), text), found)
        self.assertEqual(self.parse(AddressMap(), ""), {})

    def test_refused(self) -> None:
        """A name is no address, and a limit is a number."""
        for text in ("localhost:1", "10.0.0.7", "10.0.0.7:-1", "10.0.0.7:x", "10.0.0.7:2147483648"):
            self.refused(AddressMap(), text)


class TopicMapTests(KindCase):
    """Values by topic."""

    def test_map(self) -> None:
        """Entries stand between commas; the value is trimmed; commas at the end are nothing."""
        self.assertEqual(self.parse(TopicMap(), "a:1,b: 2 ,c:\t+3,,"), {"a": 1, "b": 2, "c": 3})
        self.assertEqual(self.warnings, [])

    def test_nothing(self) -> None:
        """Nothing, or only commas, is no entry and no warning."""
        self.assertEqual([self.parse(TopicMap(), text) for text in ("", ",,")], [{}, {}])
        self.assertEqual(self.warnings, [])

    def test_malformed(self) -> None:
        """Malformed entries are skipped with a warning each; the others count."""
        self.assertEqual(
            self.parse(TopicMap(), "a:1,,b,c:x,d:1:2,e:2147483648,f:6"), {"a": 1, "f": 6}
        )
        self.assertEqual(len(self.warnings), 5)
        self.assertEqual(self.warnings[1], "skipped 'b', which is not topic:number")
        self.assertEqual(
            self.warnings[4],
            "skipped 'e:2147483648', which is not topic:number with a number up to 2147483647",
        )

    def test_notPositive(self) -> None:
        """A value that is not above 0 is an error that names the topic."""
        for text in ("a:1,b:0", "b:-3"):
            self.assertEqual(self.refused(TopicMap(), text), "b must have a value above 0")

    def test_topicIsNotTrimmed(self) -> None:
        """White space at a topic's name is part of it, and reported, since nobody means it."""
        self.assertEqual(self.parse(TopicMap(), "a:1, b:2"), {"a": 1, " b": 2})
        self.assertEqual(
            self.warnings, ["names a topic ' b'; the white space counts as part of the name"]
        )

    def test_longs(self) -> None:
        """Where sizes are meant, a value has 64 bits."""
        self.assertEqual(self.parse(TopicMap(LONG_MAX), "a:9223372036854775807"), {"a": LONG_MAX})
        self.assertEqual(self.parse(TopicMap(LONG_MAX), "a:9223372036854775808"), {})

    def test_range(self) -> None:
        """The reference page shows that 0 is not valid."""
        self.assertEqual(TopicMap().range, "values > 0")


class PropertyListTests(KindCase):
    """Properties inside a property."""

    def test_list(self) -> None:
        """Entries stand between commas; nothing is trimmed."""
        self.assertEqual(self.parse(PropertyList(), "a=1, b=2,c="), {"a": "1", " b": "2", "c": ""})
        self.assertEqual(self.parse(PropertyList(), ""), {})

    def test_equals(self) -> None:
        """An entry without an equals sign, or with two, is an error that names it."""
        for text, entry in (("a=1,b", "b"), ("a=1=2", "a=1=2"), ("a=1,", "")):
            self.assertEqual(
                self.refused(PropertyList(), text), f"{entry!r} must have exactly one ="
            )


class SecretTests(KindCase):
    """Names and passwords."""

    def test_values(self) -> None:
        """A name, a colon, a password; or nothing. Neither a value nor an error shows itself."""
        value = self.parse(SecretText(), "user:pass:word")
        self.assertEqual((value, repr(value), repr(Secret(""))), ("user:pass:word", "'…'", "''"))
        self.assertEqual(self.parse(SecretText(), ""), "")
        for text in ("hidden", ":hidden", "hidden:"):
            self.assertNotIn("hidden", self.refused(SecretText(), text))


class WordTests(KindCase):
    """One of a few words, and templates."""

    def test_words(self) -> None:
        """Only these."""
        self.assertEqual(self.parse(Enum({"a": 1, "b": 2}), "b"), 2)
        self.assertIn("a, b", self.refused(Enum({"a": 1, "b": 2}), "c"))
        self.assertEqual(Enum({"a": 1, "b": 2}).range, "`a`, `b`")

    def test_template(self) -> None:
        """Host and port must be in it, or nothing."""
        self.assertEqual(self.parse(EndpointTemplate(), "tls:{host}:{port}"), "tls:{host}:{port}")
        self.assertEqual(self.parse(EndpointTemplate(), ""), "")
        for text in ("tls:{host}:9092", "tls:log1:{port}"):
            self.assertIn("{host}", self.refused(EndpointTemplate(), text))
