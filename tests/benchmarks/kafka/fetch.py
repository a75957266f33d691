"""
Fetch: rate and processor time beside bare C{sendfile}, and what connections cost that wait.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pylogbroker.records.compression import NONE
from tests.benchmarks.kafka.frames import (
    BlockingClient,
    batch,
    errorPlace,
    fetchFrame,
    fetchOffsetPlace,
    produceFrame,
)
from tests.benchmarks.kafka.servers import Apache, NativePrograms, Ours, Yardstick, residentSize

FETCH_SIZE = 1 << 20
BATCH = 1000
BATCH_COUNT = 1200
"""Of the topic: 250 MB."""

TURN_SIZE = 2_000_000_000
WAITING_COUNT = 5000
WAIT_MS = 300_000
WATCH_SECONDS = 20
TOPIC = "fetched"


def _fill(programs: NativePrograms, server: Any, folder: Path) -> tuple[Path, int]:
    """The topic's records. Returns the request to fetch them, and the records of one response."""
    records = batch(BATCH, NONE)
    path = folder / "filling"
    path.write_bytes(produceFrame(TOPIC, records, 1))
    with BlockingClient(server.port) as client:
        client.createTopics([TOPIC])
        programs.run("produce", server.port, path, BATCH_COUNT, 5, errorPlace(TOPIC))
    path.write_bytes(fetchFrame(TOPIC, 0, FETCH_SIZE))
    return path, FETCH_SIZE // len(records) * BATCH


def fetchRows(folder: Path, roundCount: int, withApache: bool) -> list[list[str]]:
    """Rows: server, MB/s, processor seconds for a GB, and the share of bare sendfile's MB/s."""
    programs = NativePrograms(folder)
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(folder / "ours", {}))
        path, step = _fill(programs, ours, folder)
        segment = folder / "ours" / "logs" / f"{TOPIC}-0" / f"{0:020}.log"
        sides: dict[str, Any] = {
            "yardstick": stack.enter_context(
                Yardstick(programs, "serve", "0", str(segment), str(FETCH_SIZE))
            ),
            "ours": ours,
        }
        if withApache:
            sides["apache"] = stack.enter_context(Apache())
            _fill(programs, sides["apache"], folder)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(roundCount + 1):
            for name, server in sides.items():
                before = server.cpuSeconds()
                load = programs.run(
                    "fetch",
                    server.port,
                    path,
                    TURN_SIZE,
                    fetchOffsetPlace(TOPIC),
                    step,
                    BATCH * BATCH_COUNT,
                )
                cpu = server.cpuSeconds() - before
                if number:  # the first warms up
                    found[name].append((load["bytes"] / load["seconds"], cpu / load["bytes"]))
    rates = {name: median(rate for rate, _ in turns) for name, turns in found.items()}
    return [
        [
            name,
            f"{rates[name] / 1e6:.0f}",
            f"{median(cpu for _, cpu in turns) * 1e9:.3f}",
            f"{rates[name] / rates['yardstick']:.2f}",
        ]
        for name, turns in found.items()
    ]


def waitingFetches(folder: Path) -> tuple[float, float, float]:
    """
    Connections that each wait in a fetch at the end of a topic.

    @return: bytes of the broker for each, as connected and as waiting, and its share of a
        processor while all wait.
    """
    with Ours(folder / "waiting", {}) as server, ExitStack() as stack:
        with BlockingClient(server.port) as client:
            client.createTopics([TOPIC])
            for _ in range(3):  # what the first requests allocate is no connection's
                client.socket.sendall(fetchFrame(TOPIC, 0, FETCH_SIZE, waitMs=10))
                client.socket.recv(1 << 16)
        begun = residentSize(server.processId)
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(WAITING_COUNT)
        ]
        _settle(server)
        connected = residentSize(server.processId)
        request = fetchFrame(TOPIC, 0, FETCH_SIZE, waitMs=WAIT_MS)
        for connection in connections:
            connection.sendall(request)
        _settle(server)
        waiting = residentSize(server.processId)
        before = server.cpuSeconds()
        time.sleep(WATCH_SECONDS)
        share = (server.cpuSeconds() - before) / WATCH_SECONDS
    return (connected - begun) / WAITING_COUNT, (waiting - begun) / WAITING_COUNT, share


def _settle(server: Any) -> None:
    """Wait until the server has done what was asked."""
    before = -1.0
    while (now := server.cpuSeconds()) > before + 0.01:
        before = now
        time.sleep(0.5)
