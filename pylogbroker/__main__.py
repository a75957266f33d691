"""
C{python -m pylogbroker} is the command C{pylogbroker}.
"""

from __future__ import annotations

import sys

from pylogbroker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
