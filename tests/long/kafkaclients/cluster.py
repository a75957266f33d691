"""
The trial of L{tests.integration.clusterclients} with clients of Go, JavaScript and Rust: franz-go,
sarama, kafka-go, kafkajs and rdkafka. Their programs are beside this module; what is built of them
is kept in a cache. It needs C{go}, C{npm} and C{cargo}, and a C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.chaosrun import Member
from tests.integration.clusterclients import ClusterClientsTrial, target
from tests.oracle.apachebroker import CACHE

PROGRAMS = Path(__file__).parent
BUILT = CACHE.parent / "pylogbroker-kafkaclients"
BUILD_SECONDS_MAX = 1800
VERSIONS = {
    "franz-go": "github.com/twmb/franz-go@v1.22.2",
    "sarama": "github.com/IBM/sarama@v1.61.1",
    "kafka-go": "github.com/segmentio/kafka-go@v0.4.51",
    "kafkajs": "kafkajs@2.2.4, kafkajs-snappy@1.1.0",
    "rdkafka": "rdkafka 0.38",
}


class _Program(NamedTuple):
    """
    @ivar folder: of its source, below this module's.
    @ivar shared: files that it needs beside its source, below this module's folder.
    @ivar steps: the commands that build it, in a copy of that folder.
    @ivar command: runs it there.
    """

    folder: str
    steps: Sequence[Sequence[str]]
    command: Sequence[str]
    shared: Sequence[str] = ()

    def built(self) -> list[str]:
        """
        The command, when it is built.

        @raise subprocess.CalledProcessError: it cannot be built.
        """
        folder = BUILT / self.folder
        shutil.copytree(PROGRAMS / self.folder, folder, dirs_exist_ok=True)
        for name in self.shared:
            shutil.copy(PROGRAMS / name, folder)
        for step in self.steps:
            subprocess.run(step, cwd=folder, check=True, timeout=BUILD_SECONDS_MAX)
        first, *others = self.command
        return [first if "/" not in first else str(folder / first), *others]


def _goProgram(name: str, module: str) -> _Program:
    modules = f"[ -f go.mod ] || (go mod init {name} && go get {module} && go mod tidy)"
    steps = (("sh", "-c", modules), ("go", "build", "-o", name))
    return _Program(f"go/{name}", steps, (f"./{name}",), ("go/member.go",))


_FRANZ = _goProgram("franzmember", VERSIONS["franz-go"])
_SARAMA = _goProgram("saramamember", VERSIONS["sarama"])
_SEGMENTIO = _goProgram("segmentiomember", VERSIONS["kafka-go"])
_KAFKAJS = _Program(
    "node/kafkajsmember",
    (("npm", "install", "--silent", "--no-save", *VERSIONS["kafkajs"].split(", ")),),
    ("node", str(BUILT / "node/kafkajsmember/main.js")),
)
_RDKAFKA = _Program(
    "rust/rdkafkamember",
    (("cargo", "build", "--quiet", "--release"),),
    ("./target/release/rdkafkamember",),
)


class OtherClientsTrial(ClusterClientsTrial):
    """
    One run. sarama, kafka-go and kafkajs are not idempotent by default and try again, sarama with
    many requests in flight; rdkafka so, too. kafka-go does not try again when its metadata name no
    leader.
    """

    copiers = ("franz",)
    mayRepeat = ("sarama", "segmentio", "kafkajs", "rdkafka")
    mayDisorder = ("sarama", "rdkafka")
    mayGiveUp = ("segmentio",)

    def _begin(self) -> None:
        programs = (_FRANZ, _SARAMA, _SEGMENTIO, _KAFKAJS, _RDKAFKA)
        self._commands = {each: each.built() for each in programs}
        super()._begin()

    def _other(
        self, program: _Program, role: str, name: str, argument: str, group: str = ""
    ) -> Member:
        command = [*self._commands[program], self._bootstrapServers, role, argument]
        options: dict[str, Any] = {"command": command}
        return Member(self._folder, "tests.long.kafkaclients.commandmember", name, options, group)

    def _makeProducers(self) -> Iterator[Member]:
        for name, program in (
            ("franz", _FRANZ),
            ("sarama", _SARAMA),
            ("saramaonce", _SARAMA),
            ("segmentio", _SEGMENTIO),
            ("kafkajs", _KAFKAJS),
            ("kafkajsonce", _KAFKAJS),
            ("rdkafka", _RDKAFKA),
            ("rdkafkaonce", _RDKAFKA),
        ):
            yield self._other(program, "producer", name, name)

    def _makeConsumers(self) -> Iterator[Member]:
        for group, program in (
            ("franzgroup", _FRANZ),
            ("saramagroup", _SARAMA),
            ("segmentiogroup", _SEGMENTIO),
            ("kafkajsgroup", _KAFKAJS),
            ("rdkafkagroup", _RDKAFKA),
        ):
            yield self._other(program, "consumer", group, group, group)

    def _makeCopiers(self) -> Iterator[Member]:
        yield self._other(_FRANZ, "copier", "copier-franz", target("franz"))
