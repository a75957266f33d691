"""
The error texts of C{multi}, and the limit of its size, for the ZooKeeper client and its fake.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogbroker.errors import MultiFailedException, RequestSizeException, ZookeeperError
from pylogbroker.interfaces import (
    CheckOperation,
    CreateOperation,
    DeleteOperation,
    SetOperation,
    ZookeeperOperation,
)

MULTI_SIZE_MAX = 1_000_000
"""
Bytes of a C{multi}. A server takes 1,048,575 (C{jute.maxbuffer}), and closes the connection of a
client that sends more: that looks like any other lost connection.
"""

_OPERATION_SIZE = 200
"""Bytes of an operation besides its path and data, at most, with a usual access control list."""

_NAMES: dict[type, str] = {
    CreateOperation: "create",
    SetOperation: "set",
    DeleteOperation: "delete",
    CheckOperation: "check",
}


def requireSize(operations: Sequence[ZookeeperOperation]) -> None:
    """@raise RequestSizeException: the operations are larger than L{MULTI_SIZE_MAX} together."""
    size = 0
    for operation in operations:
        size += _OPERATION_SIZE + len(operation.path.encode())
        if isinstance(operation, CreateOperation | SetOperation):
            size += len(operation.data)
    if size > MULTI_SIZE_MAX:
        raise RequestSizeException(
            f"a multi of {len(operations)} operations with {size} bytes; {MULTI_SIZE_MAX} are "
            "possible"
        )


def refused(
    operations: Sequence[ZookeeperOperation], index: int, kind: type[ZookeeperError]
) -> MultiFailedException:
    """
    The error of a C{multi} that changed nothing.

    @param kind: why the operation was refused.
    """
    operation = operations[index]
    text = f"{_NAMES[type(operation)]} {operation.path}: {kind.__doc__}"
    return MultiFailedException(index, len(operations), kind(text))
