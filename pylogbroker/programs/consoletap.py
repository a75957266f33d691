"""
C{twistd pylogbroker-console}: the console of a whole cluster, as a program of its own.

It shows what ZooKeeper and the brokers' protocol tell, or, with C{--bootstrap-server}, what the
brokers of today's Kafka tell. Bytes out and blocked clients, which only a broker knows, are on the
broker's own page (C{http.listener}).
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from pylogbroker.config.kafka.clientsettings import BootstrapServers
from pylogbroker.config.propertytypes import ZookeeperServers
from pylogbroker.config.securitysettings import SecuritySettings, ToolSettings
from pylogbroker.console.standalone import ClusterConsole, KafkaClusterConsole
from pylogbroker.console.tasks import TASK_TOPICS
from pylogbroker.programs.lifecycle import ProgramOptions, TwistdLifecycle

LISTENER = "8067"


class Options(ProgramOptions):
    """The options of C{twistd pylogbroker-console}."""

    synopsis = (
        "[options] (--zookeeper HOST:PORT[,HOST:PORT...][/CHROOT] "
        "| --bootstrap-server HOST:PORT[,HOST:PORT...])"
    )
    longdesc = (
        "Serves a page that shows a cluster and changes nothing. Example: "
        "twistd -n --pidfile= pylogbroker-console --zookeeper localhost:2181 --listen 8067"
    )
    optParameters = [
        ["zookeeper", "z", None, "ZooKeeper's servers, as in zk.connect: a cluster of Kafka 0.7."],
        ["bootstrap-server", "b", None, "Brokers of a cluster of today's Kafka."],
        [
            "config",
            "c",
            None,
            "A property file with zk.digest and broker.endpoint, and with sasl.username and so on "
            "for today's Kafka; a consumer's file will do.",
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
        ["config-topic", None, TASK_TOPICS[0], "Where containers of tasks publish their jobs."],
        ["metrics-topic", None, TASK_TOPICS[1], "Where containers of tasks publish their metrics."],
    ]
    optFlags = [["no-messages", None, "Do not show messages."]]

    def opt_host(self, name: str) -> None:
        """A host name of the page beside localhost and any IP address. Can be repeated."""
        self.setdefault("host", []).append(name)

    def opt_set(self, change: str) -> None:
        """A key of --config as KEY=VALUE; overrides the file. Can be repeated."""
        self.setdefault("set", []).append(change)

    opt_s = opt_set

    def postOptions(self) -> None:
        """Check the options."""
        super().postOptions()
        zookeeper = (self["zookeeper"] or "").strip()
        self.bootstrapServer = (self["bootstrap-server"] or "").strip()
        if bool(zookeeper) == bool(self.bootstrapServer):
            raise usage.UsageError(
                "either --zookeeper HOST:PORT or --bootstrap-server HOST:PORT is needed, "
                "and not both"
            )
        try:
            if zookeeper:
                ZookeeperServers().parse(zookeeper, lambda _sentence: None)
            else:
                BootstrapServers().parse(self.bootstrapServer, lambda _sentence: None)
        except ValueError as error:
            option = "--zookeeper" if zookeeper else "--bootstrap-server"
            raise usage.UsageError(
                f"{option} {zookeeper or self.bootstrapServer}: {error}"
            ) from error
        self.taskTopics = self["config-topic"], self["metrics-topic"]
        if zookeeper and self.taskTopics != TASK_TOPICS:
            raise usage.UsageError(
                "--config-topic and --metrics-topic: a cluster of Kafka 0.7 has no tasks"
            )
        page = self["broker-page"]
        if page and not (page.startswith(("http://", "https://")) and "{host}" in page):
            raise usage.UsageError(
                f"--broker-page {page}: it must be a URL with {{host}}, such as http://{{host}}:8067/"
            )
        settings = ToolSettings if self.bootstrapServer else SecuritySettings
        self.access = settings.read(self["config"], self.get("set", ()))


class TwistdConsole(TwistdLifecycle, ClusterConsole):
    """The console of a cluster of Kafka 0.7 under C{twistd}."""


class TwistdKafkaConsole(TwistdLifecycle, KafkaClusterConsole):
    """The console of a cluster of today's Kafka under C{twistd}."""


def makeService(options: Options) -> IService:
    """Make the service, for twistd."""
    from twisted.internet import reactor

    hosts, hasMessages = tuple(options.get("host", ())), not options["no-messages"]
    access, pageTemplate = options.access, options["broker-page"]
    service: Any
    if isinstance(access, ToolSettings):
        properties = {
            "bootstrap.servers": options.bootstrapServer,
            "broker.endpoint": access.brokerEndpoint,
            "sasl.mechanism": access.saslMechanism,
            "sasl.username": access.saslUsername,
            "sasl.password": access.saslPassword,
        }
        service = TwistdKafkaConsole(
            reactor,
            options["listen"],
            properties,
            hosts,
            hasMessages,
            pageTemplate,
            options.taskTopics,
        )
    else:
        service = TwistdConsole(
            reactor,
            options["listen"],
            options["zookeeper"],
            hosts,
            hasMessages,
            access=access,
            pageTemplate=pageTemplate,
        )
    return options.configure(service)
