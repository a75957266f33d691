"""
Apache Kafka 4.3.1 for recordings: its jars from Maven Central, by Maven's ordinary settings, into a
cache outside the repository; and one KRaft broker on loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

VERSION = "4.3.1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pylogbroker-oracle"
_START_SECONDS_MAX = 120
_CLUSTER_ID = "b3JhY2xlb3JhY2xlb3JhYw"

JAVA = ("nice", "java", "-Xmx512m", "-XX:+UseSerialGC")
"""Small and in nobody's way, as a recording needs it."""

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>pylogbroker</groupId><artifactId>oracle</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency></dependencies>
</project>
"""


def fetchKafka(folder: Path = CACHE) -> Path:
    """
    The folder with the jars; Maven fetches them the first time.

    @raise subprocess.CalledProcessError: Maven failed.
    """
    jars = folder / "jars"
    if not any(jars.glob("kafka_2.13-*.jar")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM, encoding="utf-8")
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(command, cwd=folder, check=True)
    return jars


def jarFolder(kafka: Path) -> Path:
    """
    Where the jars of an installation are: C{libs} of a distribution, or the folder itself.

    @raise FileNotFoundError: there is no Kafka of this version.
    """
    for folder in (kafka / "libs", kafka / "jars", kafka):
        if any(folder.glob(f"kafka_2.13-{VERSION}.jar")):
            return folder
    raise FileNotFoundError(f"no kafka_2.13-{VERSION}.jar in {kafka}")


@contextmanager
def apacheBroker(
    jars: Path,
    settings: Mapping[str, str],
    java: Sequence[str] = JAVA,
    started: Callable[[int], object] = lambda _processId: None,
) -> Iterator[tuple[str, int]]:
    """
    A new broker on loopback, whose address is the value; it ends with the context, and its
    directory goes.

    @param java: the program and its options.
    @param started: called with the process id of C{java}, or of what C{java} begins with.
    @raise RuntimeError: it did not start; the text has the end of its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
    try:
        with apacheProcess(jars, settings, folder, java, started) as (_process, address):
            yield address
    finally:
        shutil.rmtree(folder)


@contextmanager
def apacheProcess(
    jars: Path,
    settings: Mapping[str, str],
    folder: Path,
    java: Sequence[str] = JAVA,
    started: Callable[[int], object] = lambda _processId: None,
    ports: tuple[int, int] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], tuple[str, int]]]:
    """
    A broker as a process, and its address; it is killed with the context, and its log directory
    stays, as C{logs}. See L{apacheBroker}.

    @param folder: where its files are; exists. A broker that was there before goes on.
    @param ports: for clients, and of the controller; L{None}: free ones.
    @raise RuntimeError: it did not start; the text has the end of its output.
    """
    port, controllerPort = ports or (freePort(), freePort())
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controllerPort}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllerPort}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "logs"),
        **settings,
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()), encoding="utf-8")
    command = [*java, "-cp", f"{jars}/*"]
    output = folder / "output.txt"
    process = None
    try:
        with output.open("wb") as log:
            storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
            storage += ["-t", _CLUSTER_ID, "-c", str(config)]
            subprocess.run([*command, *storage], check=True, stdout=log, stderr=log)
            process = subprocess.Popen(
                [*command, "kafka.Kafka", str(config)], stdout=log, stderr=log, cwd=folder
            )
        started(process.pid)
        _waitForPort(process, port, output)
        yield process, ("127.0.0.1", port)
    finally:
        if process is not None:
            process.kill()
            process.wait()


class ApacheServer:
    """
    A broker of Apache Kafka that can be killed, and that comes back on its port with its data.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """
        @param folder: of its data and files; it is made.
        """
        folder.mkdir(parents=True)
        self._folder = folder
        self._settings = settings
        self._ports = freePort(), freePort()
        self._running = ExitStack()

    @property
    def bootstrapServers(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """
        Returns when it serves.

        @raise RuntimeError: it did not start; the text has the end of its output.
        """
        broker = apacheProcess(fetchKafka(), self._settings, self._folder, ports=self._ports)
        self._running.enter_context(broker)

    def kill(self) -> None:
        """C{kill -9}."""
        self._running.close()

    close = kill


def freePort() -> int:
    """A port of loopback on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _waitForPort(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    end = output.read_text(encoding="utf-8", errors="replace")[-4000:]
    raise RuntimeError(f"Apache Kafka did not start:\n{end}")
