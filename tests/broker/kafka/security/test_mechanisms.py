"""PLAIN and SCRAM."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.security.mechanisms import (
    SCRAM_MECHANISMS,
    PlainExchange,
    SaslError,
    ScramExchange,
    newExchange,
)
from pylogbroker.cluster.metadataimage import ScramCredential
from pylogbroker.errors import WireError

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


class _FixedNonce(Random):
    """Random bytes that are known."""

    def randbytes(self, n: int) -> bytes:
        return b"\x5a" * n


class PlainTests(SynchronousTestCase):
    """L{PlainExchange}."""

    def refused(self, token: bytes) -> str | None:
        exchange = PlainExchange({"alice": "secret"})
        error = self.assertRaises(SaslError, exchange.evaluate, token)
        self.assertIs(exchange.user, None)
        return error.text

    def test_right(self) -> None:
        """One token is enough; the user may name itself twice."""
        for token in (b"\0alice\0secret", b"alice\0alice\0secret"):
            exchange = newExchange("PLAIN", {"alice": "secret"}, lambda *_names: None, Random(1))
            self.assertEqual((exchange.evaluate(token), exchange.user), (b"", "alice"))

    def test_wrong(self) -> None:
        """An unknown user is not told from a wrong password."""
        wrong = "Authentication failed: Invalid username or password"
        for token, text in (
            (b"\0alice\0wrong", wrong),
            (b"\0bob\0secret", wrong),
            (b"\0alice\0\xff", wrong),
            (b"\0\0secret", "Authentication failed: username not specified"),
            (b"\0alice\0", "Authentication failed: password not specified"),
            (
                b"bob\0alice\0secret",
                "Authentication failed: Client requested an authorization id that is different"
                " from username",
            ),
            (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
            (b"\0" * 9, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        ):
            self.assertEqual(self.refused(token), text)


class ScramTests(SynchronousTestCase):
    """L{ScramExchange}."""

    def setUp(self) -> None:
        self.mechanism = SCRAM_MECHANISMS[1]
        salted = self.mechanism.saltedPassword("pencil", SALT, 4096)
        self.credential = self.mechanism.credential(salted, SALT, 4096)

    def exchange(self) -> ScramExchange:
        def find(user: str, mechanism: int) -> ScramCredential | None:
            return self.credential if (user, mechanism) == ("u,=", 1) else None

        made = newExchange("SCRAM-SHA-256", {}, find, _FixedNonce())
        assert isinstance(made, ScramExchange)
        return made

    def final(self, first: bytes, answer: bytes, password: str = "pencil", more: str = "") -> bytes:
        """A client's second token."""
        nonce = answer.decode().split(",")[0]
        bare = f"c=biws,{nonce}"
        message = b",".join((first[3:], answer, bare.encode()))
        salted = self.mechanism.saltedPassword(password, SALT, 4096)
        clientKey = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(clientKey).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(clientKey, signature, strict=True))
        return f"{bare}{more},p={b64encode(proof).decode()}".encode()

    def test_example(self) -> None:
        """The keys are those of RFC 7677's example: its client's proof and server's signature."""
        name, clientNonce, serverNonce = (
            "user",
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        )
        message = (
            f"n={name},r={clientNonce},r={clientNonce}{serverNonce},"
            f"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={clientNonce}{serverNonce}"
        ).encode()
        signature = hmac.digest(self.credential.storedKey, message, "sha256")
        proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
        clientKey = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        self.assertEqual(hashlib.sha256(clientKey).digest(), self.credential.storedKey)
        self.assertEqual(
            b64encode(hmac.digest(self.credential.serverKey, message, "sha256")),
            b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        )

    def test_right(self) -> None:
        """The client proves that it knows the password, and gets a proof of the broker's."""
        for first, more in (
            (b"n,,n=u=2C=3D,r=abc", ""),
            (b"n,a=u=2C=3D,n=u=2C=3D,r=abc", ""),
            (b"n,,n=u=2C=3D,r=abc,x=y", ",m=n"),
        ):
            exchange = self.exchange()
            answer = exchange.evaluate(first)
            nonce = b"abc" + b"5a" * 20
            self.assertEqual(answer, b"r=%s,s=%s,i=4096" % (nonce, b64encode(SALT)))
            start = first.index(b"n=u")
            last = exchange.evaluate(self.final(b"n,," + first[start:], answer, more=more))
            self.assertEqual((last[:2], len(last), exchange.user), (b"v=", 46, "u,="))

    def test_wrong(self) -> None:
        """Whatever is wrong, the client learns that its credentials are invalid."""
        for first in (
            b"",
            b"n,,n=nobody,r=abc",
            b"y,,n=u=2C=3D,r=abc",
            b"n,,n=u=2C=3D,r=a b",
            b"n,,n=u=2C=3D,r=abc,tokenauth=true",
            b"n,,n=\xc3\xbc,r=abc",
        ):
            error = self.assertRaises(SaslError, self.exchange().evaluate, first)
            self.assertIs(error.text, None)
        first = b"n,,n=u=2C=3D,r=abc"
        for change in (
            lambda final: final.replace(b"r=abc", b"r=abd"),
            lambda final: b"x" + final,
            lambda final: final[:-4] + b"AAA=",
        ):
            exchange = self.exchange()
            final = self.final(first, exchange.evaluate(first))
            self.assertRaises(SaslError, exchange.evaluate, change(final))
            self.assertIs(exchange.user, None)
        exchange = self.exchange()
        final = self.final(first, exchange.evaluate(first), "wrong")
        self.assertRaises(SaslError, exchange.evaluate, final)

    def test_forAnother(self) -> None:
        """A user cannot act for another."""
        error = self.assertRaises(SaslError, self.exchange().evaluate, b"n,a=bob,n=u=2C=3D,r=abc")
        self.assertIn("authorization id", str(error))

    def test_shortProof(self) -> None:
        """A proof of another size is not answered."""
        exchange = self.exchange()
        answer = exchange.evaluate(b"n,,n=u=2C=3D,r=abc")
        final = b"c=biws,%s,p=AAAA" % answer.split(b",")[0]
        self.assertRaises(WireError, exchange.evaluate, final)

    def test_secret(self) -> None:
        """Nothing shows the keys."""
        self.assertEqual(repr(self.credential), "ScramCredential(4096 iterations)")
