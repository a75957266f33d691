"""
Bytes that nobody meant, at a live broker: the short form of C{python -m tests.fuzz.mutations},
whose long form is run by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.mutations import SEED
from tests.fuzz.record import ROOT

COUNTS = {
    "plain": 100_000,
    "kafka": 10_000,
    "allowed": 10_000,
    "handshake": 5_000,
    "http": 10_000,
    "tls": 2_000,
}
SECONDS_MAX = 900


class MutationTests(SynchronousTestCase):
    """
    No input makes the broker raise, allocate beyond its limits, change what it must not, or disturb
    another connection.
    """

    def throw(self, port: str) -> None:
        """Mutations at a port, none of which makes a fault."""
        # Neither the broker nor what is thrown at it is measured for coverage: that would be ten
        # minutes instead of one.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("COVERAGE_PROCESS")
        }
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.mutations",
            "--port",
            port,
            "--count",
            str(COUNTS[port]),
            "--seed",
            str(SEED),
        ]
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        said = ran.stdout + ran.stderr
        self.assertEqual(ran.returncode, 0, said)
        lines = ran.stdout.splitlines()
        for line in (f"port: {port}", f"seed: {SEED}", f"triedCount: {COUNTS[port]}"):
            self.assertIn(line, lines, said)
        self.assertEqual(lines[-1], "faults: 0", said)

    def test_hundredThousandMutations(self) -> None:
        """
        A hundred thousand mutations of recorded requests make a live broker log no error and print
        nothing, keep its memory under 192 MiB, answer a watcher on a connection of its own as if it
        were alone, keep what that one produced, leave no socket behind, and end in good order.
        """
        self.throw("plain")

    def test_kafka(self) -> None:
        """
        Requests of today's protocol, sensible, arbitrary and changed: the same holds, and what the
        watcher produced and had acknowledged is there in the end, in order, once.
        """
        self.throw("kafka")

    def test_allowed(self) -> None:
        """
        The same at a plain port with rules for topics: what no rule allows is neither told, nor
        touched, nor made.
        """
        self.throw("allowed")

    def test_tls(self) -> None:
        """The same over TLS, with a client's certificate that has rules of its own."""
        self.throw("tls")

    def test_handshake(self) -> None:
        """The same below TLS: not a request gets through, and no topic is touched."""
        self.throw("handshake")

    def test_http(self) -> None:
        """
        Mutations of HTTP at metrics and console: not a byte of the log changes, and who looks at
        the page sees what was there before.
        """
        self.throw("http")
