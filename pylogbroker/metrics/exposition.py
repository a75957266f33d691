"""
The Prometheus text format, version 0.0.4.

Names of metrics and labels are ours; label values come from outside and are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTER = "counter"
GAUGE = "gauge"

_NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    """One value."""

    value: float
    labels: Mapping[str, str] = _NO_LABELS


class Family(NamedTuple):
    """
    All values of one metric.

    @ivar name: with its unit as a suffix, and C{_total} for a counter.
    @ivar kind: L{COUNTER} (grows from the start of the process) or L{GAUGE}.
    @ivar sentence: the help text.
    """

    name: str
    kind: str
    sentence: str
    samples: Sequence[Sample]


def render(families: Iterable[Family]) -> bytes:
    """The text; families without values are left out."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += (
                f"# HELP {family.name} {_escape(family.sentence)}",
                f"# TYPE {family.name} {family.kind}",
            )
            lines += [
                f"{family.name}{_labels(sample.labels)} {_number(sample.value)}"
                for sample in family.samples
            ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace") if lines else b""


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return (
        "{"
        + ",".join(
            '{}="{}"'.format(name, _escape(value).replace('"', '\\"'))
            for name, value in labels.items()
        )
        + "}"
    )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)
