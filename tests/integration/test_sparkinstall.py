"""
What somebody does who has never seen this: a fresh environment, one C{pip install} of the wheel,
and the README's examples for Spark.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.syncclient import SimpleConsumer, SyncProducer
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.test_readme import ADDRESS, block
from tests.integration.wheels import buildWheel, cleanEnvironment, copyTree

NEEDS = ("java", "spark")
SECONDS_MAX = 1_200


class InstallTests(SynchronousTestCase):
    """C{pip install} of the wheel, with its extra for Spark."""

    timeout = 3_600

    def install(self, folder: Path) -> Path:
        """A fresh environment with the wheel; returns its programs' folder."""
        copyTree(folder / "tree")
        wheel = buildWheel(folder / "tree", folder)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / "bin"
        pip = [
            str(programs / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
        ]
        run = self.execute([*pip, f"{wheel}[spark]"], folder, cleanEnvironment())
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return programs

    def execute(
        self, command: list[str], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, in a folder of its own."""
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )

    def example(self, programs: Path, text: str, folder: Path) -> str:
        """
        Run one of the README's, as somebody does who has activated the environment; nothing but
        this environment is in its path. Spark gives the Python process that it starts ten seconds
        to say that it is there, whatever else the machine does; that alone is tried again, before
        anything was read.
        """
        environment = {
            **cleanEnvironment(),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(programs / "python"), "-c", text]
        run = self.execute(command, folder, environment)
        for _attempt in range(4):
            if "failed to connect back" in run.stderr:
                run = self.execute(command, folder, environment)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout

    def test_readmesExamples(self) -> None:
        """
        The batch shows the lines of a topic; the stream copies them, and when it is run again only
        what came meanwhile.
        """
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        programs = self.install(folder)
        broker = BrokerProcess(str(folder / "logs")).start()
        self.addCleanup(broker.kill)
        work = folder / "work"
        work.mkdir()
        address = f'"127.0.0.1:{broker.port}"'
        batch, stream = (
            block("python", part).replace(ADDRESS, address)
            for part in ("spark.read.format", "spark.readStream")
        )
        with (
            SyncProducer("127.0.0.1", broker.port) as producer,
            SimpleConsumer("127.0.0.1", broker.port) as consumer,
        ):
            producer.send("dpkg", 0, [b"one", b"two"])
            producer.confirm("dpkg", 0)
            shown = self.example(programs, batch, work)
            self.assertRegex(shown, r"\|one +\|0 +\|0 +\|\n\|two +\|0 +\|13 +\|")
            self.example(programs, stream, work)
            producer.send("dpkg", 0, [b"three"])
            producer.confirm("dpkg", 0)
            self.example(programs, stream, work)
            shouted = [payload for payload, _ in consumer.fetch("shouted", 0, 0, 1_000).payloads()]
        self.assertEqual(shouted, [b"ONE", b"TWO", b"THREE"])
