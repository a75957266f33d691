"""
Chooses at import between the hot loops in Python and those in C.

Every one of these functions is written in Python; that is the default, and what all tests run on.
An installation may also have C{pylogbroker._speedups}, built on request from C{_speedups.c}
(docs/decisions/0023): then the modules that own the functions take theirs from there, unless the
environment has L{VARIABLE}. Results and errors are the same.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

VARIABLE = "PYLOGBROKER_PURE_PYTHON"
"""A variable of the environment: if it is not empty, the C module is not loaded."""

MODULE = "pylogbroker._speedups"

_F = TypeVar("_F")


class Choice(NamedTuple):
    """
    @ivar native: the C module; L{None}: Python runs alone.
    @ivar description: which it is, and why, for C{--version}.
    """

    native: Any
    description: str


def choose(environment: Mapping[str, str], name: str = MODULE) -> Choice:
    """
    @param name: of the C module.
    """
    if environment.get(VARIABLE):
        return Choice(None, f"pure Python, since {VARIABLE} is set")
    try:
        return Choice(importlib.import_module(name), "with the C speed-up")
    except ModuleNotFoundError:
        return Choice(None, "pure Python; the C speed-up was not built")
    except ImportError as error:
        return Choice(None, f"pure Python; the C speed-up cannot be loaded: {error}")


native, description = choose(os.environ)


def chosen(name: str, pure: _F) -> _F:
    """
    A function, or a class, of the C module, if that is loaded.

    @param name: of it there.
    @param pure: the one in Python.
    """
    return pure if native is None else getattr(native, name)
