"""
Log directories that Apache Kafka left, stopped in order and killed, and what it answered before
(L{tests.oracle.directoryrecording}).
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from tests.goldenfiles import GOLDEN

FOLDER = Path(GOLDEN) / "kafka43" / "directories"
NAMES = ("clean", "killed")
NODE_ID = 1

Picture = dict[str, Any]
"""What clients see of a broker, as JSON."""


def extract(name: str, directory: str | Path) -> Picture:
    """Unpack a recorded directory; return what Apache answered from it."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(directory)  # our own; Debian 12's Python has no filters yet
    found: Picture = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found
