"""
An environment that has C{heronpy}: its packages, with an old C{protobuf}, in a folder of their own.
They come from the package registry once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# heronpy's own pins are older: protobuf 3.16.0 and cloudpickle 1.5, which do not know Python 3.11's
# functions.
PACKAGES = ("heronpy==0.20.5", "protobuf==3.20.3", "cloudpickle>=3,<4", "setuptools<81", "six")
FOLDER = Path(sys.prefix, "heronpy")


def heronPython() -> str:
    """
    The path of a Python that has them.

    @raise subprocess.CalledProcessError: they cannot be installed.
    """
    python = FOLDER / "bin" / "heron-python"
    if not python.exists():
        packages = FOLDER / "packages"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--no-deps"),
                *("--target", str(packages), *PACKAGES),
            ],
            check=True,
            capture_output=True,
        )
        python.parent.mkdir(exist_ok=True)
        python.write_text(
            f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
    return str(python)
