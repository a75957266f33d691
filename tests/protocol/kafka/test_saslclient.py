"""
The client's side of SASL. That it and the broker's fit together is shown by commands, in
L{tests.cli.kafka.test_users}.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

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

    def test_proof(self) -> None:
        """A broker that knows the password proves it, and the exchange ends (RFC 5802)."""
        for mechanism, name in (("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")):
            tokens = saslTokens(LOGIN._replace(mechanism=mechanism))
            bare = next(tokens).removeprefix(b"n,,")
            nonce = bare.partition(b"r=")[2]
            first = b"r=%sxyz,s=c2FsdA==,i=4096" % nonce
            final = tokens.send(first).partition(b",p=")[0]
            salted = hashlib.pbkdf2_hmac(name, b"secret", b"salt", 4096)
            key = hmac.digest(salted, b"Server Key", name)
            signature = hmac.digest(key, b",".join((bare, first, final)), name)
            self.assertRaises(StopIteration, tokens.send, b"v=" + b64encode(signature))

    def test_iterations(self) -> None:
        """The caller may allow fewer iterations."""
        tokens = saslTokens(LOGIN, 4095)
        nonce = next(tokens).partition(b"r=")[2]
        self.assertRaises(WireError, tokens.send, b"r=%s,s=c2FsdA==,i=4096" % nonce)

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
