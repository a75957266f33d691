"""The scenarios, by what they are about."""

from __future__ import annotations

from importlib import import_module

from tests.oracle.steps import REGISTERED, Scenario

_MODULES = (
    "versions",
    "topics",
    "configs",
    "produce",
    "idempotence",
    "fetch",
    "offsets",
    "groups",
    "positions",
    "transactions",
    "security",
    "authorization",
    "sasl",
    "consumergroups",
    "malformed",
)


def scenarios() -> dict[str, Scenario]:
    """All of them, by name, in the order in which they run."""
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
    return REGISTERED
