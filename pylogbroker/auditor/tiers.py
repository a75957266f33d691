"""
What the auditor asks of a tier. Each kind of tier has a module of its own: a cluster of 2011's
protocol (L{pylogbroker.auditor.clustertier}), a cluster of today's
(L{pylogbroker.auditor.kafkatier}), a table (L{pylogbroker.auditor.tabletier}).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pylogbroker.auditor.messagecounter import MessageCounter


class IAuditTier(Protocol):
    """
    The reader of one tier. A pass calls L{readCounts}, then L{readData}, then L{lack}. Each message
    counts once, over all passes.

    @ivar name: of the tier.
    """

    name: str

    async def readCounts(self, counter: MessageCounter, sinceMs: int) -> None:
        """
        Begin a pass, and take the new reports of producers.

        @param sinceMs: the first pass may skip older reports.
        @raise PylogbrokerError: the tier, or a part of it, cannot be read; the next pass goes on
            behind what was taken.
        """

    async def readData(
        self, counter: MessageCounter, topics: Collection[str], sinceMs: int
    ) -> None:
        """
        Count the new messages of topics; none of those that the tier does not have.

        @param sinceMs: the first pass may skip older messages.
        @raise PylogbrokerError: as of L{readCounts}.
        """

    def lack(self, sinceMs: int) -> str:
        """
        The known parts of the tier that this pass has not found.

        @param sinceMs: parts last seen before this time are not missed.
        @return: a sentence; C{""} if nothing is missing.
        """

    def notes(self) -> list[str]:
        """What limits the result, a sentence each."""

    async def close(self) -> None:
        """Close all connections."""


def skippedNotes(name: str, skippedCount: int) -> list[str]:
    """
    What there is to say of deleted data.

    @param skippedCount: times that a partition did not begin or end at the reader's position.
    """
    if not skippedCount:
        return []
    return [f"{name}: {skippedCount} times data was deleted before it was counted"]
