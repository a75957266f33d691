"""
Starts: a cold one of a broker's process, up to its first answer; one in a process that is up; and
what tests with a broker add.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.benchmarks.kafka.frames import BlockingClient
from tests.benchmarks.kafka.servers import oursCommand, residentSize
from tests.benchmarks.servers import ROOT, cpuSeconds

START_SECONDS_MAX = 60
TOPIC_COUNT = 100
PLUGIN = "pylogbroker.testing.pytestplugin"

LOCAL_BROKER = """
import json, sys, time
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from pylogbroker.testing.localbroker import LocalBroker

async def run():
    seconds = []
    for _ in range(6):
        broker = LocalBroker(reactor)
        begun, used = time.perf_counter(), time.process_time()
        await broker.start()
        seconds.append((time.perf_counter() - begun, time.process_time() - used))
        await broker.stop()
    print(json.dumps(seconds))

reactor.callWhenRunning(
    lambda: Deferred.fromCoroutine(run()).addBoth(
        lambda result: (result and print(result), reactor.stop())
    )
)
reactor.run()
"""

FIXTURE_TEST = """
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

@pytest.mark.parametrize("number", range({count}))
def test_it(kafka_broker, number):
    admin = AdminClient({{"bootstrap.servers": kafka_broker.bootstrapServers}})
    admin.create_topics([NewTopic(f"t{{number}}", 1, 1)])[f"t{{number}}"].result(30)
"""


def _freePort() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _connect(port: int, process: subprocess.Popen[bytes]) -> BlockingClient:
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return BlockingClient(port)
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the broker did not start") from None
            time.sleep(0.005)


def _environment(*first: Path) -> dict[str, str]:
    """Modules are compiled once, as in an installation, whatever this process does."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*first, ROOT)))}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def coldStart(command: list[str], port: int, *first: Path) -> tuple[float, int]:
    """
    Processor seconds and bytes of memory up to the answers to ApiVersions and Metadata.

    @param first: where modules are looked for first.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(*first),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with _connect(port, process) as client:
                client.ask(
                    ApiKey.API_VERSIONS,
                    3,
                    messages.ApiVersionsRequest(
                        clientSoftwareName="bench", clientSoftwareVersion="1"
                    ),
                )
                client.ask(ApiKey.METADATA, 12, messages.MetadataRequest(topics=[]))
                return cpuSeconds(process.pid), residentSize(process.pid)
        finally:
            process.terminate()
            process.wait()


def _twistd(folder: str, port: int) -> list[str]:
    return oursCommand({"log.dir": folder, "port": str(port)})


def _dev(_folder: str, port: int) -> list[str]:
    return [sys.executable, "-m", "pylogbroker", "dev", "--port", str(port)]


def coldStarts(count: int, folder: Path) -> list[list[str]]:
    """
    Rows: how it was started, median of the processor seconds, and of the memory in MiB. Twisted
    imports pyOpenSSL where it is installed, by the extra C{tls}; the others do not have it.
    """
    hiding = folder / "hiding"
    hiding.mkdir()
    (hiding / "OpenSSL.py").write_text('raise ImportError("hidden for a benchmark")\n')
    rows = []
    for name, command, *first in (
        ("twistd pylogbroker", _twistd, hiding),
        ("pylogbroker dev", _dev, hiding),
        ("twistd pylogbroker, extra tls", _twistd),
        ("pylogbroker dev, extra tls", _dev),
    ):
        found = []
        for number in range(count + 1):
            with tempfile.TemporaryDirectory() as data:
                port = _freePort()
                one = coldStart(command(data, port), port, *first)
            if number:  # the first may compile modules
                found.append(one)
        seconds, size = median(one[0] for one in found), median(one[1] for one in found)
        rows.append([name, f"{seconds:.3f}", f"{size / (1 << 20):.1f}"])
    return rows


def _python(*arguments: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def localBrokerSeconds(folder: Path) -> list[tuple[float, float]]:
    """
    Of each start in one process, by the clock and of the processor; the first includes what is
    imported only then.
    """
    return [(one[0], one[1]) for one in json.loads(_python("-c", LOCAL_BROKER, folder=folder))]


def fixtureSeconds(folder: Path) -> tuple[float, float]:
    """
    What a hundred tests add, each with a topic of its own, to a run of one test: by the clock, and
    of the processor, client and broker together.
    """
    seconds = []
    for count in (1, 1 + TOPIC_COUNT):
        path = folder / f"test_{count}.py"
        path.write_text(FIXTURE_TEST.format(count=count), encoding="utf-8")
        begun, used = time.monotonic(), _childrenSeconds()
        _python("-m", "pytest", "-q", "-p", PLUGIN, str(path), folder=folder)
        seconds.append((time.monotonic() - begun, _childrenSeconds() - used))
    return seconds[1][0] - seconds[0][0], seconds[1][1] - seconds[0][1]


def _childrenSeconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
