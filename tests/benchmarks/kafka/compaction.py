"""Compaction of ten million keys: time, memory, and what another producer notices."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.compression import NONE
from tests.benchmarks.kafka.frames import (
    BlockingClient,
    batch,
    errorPlace,
    produceFrame,
)
from tests.benchmarks.kafka.servers import NativePrograms, Ours
from tests.benchmarks.servers import cpuSeconds

KEY_COUNT = 10_000_000
RECORD_COUNT = 12_000_000
"""The first two million keys come twice."""

BATCH = 1000
VALUE_SIZE = 100
PACED_SECONDS = 20
PACED_PAUSE_US = 2000
FIGURE_SECONDS_MAX = 1800
TOPIC = "keyed"
OTHER = "other"


def _children(processId: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{processId}/task").iterdir():
        try:
            found += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def _peakSize(processId: int) -> int:
    for line in Path(f"/proc/{processId}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _setCompact(client: BlockingClient) -> None:
    cls = messages.IncrementalAlterConfigsRequest
    configs = [
        cls.AlterableConfig(name=name, configOperation=0, value=value)
        for name, value in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"))
    ]
    resource = cls.AlterConfigsResource(resourceType=2, resourceName=TOPIC, configs=configs)
    answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[resource]))
    if answer.responses[0].errorCode:
        raise RuntimeError(f"the topic cannot be compacted: {answer.responses[0].errorMessage}")


def compactKeys(folder: Path, keyCount: int = KEY_COUNT) -> dict[str, float]:
    """
    One compaction, of the segments that are closed.

    @return: processes (runs), their seconds by the clock and of a processor, the largest memory of
        one; bytes of the log before and behind; latencies of another producer in milliseconds.
    """
    programs = NativePrograms(folder)
    settings = {"log.cleaner.backoff.ms": "1000"}
    path, paced = folder / "keyed", folder / "paced"
    recordCount = RECORD_COUNT * keyCount // KEY_COUNT
    with Ours(folder / "compaction", settings) as server, ThreadPoolExecutor(1) as pool:
        with BlockingClient(server.port) as client:
            client.createTopics([TOPIC], {"segment.bytes": str(128 << 20)})
            client.createTopics([OTHER])
        whole = produceFrame(TOPIC, b"", 1)
        path.write_bytes(whole[: whole.index(TOPIC.encode()) + len(TOPIC) + 1 + 4])
        programs.run(
            "keyed", server.port, path, recordCount // BATCH, BATCH, VALUE_SIZE, 0, keyCount
        )
        logs = folder / "compaction" / "logs" / f"{TOPIC}-0"
        before = sum(file.stat().st_size for file in logs.glob("*.log"))
        paced.write_bytes(produceFrame(OTHER, batch(1, NONE), 1))

        def producer() -> dict[str, float]:
            numbers = PACED_SECONDS, PACED_PAUSE_US, errorPlace(OTHER)
            return programs.run("paced", server.port, paced, *numbers)

        time.sleep(5)  # the disk takes in what was produced
        alone = producer()
        with BlockingClient(server.port) as client:
            if client.endOffset(TOPIC) != recordCount:
                raise RuntimeError("not all records were appended")
            _setCompact(client)
        if len(list(logs.glob("*.log"))) < 2:
            raise RuntimeError("no segment is closed, so nothing would be compacted: more keys")
        begun = lastSeen = 0.0
        runs: dict[int, tuple[float, int]] = {}
        during = None
        until = time.monotonic() + FIGURE_SECONDS_MAX
        while time.monotonic() < until:
            now = time.monotonic()
            for child in _children(server.processId):
                try:
                    size = max(_peakSize(child), runs.get(child, (0.0, 0))[1])
                    runs[child] = cpuSeconds(child), size
                except OSError:
                    continue
                begun, lastSeen = begun or now, now
            if begun and during is None:
                during = pool.submit(producer)
            if begun and now - lastSeen > 10:
                break
            time.sleep(0.05)
        assert during is not None
        return {
            "runs": len(runs),
            "seconds": lastSeen - begun,
            "cpuSeconds": sum(cpu for cpu, _ in runs.values()),
            "peakSize": max(size for _, size in runs.values()),
            "sizeBefore": before,
            "sizeBehind": sum(file.stat().st_size for file in logs.glob("*.log")),
            "p50Alone": alone["p50"],
            "p99Alone": alone["p99"],
            "p50During": during.result()["p50"],
            "p99During": during.result()["p99"],
        }
