"""
C{python -m pylogbroker.config} prints the reference page of the settings, C{docs/settings.md},
which a test holds against the tables.
"""

from __future__ import annotations

import sys

from pylogbroker.config.referencepage import settingsPage

sys.stdout.write(settingsPage())
