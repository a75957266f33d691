"""
A program that writes batches to a store until it is killed, and what its first batches make.
"""

from __future__ import annotations

import sys
from random import Random

from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine

TOPIC_ID = bytes(range(16))
WRITE_BUFFER_SIZE = 64 << 10
"""Small, so that there are many tables, generations and compactions."""


def batch(number: int) -> list[tuple[bytes, bytes | None]]:
    """The entries of a batch, the same at each call."""
    random = Random(number)
    return [
        (
            b"%04d" % random.randrange(2000),
            None if random.random() < 0.2 else random.randbytes(random.randrange(200)),
        )
        for _ in range(random.randrange(100))
    ]


def stateAfter(count: int) -> dict[bytes, bytes]:
    """What the first batches make."""
    state: dict[bytes, bytes] = {}
    for number in range(count):
        for key, value in batch(number):
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    return state


def openStore(directory: str, onDamaged: object = None) -> RocksDbEngine:
    """A store with small memtables."""
    return RocksDbEngine(
        directory,
        onDamaged if callable(onDamaged) else lambda reason: sys.exit(f"damaged: {reason}"),
        writeBufferSize=WRITE_BUFFER_SIZE,
    )


def writeBatch(engine: RocksDbEngine, number: int) -> None:
    """Write a batch; the mark is how many batches there are."""
    engine.write(batch(number), ChangelogMark(TOPIC_ID, number + 1))


def main(directory: str) -> None:
    """Go on behind the last batch, and print how many there are after each one."""
    engine = openStore(directory)
    count = 0 if engine.mark is None else engine.mark.offset
    while True:
        writeBatch(engine, count)
        count += 1
        sys.stdout.write(f"{count}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
