"""
The client's side of SASL: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 4616, 5802 and 7677).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Generator
from typing import NamedTuple

from pylogbroker.config.listenersettings import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from pylogbroker.errors import WireError

ITERATIONS_MAX = 1_000_000
"""A broker that asks for more would keep the client busy for minutes."""

_NONCE_SIZE = 24
_HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}


class SaslLogin(NamedTuple):
    """
    Who the client is.

    @ivar mechanism: C{PLAIN}, C{SCRAM-SHA-256} or C{SCRAM-SHA-512}.
    """

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism}, {self.user!r})"


def saslTokens(
    login: SaslLogin, iterationsMax: int = ITERATIONS_MAX
) -> Generator[bytes, bytes, None]:
    """
    The client's tokens; it is sent the broker's answer to each. Hashing a password for SCRAM takes
    a millisecond for each thousand or two of iterations.

    @param iterationsMax: of the hash; a broker that asks for more is refused.
    @raise WireError: an answer is none, or the broker does not know the password, either.
    """
    if login.mechanism == PLAIN:
        yield f"\0{login.user}\0{login.password}".encode()
        return
    name = _HASHES[login.mechanism]
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(_NONCE_SIZE)
    bare = f"n={user},r={nonce}"
    first = (yield f"n,,{bare}".encode()).decode("utf-8", "replace")
    parts = dict(part.partition("=")[::2] for part in first.split(","))
    try:
        salt, iterations = b64decode(parts["s"]), int(parts["i"])
    except (KeyError, ValueError):
        raise WireError(f"{first[:100]!r} is no message of SCRAM") from None
    if not parts.get("r", "").startswith(nonce) or not 0 < iterations <= iterationsMax:
        raise WireError(f"{first[:100]!r} cannot be answered")
    salted = hashlib.pbkdf2_hmac(name, login.password.encode(), salt, iterations)
    clientKey = hmac.digest(salted, b"Client Key", name)
    serverKey = hmac.digest(salted, b"Server Key", name)
    final = f"c=biws,r={parts['r']}"
    message = f"{bare},{first},{final}".encode()
    signature = hmac.digest(hashlib.new(name, clientKey).digest(), message, name)
    proof = bytes(a ^ b for a, b in zip(clientKey, signature, strict=True))
    answer = yield f"{final},p={b64encode(proof).decode()}".encode()
    expected = b"v=" + b64encode(hmac.digest(serverKey, message, name))
    if not hmac.compare_digest(answer, expected):
        raise WireError("the broker has not proved that it knows the password")
