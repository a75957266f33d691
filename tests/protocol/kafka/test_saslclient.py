"""
The client's side of SASL. That it and the broker's fit together is shown by commands, in
L{tests.cli.kafka.test_users}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka.saslclient import SaslLogin, saslTokens

LOGIN = SaslLogin("SCRAM-SHA-256", "u,=", "secret")


class TokenTests(SynchronousTestCase):
    """L{saslTokens}."""

    def test_plain(self) -> None:
        """One token, with name and password."""
        tokens = saslTokens(LOGIN._replace(mechanism="PLAIN"))
        self.assertEqual(next(tokens), b"\0u,=\0secret")
        self.assertRaises(StopIteration, tokens.send, b"")

    def test_scram(self) -> None:
        """A name is quoted; a nonce is never used again; the password is in no token."""
        first, again = (next(saslTokens(LOGIN)) for _ in range(2))
        self.assertTrue(first.startswith(b"n,,n=u=2C=3D,r="))
        self.assertNotEqual(first, again)
        tokens = saslTokens(LOGIN)
        nonce = next(tokens).partition(b"r=")[2]
        final = tokens.send(b"r=%sxyz,s=c2FsdA==,i=4096" % nonce)
        self.assertTrue(final.startswith(b"c=biws,r=%sxyz,p=" % nonce))
        self.assertNotIn(b"secret", final)
        self.assertNotIn("secret", repr(LOGIN))

    def test_wrongBroker(self) -> None:
        """A broker that answers with anything else is not told more."""
        for answer in (
            b"",
            b"\xff",
            b"r=other,s=c2FsdA==,i=4096",
            b"r=%s,s=c2FsdA==,i=x",
            b"r=%s,s=c2FsdA==,i=0",
            b"r=%s,s=c2FsdA==,i=1000001",
            b"r=%s,s=x,i=4096",
        ):
            tokens = saslTokens(LOGIN)
            nonce = next(tokens).partition(b"r=")[2]
            self.assertRaises(WireError, tokens.send, answer.replace(b"%s", nonce))
        tokens = saslTokens(LOGIN)
        nonce = next(tokens).partition(b"r=")[2]
        tokens.send(b"r=%s,s=c2FsdA==,i=4096" % nonce)
        self.assertRaises(WireError, tokens.send, b"v=AAAA")
