"""
From the configuration of a component to the properties of a log spout or bolt. A module of its own,
since both have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.config.keys import Settings
from pylogbroker.errors import ConfigurationError


def logProperties(
    settings: type[Settings], config: Mapping[str, Any], own: Mapping[str, object]
) -> dict[str, str]:
    """
    The texts of the keys that a role has.

    @param config: of the component and the topology, which has other keys, too.
    @param own: given to the component itself; a key that the role does not have is a mistake.
    @raise ConfigurationError: there is such a key.
    """
    known = {key.key for key in settings.keys}
    unknown = sorted(set(own) - known)
    if unknown:
        raise ConfigurationError(
            f"{settings.__name__}: there is no key {', '.join(unknown)}; there are"
            f" {', '.join(sorted(known))}"
        )
    given = {**{key: each for key, each in config.items() if key in known}, **own}
    return {key: _text(value) for key, value in given.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
