"""
The long run of the decoders: coverage-guided fuzzing by atheris, over every promise of
L{tests.fuzz.promises}. By hand, with the extra C{fuzz}::

    python -m tests.fuzz.atheris_decoders --seconds 3600

The first byte of an input picks the promise, the rest is for it. A child process fuzzes, since
libFuzzer ends its process with itself; this one counts, and closes with what
C{docs/results/fuzz-atheris.md} keeps: seed, versions, figures. Exit status 1, and the input in
full, when a promise was broken. With the same seed, the same versions and the same number of runs,
the same inputs are tried.
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.record import opening, say

INPUT_SIZE_MAX = 8192
MEMORY_SIZE_MAX_MB = 1024
INPUT_SECONDS_MAX = 20
COUNTERS_VARIABLE = "PYLOGBROKER_FUZZ_COUNTERS"


def fuzz(arguments: list[str]) -> None:
    """The child: never returns."""
    import atheris

    with atheris.instrument_imports(include=["pylogbroker"]):
        from tests.fuzz.promises import PROMISES

    promises = list(PROMISES.values())
    count = len(promises)
    with open(os.environ[COUNTERS_VARIABLE], "r+b") as file:
        counters = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def one(data: bytes) -> None:
        if data:
            which = data[0] % count
            counters[which] += 1
            promises[which](data[1:])

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.atheris_decoders", description="Fuzz the decoders with atheris."
    )
    parser.add_argument("--seconds", type=int, default=3600, help="how long (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=20110612, help="libFuzzer's seed, not 0 (%(default)s)"
    )
    options = parser.parse_args()

    from tests.fuzz.golden import samples
    from tests.fuzz.promises import PROMISES

    opening({"seed": str(options.seed), "seconds": str(options.seconds)}, "atheris")
    with tempfile.TemporaryDirectory(prefix="pylogbroker-fuzz-") as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        sampleCount = 0
        for which, name in enumerate(PROMISES):
            for number, sample in enumerate(samples(name)):
                (corpus / f"{which}-{number:03}").write_bytes(
                    bytes([which]) + sample[: INPUT_SIZE_MAX - 1]
                )
                sampleCount += 1
        counters = Path(folder, "counters")
        counters.write_bytes(bytes(8 * len(PROMISES)))
        say(f"samples: {sampleCount}")
        arguments = [
            f"-seed={options.seed}",
            f"-max_total_time={options.seconds}",
            f"-max_len={INPUT_SIZE_MAX}",
            f"-rss_limit_mb={MEMORY_SIZE_MAX_MB}",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-artifact_prefix={folder}/broken-",
            "-print_final_stats=1",
            str(corpus),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", COUNTERS_VARIABLE: str(counters)}
        command = [sys.executable, "-m", "tests.fuzz.atheris_decoders", "--child", *arguments]
        last = ""
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if re.match(r"#\d", line):
                    last = line.strip()
                    if "pulse" not in line:
                        continue
                if "# Uses:" in line:
                    continue
                say(line.replace(folder, "").rstrip())
        say(f"last: {last}")
        values = memoryview(counters.read_bytes()).cast("q")
        say(f"inputs tried: {sum(values)}")
        for which, name in enumerate(PROMISES):
            say(f"  {name}: {values[which]}")
        coverage = re.search(r"cov: (\d+) ft: (\d+)", last)
        say(
            f"edges and features reached: {coverage.group(1) if coverage else '?'},"
            f" {coverage.group(2) if coverage else '?'}"
        )
        say(f"inputs kept: {len(list(corpus.iterdir()))}")
        broken = sorted(Path(folder).glob("broken-*"))
        for path in broken:
            data = path.read_bytes()
            say(
                f"BROKEN {path.name}:"
                f" {list(PROMISES)[data[0] % len(PROMISES)] if data else 'empty'} {data[1:].hex()}"
            )
        say(f"status of libFuzzer: {child.returncode}; promises broken: {len(broken)}")
        return 1 if broken or child.returncode else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2:])
    else:
        raise SystemExit(main())
