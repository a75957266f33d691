"""
MirrorMaker 2 of Apache Kafka 4.3.1 as a process, with its jars from Maven Central: beside our
mirror, for measurements, and for what each reads of the other.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.integration.kafkatools import fetchJars
from tests.integration.mirrorprocess import writeProperties
from tests.oracle.apachebroker import CACHE, VERSION

IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
JAVA = ("java", "-Xmx1g", "-XX:+UseSerialGC")
_STOP_SECONDS_MAX = 120
_DEPENDENCIES = "".join(
    f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
    f"<version>{VERSION}</version></dependency>"
    for name in ("connect-mirror", "connect-runtime")
)
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>pylogbroker</groupId><artifactId>mirrormaker</artifactId><version>1</version>
<dependencies>{_DEPENDENCIES}</dependencies>
</project>
"""


def fetchMirrorMaker(cache: Path = CACHE) -> Path:
    """As L{fetchTools<tests.integration.kafkatools.fetchTools>}."""
    return fetchJars(cache / f"mirrormaker-{VERSION}", _POM)


class MirrorMakerProcess:
    """
    One that mirrors topics from C{source} to C{target}, under their own names.

    @ivar process: it, once it was started.
    """

    def __init__(
        self,
        folder: str,
        source: str,
        target: str,
        topics: str,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """
        @param folder: for its files; is made.
        @param source: C{bootstrap.servers}.
        @param target: likewise.
        @param topics: a pattern.
        @param properties: more of them.
        """
        Path(folder).mkdir()
        self._folder = folder
        factors = (
            "replication.factor",
            "offset-syncs.topic.replication.factor",
            "checkpoints.topic.replication.factor",
            "heartbeats.topic.replication.factor",
            "offset.storage.replication.factor",
            "status.storage.replication.factor",
            "config.storage.replication.factor",
        )
        self._file = writeProperties(
            f"{folder}/mm2.properties",
            {
                "clusters": "source, target",
                "source.bootstrap.servers": source,
                "target.bootstrap.servers": target,
                "source->target.enabled": "true",
                "target->source.enabled": "false",
                "source->target.topics": topics,
                "source->target.sync.group.offsets.enabled": "true",
                "source->target.sync.group.offsets.interval.seconds": "1",
                "source->target.emit.checkpoints.interval.seconds": "1",
                "replication.policy.class": IDENTITY,
                "refresh.groups.interval.seconds": "2",
                "tasks.max": "1",
                **dict.fromkeys(factors, "1"),
                **(properties or {}),
            },
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for nothing."""
        command = [*JAVA, "-cp", f"{fetchMirrorMaker()}/*"]
        with Path(f"{self._folder}/output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "org.apache.kafka.connect.mirror.MirrorMaker", self._file],
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        """C{SIGTERM}, and wait for its end; twice does no harm."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
