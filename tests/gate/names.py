"""
C{python -m tests.gate.names}: the names of all modules and public classes, for a reader who guesses
their meaning without seeing the code (C{docs/results/names.md}).
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "pylogbroker"


def names() -> list[str]:
    """A line for each module with its public classes."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name.startswith("__"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [
            node.name
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        lines.append(f"{module}: {', '.join(classes)}" if classes else module)
    return lines


if __name__ == "__main__":
    print("\n".join(names()))
