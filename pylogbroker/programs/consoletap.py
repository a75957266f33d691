"""
C{twistd pylogbroker-console}: the console of a whole cluster, as a program of its own.

It shows what ZooKeeper and the brokers' protocol tell. Bytes out and blocked clients, which only a
broker knows, are on the broker's own page (C{http.listener}).
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from pylogbroker.config.propertytypes import ZookeeperServers
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.console.standalone import ClusterConsole
from pylogbroker.programs.lifecycle import ProgramOptions, TwistdLifecycle

LISTENER = "8067"


class Options(ProgramOptions):
    """The options of C{twistd pylogbroker-console}."""

    synopsis = "[options] --zookeeper HOST:PORT[,HOST:PORT...][/CHROOT]"
    longdesc = (
        "Serves a page that shows a cluster and changes nothing. Example: "
        "twistd -n --pidfile= pylogbroker-console --zookeeper localhost:2181 --listen 8067"
    )
    optParameters = [
        ["zookeeper", "z", None, "ZooKeeper's servers, as in zk.connect."],
        [
            "config",
            "c",
            None,
            "A property file with zk.digest and broker.endpoint; a consumer's file will do.",
        ],
        [
            "listen",
            "l",
            LISTENER,
            "Where to serve: a port, on 127.0.0.1, or a Twisted endpoint string.",
        ],
        [
            "broker-page",
            None,
            "",
            "Where each broker serves its own page, to link to it: http://{host}:8067/.",
        ],
    ]
    optFlags = [["no-messages", None, "Do not show messages."]]

    def opt_host(self, name: str) -> None:
        """A host name of the page beside localhost and any IP address. Can be repeated."""
        self.setdefault("host", []).append(name)

    def opt_set(self, change: str) -> None:
        """zk.digest or broker.endpoint as KEY=VALUE; overrides the file. Can be repeated."""
        self.setdefault("set", []).append(change)

    opt_s = opt_set

    def postOptions(self) -> None:
        """Check the options."""
        super().postOptions()
        if not (self["zookeeper"] or "").strip():
            raise usage.UsageError("--zookeeper HOST:PORT is missing")
        try:
            ZookeeperServers().parse(self["zookeeper"], lambda _sentence: None)
        except ValueError as error:
            raise usage.UsageError(f"--zookeeper {self['zookeeper']}: {error}") from error
        page = self["broker-page"]
        if page and not (page.startswith(("http://", "https://")) and "{host}" in page):
            raise usage.UsageError(
                f"--broker-page {page}: it must be a URL with {{host}}, such as http://{{host}}:8067/"
            )
        self.access = SecuritySettings.read(self["config"], self.get("set", ()))


class TwistdConsole(TwistdLifecycle, ClusterConsole):
    """The console under C{twistd}."""


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    service: Any = TwistdConsole(
        reactor,
        options["listen"],
        options["zookeeper"],
        tuple(options.get("host", ())),
        not options["no-messages"],
        access=options.access,
        pageTemplate=options["broker-page"],
    )
    return options.configure(service)
