"""Programs: how they are packed, how they start, and what they need."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import tests.broker.test_service
import tests.integration.test_packing
import tests.integration.test_pipeline
import tests.test_tap
from tests.integration.brokerprocess import ROOT, twistd
from tests.integration.registryprocess import RegistryProcess


class StartProbes(tests.test_tap.ProcessTests):
    def start(self, argument: str, reason: str) -> None:
        done = subprocess.run(
            [
                *twistd(),
                "--nodaemon",
                "--pidfile=twistd.pid",
                "pylogbroker",
                "--config",
                str(self.config),
                "--set",
                argument,
            ],
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Usage", done.stdout)
        self.assertEqual(done.stdout.count(reason), 1, done.stdout)

    def taken(self) -> int:
        """A port that another one has."""
        other = socket.socket()
        self.addCleanup(other.close)
        other.bind(("127.0.0.1", 0))
        other.listen()
        return int(other.getsockname()[1])

    def test_oneLine(self) -> None:
        self.start(f"port={self.taken()}", "ddress already in use")

    def test_secondListener(self) -> None:
        listeners = f"listeners=tcp:0:interface=127.0.0.1 | tcp:{self.taken()}"
        self.start(listeners, "ddress already in use")

    def test_noUsage(self) -> None:
        self.start("brokerid=many", "brokerid=many")


class PipelineProbes(tests.integration.test_pipeline.PipelineTests):
    def test_noSuchFile(self) -> None:
        """All servers are there, and only the file is not."""
        registry = RegistryProcess(f"{self.folder}/registry", self.cluster.brokers[0].port).start()
        self.addCleanup(registry.kill)
        said = self.start(
            "publishlogs.py",
            "--registry",
            registry.url,
            "--year",
            "2016",
            "--apache",
            "Apache_2k.log",
        )
        said._process.wait(60)
        self.assertIn("Apache_2k.log", said.said)
        self.assertNotIn("Traceback", said.said)


class PackingProbes(tests.integration.test_packing.WheelTests):
    def test_requirements(self) -> None:
        (metadata,) = Path(self.unpacked).glob("*.dist-info/METADATA")
        lines = metadata.read_text(encoding="utf-8").splitlines()
        needed = [line for line in lines if line.startswith("Requires-Dist: zlib-ng")]
        self.assertIn("Requires-Dist: zlib-ng>=0.5", needed)


class BufferProbes(tests.broker.test_service.PortTests):
    async def test_buffersLeft(self) -> None:
        option = await self.accepted()
        self.assertNotIn(option(socket.SOL_SOCKET, socket.SO_SNDBUF), (0, 204_800))
