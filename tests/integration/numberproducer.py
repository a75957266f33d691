"""
A process with an audited producer of numbered messages, that goes only as far as it is told to.

    python -m tests.integration.numberproducer '{"topic": …, "count": 1000000, "size": 200,
    "properties": {…}}'

reads numbers from standard input, a line each: how many messages it may have sent by now. It ends
when it has sent them all, and published their counts; the exit status is 0 if all of them, and all
counts, have succeeded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.stdio import StandardIO
from twisted.internet.task import react
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.protocols.basic import LineOnlyReceiver

from pylogbroker.audit.envelope import HEAD_SIZE, unwrapEnvelope
from pylogbroker.auditor.auditedproducer import AuditedProducer
from tests.integration.brokerprocess import ROOT

HOST = "web1"


def numberIn(stored: bytes) -> int:
    """Of a message as it is in the log."""
    return int(unwrapEnvelope(stored).split()[0])


class Leash(LineOnlyReceiver):
    """
    What is told on standard input.

    @ivar allowedCount: so many may have been sent.
    """

    delimiter = b"\n"

    def __init__(self) -> None:
        self.allowedCount = 0
        self._waiting: Deferred[None] | None = None

    def lineReceived(self, line: bytes) -> None:
        self.allowedCount = int(line)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    async def beyond(self, count: int) -> None:
        """Until more than so many are allowed."""
        while self.allowedCount <= count:
            self._waiting = Deferred()
            await self._waiting


async def run(reactor: Any, options: dict[str, Any]) -> None:
    """See the module."""
    leash = Leash()
    StandardIO(leash, reactor=reactor)
    settings = {
        "producer.type": "async",
        "batch.size": "200",
        "queue.time": "10",
        "confirm": "true",
        "audit.host": HOST,
        **options["properties"],
    }
    producer = AuditedProducer(reactor, settings)
    await producer.start()
    payloadSize = options["size"] - HEAD_SIZE - len(HOST)
    for number in range(options["count"]):
        if number >= leash.allowedCount:
            await leash.beyond(number)
        await producer.whenReady()
        producer.send(options["topic"], (b"%d " % number).ljust(payloadSize, b".")).addErrback(
            lambda _failure: None
        )  # which is counted
    await producer.close()
    counters = producer.counters
    if counters.failedCount or counters.unknownCount or producer.counts.leftOutCount:
        raise RuntimeError(f"not all that was to be sent was: {counters}")


class NumberProducer:
    """
    The process, for tests.
    """

    def __init__(
        self, topic: str, count: int, size: int, properties: Mapping[str, str], logPath: str
    ) -> None:
        """
        @param size: of each message, envelope included.
        @param logPath: where it writes what it says.
        """
        self._options = {
            "topic": topic,
            "count": count,
            "size": size,
            "properties": dict(properties),
        }
        self._logPath = logPath
        self._allowedCount = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Nothing is sent yet."""
        command = [
            sys.executable,
            "-m",
            "tests.integration.numberproducer",
            json.dumps(self._options),
        ]
        with open(self._logPath, "wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def _input(self) -> IO[bytes]:
        assert self._process is not None and self._process.stdin is not None
        return self._process.stdin

    def allow(self, count: int) -> None:
        """
        So many may have been sent.

        @raise AssertionError: it has failed.
        """
        assert self._process is not None
        if self._process.poll():
            raise AssertionError(
                "the producer has ended with"
                f" {self._process.returncode}\n{Path(self._logPath).read_text(encoding='utf-8')}"
            )
        if count > self._allowedCount and self._process.returncode is None:
            self._allowedCount = count
            self._input.write(b"%d\n" % count)
            self._input.flush()

    def end(self, secondsMax: float = 0) -> int:
        """
        Close its input, and wait for its end, or bring it about.

        @return: the exit status.
        """
        process = self._process
        if process is None:
            return 0
        self._input.close()
        try:
            return process.wait(secondsMax)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False)
    react(lambda reactor: ensureDeferred(run(reactor, json.loads(sys.argv[1]))))
