"""
Tests for L{pylogbroker.net.httplisteners}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.net.httplisteners import listenerDescription, listenNow


class DescriptionTests(SynchronousTestCase):
    """Where a site listens."""

    def test_loopback(self) -> None:
        """If nothing else was said, on the loopback interface."""
        for text, description in (
            ("8067", "tcp:8067:interface=127.0.0.1"),
            (" 0 ", "tcp:0:interface=127.0.0.1"),
            ("tcp:8067", "tcp:8067:interface=127.0.0.1"),
            ("tcp:8067:interface=0.0.0.0", "tcp:8067:interface=0.0.0.0"),
            ("tcp6:8067", r"tcp6:8067:interface=\:\:1"),
            ("ssl:8067:privateKey=k", "ssl:8067:privateKey=k:interface=127.0.0.1"),
            ("tls:8081:privateKey=k", "tls:8081:privateKey=k:interface=127.0.0.1"),
            ("unix:/run/console", "unix:/run/console"),
            ("systemd:domain=INET:index=0", "systemd:domain=INET:index=0"),
        ):
            self.assertEqual(listenerDescription(text), description)


class ListenNowTests(SynchronousTestCase):
    """Taking a port before the reactor runs."""

    def test_port(self) -> None:
        """What listens is returned."""
        port = self.patchedPort()
        self.assertIs(listenNow(lambda: succeed(port), "listen=1"), port)

    def patchedPort(self) -> object:
        class Port:
            def stopListening(self) -> None:
                """As a real one."""

        return Port()

    def test_refused(self) -> None:
        """A port that is taken, an endpoint that is none and one that takes its time are told with their setting."""

        def wrong() -> Deferred[object]:
            raise ValueError("no endpoint")

        for listen, text in (
            (lambda: fail(CannotListenError("", 80, OSError("taken"))), "taken"),
            (wrong, "listen=80: no endpoint"),
            (lambda: Deferred(), "needs a running reactor"),
        ):
            error = self.assertRaises(ConfigurationError, listenNow, listen, "listen=80")
            self.assertIn(text, str(error))
            self.assertTrue(str(error).startswith("listen=80"))
