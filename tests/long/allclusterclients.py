"""
The trial of L{tests.integration.clusterclients} with the Java client and Apache's console tools
beside the clients that need no JVM. No tool may fail; the console consumer gets what the console
producer has sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from tests.integration.chaosrun import Member
from tests.integration.clusterclients import (
    MODERN,
    PAUSE_SECONDS,
    START_SECONDS,
    ClusterClientsTrial,
)
from tests.integration.kafkatools import JavaProcess
from tests.integration.numberedmessages import CLICKS, KEY_COUNT

LOST_CONNECTION = "Unexpected key set"
"""
What Kafka's admin client says, instead of trying again, when it loses a connection while it asks
all brokers for their transactions (C{AllBrokersStrategy}).
"""


class _Tools:
    """
    Apache's console tools, one after another in a thread, until the end. Each must end well, even
    while a broker is away.
    """

    def __init__(self, java: JavaProcess, servers: str) -> None:
        self.broken: list[str] = []
        self.count = 0
        self.written: list[str] = []
        self.read: set[str] = set()
        self._java = java
        self._servers = servers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Wait for the tool that runs."""
        self._over.set()
        self._thread.join(START_SECONDS)

    def _run(self, tool: str, *arguments: str, lines: str = "") -> str:
        """What a tool has printed, if it has ended well."""
        if self._over.is_set():
            return ""
        server = ("--bootstrap-server", self._servers)
        run = self._java.run(tool, *server, *arguments, standardInput=lines.encode())
        self.count += 1
        if run.status and LOST_CONNECTION not in run.output:
            self.broken.append(f"{tool} {arguments} has ended with {run.status}: {run.output}")
        return run.output if not run.status else ""

    def _work(self) -> None:
        number = 0
        try:
            while not self._over.is_set():
                self._round(number)
                number += 1
        except Exception as error:
            self.broken.append(f"tools: {type(error).__name__} {error}")

    def _round(self, number: int) -> None:
        run, topic = self._run, f"tool{number}"
        run("TopicCommand", "--describe", "--topic", CLICKS, "--under-replicated-partitions")
        new = ("--partitions", "2", "--replication-factor", "2")
        run("TopicCommand", "--create", "--topic", topic, *new)
        entity = ("--entity-type", "topics", "--entity-name", topic)
        run("kafka.admin.ConfigCommand", "--alter", *entity, "--add-config", "retention.ms=77777")
        found = run("kafka.admin.ConfigCommand", "--describe", *entity)
        if found and "retention.ms=77777" not in found:
            self.broken.append(f"a setting of {topic} that was altered: {found}")
        run("TopicCommand", "--delete", "--topic", topic)
        groups = "consumer.group.ConsumerGroupCommand"
        run(groups, "--describe", "--group", "javaclassic")
        run("TransactionsCommand", "list")
        allow = ("--allow-principal", f"User:{topic}", "--topic", topic)
        run("AclCommand", "--add", *allow, "--producer")
        found = run("AclCommand", "--list", "--topic", topic)
        if found and f"User:{topic}" not in found:
            self.broken.append(f"an ACL that was added: {found}")
        run("AclCommand", "--remove", "--force", "--topic", topic)
        self._console(number)

    def _console(self, number: int) -> None:
        """The console producer tries three times only: its messages count if it ends well."""
        values = [f"{number}-{each}" for each in range(5)]
        lines = "".join(f"{value}\n" for value in values)
        topic = ("--topic", "console")
        marker = self.count
        failed = len(self.broken)
        self._run("ConsoleProducer", *topic, "--sync", lines=lines)
        if len(self.broken) > failed:
            self.broken.pop()
        elif self.count > marker:
            self.written += values
        self.consume("--timeout-ms", "3000")

    def consume(self, *arguments: str) -> None:
        """The console consumer, in a group that keeps its position."""
        group = ("--topic", "console", "--group", "console", "--from-beginning", *arguments)
        self.read.update(self._run("consumer.ConsoleConsumer", *group).splitlines())


class AllClientsTrial(ClusterClientsTrial):
    """One run. The verifiable producer gives up messages that may be stored later."""

    copiers = (*ClusterClientsTrial.copiers, "java")
    mayDisorder = (*ClusterClientsTrial.mayDisorder, "verifiable1")
    mayGiveUp = ("verifiable1",)
    _java: JavaProcess | None = None
    _tools: _Tools | None = None

    def _begin(self) -> None:
        self._java = JavaProcess()
        super()._begin()
        self._tools = _Tools(self._java, self._bootstrapServers)
        self._tools.start()

    def _topics(self) -> list[str]:
        return [*super()._topics(), "console"]

    def _javas(self, name: str, program: str, **more: Any) -> Member:
        assert self._java is not None
        return self._member(name, "javamember", program, java=self._java.port, **more)

    def _verifiable(self, name: str, tool: str, *arguments: str, group: str = "") -> Member:
        given = ["--bootstrap-server", self._bootstrapServers, "--topic", CLICKS, *arguments]
        return self._member(name, "verifiablemember", "", group, tool=tool, arguments=given)

    def _makeProducers(self) -> Iterator[Member]:
        yield from super()._makeProducers()
        yield self._javas("java", "producer", properties=self._dotted())
        limits = ("--throughput", str(round(1 / PAUSE_SECONDS)), "--value-prefix", "1")
        keys = ("--repeating-keys", str(KEY_COUNT))
        yield self._verifiable("verifiable1", "VerifiableProducer", *limits, *keys)

    def _makeConsumers(self) -> Iterator[Member]:
        yield from super()._makeConsumers()
        yield self._javas("javaclassic", "consumer", **self._grouped("javaclassic"))
        yield self._javas("javamodern", "consumer", **self._grouped("javamodern", **MODERN))
        group = "verifiablegroup"
        given = ("--group-id", group, "--verbose")
        yield self._verifiable(group, "VerifiableConsumer", *given, group=group)

    def _makeCopiers(self) -> Iterator[Member]:
        yield from super()._makeCopiers()
        yield self._javas("copier-java", "copier", **self._copying("java", "false"))

    def _drain(self) -> None:
        assert self._tools is not None
        self._tools.end()
        super()._drain()
        assert self._java is not None
        last = _Tools(self._java, self._bootstrapServers)
        last.consume("--timeout-ms", "3000")
        missing = {*self._tools.written} - self._tools.read - last.read
        if missing:
            self._broken.append(f"the console consumer has not got {sorted(missing)}")
        self._broken += self._tools.broken + last.broken

    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        super()._end(seconds, faults)
        count = self._tools.count if self._tools else 0
        self.figures = self.figures._replace(toolCount=count)

    def _clear(self) -> None:
        super()._clear()
        if self._java is not None:
            self._java.close()
