"""
Apache Kafka's own tools and its Java client, in one Java process that Python drives by py4j, since
each start of Java costs a second of processor time. The jars come from Maven Central.
"""

from __future__ import annotations

import atexit
import fcntl
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from py4j import java_gateway, protocol
from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError
from twisted.trial.unittest import SynchronousTestCase

from tests.oracle.apachebroker import CACHE, VERSION

NEEDS = ("java", "maven")
TOOLS = "org.apache.kafka.tools"
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")

_UNUSED = ("connect-api", "connect-json", "connect-runtime", "connect-transforms")
_EXCLUSIONS = "".join(
    f"<exclusion><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId></exclusion>"
    for name in _UNUSED
)
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>pylogbroker</groupId><artifactId>kafkatools</artifactId><version>1</version>
<dependencies>
<dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency>
<dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
<exclusions>{_EXCLUSIONS}</exclusions>
</dependency>
</dependencies>
</project>
"""


def fetchTools(cache: Path = CACHE) -> Path:
    """
    The folder with the jars of the tools and of the client; Maven fetches them the first time, by
    its ordinary settings. Several processes may call this at once.

    @raise subprocess.CalledProcessError: Maven failed.
    """
    return fetchJars(cache / f"tools-{VERSION}", _POM)


def fetchJars(folder: Path, pom: str) -> Path:
    """
    As L{fetchTools}, for any C{pom.xml}.

    @param folder: for this one only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            (folder / "pom.xml").write_text(pom, encoding="utf-8")
            goal = "dependency:copy-dependencies"
            command = ["mvn", "-q", "-B", goal, f"-DoutputDirectory={folder / 'jars'}"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            complete.touch()
    return folder / "jars"


class ToolRun(NamedTuple):
    """
    What a tool did.

    @ivar status: its exit status.
    @ivar output: its standard output and its standard error, as they came.
    """

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        """Those of the output, without white space at their ends."""
        return [line.rstrip() for line in self.output.splitlines()]


class _ExitedError(Exception):
    """Takes the thread out of a tool that wants to end the process."""


class _Exit:
    """
    The end of a tool, whose process goes on: C{Exit.Procedure} and C{Exit.ShutdownHookAdder}.

    @ivar run: what there was when the tool had ended; L{None}: it runs. Tools catch the error that
        takes them out, and would write it.
    """

    def __init__(self, output: Any) -> None:
        self._output = output
        self._hooks: list[Any] = []
        self.run: ToolRun | None = None

    def begin(self) -> None:
        self._output.reset()
        self._hooks.clear()
        self.run = None

    def end(self, status: int) -> ToolRun:
        """What a process does at its end. Only the first time is the end."""
        if self.run is None:
            while self._hooks:
                self._hooks.pop().run()
            self.run = ToolRun(status, self._output.toString())
        return self.run

    def execute(self, status: int, _message: str | None) -> None:
        """@raise _ExitedError: always."""
        self.end(status)
        raise _ExitedError(status)

    def addShutdownHook(self, _name: str, hook: Any) -> None:
        self._hooks.append(hook)

    class Java:
        """For py4j."""

        implements = (
            "org.apache.kafka.common.utils.Exit$Procedure",
            "org.apache.kafka.common.utils.Exit$ShutdownHookAdder",
        )


class JavaProcess:
    """
    One Java process with the classes of Kafka.

    @ivar jvm: py4j's view of its packages.
    @ivar kafka: C{org.apache.kafka} in it.
    @ivar port: of py4j, for other processes that use this one.
    """

    def __init__(self, *folders: Path) -> None:
        """
        @param folders: of jars, beside those of the tools.
        """
        jars = [jar for folder in (fetchTools(), *folders) for jar in sorted(folder.glob("*.jar"))]
        self._path = ":".join(map(str, jars))
        self.port, self._process = launch_gateway(
            classpath=self._path, javaopts=list(JAVA_OPTIONS), die_on_exit=True, return_proc=True
        )
        self._gateway: Any = JavaGateway(
            gateway_parameters=GatewayParameters(port=self.port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(
                port=0, daemonize=True, daemonize_connections=True
            ),
        )
        server = self._gateway.java_gateway_server
        server.resetCallbackClient(
            server.getCallbackClient().getAddress(),
            self._gateway.get_callback_server().get_listening_port(),
        )
        self.jvm: Any = self._gateway.jvm
        self.kafka: Any = self.jvm.org.apache.kafka
        system, io = self.jvm.java.lang.System, self.jvm.java.io
        output = io.ByteArrayOutputStream()
        stream = io.PrintStream(output, True)
        system.setOut(stream)
        system.setErr(stream)
        self.jvm.org.slf4j.LoggerFactory.getLogger("")  # says once that it logs nowhere
        self._exit = _Exit(output)
        self.kafka.common.utils.Exit.setExitProcedure(self._exit)
        self.kafka.common.utils.Exit.setShutdownHookAdder(self._exit)

    def close(self) -> None:
        """End the process, without the hooks of tools, which wait for brokers that are gone."""
        self._gateway.shutdown()
        self._process.kill()
        self._process.wait()

    def run(self, tool: str, *arguments: str, standardInput: bytes = b"") -> ToolRun:
        """
        Run a tool to its end.

        @param tool: the class that has C{main}; it is in L{TOOLS}, unless it begins with C{org.}
            or C{kafka.}.
        @raise Py4JJavaError: it raised what would have ended its process.
        """
        name = tool if tool.startswith(("org.", "kafka.")) else f"{TOOLS}.{tool}"
        found: Any = self.jvm
        for part in name.split("."):
            found = getattr(found, part)
        strings = self._gateway.new_array(self.jvm.java.lang.String, len(arguments))
        for number, argument in enumerate(arguments):
            strings[number] = argument
        self.jvm.java.lang.System.setIn(self.jvm.java.io.ByteArrayInputStream(standardInput))
        self._exit.begin()
        try:
            found.main(strings)
        except Py4JJavaError:
            if self._exit.run is None:
                raise
        return self._exit.end(0)

    def runAlone(self, tool: str, *arguments: str) -> ToolRun:
        """As L{run}, in a process of its own, for a tool that goes on while its process ends."""
        command = ["java", *JAVA_OPTIONS, "-cp", self._path, f"{TOOLS}.{tool}", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        return ToolRun(done.returncode, done.stdout.decode())


_shared: list[JavaProcess] = []


def sharedJava(test: SynchronousTestCase) -> JavaProcess:
    """
    One for all tests of this process.

    Until the test ends, py4j raises what it documents: a test of Spark that ran before in the same
    process has replaced its function by one that asks the Java process for classes of Spark.
    """
    test.patch(java_gateway, "get_return_value", protocol.get_return_value)
    if not _shared:
        _shared.append(JavaProcess())
        atexit.register(_shared[0].close)
    return _shared[0]
