"""
The listeners of a broker: where it listens, where clients find it, how they are secured. A module
of its own, since Kafka's rules for these settings are many, and other roles need none of them.

Kafka's C{listeners} gives each listener a name: C{INTERNAL://10.0.0.5:9092,OUTSIDE://:9093}. The
name's protocol is in C{listener.security.protocol.map}, its address for clients in
C{advertised.listeners}. A Twisted endpoint string is a listener, too; it is named C{PLAINTEXT}, or
C{SSL} where it has TLS. A setting of one listener begins with C{listener.name.}, its name in small
letters, and a dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pylogbroker.config.keys import ConfigKey, ownKey
from pylogbroker.config.propertytypes import (
    COMMA_SEPARATED_LIST,
    NOT_NEGATIVE,
    POSITIVE,
    TEXT,
    Enum,
    ListenerList,
    PropertyType,
    Secret,
    Text,
    Warn,
)
from pylogbroker.errors import ConfigurationError

T = TypeVar("T")

AUTO, KAFKA07, KAFKA = "auto", "kafka07", "kafka"
"""Values of C{listener.dialect}."""

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
"""Values of C{ssl.client.auth}."""

_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LISTENER = re.compile(r"([^:/]+)://(?:\[([0-9a-zA-Z:.%_-]*)\]|([^:\[\]/]*)):([0-9]{1,5})")
_PORT_MAX = 65_535
_WILDCARDS = ("", "0.0.0.0", "::")
_JAAS_OPTION = re.compile(r"""\s+([^\s="';]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s"';]+)""")
_JAAS = re.compile(
    rf"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)((?:{_JAAS_OPTION.pattern})*)\s*;\s*"
)
_USER = "user_"


class SecretValue(Text):
    """Any text that no log and no error may show."""

    isSecret = True

    def parse(self, text: str, warn: Warn) -> str:
        return Secret(text)


class PemType(Enum[str]):
    """The type of a store: only PEM can be read."""

    def parse(self, text: str, warn: Warn) -> str:
        if text in ("JKS", "PKCS12"):
            raise ValueError("only PEM can be read here; keytool and openssl can convert a store")
        return super().parse(text, warn)


DEFAULT_RULES = "DEFAULT"
_PEM = PemType({"PEM": "PEM"})
_SECRET = SecretValue()

LISTENERS = ownKey(
    "listeners",
    ListenerList(),
    "",
    "Where to listen, as in Kafka: `INSIDE://10.0.0.5:9092,OUTSIDE://:9093`. Or Twisted endpoint "
    "strings with `|` between them: "
    "`tcp:9092:interface=127.0.0.1 | tls:9093:privateKey=key.pem:clientCAs=ca.pem`. "
    "Double each backslash in the file.",
    derived="made of `port` and `listen.interface`",
)
ADVERTISED_LISTENERS = ownKey(
    "advertised.listeners",
    COMMA_SEPARATED_LIST,
    "",
    "Where clients find the listeners, by their names: `OUTSIDE://log1.example.org:9093`. Each "
    "client is told the address of the listener that it uses.",
    derived="the address in `listeners`, or else that which the client has reached",
)
SECURITY_PROTOCOL_MAP = ownKey(
    "listener.security.protocol.map",
    COMMA_SEPARATED_LIST,
    ",".join(f"{each}:{each}" for each in PROTOCOLS),
    "The protocols of listeners by their names: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or "
    "`SASL_SSL`.",
)
LISTENER_NAME = ownKey(
    "listener.name.",
    _SECRET,
    None,
    "Before the name of a listener in small letters, a dot and a key that begins with `ssl.`, or "
    "is `listener.dialect`, `sasl.enabled.mechanisms` or `connections.max.reauth.ms`: its value "
    "for this listener. And before `NAME.plain.sasl.jaas.config`: the users of PLAIN and their "
    "passwords, in Kafka's words; there, and before `NAME.scram-sha-512.sasl.jaas.config`, the "
    "`username` and `password` of this broker at others.",
    derived="none",
    isPrefix=True,
)
LISTENER_DIALECT = ownKey(
    "listener.dialect",
    Enum({AUTO: AUTO, KAFKA07: KAFKA07, KAFKA: KAFKA}),
    AUTO,
    "The protocol of clients: `kafka07`, `kafka` (the current one), or `auto`, by a "
    "connection's first request. A client of the current protocol that begins neither with "
    "ApiVersions nor with its client id needs `kafka`, which is what listeners with SASL speak.",
)
KEYSTORE_TYPE = ownKey(
    "ssl.keystore.type", _PEM, "PEM", "The type of the broker's key and certificates."
)
KEYSTORE_LOCATION = ownKey(
    "ssl.keystore.location",
    TEXT,
    "",
    "The file with the broker's private key and its chain of certificates, for listeners with TLS.",
)
KEYSTORE_KEY = ownKey(
    "ssl.keystore.key",
    _SECRET,
    "",
    "The private key itself, instead of `ssl.keystore.location`.",
)
KEYSTORE_CHAIN = ownKey(
    "ssl.keystore.certificate.chain",
    TEXT,
    "",
    "The certificates themselves, with `ssl.keystore.key`.",
)
KEY_PASSWORD = ownKey(
    "ssl.key.password", _SECRET, "", "The password of the private key, if it is encrypted."
)
TRUSTSTORE_TYPE = ownKey("ssl.truststore.type", _PEM, "PEM", "The type of the authorities' store.")
TRUSTSTORE_LOCATION = ownKey(
    "ssl.truststore.location",
    TEXT,
    "",
    "The file with the certificates of the authorities that sign those of clients.",
)
TRUSTSTORE_CERTIFICATES = ownKey(
    "ssl.truststore.certificates",
    TEXT,
    "",
    "These certificates themselves, instead of `ssl.truststore.location`.",
)
CLIENT_AUTH = ownKey(
    "ssl.client.auth",
    Enum({NONE: NONE, REQUESTED: REQUESTED, REQUIRED: REQUIRED}),
    NONE,
    "Whether clients of listeners with TLS show a certificate. For a listener with SASL, too, only "
    "the key with its name counts, as in Kafka.",
)
MAPPING_RULES = ownKey(
    "ssl.principal.mapping.rules",
    TEXT,
    DEFAULT_RULES,
    "How the subject of a client's certificate becomes its name, by the first of these rules that "
    "applies, with commas between them: `DEFAULT`, the whole subject, or "
    "`RULE:pattern/replacement/`, with `L` or `U` behind it for small or large letters: "
    "`RULE:^CN=(.*?),.*$/$1/L,DEFAULT`. Double each backslash in the file.",
)
ENABLED_MECHANISMS = ownKey(
    "sasl.enabled.mechanisms",
    COMMA_SEPARATED_LIST,
    f"{SCRAM_SHA_256},{SCRAM_SHA_512}",
    "The ways to authenticate on listeners with SASL: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`.",
)
MAX_RECEIVE_SIZE = ownKey(
    "sasl.server.max.receive.size",
    POSITIVE,
    "524288",
    "The largest request in bytes that a client may send before it has authenticated.",
)
MAX_REAUTH_MS = ownKey(
    "connections.max.reauth.ms",
    NOT_NEGATIVE,
    "0",
    "How long an authentication holds, in milliseconds; clients authenticate again before. Later "
    "requests close their connection. 0: for ever.",
)
FAILED_DELAY_MS = ownKey(
    "connection.failed.authentication.delay.ms",
    NOT_NEGATIVE,
    "100",
    "How long the answer to a failed authentication is held back, in milliseconds.",
)

INTER_BROKER_LISTENER = ownKey(
    "inter.broker.listener.name",
    TEXT,
    "",
    "The name of the listener by which brokers of a cluster reach one another. It speaks Kafka's "
    "current protocol.",
    derived="the first listener with `security.inter.broker.protocol`, or the first one that "
    "speaks the current protocol",
)
INTER_BROKER_PROTOCOL = ownKey(
    "security.inter.broker.protocol",
    Enum({"": "", **{each: each for each in PROTOCOLS}}),
    "",
    "The protocol of the listener by which brokers reach one another, instead of "
    "`inter.broker.listener.name`.",
)
INTER_BROKER_MECHANISM = ownKey(
    "sasl.mechanism.inter.broker.protocol",
    Enum({each: each for each in MECHANISMS}),
    SCRAM_SHA_512,
    "How a broker authenticates to another one, where that listener has SASL: with the `username` "
    "and the `password` in this mechanism's `sasl.jaas.config` of the listener. This user needs "
    "`ClusterAction`, or is one of `super.users`.",
)

_OF_LISTENER: tuple[ConfigKey[Any], ...] = (
    LISTENER_DIALECT,
    KEYSTORE_TYPE,
    KEYSTORE_LOCATION,
    KEYSTORE_KEY,
    KEYSTORE_CHAIN,
    KEY_PASSWORD,
    TRUSTSTORE_TYPE,
    TRUSTSTORE_LOCATION,
    TRUSTSTORE_CERTIFICATES,
    CLIENT_AUTH,
    MAPPING_RULES,
    ENABLED_MECHANISMS,
    MAX_REAUTH_MS,
)
_KEYS_OF_LISTENER = {key.key: key for key in _OF_LISTENER}
_JAAS_MODULES = {
    f"{mechanism.lower()}.sasl.jaas.config": _PLAIN_MODULE if mechanism == PLAIN else _SCRAM_MODULE
    for mechanism in MECHANISMS
}


class TlsStores(NamedTuple):
    """
    Key and certificates of a listener: files, or the PEM texts themselves.

    @ivar key: a text; else the key is in C{location}, and the chain, too.
    @ivar authoritiesLocation: the file of those that sign clients' certificates; C{authorities}
        are the texts. Without both, no certificate of a client is checked.
    @ivar clientAuth: L{NONE}, L{REQUESTED} or L{REQUIRED}.
    """

    location: str = ""
    key: str = ""
    chain: str = ""
    keyPassword: str = ""
    authoritiesLocation: str = ""
    authorities: str = ""
    clientAuth: str = NONE


class Listener(NamedTuple):
    """
    A listener.

    @ivar name: in capital letters.
    @ivar endpoint: a Twisted endpoint string; C{""}: see C{interface} and C{port}.
    @ivar interface: an address or a name; C{""}: all addresses of IPv4.
    @ivar port: 0 takes any free one.
    @ivar protocol: one of L{PROTOCOLS}.
    @ivar advertisedHost: for clients; C{""}: that which they have reached.
    @ivar advertisedPort: likewise; 0.
    @ivar stores: L{None} without TLS, and for an endpoint string.
    @ivar principalRules: how the subjects of clients' certificates become their names.
    @ivar mechanisms: of SASL.
    @ivar plainUsers: passwords by user.
    @ivar logins: the name and the password of this broker at other brokers, by mechanism.
    @ivar maxReauthMs: 0: an authentication holds for ever.
    """

    name: str = PLAINTEXT
    endpoint: str = ""
    interface: str = ""
    port: int = 0
    protocol: str = PLAINTEXT
    advertisedHost: str = ""
    advertisedPort: int = 0
    dialect: str = AUTO
    stores: TlsStores | None = None
    principalRules: str = DEFAULT_RULES
    mechanisms: tuple[str, ...] = ()
    plainUsers: Mapping[str, str] = {}
    logins: Mapping[str, tuple[str, str]] = {}
    maxReauthMs: int = 0

    @property
    def isTls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def isSasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    def __str__(self) -> str:
        return self.endpoint or f"{self.name}://{self.interface}:{self.port}"


def readListeners(settings: Any, warn: Warn = lambda sentence: None) -> tuple[Listener, ...]:
    """
    The listeners of a broker's settings.

    @param settings: L{pylogbroker.config.brokersettings.BrokerSettings}.
    @param warn: called with a sentence for each key of a listener that has no effect.
    @raise ConfigurationError: the settings contradict each other, and how.
    """
    protocols = _protocols(settings.listenerSecurityProtocolMap)
    advertised = {}
    for text in settings.advertisedListeners:
        name, host, port = _address(ADVERTISED_LISTENERS.key, text)
        if name in advertised:
            raise ConfigurationError(f"{ADVERTISED_LISTENERS.key}: {name} is there twice")
        if host in _WILDCARDS[1:] or not port:
            raise ConfigurationError(
                f"{ADVERTISED_LISTENERS.key}: no client can reach {text}: give an address and a"
                " port"
            )
        advertised[name] = host, port
    overrides = dict(settings.listenerName)
    found: list[Listener] = []
    for text in settings.listeners:
        listener = _listener(text, protocols)
        if not listener.endpoint and any(listener.name == each.name for each in found):
            raise ConfigurationError(f"{LISTENERS.key}: {listener.name} is there twice")
        host, port = advertised.get(listener.name, ("", 0))
        if not port and listener.interface not in _WILDCARDS:
            host = listener.interface
        listener = listener._replace(advertisedHost=host, advertisedPort=port)
        found.append(_Reader(listener, settings, overrides).read())
    unknown = sorted(advertised.keys() - {each.name for each in found})
    if unknown:
        raise ConfigurationError(
            f"{ADVERTISED_LISTENERS.key}: there is no listener {', '.join(unknown)}"
        )
    prefixes = tuple(f"{each.name.lower()}." for each in found)
    for name in overrides:
        mine = [name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)]
        if not any(key in _KEYS_OF_LISTENER or key in _JAAS_MODULES for key in mine):
            warn(f"{LISTENER_NAME.key}{name}: there is no such listener or key: it has no effect")
    return tuple(found)


def interBrokerListener(settings: Any, listeners: Sequence[Listener]) -> Listener | None:
    """
    The listener by which brokers reach one another.

    @param settings: L{pylogbroker.config.brokersettings.BrokerSettings}.
    @param listeners: of these settings.
    @return: L{None}: no listener speaks the current protocol, and no setting names one.
    @raise ConfigurationError: the settings name a listener that cannot be used, or two.
    """
    name, protocol = settings.interBrokerListenerName.upper(), settings.securityInterBrokerProtocol
    if name and protocol:
        raise ConfigurationError(
            f"{INTER_BROKER_LISTENER.key} and {INTER_BROKER_PROTOCOL.key} exclude each other: set"
            " one"
        )
    wanted = INTER_BROKER_LISTENER.key if name else INTER_BROKER_PROTOCOL.key
    candidates = [
        each
        for each in listeners
        if (not name or each.name == name) and (not protocol or each.protocol == protocol)
    ]
    if not candidates and (name or protocol):
        raise ConfigurationError(f"{wanted}={name or protocol}: there is no such listener")
    for each in candidates:
        if each.dialect != KAFKA07:
            return each
    if name or protocol:
        raise ConfigurationError(
            f"{wanted}={name or protocol}: the listener must speak Kafka's current protocol:"
            f" {LISTENER_DIALECT.key} is {KAFKA07}"
        )
    return None


def _protocols(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, colon, protocol = pair.partition(":")
        if not (name and colon) or protocol.upper() not in PROTOCOLS:
            raise ConfigurationError(
                f"{SECURITY_PROTOCOL_MAP.key}: {pair!r} is not NAME:PROTOCOL with one of"
                f" {', '.join(PROTOCOLS)}"
            )
        found[name.upper()] = protocol.upper()
    return found


def _address(key: str, text: str) -> tuple[str, str, int]:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[4]) > _PORT_MAX:
        raise ConfigurationError(f"{key}: {text!r} is not NAME://HOST:PORT")
    return match[1].upper(), match[2] or match[3] or "", int(match[4])


def _listener(text: str, protocols: Mapping[str, str]) -> Listener:
    if not ListenerList.isKafkas(text):
        isTls = text.startswith(("tls:", "ssl:"))
        name = SSL if isTls else PLAINTEXT
        listener = Listener(name, endpoint=text, protocol=protocols.get(name, name))
        if listener.isTls != isTls:
            raise ConfigurationError(
                f"{SECURITY_PROTOCOL_MAP.key}: {name} is {listener.protocol}, and {text!r} is not"
            )
        return listener
    name, host, port = _address(LISTENERS.key, text)
    if name not in protocols:
        raise ConfigurationError(
            f"{SECURITY_PROTOCOL_MAP.key} has no protocol for the listener {name}"
        )
    return Listener(name, "", host, port, protocols[name])


class _Reader:
    """Reads the settings of one listener: its own, or those of all."""

    def __init__(self, listener: Listener, settings: Any, overrides: Mapping[str, str]) -> None:
        self._listener = listener
        self._settings = settings
        self._prefix = f"{listener.name.lower()}."
        self._overrides = overrides

    def read(self) -> Listener:
        listener = self._listener
        dialect = self._value(LISTENER_DIALECT)
        stores = self._stores() if listener.isTls and not listener.endpoint else None
        if not listener.isSasl:
            rules = self._value(MAPPING_RULES)
            return listener._replace(dialect=dialect, stores=stores, principalRules=rules)
        if dialect == KAFKA07:
            raise ConfigurationError(
                f"{LISTENER_DIALECT.key}: {listener.name} has SASL, which {KAFKA07} does not know"
            )
        mechanisms: tuple[str, ...] = self._value(ENABLED_MECHANISMS)
        for each in mechanisms:
            if each not in MECHANISMS:
                raise ConfigurationError(
                    f"{ENABLED_MECHANISMS.key}: {each} is none of {', '.join(MECHANISMS)}"
                )
        users: dict[str, str] = {}
        logins: dict[str, tuple[str, str]] = {}
        for mechanism in mechanisms:
            options = self._jaas(f"{mechanism.lower()}.sasl.jaas.config")
            if options.get("username") and options.get("password"):
                logins[mechanism] = options["username"], Secret(options["password"])
            if mechanism == PLAIN:
                users = {
                    key.removeprefix(_USER): Secret(value)
                    for key, value in options.items()
                    if key.startswith(_USER)
                }
        return listener._replace(
            dialect=KAFKA,
            stores=stores,
            mechanisms=mechanisms,
            plainUsers=users,
            logins=logins,
            maxReauthMs=self._value(MAX_REAUTH_MS),
        )

    def _own(self, key: ConfigKey[T]) -> T | None:
        text = self._overrides.get(self._prefix + key.key)
        if text is None:
            return None
        kind: PropertyType[T] = key.type
        try:
            return kind.parse(str(text), lambda sentence: None)
        except ValueError as error:
            raise ConfigurationError(
                f"{LISTENER_NAME.key}{self._prefix}{key.key}: {error}"
            ) from error

    def _value(self, key: ConfigKey[T]) -> T:
        own = self._own(key)
        found: T = getattr(self._settings, key.name) if own is None else own
        return found

    def _stores(self) -> TlsStores:
        for key in (KEYSTORE_TYPE, TRUSTSTORE_TYPE):
            self._value(key)  # there is one value of each; others are errors
        auth = self._own(CLIENT_AUTH) if self._listener.isSasl else self._value(CLIENT_AUTH)
        stores = TlsStores(
            self._value(KEYSTORE_LOCATION),
            self._value(KEYSTORE_KEY),
            self._value(KEYSTORE_CHAIN),
            self._value(KEY_PASSWORD),
            self._value(TRUSTSTORE_LOCATION),
            self._value(TRUSTSTORE_CERTIFICATES),
            auth or NONE,
        )
        name = self._listener.name
        if bool(stores.key) != bool(stores.chain) or bool(stores.key) == bool(stores.location):
            raise ConfigurationError(
                f"{name} has TLS: it needs either {KEYSTORE_LOCATION.key}, or both of"
                f" {KEYSTORE_KEY.key} and {KEYSTORE_CHAIN.key}"
            )
        isTrusting = bool(stores.authoritiesLocation or stores.authorities)
        if stores.clientAuth != NONE and not isTrusting:
            raise ConfigurationError(
                f"{CLIENT_AUTH.key}={stores.clientAuth} needs {TRUSTSTORE_LOCATION.key} ({name})"
            )
        return stores

    def _jaas(self, key: str) -> dict[str, str]:
        """The options of a module; errors do not repeat the text, which has passwords."""
        text = self._overrides.get(self._prefix + key)
        if text is None:
            return {}
        where = f"{LISTENER_NAME.key}{self._prefix}{key}"
        match = _JAAS.fullmatch(text)
        if match is None:
            raise ConfigurationError(f'{where}: is not MODULE required key="value" ...;')
        if match[1] != _JAAS_MODULES[key]:
            raise ConfigurationError(f"{where}: {match[1]} is not {_JAAS_MODULES[key]}")
        return {
            name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            for name, value in _JAAS_OPTION.findall(match[2])
        }
