"""
The contract of our clients with a cluster (L{tests.contracts.kafkaclients}), on Apache Kafka 4.3.1.

    python -m tests.long.kafkacontract               # every scenario
    python -m tests.long.kafkacontract keyed tls     # some
    python -m tests.long.kafkacontract --record      # and write the conversations for the gate
    python -m tests.long.kafkacontract --faults      # with each fault, on our broker

Needs Java, and Maven the first time, but for C{--faults}. Prints a page, with the requests of each
scenario, or the runs with faults. The exit status is 0 if the contract was kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.protocol.kafka import saslclient
from tests.contracts.conversations import writeConversation
from tests.contracts.injections import SESSION_TIMEOUT_MS, FaultRunner, injections
from tests.contracts.kafkaclients import (
    LISTENERS,
    PLAINTEXT,
    SCENARIOS,
    ContractCluster,
    FixedSecrets,
    brokerSettings,
    perform,
)
from tests.contracts.recorder import Recorder
from tests.contracts.test_kafkaclients import ContractBroker
from tests.integration.certificates import Authority
from tests.long.telling import tell, tellStart
from tests.oracle.apachebroker import VERSION, apacheProcess, fetchKafka, freePort

SCENARIO_SECONDS_MAX = 120


async def runAll(
    reactor: Any,
    recorder: Recorder,
    cluster: ContractCluster,
    names: Sequence[str],
    isWriting: bool,
) -> int:
    """
    Run scenarios, and print a table of them.

    @return: how many have failed.
    """
    failed = 0
    tell(f"{'scenario':>20} {'seconds':>8} {'requests':>9} {'recorded':>9} {'bytes':>8}")
    for name in names:
        recorder.begin()
        startedAt = time.monotonic()
        running = Deferred.fromCoroutine(perform(reactor, cluster, name, f"{name}-"))
        running.addTimeout(SCENARIO_SECONDS_MAX, reactor)
        problem: Exception | None = None
        try:
            await running
        except Exception as error:  # told below; the others run all the same
            problem = error
        seconds = time.monotonic() - startedAt
        conversation, count = recorder.end()
        recordedCount = len(conversation.exchanges)
        size = 0
        if isWriting and problem is None:
            size = writeConversation(name, conversation)
        tell(f"{name:>20} {seconds:>8.2f} {count:>9} {recordedCount:>9} {size:>8}")
        if problem is not None:
            failed += 1
            tell(f"    {problem!r}")
    tell(f"{len(names) - failed} of {len(names)} scenarios kept the contract")
    return failed


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


async def runFaults(reactor: Any, names: Sequence[str], folder: str) -> int:
    """
    Run scenarios with every fault, and print a table of them.

    @return: how many runs have failed.
    """
    more = {"group.min.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
    server = ContractBroker(folder, more)
    runner = FaultRunner(reactor, server.broker, await server.start())
    failed = runCount = 0
    tell(f"{'scenario':>20} {'seconds':>8} {'runs':>6} {'unmet':>6} {'broken':>7}")
    for name in names:
        startedAt = time.monotonic()
        unmetCount, broken = 0, []
        todo = list(injections(name, await runner.requests(name)))
        for each in todo:
            try:
                unmetCount += not await runner.inject(each)
            except Exception as error:  # told below; the others run all the same
                broken.append(f"    {each}: {error!r}")
        seconds = time.monotonic() - startedAt
        tell(f"{name:>20} {seconds:>8.1f} {len(todo):>6} {unmetCount:>6} {len(broken):>7}")
        for text in broken:
            tell(text)
        failed += len(broken)
        runCount += len(todo)
    tell(f"{runCount - failed} of {runCount} runs kept the contract")
    await server.broker.stop()
    return failed


async def main(reactor: Any, options: argparse.Namespace, folder: str) -> None:
    """
    @raise SystemExit: 1: the contract was not kept.
    """
    if options.faults:
        if await runFaults(reactor, options.scenario or SCENARIOS, folder):
            raise SystemExit(1)
        return
    authority, other = Authority(f"{folder}/a"), Authority(f"{folder}/b", "other")
    keystore = authority.issue("broker")
    recorder = Recorder(reactor, keystore, authority.trustFolder())
    await recorder.listen()
    ports = {name: freePort() for name in LISTENERS}
    controllerPort = freePort()
    settings = {
        **brokerSettings(keystore),
        "listeners": _listeners({**ports, "CONTROLLER": controllerPort}),
        "advertised.listeners": _listeners(recorder.ports),
        "listener.security.protocol.map": ",".join(
            ("CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in LISTENERS))
        ),
    }
    place = Path(folder, "broker")
    place.mkdir()
    taken = ports[PLAINTEXT], controllerPort
    with apacheProcess(fetchKafka(), settings, place, ports=taken):
        recorder.connect(ports)
        cluster = ContractCluster(
            {name: f"127.0.0.1:{number}" for name, number in recorder.ports.items()},
            authority.trustFolder(),
            other.trustFolder(),
        )
        names = options.scenario or SCENARIOS
        failed = await runAll(reactor, recorder, cluster, names, options.record)
    await recorder.stop()
    if failed:
        raise SystemExit(1)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.kafkacontract")
    parser.add_argument("--record", action="store_true", help="write the conversations")
    parser.add_argument("--faults", action="store_true", help="with faults, on our broker")
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}")
    options = parser.parse_args(arguments)
    unknown = {*options.scenario} - {*SCENARIOS}
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    given = parse(sys.argv[1:])
    tellStart("The contract of the clients", f"Apache Kafka {VERSION}")
    vars(saslclient)["secrets"] = FixedSecrets
    with tempfile.TemporaryDirectory() as temporary:
        react(main, (given, temporary))
