"""
The commands for users and passwords, in this process: on a real broker, and in the directory of
one that does not run.
"""

from __future__ import annotations

import io
import json
import os
import pty
from typing import Any

from pylogbroker.cli.commands import user
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import PylogbrokerError
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.logdirectory import APACHE_METADATA, LOCK_NAME
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.commands import Outcome, performAtOnce
from tests.cli.kafka.test_commands import CurrentCase

BOTH = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


class UserTests(CurrentCase):
    """C{user}."""

    def users(self, *words: str) -> list[tuple[str, str, int]]:
        found: Any = self.document("user", "list", *words)["users"]
        return [(each["user"], each["mechanism"], each["iterations"]) for each in found]

    def test_life(self) -> None:
        """Added, changed, listed, removed."""
        self.assertEqual(self.users(), [])
        self.assertIn("no users", self.execute("user", "list").errors)
        self.done("user", "add", "alice", input=b"secret\nignored")
        self.assertEqual(self.users(), [("alice", each, 4096) for each in BOTH])
        one = ("--mechanism", BOTH[1])
        self.done("user", "add", "alice", *one, "--iterations", "8192", input=b"other\r\n")
        self.done("user", "add", "bob", *one, input=b"secret")
        self.done("user", "remove", "alice", "--mechanism", BOTH[0])
        rows = [line.split() for line in self.done("user", "list").splitlines()]
        self.assertEqual(rows[0], ["USER", "MECHANISM", "ITERATIONS"])
        self.assertEqual(rows[1:], [["alice", BOTH[1], "8192"], ["bob", BOTH[1], "4096"]])
        self.done("user", "remove", "alice")
        self.assertEqual(self.users(), [("bob", BOTH[1], 4096)])
        self.assertIn("alice has no such password", self.failed("user", "remove", "alice"))

    def test_passwords(self) -> None:
        """What is no password is refused before anything is asked."""
        for data, reason in (
            (b"", "no password"),
            (b"\nsecret", "no password"),
            (b"\xff\n", "not UTF-8"),
            (b"x" * (user.PASSWORD_SIZE_MAX + 1), "more than 1024 bytes"),
        ):
            outcome = self.execute("user", "add", "alice", input=data)
            self.assertEqual(outcome.code, 1)
            self.assertIn(reason, outcome.errors)
        self.assertEqual(self.users(), [])

    def test_terminal(self) -> None:
        """A terminal is asked twice."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        streams = Streams(theirs, 1, io.StringIO())
        asked: list[str] = []
        for answers, expected in ((["a", "a"], "a"), (["a", "b"], None)):
            given = iter(answers)

            def answer(prompt: str, given: Any = given) -> str:
                asked.append(prompt)
                return str(next(given))

            self.patch(user, "getpass", answer)
            if expected is None:
                self.assertRaises(PylogbrokerError, user._password, streams)
            else:
                self.assertEqual(user._password(streams), expected)
        self.assertEqual(asked, ["Password: ", "Again: "] * 2)

    def test_refused(self) -> None:
        """The broker's reason is told; wrong arguments are none."""
        outcome = self.execute("user", "add", "x" * 256, input=b"secret")
        self.assertIn("UNACCEPTABLE_CREDENTIAL", outcome.errors)
        place = ("--bootstrap-server", self.broker.bootstrapServers)
        self.wrong("user", "add", "alice", *place, "--mechanism", "PLAIN")
        self.wrong("user", "add", "alice", *place, "--iterations", "4095")
        self.wrong("user", "list")
        self.wrong("user", "list", *place, "--log-dir", "x")


class LoginTests(CurrentCase):
    """Commands at a listener with SASL."""

    broker = BackgroundBroker(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common"
            '.security.plain.PlainLoginModule required user_alice="secret";',
            "connection.failed.authentication.delay.ms": "0",
        }
    )

    def access(self, mechanism: str, password: str = "secret") -> tuple[str, ...]:
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"sasl.username=alice\nsasl.password={password}\n")
        return "--config", path, "--set", f"sasl.mechanism={mechanism}"

    def test_mechanisms(self) -> None:
        """With each they get in; with a wrong password, or none, they do not."""
        plain = self.access("PLAIN")
        self.done("user", "add", "alice", *plain, input=b"secret")
        self.done("topic", "create", "t", *plain)
        for mechanism in ("PLAIN", *BOTH):
            found = self.document("topic", "list", *self.access(mechanism))["topics"]
            self.assertEqual([each["topic"] for each in found], ["t"])
            reason = self.failed("topic", "list", *self.access(mechanism, "wrong"))
            self.assertIn("SASL_AUTHENTICATION_FAILED", reason)
            self.assertNotIn("wrong", reason)
        self.failed("topic", "list", "--timeout-ms", "50")


class DirectoryTests(CurrentCase):
    """C{user} with C{--log-dir}."""

    def setUp(self) -> None:
        self.directory = os.path.join(self.mktemp(), "logs")

    def execute(self, *words: str, input: bytes = b"") -> Outcome:
        return performAtOnce(*words, "--log-dir", self.directory, input=input)

    def test_before(self) -> None:
        """The directory is made, and what one command writes another reads."""
        self.done("user", "add", "admin", "--mechanism", BOTH[0], input=b"secret")
        [found] = json.loads(self.done("user", "list", "--json"))["users"]
        self.assertEqual(found["user"], "admin")
        self.done("user", "remove", "admin")
        self.assertEqual(json.loads(self.done("user", "list", "--json")), {"users": []})

    def test_runs(self) -> None:
        """The directory of a broker that runs is left alone."""
        os.makedirs(self.directory)
        unlock = RealFileSystem().lock(f"{self.directory}/{LOCK_NAME}")
        self.addCleanup(unlock)
        self.assertIn("another broker has it", self.failed("user", "list"))

    def test_apaches(self) -> None:
        """So is one of Apache Kafka's that no broker of ours has taken over."""
        os.makedirs(os.path.join(self.directory, os.path.dirname(APACHE_METADATA)))
        with open(os.path.join(self.directory, APACHE_METADATA), "wb"):
            pass
        self.assertIn("start the broker on it once", self.failed("user", "list"))

    def test_moved(self) -> None:
        """Nor is one made anew whose metadata are in ZooKeeper."""
        os.makedirs(self.directory)
        with open(os.path.join(self.directory, "meta.properties"), "wb"):
            pass
        self.assertIn("are in ZooKeeper", self.failed("user", "list"))
        self.assertEqual(sorted(os.listdir(self.directory)), [".lock", "meta.properties"])

    def test_notPossible(self) -> None:
        """Where no directory can be made, the reason is told."""
        with open(os.path.dirname(self.directory), "wb"):
            pass
        self.assertIn("cannot", self.failed("user", "list"))
