"""SASL: who gets in by PLAIN and SCRAM, in every order of requests, and who does not."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.steps import Ask, Close, Raw, Setting, Steps, Token, Until, scenario

_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LISTENER = "listener.name.plaintext"
_SASL = (
    ("listener.security.protocol.map", "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"),
    ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"),
    ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
    (
        f"{_LISTENER}.plain.sasl.jaas.config",
        f'{_PLAIN_MODULE} required username="admin" password="admin-secret"'
        ' user_admin="admin-secret" user_alice="alice-secret" user_bob="bob-secret";',
    ),
    (f"{_LISTENER}.scram-sha-256.sasl.jaas.config", f"{_SCRAM_MODULE} required;"),
    (f"{_LISTENER}.scram-sha-512.sasl.jaas.config", f"{_SCRAM_MODULE} required;"),
)
_LIFETIMES = (*_SASL, ("connections.max.reauth.ms", "3600000"))
_ADMIN = b"\0admin\0admin-secret"
_ALICE = b"\0alice\0alice-secret"
_BOB = b"\0bob\0bob-secret"
_NONCE = "clientnonce"
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def _handshake(on: str, mechanism: str = "PLAIN", version: int = 1, label: str = "") -> Ask:
    body = messages.SaslHandshakeRequest(mechanism=mechanism)
    return Ask(label or f"{on}: handshake", ApiKey.SASL_HANDSHAKE, version, body, on)


def _authenticate(on: str, token: bytes, version: int = 1, label: str = "") -> Ask:
    body = messages.SaslAuthenticateRequest(authBytes=token)
    return Ask(label or f"{on}: token", ApiKey.SASL_AUTHENTICATE, version, body, on)


def _versions(on: str, version: int = 0, label: str = "versions") -> Ask:
    """Its answer is not compared: C{api-versions} does that. The next one shows that it worked."""
    body = messages.ApiVersionsRequest(clientSoftwareName="a", clientSoftwareVersion="1")
    return Ask(f"{on}: {label}", ApiKey.API_VERSIONS, version, body, on, isRecorded=False)


def _metadata(on: str, label: str = "metadata") -> Ask:
    body = messages.MetadataRequest(topics=[])
    return Ask(f"{on}: {label}", ApiKey.METADATA, 1, body, on)


@scenario(*_SASL, login=_ADMIN)
def saslPlain(setting: Setting) -> Steps:
    """Tokens, good and bad."""
    for on, token in (
        ("a user", _ALICE),
        ("a user for itself", b"alice" + _ALICE),
        ("a user for another", b"bob" + _ALICE),
        ("a wrong password", b"\0alice\0wrong"),
        ("an unknown user", b"\0nobody\0alice-secret"),
        ("no user", b"\0\0alice-secret"),
        ("no password", b"\0alice\0"),
        ("two parts", b"alice\0alice-secret"),
        ("four parts", _ALICE + b"\0more"),
        ("nothing", b""),
        ("no UTF-8", b"\0alice\0\xff\xfe"),
        ("a name in other letters", b"\0Alice\0alice-secret"),
    ):
        yield _handshake(on)
        yield _authenticate(on, token)
        yield _metadata(on)
        yield Close(on)
    for version in (0, 1, 2):
        on = f"version {version}"
        yield _versions(on)
        yield _handshake(on)
        yield _authenticate(on, _ALICE, version)
        yield _metadata(on)
        yield _versions(on)
    for version in (0, 1, 2):
        on = f"refused in version {version}"
        yield _handshake(on)
        yield _authenticate(on, b"\0alice\0wrong", version)
        yield _metadata(on)


@scenario(*_SASL, login=_ADMIN)
def saslMechanisms(setting: Setting) -> Steps:
    """Handshakes, and tokens without a header."""
    for version in (0, 1):
        for mechanism in ("GSSAPI", "plain", "", "SCRAM-SHA-1"):
            on = f"{mechanism or 'no mechanism'} {version}"
            yield _handshake(on, mechanism, version)
            yield _metadata(on)
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            on = f"{mechanism} {version}"
            yield _handshake(on, mechanism, version)
    for on, token in (
        ("bare", _ALICE),
        ("bare, wrong", b"\0alice\0wrong"),
        ("bare, unreadable", b"x"),
    ):
        yield _handshake(on, version=0)
        yield Token(f"{on}: token", token, on)
        yield _metadata(on)
        yield _handshake(on, label=f"{on}: again")
    yield _handshake("with a header", version=0)
    yield _authenticate("with a header", _ALICE)


@scenario(*_SASL, login=_ADMIN)
def saslOrder(setting: Setting) -> Steps:
    """Requests in an order that is not expected."""
    yield _metadata("at once")
    yield _authenticate("token at once", _ALICE)
    on = "metadata after versions"
    yield _versions(on)
    yield _metadata(on)
    on = "versions twice"
    yield _versions(on)
    yield Ask(f"{on}: again", ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest(), on)
    on = "unknown versions"
    yield Ask(f"{on}: versions", ApiKey.API_VERSIONS, 99, b"\0", on)
    yield _versions(on)
    yield _handshake(on)
    yield _authenticate(on, _ALICE)
    yield _metadata(on)
    on = "unnamed software"
    body = messages.ApiVersionsRequest(clientSoftwareName="-", clientSoftwareVersion="")
    yield Ask(f"{on}: versions", ApiKey.API_VERSIONS, 3, body, on)
    yield _handshake(on)
    for on, version in (("handshake", 1), ("bare handshake", 0)):
        yield _handshake(on, version=version)
        yield _metadata(on)
        on = f"versions after {on}"
        yield _handshake(on, version=version)
        yield Ask(f"{on}: versions", ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest(), on)
        on = f"twice, {on}"
        yield _handshake(on, version=version)
        yield _handshake(on, version=version, label=f"{on}: again")
    on = "produce without acknowledgement"
    yield _handshake(on)
    body = messages.ProduceRequest(acks=0, timeoutMs=1000)
    yield Ask(f"{on}: produce", ApiKey.PRODUCE, 9, body, on)
    on = "a request that is not whole"
    yield _handshake(on)
    yield Ask(f"{on}: metadata", ApiKey.METADATA, 1, b"\0", on)
    on = "a token that is not whole"
    yield _handshake(on)
    yield Ask(f"{on}: token", ApiKey.SASL_AUTHENTICATE, 1, b"\0\0", on)
    on = "an unknown request"
    yield _handshake(on)
    yield Ask(f"{on}: 999", 999, 0, b"", on)
    on = "an unknown version"
    yield _handshake(on)
    yield Ask(f"{on}: token", ApiKey.SASL_AUTHENTICATE, 9, b"\0\0\0\0", on)
    yield _handshake("handshake 9", version=1, label="handshake 9: first")
    yield Raw("a large frame", (524_289).to_bytes(4, "big") + b"\0\x11\0\1")
    yield Raw("a frame of the largest size", (524_288).to_bytes(4, "big") + b"\0\x11\0\1")
    yield Raw("no request", b"\0\0\0\x04GET ")
    yield Raw("nothing", b"\0\0\0\0")


def _again() -> Steps:
    for on, token, mechanism, version in (
        ("the same", _ALICE, "PLAIN", 1),
        ("another user", _BOB, "PLAIN", 1),
        ("a wrong password", b"\0alice\0wrong", "PLAIN", 1),
        ("another mechanism", _ALICE, "SCRAM-SHA-256", 1),
        ("an unknown mechanism", _ALICE, "GSSAPI", 1),
        ("an old client", _ALICE, "PLAIN", 0),
    ):
        yield _handshake(on)
        yield _authenticate(on, _ALICE, version)
        yield _handshake(on, mechanism, label=f"{on}: handshake again")
        yield _authenticate(on, token, version, label=f"{on}: token again")
        yield _metadata(on)
    on = "a request between"
    yield _handshake(on)
    yield _authenticate(on, _ALICE)
    yield _handshake(on, label=f"{on}: handshake again")
    yield _metadata(on)
    on = "versions between"
    yield _handshake(on)
    yield _authenticate(on, _ALICE)
    yield _handshake(on, label=f"{on}: handshake again")
    yield _versions(on)
    yield _metadata(on)
    on = "versions again"
    yield _handshake(on)
    yield _authenticate(on, _ALICE)
    yield _versions(on)
    yield _metadata(on)
    for version in (0, 1):
        on = f"a bare handshake after version {version}"
        yield _handshake(on, version=version)
        if version:
            yield _authenticate(on, _ALICE)
        else:
            yield Token(f"{on}: first token", _ALICE, on)
        yield _handshake(on, version=0, label=f"{on}: again")
        yield Token(f"{on}: token", _ALICE, on)
        yield _metadata(on)
    on = "token alone"
    yield _handshake(on)
    yield _authenticate(on, _ALICE)
    yield _authenticate(on, _ALICE, label=f"{on}: again")
    yield _metadata(on)


@scenario(*_SASL, login=_ADMIN)
def saslAgain(setting: Setting) -> Steps:
    """Clients that authenticate again on the same connection, where nobody need."""
    yield from _again()


@scenario(*_LIFETIMES, login=_ADMIN)
def saslLifetimes(setting: Setting) -> Steps:
    """How long an authentication holds, where that is limited."""
    for version in (0, 1, 2):
        on = f"version {version}"
        yield _handshake(on)
        yield _authenticate(on, _ALICE, version)
        yield _metadata(on)
    yield from _again()


# -- SCRAM


def _salted(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)


def _proof(mechanism: str, salted: bytes, message: bytes) -> bytes:
    name = _HASHES[mechanism]
    clientKey = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, clientKey).digest(), message, name)
    return bytes(a ^ b for a, b in zip(clientKey, signature, strict=True))


def _exchange(
    on: str,
    mechanism: str,
    password: bytes = b"secret",
    user: str = "carol",
    header: str = "n,,",
    extension: str = "",
    **final: str,
) -> Steps:
    """
    @param final: other values for the parts of the last message: C{binding}, C{nonce}, C{proof},
        and C{more} behind them.
    """
    first = f"n={user},r={_NONCE}{extension}"
    yield _handshake(on, mechanism)
    found = yield _authenticate(on, f"{header}{first}".encode(), label=f"{on}: first")
    if found is None or found.errorCode:
        yield _metadata(on)
        return
    text = bytes(found.authBytes).decode()
    parts = dict(part.split("=", 1) for part in text.split(","))
    salted = _salted(mechanism, password, b64decode(parts["s"]), int(parts["i"]))
    binding = final.get("binding", b64encode(header.encode()).decode())
    nonce = parts["r"] + final.get("nonce", "")
    bare = f"c={binding},r={nonce}"
    message = f"{first},{text},{bare}".encode()
    proof = final.get("proof") or b64encode(_proof(mechanism, salted, message)).decode()
    last = f"{bare}{final.get('more', '')},p={proof}"
    yield _authenticate(on, last.encode(), label=f"{on}: last")
    yield _metadata(on)


def _bodies(on: str, mechanism: str, tokens: Iterable[bytes]) -> Steps:
    """First messages that are none."""
    for index, token in enumerate(tokens):
        yield _handshake(f"{on} {index}", mechanism)
        yield _authenticate(f"{on} {index}", token)


@scenario(*_SASL, login=_ADMIN)
def saslScram(setting: Setting) -> Steps:
    """The messages of SCRAM, good and bad."""
    yield _handshake("main")
    yield _authenticate("main", _ADMIN)
    cls = messages.AlterUserScramCredentialsRequest
    made: list[Any] = []
    for name, number, mechanism in (
        ("carol", 1, "SCRAM-SHA-256"),
        ("carol", 2, "SCRAM-SHA-512"),
        ("dave,x=y", 1, "SCRAM-SHA-256"),
        ("only", 1, "SCRAM-SHA-256"),
        ("jos\u00e9", 1, "SCRAM-SHA-256"),
    ):
        salted = _salted(mechanism, b"secret", b"salt", 4096)
        made.append(
            cls.ScramCredentialUpsertion(
                name=name, mechanism=number, iterations=4096, salt=b"salt", saltedPassword=salted
            )
        )
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    body = cls(upsertions=made[:1] + made[2:])
    yield Ask("users", key, 0, body, "main", isRecorded=False)
    yield Ask("users", key, 0, cls(upsertions=made[1:2]), "main", isRecorded=False)
    described = messages.DescribeUserScramCredentialsRequest(users=None)
    yield Until(
        Ask("all", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, described, "main"),
        lambda found: sum(len(each.credentialInfos) for each in found.results) >= len(made),
    )
    for mechanism in _HASHES:
        yield from _exchange(f"good {mechanism}", mechanism)
        yield from _exchange(f"wrong {mechanism}", mechanism, b"wrong")
        yield from _exchange(f"unknown {mechanism}", mechanism, user="nobody")
    name = "SCRAM-SHA-256"
    yield from _exchange("other mechanism", "SCRAM-SHA-512", user="only")
    yield from _exchange("escaped", name, user="dave=2Cx=3Dy")
    yield from _exchange("not escaped", name, user="dave=x")
    yield from _exchange("not ASCII", name, user="jos\u00e9")
    yield from _exchange("for itself", name, header="n,a=carol,")
    yield from _exchange("for another", name, header="n,a=dave,")
    yield from _exchange("could bind", name, header="y,,")
    yield from _exchange("binds", name, header="p=tls-unique,,")
    yield from _exchange("extension", name, extension=",x=1")
    yield from _exchange("token of delegation", name, extension=",tokenauth=true")
    yield from _exchange("other binding", name, binding="biws")
    yield from _exchange("wrong binding", name, binding="eSws")
    yield from _exchange("other nonce", name, nonce="x")
    yield from _exchange("short proof", name, proof="AAAA")
    yield from _exchange("no base64", name, proof="!!!!")
    yield from _exchange("more", name, more=",x=1")
    yield from _exchange("mandatory", name, extension="", more=",m=1")
    yield from _bodies(
        "first", name, (b"", b"x", b"n,,", b"n,,n=carol", b"n,,r=abc", b"n,,n=,r=abc", b"\xff\xfe")
    )
