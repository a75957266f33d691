"""
The program: C{python -m pylogbroker} is the command C{pylogbroker}.

Python looks for garbage each time some hundred objects are made. What imports make is none: it
stays. So there are no collections before the command's modules are there, and later ones pass over
them: a tenth of the time that C{pylogbroker dev} takes up to its first answer.
"""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run the command of this process. @return: its exit code."""
    gc.disable()
    from pylogbroker.cli.main import main as run

    return run(onPrepared=_keepImports)


def _keepImports() -> None:
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    sys.exit(main())
