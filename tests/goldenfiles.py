"""Where the recordings of 0.7.2 are."""

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
