"""
The configuration that comes with pylogbroker: C{etc/broker.properties}.

There is one copy in the source tree, in C{etc/}, where people look for it. A wheel carries it beside this module, since an installed
package has no C{etc/}; C{setup.py} copies it there. So this module looks beside itself first and in the tree second.
"""

from __future__ import annotations

from pathlib import Path

NAME = "broker.properties"


def samplePath(package: Path = Path(__file__).parent) -> Path:
    """
    Where the sample configuration lies.

    @param package: the folder of C{pylogbroker.config}; a parameter for the tests.
    @raise FileNotFoundError: neither beside the module nor in the source tree: the installation is not whole.
    """
    for place in (package / NAME, package.parent.parent / "etc" / NAME):
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"{NAME} is neither in {package} nor in the source tree: install pylogbroker again"
    )


def sampleText() -> str:
    """The sample configuration, as text."""
    return samplePath().read_text(encoding="utf-8")
