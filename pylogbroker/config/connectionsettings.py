"""
How to get at a cluster: credentials for ZooKeeper, and how brokers are reached. The keys mean the same to every role and to every tool, and are
described here for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from pylogbroker.config.keys import ConfigKey, readSettings
from pylogbroker.config.properties import parseProperties, readProperties
from pylogbroker.config.propertytypes import EndpointTemplate, Enum, SecretText
from pylogbroker.errors import ConfigurationError

_ours = partial(ConfigKey, isKafkaKey=False)

DIGEST_ROW = _ours(
    "zk.digest", "zookeeperDigest", SecretText(), "",
    "Name and password for ZooKeeper, `user:password`, for its scheme *digest*. Protect the file that it stands in.",
)  # fmt: skip
ACL_ROW = _ours(
    "zk.acl", "zookeeperAcl", Enum("readable", "private", "open"), "readable",
    "With `zk.digest`, who else may do what with the nodes that are created: `readable`, read them; `private`, nothing; `open`, everything.",
)  # fmt: skip
ENDPOINT_ROW = _ours(
    "broker.endpoint", "brokerEndpoint", EndpointTemplate(), "",
    "How to reach a broker, as a Twisted client endpoint string: `tls:{host}:{port}:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. "
    "None: plain TCP.",
)  # fmt: skip

ACCESS_ROWS: tuple[ConfigKey, ...] = (DIGEST_ROW, ACL_ROW, ENDPOINT_ROW)
"""All keys that a tool understands."""


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """How to get at a cluster. Each is explained by its row in L{ACCESS_ROWS}; without any, there are no credentials, and brokers are reached by plain TCP."""

    zookeeperDigest: str = field(default="", repr=False)
    zookeeperAcl: str = "readable"
    brokerEndpoint: str = ""

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> AccessSettings:
        """
        @raise ConfigurationError: names every key that is wrong, its value (unless that is a secret) and what would be right, a line each.
        """
        return cls(**cast("dict[str, Any]", readSettings(ACCESS_ROWS, properties, warn)))

    @classmethod
    def read(cls, path: str | None, changes: Iterable[str]) -> AccessSettings:
        """
        From a file that others read, too, as a producer's or a consumer's own. Blocks.

        What the file says beside is somebody else's. A change can only be meant for us, so that an unknown key is an error there.

        @param path: of a property file; L{None} for none.
        @param changes: C{key=value} each, over the file's.
        @raise ConfigurationError: as C{fromProperties}; the file cannot be read; a change names no key of ours.
        """
        own = {row.key for row in ACCESS_ROWS}
        properties = parseProperties("") if path is None else readProperties(path)
        for key in set(properties) - own:
            del properties[key]
        return cls.fromProperties(properties.withOverrides(changes), _refuse)

    def asProperties(self) -> dict[str, str]:
        """As they would stand in the property file of a producer or a consumer."""
        return {
            "zk.digest": self.zookeeperDigest,
            "zk.acl": self.zookeeperAcl,
            "broker.endpoint": self.brokerEndpoint,
        }


def _refuse(sentence: str) -> None:
    raise ConfigurationError(sentence)


PLAIN = AccessSettings()
"""No credentials, no TLS."""
