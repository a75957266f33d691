"""
C{twistd pylogbroker-mirror}: the mirror (spec-0.7 tools §7). It waits for clusters that are away.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.config.properties import readProperties
from pylogbroker.console.service import MetricsService
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.programs.lifecycle import HttpServiceMixin, ProgramOptions, TwistdLifecycle, warn


class Options(ProgramOptions):
    """The options of C{twistd pylogbroker-mirror}."""

    synopsis = (
        "--consumer FILE [--consumer FILE ...] --producer FILE "
        "(--whitelist RE | --blacklist RE) [options]"
    )
    longdesc = (
        "Copies topics of one or more clusters into another, as they grow. Example: "
        "twistd -n --pidfile= pylogbroker-mirror --consumer etc/mirror-consumer.properties "
        "--producer etc/mirror-producer.properties --whitelist 'clicks|views.*'"
    )
    optParameters = [
        ["producer", "p", None, "The property file of the target cluster."],
        ["whitelist", "w", None, "Topics to mirror: a regular expression in Java's syntax."],
        ["blacklist", "b", None, "Topics not to mirror; all others are mirrored."],
        ["num-streams", None, 1, "Streams of each source.", int],
        ["num-producers", None, 1, "Connections to each broker of the target.", int],
        [
            "listen",
            "l",
            "",
            "Where to serve /metrics: a port of 127.0.0.1, or a Twisted endpoint string.",
        ],
    ]
    optFlags = [
        [
            "keep-partitions",
            "k",
            "A source partition always goes to the same target partition, in order.",
        ]
    ]

    def opt_host(self, name: str) -> None:
        """A host name of /metrics beside localhost and any IP address. Can be repeated."""
        self.setdefault("host", []).append(name)

    def opt_consumer(self, path: str) -> None:
        """The property file of a source cluster. Can be repeated."""
        self.setdefault("consumer", []).append(path)

    opt_c = opt_consumer

    def postOptions(self) -> None:
        """Read the files."""
        super().postOptions()
        if "consumer" not in self or self["producer"] is None:
            raise usage.UsageError("--consumer FILE and --producer FILE are needed")
        if (self["whitelist"] is None) == (self["blacklist"] is None):
            raise usage.UsageError("either --whitelist or --blacklist is needed, and not both")
        self.settings = MirrorSettings.fromProperties(
            [readProperties(path, warn) for path in self["consumer"]],
            readProperties(self["producer"], warn),
            blacklist(self["blacklist"])
            if self["whitelist"] is None
            else whitelist(self["whitelist"]),
            warn,
            streamCount=self["num-streams"],
            producerCount=self["num-producers"],
            isKeeping=bool(self["keep-partitions"]),
        )


class TwistdMirrorService(TwistdLifecycle, HttpServiceMixin, MirrorService):
    """A mirror under C{twistd}, with its metrics over HTTP."""


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    service: Any = TwistdMirrorService(reactor, options.settings)
    listener = options["listen"].strip()
    if listener:
        service.site = MetricsService(
            reactor, listener, service.metricFamilies, tuple(options.get("host", ()))
        )
    return options.configure(service)
