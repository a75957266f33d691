"""
The mechanisms of SASL, on the server's side, without connections: PLAIN (RFC 4616), SCRAM-SHA-256
and SCRAM-SHA-512 (RFC 5802, 7677). A module of its own, since a reader must be able to check each
step against them.

An exchange takes the client's tokens one after the other and gives the broker's, until it knows the
user. What a client is told when it fails is Apache Kafka's text. SCRAM tells every client the same,
but as in Kafka an unknown user fails at the first token, and a wrong password at the second.

SCRAM is written here over C{hashlib} and C{hmac}. The library I{scramp} refuses salts of less than
twelve bytes, which Kafka's clients may choose, and changes users' names by SASLprep, which Kafka
does not. The server's part is two digests for a login: the costly hashing of the password is the
client's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple, Protocol

from pylogbroker.cluster.metadataimage import ScramCredential
from pylogbroker.config.listenersettings import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from pylogbroker.errors import PylogbrokerError, WireError

_PLAIN_PARTS = 3
_NONCE_SIZE = 20
_OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
_NAME = r"(?:[^=,\x00\x80-\U0010ffff]|=2C|=3D)+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\x00\x80-\U0010ffff]+)*"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
# Compiled, and kept by re, when SCRAM is first used: it takes 10 ms of a start.
_FIRST = (
    rf"n,(?:a=({_NAME}))?,((?:m=[^,\x00\x80-\U0010ffff]+,)?n=({_NAME}),r=({_NONCE})({_EXTENSIONS}))"
)
_FINAL = rf"(c={_BASE64},r=({_NONCE})){_EXTENSIONS},p=({_BASE64})"
_TOKEN_OF_DELEGATION = r",tokenauth=true(?:,|$)"


class ScramMechanism(NamedTuple):
    """
    A form of SCRAM.

    @ivar number: in Kafka's requests and in the metadata.
    @ivar hashName: of C{hashlib}.
    @ivar iterationsMin: of the hashing of passwords.
    """

    name: str
    number: int
    hashName: str
    iterationsMin: int = 4096

    @property
    def digestSize(self) -> int:
        return hashlib.new(self.hashName).digest_size

    def credential(self, saltedPassword: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """What the broker keeps of a password that was salted and hashed."""
        clientKey = hmac.digest(saltedPassword, b"Client Key", self.hashName)
        serverKey = hmac.digest(saltedPassword, b"Server Key", self.hashName)
        storedKey = hashlib.new(self.hashName, clientKey).digest()
        return ScramCredential(salt, storedKey, serverKey, iterations)

    def saltedPassword(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Salt and hash a password; takes milliseconds for each thousand iterations."""
        return hashlib.pbkdf2_hmac(self.hashName, password.encode(), salt, iterations)


ITERATIONS_MAX = 16_384
SCRAM_MECHANISMS = {
    each.number: each
    for each in (
        ScramMechanism(SCRAM_SHA_256, 1, "sha256"),
        ScramMechanism(SCRAM_SHA_512, 2, "sha512"),
    )
}
_SCRAM_BY_NAME = {each.name: each for each in SCRAM_MECHANISMS.values()}

FindCredential = Callable[[str, int], ScramCredential | None]
"""C{find(user, mechanism)}: what is kept of a password; the mechanism by its number."""


class SaslError(PylogbrokerError):
    """
    The client is not who it says.

    @ivar text: for the client; L{None}: only that the credentials are invalid.
    """

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text or "invalid credentials")
        self.text = text


class IExchange(Protocol):
    """
    One authentication.

    @ivar user: who it is, once it is complete.
    """

    user: str | None

    def evaluate(self, token: bytes) -> bytes:
        """
        @return: the answer to a token.
        @raise SaslError: the client has failed.
        @raise WireError: the bytes are no token, and are not answered.
        """
        ...


class PlainExchange:
    """One token with user and password."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """@param users: passwords by user."""
        self.user: str | None = None
        self._users = users

    def evaluate(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0", _PLAIN_PARTS)
        if len(parts) != _PLAIN_PARTS:
            raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorizationId, user, password = parts
        if not user:
            raise SaslError("Authentication failed: username not specified")
        if not password:
            raise SaslError("Authentication failed: password not specified")
        expected = self._users.get(user)
        isRight = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not isRight:
            raise SaslError("Authentication failed: Invalid username or password")
        if authorizationId not in ("", user):
            raise SaslError(_OTHER_ID)
        self.user = user
        return b""


class ScramExchange:
    """Two tokens; the password is in neither."""

    def __init__(self, mechanism: ScramMechanism, find: FindCredential, random: Random) -> None:
        """@param random: gives the broker's part of the nonce."""
        self.user: str | None = None
        self._mechanism = mechanism
        self._find = find
        self._random = random
        self._isFirst = True
        self._name = self._bare = self._first = self._nonce = ""
        self._credential: ScramCredential

    def evaluate(self, token: bytes) -> bytes:
        text = token.decode("utf-8", "replace")
        if self._isFirst:
            self._isFirst = False
            return self._greet(text)
        return self._prove(text)

    def _greet(self, text: str) -> bytes:
        match = re.fullmatch(_FIRST, text)
        if match is None or re.search(_TOKEN_OF_DELEGATION, match[5], re.IGNORECASE):
            raise SaslError
        authorizationId, self._bare = match[1], match[2]
        self._name = match[3].replace("=2C", ",").replace("=3D", "=")
        credential = self._find(self._name, self._mechanism.number)
        if credential is None:
            raise SaslError
        if authorizationId not in (None, match[3]):
            raise SaslError(_OTHER_ID)
        self._credential = credential
        self._nonce = match[4] + self._random.randbytes(_NONCE_SIZE).hex()
        salt = b64encode(credential.salt).decode()
        self._first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._first.encode()

    def _prove(self, text: str) -> bytes:
        match = re.fullmatch(_FINAL, text)
        if match is None or match[2] != self._nonce:
            raise SaslError
        name = self._mechanism.hashName
        proof = b64decode(match[3])
        if len(proof) != self._mechanism.digestSize:
            raise WireError(f"a proof of {len(proof)} bytes")  # Kafka does not answer it, either
        message = f"{self._bare},{self._first},{match[1]}".encode()
        signature = hmac.digest(self._credential.storedKey, message, name)
        clientKey = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        storedKey = hashlib.new(name, clientKey).digest()
        if not hmac.compare_digest(storedKey, self._credential.storedKey):
            raise SaslError
        self.user = self._name
        proofOfServer = hmac.digest(self._credential.serverKey, message, name)
        return b"v=" + b64encode(proofOfServer)


def newExchange(
    mechanism: str, plainUsers: Mapping[str, str], find: FindCredential, random: Random
) -> IExchange:
    """
    A new authentication.

    @param mechanism: one of L{pylogbroker.config.listenersettings.MECHANISMS}.
    """
    if mechanism == PLAIN:
        return PlainExchange(plainUsers)
    return ScramExchange(_SCRAM_BY_NAME[mechanism], find, random)
