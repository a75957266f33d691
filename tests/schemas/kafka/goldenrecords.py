"""
Records of a C{_schemas} topic as Confluent's registry writes them; C{tests/golden/README.md} says
where they come from.
"""

from __future__ import annotations

from tests.goldenfiles import GOLDEN


def goldenRecords() -> list[tuple[str, str | None]]:
    """Key and value of each record, in the topic's order."""
    with open(f"{GOLDEN}/confluent/schemas.tsv", encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split("\t") for line in file]
    return [(key, None if value == "null" else value) for key, value in pairs]
