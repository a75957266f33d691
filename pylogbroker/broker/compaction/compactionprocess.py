"""
Compaction as a process: C{python -m pylogbroker.broker.compaction.compactionprocess}. It reads a
request, a line of JSON, and writes a result. It is a module of its own, since it is a program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from threading import Thread
from time import monotonic, sleep  # noqa: TID251 - the process has no reactor
from typing import Any, TextIO

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.kafka.compaction import (
    CompactedGroup,
    CompactionRequest,
    CompactionResult,
)

_NICE = 10


def encodeRequest(request: CompactionRequest) -> str:
    """The line that asks for a compaction, without its end."""
    return json.dumps(asdict(request))


def decodeRequest(text: str) -> CompactionRequest:
    """What L{encodeRequest} made."""
    return CompactionRequest(**json.loads(text))


def encodeResult(result: CompactionResult) -> str:
    """The result, as text."""
    return json.dumps(asdict(result))


def decodeResult(text: str) -> CompactionResult:
    """What L{encodeResult} made."""
    fields: dict[str, Any] = json.loads(text)
    groups = [CompactedGroup(**each) for each in fields.pop("groups")]
    return CompactionResult(groups=groups, **fields)


def serve(
    read: TextIO, write: TextIO, fileSystem: IFileSystem, onRequest: Callable[[], object]
) -> None:
    """
    Do one request: a line of JSON comes, and one goes.

    @param onRequest: called when it has come.
    """
    # The broker, which imports this module for its texts, never compacts.
    from pylogbroker.broker.compaction.segmentrewrite import compact

    request = decodeRequest(read.readline())
    onRequest()
    answer: dict[str, Any]
    try:
        result = compact(fileSystem, request, sleep, monotonic)
        answer = {"result": encodeResult(result)}
    except StorageError as error:
        answer = {
            "path": error.path,
            "action": error.action,
            "reason": error.reason,
            "errno": error.errno,
            "isCorrupt": isinstance(error, CorruptLogError),
        }
    write.write(json.dumps(answer) + "\n")
    write.flush()


def decodeAnswer(text: str) -> CompactionResult:
    """
    What L{serve} wrote.

    @raise StorageError: why the compaction did not work.
    """
    answer: dict[str, Any] = json.loads(text)
    if "result" in answer:
        return decodeResult(answer["result"])
    kind = CorruptLogError if answer.pop("isCorrupt") else StorageError
    raise kind(**answer)


def _exitWithInput() -> None:
    """The input ends when the broker is gone, or wants no result."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def main() -> None:
    """Run, with low priority, over the files of this machine."""
    os.nice(_NICE)
    serve(sys.stdin, sys.stdout, RealFileSystem(), _exitWithInput)


if __name__ == "__main__":
    main()
