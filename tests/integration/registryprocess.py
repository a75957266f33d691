"""
C{twistd pylogbroker-registry} as a process, for tests.
"""

from __future__ import annotations

from pathlib import Path

from pylogbroker.syncclient.registryclient import RegistryClient
from tests.integration.brokerprocess import START_SECONDS_MAX, BrokerProcess
from tests.integration.mirrorprocess import writeProperties

_PORT = r"The registry in .* is served on .*:(\d+)"


class RegistryProcess(BrokerProcess):
    """
    A registry; C{port} is that of its HTTP.
    """

    def __init__(self, directory: str, brokerPort: int, **properties: str) -> None:
        """
        @param directory: for its property file.
        @param brokerPort: of a broker of 2011; 0: the properties have C{bootstrap.servers}.
        """
        super().__init__(directory)
        Path(directory).mkdir(parents=True)
        own = {"listen": "0", "poll.interval.ms": "20"}
        if brokerPort:
            own["broker"] = f"127.0.0.1:{brokerPort}"
        changes = {key.replace("_", "."): value for key, value in properties.items()}
        self._config = writeProperties(f"{directory}/registry.properties", {**own, **changes})

    def start(self) -> RegistryProcess:
        """Returns itself, when it has read its topic."""
        self.launch()
        self.waitForLine(r"The registry has \d+ subjects", START_SECONDS_MAX)
        return self

    def launch(self) -> None:
        """Start it and wait for nothing but its port."""
        self.launchOnly()
        self.port = int(self.waitForLine(_PORT, START_SECONDS_MAX).group(1))

    def launchOnly(self) -> None:
        """Start it and wait for nothing."""
        assert self._config is not None
        self._spawn(["pylogbroker-registry", "--config", self._config], self.directory)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def registryClient(self) -> RegistryClient:
        """Our own client for threads."""
        return RegistryClient(self.url)
