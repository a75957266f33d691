"""Tests for L{pylogbroker.cli.arguments}."""

from __future__ import annotations

import argparse
import contextlib
import io
from datetime import datetime

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.arguments import (
    blacklistPattern,
    brokerPartition,
    codec,
    endpointOf,
    group,
    intRange,
    loadAccess,
    positive,
    separator,
    time,
    topic,
    whitelistPattern,
)
from pylogbroker.cli.main import parse
from pylogbroker.config.securitysettings import PLAIN
from pylogbroker.types import BrokerPartition


class AccessTests(SynchronousTestCase):
    """How to get at a cluster."""

    def options(self, *arguments: str) -> argparse.Namespace:
        """
        Those of a command, judged. What is wrong is raised as C{SystemExit}, with what was said
        about it.
        """
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                options = parse(arguments)
                loadAccess(options)
                return options
            except SystemExit as error:
                raise SystemExit(f"{error.code}: {errors.getvalue()}") from error

    def config(self, text: str) -> str:
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_none(self) -> None:
        """Without anything, plain; and the broker is where it was said."""
        options = self.options("offset", "list", "--topic", "t", "--broker", "log1:9092")
        self.assertEqual(options.access.asProperties(), PLAIN.asProperties())
        self.assertEqual(endpointOf(options), "log1:9092")
        self.assertFalse(hasattr(self.options("dump", "file"), "access"))

    def test_endpoint(self) -> None:
        """A broker's address goes into C{broker.endpoint}; an endpoint string stays as it is."""
        change = "--set=broker.endpoint=tls:{host}:{port}:trustRoots=/ca"
        for broker, endpoint in (
            ("log1:9092", "tls:log1:9092:trustRoots=/ca"),
            ("tls:log1:9093", "tls:log1:9093"),
            ("unix:/run/b", "unix:/run/b"),
        ):
            self.assertEqual(
                endpointOf(
                    self.options("offset", "list", "--topic", "t", "--broker", broker, change)
                ),
                endpoint,
            )

    def test_second(self) -> None:
        """A second cluster has what the first has, or a file of its own."""
        clusters = (
            "replay",
            "--topic",
            "a",
            "--to-topic",
            "b",
            "--zookeeper",
            "zk1",
            "--to-zookeeper",
            "zk2",
            "--set",
            "zk.digest=me:secret",
        )
        options = self.options(*clusters)
        self.assertEqual(options.otherAccess, options.access)
        options = self.options(*clusters, "--to-config", self.config("zk.digest=you:secret"))
        self.assertEqual(
            (options.access.zkDigest, options.otherAccess.zkDigest),
            ("me:secret", "you:secret"),
        )

    def test_wrong(self) -> None:
        """What is wrong is a wrong argument."""
        for more, part in (
            (("--set", "zk.acl=all"), "zk.acl=all"),
            (("--set", "x=1"), "no such key"),
            (("--config", "/none"), "cannot read /none"),
        ):
            error = self.assertRaises(
                SystemExit, self.options, "topic", "list", "--zookeeper", "zk1", *more
            )
            self.assertEqual(str(error)[:2], "2:")
            self.assertIn(part, str(error))


class TypeTests(SynchronousTestCase):
    """Arguments are judged before anything is done."""

    def refused(self, parse: object, *texts: str) -> None:
        assert callable(parse)
        for text in texts:
            error = self.assertRaises(argparse.ArgumentTypeError, parse, text)
            self.assertIn(text[:20].lstrip("-0") or "empty", str(error))

    def test_numbers(self) -> None:
        """A number lies in its range."""
        self.assertEqual([intRange(-1, 5)(text) for text in ("-1", "5")], [-1, 5])
        self.refused(intRange(-1, 5), "-2", "6", "x", "1.5")
        self.refused(positive, "2147483648")

    def test_topic(self) -> None:
        """A topic name follows the rules of the broker, which would close the connection."""
        self.assertEqual(topic("a.b-c"), "a.b-c")
        self.refused(topic, "a/b", "..", "")
        self.assertRaises(argparse.ArgumentTypeError, topic, "a\udc80")

    def test_group(self) -> None:
        """A group's name is one step of a path in ZooKeeper."""
        self.assertEqual(group("a b.c"), "a b.c")
        self.refused(group, "a/b", "..")
        for text in ("", "a\0"):
            self.assertRaises(argparse.ArgumentTypeError, group, text)

    def test_brokerPartition(self) -> None:
        """A partition of a cluster is named by its broker and its number there."""
        self.assertEqual(brokerPartition("12-3"), BrokerPartition(12, 3))
        self.refused(brokerPartition, "12", "a-b", "1-2-3")

    def test_patterns(self) -> None:
        """A pattern means to us what it means to Java, or is refused by name."""
        self.assertEqual(
            list(whitelistPattern("a.*, b").streamCounts(["ab", "b", "c"])), ["ab", "b"]
        )
        self.assertEqual(list(blacklistPattern("a.*, b").streamCounts(["ab", "b", "c"])), ["c"])
        for make in (whitelistPattern, blacklistPattern):
            self.refused(make, "[a&&[b]]", "(", r"\p{Lu}")

    def test_separator(self) -> None:
        """A separator is bytes; a tab can be written as people write it."""
        self.assertEqual(
            [separator(text) for text in (":", "\\t", "ä\udcff")], [b":", b"\t", b"\xc3\xa4\xff"]
        )
        self.assertRaises(argparse.ArgumentTypeError, separator, "")

    def test_codec(self) -> None:
        """A codec has a name."""
        self.assertEqual([codec(text) for text in ("none", "gzip", "snappy")], [0, 1, 2])
        self.refused(codec, "lz4")

    def test_time(self) -> None:
        """A time is a word, milliseconds, or a date, local unless it says otherwise."""
        self.assertEqual(
            [time(text) for text in ("latest", "earliest", "0", "1700000000000")],
            [-1, -2, 0, 1700000000000],
        )
        self.assertEqual(time("2026-01-31T12:00:00.250+01:00"), 1769857200250)
        self.assertEqual(time("2026-01-31"), int(datetime(2026, 1, 31).timestamp() * 1000))  # noqa: DTZ001 - local is meant
        self.refused(time, "yesterday", "-5", "²")
