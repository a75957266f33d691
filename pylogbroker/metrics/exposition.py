"""
The Prometheus text format, version 0.0.4.

Names of metrics and labels are ours; label values come from outside and are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    @ivar sentence: the help text.
    """

    name: str
    sentence: str
    samples: Sequence[Sample]

    @property
    def kind(self) -> str:
        """L{COUNTER} (grows from the start of the process) or L{GAUGE}, as the name says."""
        return COUNTER if self.name.endswith("_total") else GAUGE


def scalar(
    name: str, sentence: str, value: float, labels: Mapping[str, str] = _NO_LABELS
) -> Family:
    """A metric with one value."""
    return Family(name, sentence, [Sample(value, labels)])


def families(
    prefix: str,
    metrics: Iterable[tuple[str, str, str]],
    rows: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]],
) -> list[Family]:
    """
    Metrics of rows of values, for example the counters of each topic.

    @param metrics: the name without the prefix, the key of the value, and the help text of each.
    @param rows: the labels and the values of each.
    """
    return [
        Family(
            f"{prefix}_{name}", sentence, [Sample(values[key], labels) for labels, values in rows]
        )
        for name, key, sentence in metrics
    ]


def render(families: Iterable[Family]) -> bytes:
    """The text; families without values are left out."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += (
                f"# HELP {family.name} {_escape(family.sentence)}\n",
                f"# TYPE {family.name} {family.kind}\n",
                *(
                    f"{family.name}{_labels(sample.labels)} {_number(sample.value)}\n"
                    for sample in family.samples
                ),
            )
    return "".join(lines).encode("utf-8", "replace")


def _labels(labels: Mapping[str, str]) -> str:
    texts = [
        '{}="{}"'.format(name, _escape(value).replace('"', '\\"')) for name, value in labels.items()
    ]
    return f"{{{','.join(texts)}}}" if texts else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)
