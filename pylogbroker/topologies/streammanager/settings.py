"""
The limits and delays of a stream manager. A module of its own, since each part of it reads them.
"""

from __future__ import annotations

from typing import NamedTuple


class StreamManagerSettings(NamedTuple):
    """
    What can be set.

    @ivar messageTimeout: seconds after which a tree of tuples has failed; 0: never.
    @ivar highWaterMark: bytes that wait for one instance or one other stream manager, above which
        all spouts of the topology are stopped.
    @ivar lowWaterMark: bytes below which they may go on.
    @ivar queueSizeMax: bytes that wait for one of them, above which entries are dropped.
    @ivar instanceWindow: bytes under way to an instance that it has not handled.
    @ivar peerWindow: bytes under way to another stream manager that it has not confirmed.
    @ivar holdTime: seconds for which entries are held for an instance or a stream manager that has
        disconnected. Then they are dropped until it connects again.
    @ivar firstHoldTime: as C{holdTime}, for one that this stream manager has not seen yet: since
        the first entry. It is longer, since all processes of a topology start together.
    @ivar treeCountMax: trees of one spout instance that can be followed; those above fail at once.
    """

    messageTimeout: float = 30.0
    highWaterMark: int = 4 << 20
    lowWaterMark: int = 2 << 20
    queueSizeMax: int = 64 << 20
    instanceWindow: int = 128 << 10
    peerWindow: int = 1 << 20
    holdTime: float = 15.0
    firstHoldTime: float = 60.0
    treeCountMax: int = 1_000_000
