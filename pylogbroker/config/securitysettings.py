"""
Access to a cluster: ZooKeeper credentials, and the endpoint of a broker. All roles and tools share
these keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.listenersettings import MECHANISMS, SCRAM_SHA_512, SecretValue
from pylogbroker.config.properties import Properties, readProperties
from pylogbroker.config.propertytypes import TEXT, EndpointTemplate, Enum, SecretText, Warn
from pylogbroker.errors import ConfigurationError

ZK_DIGEST = ownKey(
    "zk.digest", SecretText(), "",
    "Name and password for ZooKeeper's scheme *digest*, `user:password`. "
    "Protect the file that holds them.",
)  # fmt: skip
ZK_ACL = ownKey(
    "zk.acl", Enum({word: word for word in ("readable", "private", "open")}), "readable",
    "With `zk.digest`, the rights of others on new nodes: `readable`, read them; `private`, none; "
    "`open`, all.",
)  # fmt: skip
BROKER_ENDPOINT = ownKey(
    "broker.endpoint", EndpointTemplate(), "",
    "The way to a broker, as a Twisted client endpoint string: "
    "`tls:{host}:{port}:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. "
    "Empty: plain TCP.",
)  # fmt: skip


class SecuritySettings(Settings):
    """
    Access to a cluster. The defaults mean no credentials and plain TCP.
    """

    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    brokerEndpoint = BROKER_ENDPOINT

    @classmethod
    def read(cls, path: str | None, changes: Iterable[str]) -> Self:
        """
        Read a property file that may hold other keys, too, such as a producer's. Blocks.

        @param path: the property file; L{None} for none.
        @param changes: C{key=value} each, which override the file.
        @raise ConfigurationError: as C{fromProperties}; the file cannot be read; a change names an
            unknown key.
        """
        own = {key.key for key in cls.keys}
        properties = Properties() if path is None else readProperties(path)
        for key in set(properties) - own:
            del properties[key]
        return cls.fromProperties(properties.withOverrides(changes), _refuse)

    def asProperties(self) -> dict[str, str]:
        """The texts for the property file of a producer or a consumer of Kafka 0.7."""
        return {key.key: getattr(self, key.name) for key in SecuritySettings.keys}


class ToolSettings(SecuritySettings):
    """
    Access of a command, which may be to a broker of today's Kafka. The defaults mean no password.
    """

    saslMechanism = ownKey(
        "sasl.mechanism",
        Enum({word: word for word in MECHANISMS}),
        SCRAM_SHA_512,
        "With `sasl.username`, how to authenticate to a broker of today's Kafka.",
    )
    saslUsername = ownKey(
        "sasl.username",
        TEXT,
        "",
        "The name by which a command authenticates; empty: it does not.",
    )
    saslPassword = ownKey("sasl.password", SecretValue(), "", "The user's password.")

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        requireSaslPair(values)


def requireSaslPair(values: Mapping[str, Any]) -> None:
    """
    @param values: of a role that has both keys.
    @raise ConfigurationError: C{sasl.username} or C{sasl.password} is set without the other one.
    """
    if bool(values["saslUsername"]) != bool(values["saslPassword"]):
        raise ConfigurationError("sasl.username and sasl.password need each other")


def _refuse(sentence: str) -> None:
    raise ConfigurationError(sentence)


PLAIN = SecuritySettings.fromProperties({})
"""No credentials, no TLS."""
