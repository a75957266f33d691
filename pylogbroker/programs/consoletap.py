"""
C{twistd pylogbroker-console}: the console of a whole cluster, by itself.

It knows what ZooKeeper and the brokers' protocol tell. What only a broker knows of itself (bytes out, who waits), the page that the broker serves shows
(C{http.listener}).
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from pylogbroker.config.connectionsettings import AccessSettings
from pylogbroker.config.propertytypes import ZookeeperServers
from pylogbroker.console.standalone import ClusterConsole
from pylogbroker.errors import ConfigurationError
from pylogbroker.programs.lifecycle import ProgramOptions, TwistdLifecycle

LISTENER = "8067"


class Options(ProgramOptions):
    """The options of C{twistd pylogbroker-console}."""

    synopsis = "[options] --zookeeper HOST:PORT[,HOST:PORT...][/CHROOT]"
    longdesc = "Serves a page that shows a cluster and changes nothing. Example: twistd -n pylogbroker-console --zookeeper localhost:2181 --listen 8067"
    optParameters = [
        ["zookeeper", "z", None, "ZooKeeper's servers, as in zk.connect."],
        [
            "config",
            "c",
            None,
            "A property file, of which zk.digest and broker.endpoint are heeded: a consumer's own will do.",
        ],
        [
            "listen",
            "l",
            LISTENER,
            "Where to serve: a port, on 127.0.0.1, or a Twisted endpoint string.",
        ],
    ]
    optFlags = [["no-messages", None, "Do not let people look at messages."]]

    def __init__(self) -> None:
        super().__init__()
        self.hosts: list[str] = []
        self.changes: list[str] = []

    def opt_host(self, name: str) -> None:
        """A name by which browsers may ask for it, beside localhost and every bare address. Can be repeated."""
        self.hosts.append(name)

    def opt_set(self, change: str) -> None:
        """zk.digest or broker.endpoint over the file's, as KEY=VALUE. Can be repeated."""
        self.changes.append(change)

    opt_s = opt_set

    def postOptions(self) -> None:
        """What is missing is a usage error."""
        super().postOptions()
        if not (self["zookeeper"] or "").strip():
            raise usage.UsageError("--zookeeper HOST:PORT is missing")
        try:
            ZookeeperServers().parse(self["zookeeper"], lambda _sentence: None)
        except ValueError as error:
            raise usage.UsageError(f"--zookeeper {self['zookeeper']}: {error}") from error
        try:
            self.access = AccessSettings.read(self["config"], self.changes)
        except ConfigurationError as error:
            raise usage.UsageError(str(error)) from error


class TwistdConsole(TwistdLifecycle, ClusterConsole):
    """The console under C{twistd}."""


def makeService(options: Options) -> IService:
    """Called by twistd."""
    from twisted.internet import reactor

    service: Any = TwistdConsole(
        reactor,
        options["listen"],
        options["zookeeper"],
        tuple(options.hosts),
        not options["no-messages"],
        access=options.access,
    )
    service.logLevels = options.logLevels
    service.isLogShown = options.isLogShown
    return service  # type: ignore[no-any-return]
