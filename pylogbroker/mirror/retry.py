"""
Reports of what the mirror tries again until it works: a warning when it first fails and whenever the reason changes, a line when it is over.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from pylogbroker.retry import RESEND_DELAYS, Backoff, Outage

log = Logger()


def loggedOutage(random: Callable[[], float], sentence: str) -> Outage:
    """
    The failures of one operation, which are logged.

    @param random: numbers from 0 up to, not including, 1.
    @param sentence: what fails, for the log.
    """
    return Outage(
        Backoff(random, RESEND_DELAYS),
        lambda error: log.warn(
            "{sentence}: {error}. It is tried again until it works", sentence=sentence, error=error
        ),
        lambda: log.info("Over: {sentence}", sentence=sentence),
    )
