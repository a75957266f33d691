"""
What a broker costs a test: C{python -m tests.benchmarks.intests}.

Three rows: a test with the fixture C{kafka_broker} and a topic of its own, less the same test
without them; the reset alone; and the start of a C{LocalBroker} in a process that is already up.
Issue 12 asks for less than 2 s for a hundred tests, and less than 20 ms for the start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.localbroker import LocalBroker

ROOT = Path(__file__).resolve().parent.parent.parent
_BARE = """
import pytest
from confluent_kafka import Producer

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    Producer({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
"""
_FIXTURE = """
import pytest
from confluent_kafka import Producer

@pytest.mark.parametrize("number", range({count}))
def test_it(kafka_broker, number):
    servers = kafka_broker.bootstrapServers
    producer = Producer({{"bootstrap.servers": servers, "log_level": 0}})
    producer.produce(f"topic-{{number}}", b"x")
    assert producer.flush(60) == 0
"""


def testRun(text: str, count: int) -> tuple[float, float]:
    """
    Seconds of a run of pytest with so many tests: by the clock, and of processor time, with the
    broker's.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_it.py")
        path.write_text(text.format(count=count), encoding="utf-8")
        words = ["-q", "-p", "pylogbroker.testing.pytestplugin", "-p", "no:cacheprovider"]
        started, before = time.monotonic(), _childSeconds()
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, "-c", os.devnull, "--rootdir", folder, path],
            cwd=ROOT,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.monotonic() - started, _childSeconds() - before


def _childSeconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def resets(count: int) -> list[float]:
    """Seconds of each reset."""
    found = []
    with BackgroundBroker() as broker:
        for _ in range(count):
            started = time.monotonic()
            broker.reset()
            found.append(time.monotonic() - started)
    return found


def starts(count: int) -> list[float]:
    """Seconds of each start of a broker in this process. Runs the reactor, and ends it."""
    found: list[float] = []

    async def run(reactor: Any) -> None:
        for _ in range(count + 1):
            started = time.monotonic()
            broker = LocalBroker(reactor)
            await broker.start()
            found.append(time.monotonic() - started)
            await broker.stop()

    try:
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    except SystemExit:
        pass
    return found[1:]  # the first one imports


def measure(count: int) -> None:
    """Print the rows."""
    bare, fixture = testRun(_BARE, count), testRun(_FIXTURE, count)
    seconds, processor = (one - other for one, other in zip(fixture, bare, strict=True))
    print(
        f"{count} tests with kafka_broker and a topic each add {seconds:.2f} s,"
        f" and {processor:.2f} s of processor time"
    )
    for name, found in (("reset", resets(count)), ("start of a LocalBroker", starts(count))):
        middle, most = statistics.median(found), max(found)
        print(f"{name}: median {middle * 1000:.1f} ms, at most {most * 1000:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    measure(parser.parse_args().count)
