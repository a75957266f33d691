"""
Figures as text: the exposition format of Prometheus, version 0.0.4, which every system of that kind
reads.

A L{Family} is what one name stands for. Names, and names of labels, are ours and fixed; values of
labels are topics and other people's words, and are escaped.
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
    All values of one name.

    @ivar name: with the unit at its end, and C{_total} behind that for a counter, as is the custom
        there.
    @ivar kind: L{COUNTER} (only ever grows, from the process's start) or L{GAUGE}.
    @ivar sentence: what it means, for people.
    """

    name: str
    kind: str
    sentence: str
    samples: Sequence[Sample]


def render(families: Iterable[Family]) -> bytes:
    """The text. A family without values is left out."""
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
