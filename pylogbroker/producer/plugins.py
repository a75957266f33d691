"""
Things that properties name: encoders, partitioners, event senders and hooks, by the dotted name under which Python can import them.

A class is made without arguments, as in 0.7 (spec-0.7 producer §1). Kafka's own names of what is built in are known by table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pylogbroker.errors import ConfigurationError


def loadPlugin(key: str, name: str, builtIn: Mapping[str, Any], method: str | None = None) -> Any:
    """
    What a property names.

    @param key: the property's, for texts.
    @param builtIn: what is not imported.
    @param method: for what is a function, or an object with this method: the function is returned, whichever it is.
    @raise ConfigurationError: it cannot be imported or made, or is not of that kind; the text says why.
    """
    if name in builtIn:
        return builtIn[name]
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise ConfigurationError(
            f"{key}={name}: a dotted name is needed, package.module.Class{_known(builtIn)}"
        )
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a foreign module may raise whatever it likes
        raise ConfigurationError(
            f"{key}={name}: cannot be imported: {error}{_known(builtIn)}"
        ) from error
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"{key}={name}: cannot be made without arguments: {error}"
            ) from error
    return found if method is None else callableOf(key, found, method)


def callableOf(key: str, found: Any, method: str) -> Callable[..., Any]:
    """
    A function, or an object's method of a name.

    @raise ConfigurationError: it is neither.
    """
    named = getattr(found, method, None)
    chosen = named if callable(named) else found
    if not callable(chosen):
        raise ConfigurationError(
            f"{key}: {found!r} is neither a function nor has it a method {method}"
        )
    return chosen  # type: ignore[no-any-return]


def _known(builtIn: Mapping[str, Any]) -> str:
    return f" (built in: {', '.join(builtIn)})" if builtIn else ""
