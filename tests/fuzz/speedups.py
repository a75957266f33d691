"""
C{python -m tests.fuzz.speedups [--count N] [--seed N] [--bare]}: random and mutated input for the
functions in Python and those in C, which must give the same results and the same errors.

The C module is built with AddressSanitizer and UndefinedBehaviorSanitizer, which end the process at
the first access outside of an object; C{--bare} goes without them. Python's own allocator is
switched off then, since it would hide such accesses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import crc32c

from pylogbroker.cluster.kafkapartitioner import pureMurmur2
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import BatchHeader
from pylogbroker.protocol.kafka07 import requests
from pylogbroker.records import columns, messageset, recordbatch
from pylogbroker.records.batchbuilder import PureRecordEncoder
from pylogbroker.records.compression import GZIP, NONE
from pylogbroker.records.kafka07format import pureValidatePlain
from pylogbroker.records.recordcheck import pureAreOrdinary
from pylogbroker.types import TopicPartition
from tests.nativemodule import ROOT, build, loadModule

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
_EDGES = (0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
_SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 60, 63, 64, 65, 127, 128, 129, 200, 300, 5_000)
_NUMBERS = (0, 1, -1, 63, 64, -64, -65, 8_191, 8_192, 1 << 31, -(1 << 31), (1 << 63) - 1, -1 << 63)


class _Row(NamedTuple):
    """A class for rows with fields before and behind those of a record."""

    before: str
    place: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    behind: int


def mutated(random: Random, data: bytes) -> bytes:
    """The data with up to four changes; sometimes with none."""
    found = bytearray(data)
    for _change in range(random.randrange(5)):
        at = random.randrange(len(found) + 1)
        kind = random.randrange(5)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            found[at:at] = random.randbytes(random.choice(_SIZES[:12]))
        elif kind == 2:
            del found[at : at + random.choice(_SIZES[:12])]
        elif at < len(found):
            found[at] = random.choice(_EDGES) if kind == 3 else random.randrange(256)
    return bytes(found)


def outcome(values: Callable[[], Any]) -> tuple[Any, ...]:
    """What a function gives: all values of an iterator up to its end or its error."""
    found = []
    try:
        given = values()
        if not isinstance(given, Iterator):
            return given, None
        for each in given:
            found.append(each)
    except (PylogbrokerError, OverflowError) as error:
        return found, type(error), str(error)
    return found, None


def columnsOf(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], list[Any], list[Any], dict]:
    """Rows of timestamp, key, value and headers, as an encoder takes them."""
    headers = {index: row[3] for index, row in enumerate(rows) if row[3]}
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], headers


class Comparison:
    """
    Compares the functions in Python with those in C. Each method makes one random case.
    """

    def __init__(self, native: Any, random: Random) -> None:
        self._native = native
        self._random = random

    def _both(self, module: ModuleType, values: Callable[[], Any]) -> None:
        """The same call, with and without the C module in a module that uses it."""
        pure = outcome(values)
        before = module.native
        module.native = self._native  # type: ignore[attr-defined]
        try:
            found = outcome(values)
        finally:
            module.native = before  # type: ignore[attr-defined]
        assert found == pure, f"{found!r} in C, {pure!r} in Python"

    def _same(self, found: Any, pure: Any) -> None:
        assert found == pure, f"{found!r} in C, {pure!r} in Python"

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice(_SIZES))

    def _field(self) -> bytes | None:
        return self._bytes() if self._random.randrange(4) else None

    def _headers(self) -> tuple[tuple[str, bytes | None], ...]:
        random = self._random
        if random.randrange(3):
            return ()
        names = ("", "a", "trace-id", "ключ", "\U0001f600" * 3)
        return tuple(
            (random.choice(names), self._field()) for _ in range(random.choice((1, 2, 70)))
        )

    def checksums(self) -> None:
        data, before = self._bytes(), self._random.getrandbits(32)
        self._same(self._native.crc32(data, before), zlib.crc32(data, before))
        self._same(self._native.crc32(memoryview(data)), zlib.crc32(data))
        self._same(self._native.crc32c(data, before), crc32c.crc32c(data, before))
        self._same(self._native.crc32c(data), crc32c.crc32c(data))

    def hashes(self) -> None:
        data = self._bytes()
        self._same(self._native.murmur2(data), pureMurmur2(data))

    def _fill(self, encoder: Any, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        middle = self._random.randrange(len(rows) + 1)
        for some in (rows[:middle], rows[middle:]):
            encoder.extend(*columnsOf(some))
        numbers = encoder.count, encoder.size, encoder.baseMs, encoder.maxTimestampMs
        return (*numbers, encoder.take(), encoder.size)

    def _rows(self) -> list[tuple[Any, ...]]:
        random = self._random
        baseMs = random.choice((0, 1_700_000_000_000))
        return [
            (
                baseMs + random.choice((0, 1, 63, 64, 70_000, 1 << 33)),
                self._field(),
                self._field(),
                self._headers(),
            )
            for _ in range(random.choice((0, 1, 3, 20)))
        ]

    def encoding(self) -> None:
        rows = self._rows()
        pure = self._fill(PureRecordEncoder(), rows)
        self._same(self._fill(self._native.RecordEncoder(), rows), pure)

    def _body(self) -> tuple[bytes, int]:
        rows = self._rows()
        encoder = PureRecordEncoder()
        encoder.extend(*columnsOf(rows))
        count = max(0, len(rows) + self._random.choice((0, 0, 0, 0, 1, -1)))
        return mutated(self._random, encoder.take()), count

    def rows(self) -> None:
        body, count = self._body()
        random = self._random
        header = BatchHeader(
            *(random.choice(_NUMBERS), 0, -1, 2, 0, random.choice((0, 0, 8)), 0),
            *(random.choice(_NUMBERS), random.choice(_NUMBERS), -1, -1, -1, count),
        )
        data = recordbatch.assembleBatch(header, body)
        read = recordbatch.readHeader(data)
        start = random.choice((recordbatch.FROM_ALL, 0, 2, header.baseOffset))
        place = TopicPartition("topic", 3)
        self._both(recordbatch, lambda: recordbatch.iterateRecords(data, 0, read))
        self._both(
            recordbatch,
            lambda: recordbatch.iterateRows(_Row, place, (7,), start, data, 0, read),
        )

    def arrow(self) -> None:
        """Several batches, of which one may be damaged, in columns of few rows or bytes."""
        random = self._random
        batches = []
        for number in range(3):
            body, count = self._body()
            header = BatchHeader(
                *(number * 100, 0, -1, 2, 0, random.choice((0, 0, 8)), 0),
                *(random.choice(_NUMBERS), 5, -1, -1, -1, count),
            )
            data = recordbatch.assembleBatch(header, body)
            batches.append((data, 0, recordbatch.readHeader(data)))
        limits = random.choice((0, 2)), random.choice((101, 1 << 62))
        sizes = random.choice((1, 7, 1_000)), random.choice((0, 500, 1 << 20))
        self._both(columns, lambda: columns.recordColumns(batches, *limits, *sizes))

    def order(self) -> None:
        body, count = self._body()
        choice = self._random.choice
        limits = [choice((*_NUMBERS, -1 << 70, 1 << 70)) for _ in range(2)]
        largest = choice((None, None, 0, 64, 1 << 80))
        given = (body, count, choice((False, True)), min(limits), max(limits), largest)
        if self._native.areOrdinary(*given):
            assert pureAreOrdinary(*given), "ordinary in C, not in Python"
        elif max(limits) < 1 << 63 and min(limits) > -1 << 63:
            assert not pureAreOrdinary(*given), "ordinary in Python, not in C"

    def _set(self) -> bytes:
        random = self._random
        payloads = [self._bytes() for _ in range(random.choice((0, 1, 3, 20)))]
        codec = random.choice((NONE, NONE, NONE, GZIP))
        return messageset.encodeSet(payloads, codec, random.choice((1, 1, 1, 0)))

    def sets(self) -> None:
        data = self._set() + self._set() + self._set()
        payloads = [self._bytes() for _ in range(3)]
        self._both(messageset, lambda: messageset.encodeSet(payloads))
        data = mutated(self._random, data)
        base = self._random.choice((0, 5, 1 << 40))
        self._both(messageset, lambda: messageset.MessageSet(data, base).payloads())
        self._both(columns, lambda: columns.columnBatches(data, base))

    def validation(self) -> None:
        sets = [mutated(self._random, self._set()) for _ in range(3)]
        sizeMax = self._random.choice((100, 1_000_000))
        self._same(self._native.validatePlain(sets, sizeMax), pureValidatePlain(sets, sizeMax))

    def frames(self) -> None:
        random = self._random
        data = b"".join(
            random.choice(
                (
                    lambda: requests.encodeProduce("topic", random.randrange(3), self._bytes()),
                    lambda: requests.encodeProduce("τόπος" * random.randrange(120), 0, b"set"),
                    lambda: requests.encodeOffsets("topic", 1, -1, 5),
                )
            )()
            for _ in range(random.randrange(12))
        )
        data = mutated(random, data)
        cut = random.randrange(len(data) + 1)

        def taken() -> Iterator[Any]:
            decoder = requests.RequestDecoder(random.choice((6_000,)))
            for piece in (data[:cut], data[cut:]):
                decoder.feed(piece)
                while (request := decoder.takeRequest()) is not None:
                    yield request
            yield decoder.heldSize

        self._both(requests, taken)

    def everything(self) -> None:
        """One case of each kind."""
        self.checksums()
        self.hashes()
        self.encoding()
        self.rows()
        self.arrow()
        self.order()
        self.sets()
        self.validation()
        self.frames()


def _compare(path: Path, seed: int, count: int) -> None:
    native = loadModule(path)
    for number in range(count):
        try:
            Comparison(native, Random(seed + number)).everything()
        except BaseException:
            sys.stderr.write(f"the case of seed {seed + number} failed\n")
            raise
    sys.stdout.write(f"{count} cases of each kind from seed {seed} on: no difference\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.speedups",
        description="Random input for the functions in Python and those in C.",
    )
    parser.add_argument("--count", type=int, default=20_000, help="cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case (%(default)s)")
    parser.add_argument("--bare", action="store_true", help="without the sanitizers")
    parser.add_argument("--module", type=Path, help="one that is built already")
    options = parser.parse_args(arguments)
    if options.module is not None:
        _compare(options.module, options.seed, options.count)
        return 0
    with TemporaryDirectory() as name:
        flags = {} if options.bare else {"CFLAGS": SANITIZERS, "LDFLAGS": SANITIZERS}
        path = build(Path(name), flags)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if not options.bare:
            found = subprocess.run(
                ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
            )
            environment |= {
                "LD_PRELOAD": found.stdout.strip(),
                "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves much behind
                "PYTHONMALLOC": "malloc",
            }
        command = [sys.executable, "-m", "tests.fuzz.speedups", "--module", str(path)]
        done = subprocess.run(
            [*command, "--count", str(options.count), "--seed", str(options.seed)],
            env=environment,
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
