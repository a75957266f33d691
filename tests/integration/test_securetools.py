"""
Every tool on a cluster that lets nobody in without credentials: a real ZooKeeper whose nodes are
private, and a broker behind TLS that wants to see certificates.
"""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from typing import Any

from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.cluster.subscription import whitelist
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import write
from tests.cli.commands import CommandCase, Outcome, commands, performAtOnce, reactor
from tests.console.asking import get
from tests.integration.certificates import Authority
from tests.integration.chroots import freshChroot, registered

DIGEST = "all:secret"


class SecureToolTests(CommandCase):
    """
    @ivar config: a consumer's property file, with credentials and a certificate.
    @ivar keyless: the same without the certificate.
    @ivar address: of the broker.
    @ivar told: the commands that were carried out.
    """

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.told: set[str] = set()
        self.servers = await freshChroot("securetools")
        self.admin: Any = ZookeeperClient(reactor, self.servers, digest=DIGEST, acl="private")
        self.addCleanup(self.admin.close)
        await self.admin.connect()
        authority = Authority(self.mktemp())
        key, trusted = authority.issue("tool"), authority.trustFolder()
        template = f"tls:{{host}}:{{port}}:trustRoots={trusted}"
        secret = f"groupid=somebody\nzk.digest={DIGEST}\nzk.acl=private\nbroker.endpoint={template}"
        self.config = self.write(f"{secret}:certificate={key}:privateKey={key}\n".encode())
        self.keyless = self.write(secret.encode())
        self.template = f"{template}:certificate={key}:privateKey={key}"
        self.authority = authority
        self.address = await self.serve(self.servers)

    async def serve(self, servers: str, number: int = 0, **more: str) -> str:
        """
        A broker, which others are told a port of that was free a moment ago.

        @param more: properties.
        @return: its address.
        """
        return (await self.begin(servers, number, **more))[0]

    async def begin(self, servers: str, number: int, **more: str) -> tuple[str, LocalBroker]:
        """As C{serve}, with the broker."""
        authority = self.authority
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        listener = (
            f"tls:{port}:privateKey={authority.issue('broker')}:clientCAs={authority.ca}"
            ":interface=127.0.0.1"
        )
        own = {"zk.digest": DIGEST, "zk.acl": "private", "listeners": listener, "port": str(port)}
        broker = LocalBroker(
            reactor, {**registered(servers, number, partitionCount=1), **own, **more}
        )
        self.addCleanup(broker.stop)
        await broker.start()
        return f"127.0.0.1:{port}", broker

    async def tool(self, *arguments: str) -> Outcome:
        """One that is given all that it needs, and must succeed."""
        result = await self.perform(*arguments, "--config", self.config)
        self.assertEqual(result.code, 0, (arguments, result))
        return result

    async def inCluster(self, *arguments: str) -> Outcome:
        """One that is told where ZooKeeper is."""
        return await self.tool(*arguments, "--zookeeper", self.servers)

    async def test_all(self) -> None:
        """Each does what it does elsewhere; none is left out."""
        lines = self.write(b"one\ntwo\nthree\n")
        atBroker = ("--broker", self.address, "--topic", "t")
        await self.tool("produce", lines, *atBroker)
        await self.inCluster("produce", lines, "--topic", "t")
        self.assertEqual(
            (await self.tool("consume", *atBroker, "--from-beginning")).output,
            b"one\ntwo\nthree\n" * 2,
        )
        found = (
            await self.inCluster("consume", "--topic", "t", "--from-beginning", "--group", "g")
        ).output
        self.assertEqual(
            sorted(found.split()), [b"one", b"one", b"three", b"three", b"two", b"two"]
        )
        end = int((await self.tool("offset", "list", *atBroker)).output)
        self.assertEqual(
            json.loads((await self.inCluster("topic", "describe", "t", "--json")).output)["topics"][
                0
            ]["size"],
            end,
        )
        for noun, name in (("topic", b"t"), ("group", b"g")):
            self.assertIn(name, (await self.inCluster(noun, "list")).output.split())
        [broker] = json.loads((await self.inCluster("broker", "list", "--json")).output)["brokers"]
        self.assertEqual(
            (f"{broker['host']}:{broker['port']}", broker["answers"]), (self.address, True)
        )
        [group] = json.loads((await self.inCluster("group", "describe", "g", "--json")).output)[
            "groups"
        ]
        self.assertEqual(
            [(each["offset"], each["end"], each["lag"]) for each in group["partitions"]],
            [(end, end, 0)],
        )
        exported = (await self.inCluster("group", "export", "g")).output
        self.assertEqual(exported, b"/consumers/g/offsets/t/0-0:%d\n" % end)
        await self.inCluster("group", "reset", "g", "--to-earliest", "--execute")
        self.assertEqual((await self.admin.get("/consumers/g/offsets/t/0-0"))[0], b"0")
        await self.inCluster("group", "import", self.write(exported), "--execute")
        self.assertEqual((await self.admin.get("/consumers/g/offsets/t/0-0"))[0], b"%d" % end)
        verified = await self.perform(
            "group", "verify", "g", "--config", self.config, "--zookeeper", self.servers
        )
        self.assertEqual((verified.code, verified.output), (1, b""))
        self.assertIn("no members in g", verified.errors)
        await self.translate(end)
        await self.inCluster(
            "replay",
            "--topic",
            "t",
            "--to-topic",
            "again",
            "--to-zookeeper",
            self.servers,
            "--to-config",
            self.config,
        )
        self.assertEqual(
            json.loads((await self.inCluster("topic", "describe", "again", "--json")).output)[
                "topics"
            ][0]["size"],
            end,
        )
        await self.inCluster("perf", "produce", "--topic", "speed", "--messages", "10", "--confirm")
        await self.tool(
            "perf",
            "produce",
            "--broker",
            self.address,
            "--topic",
            "speed",
            "--messages",
            "10",
            "--confirm",
        )
        for arguments in (
            ("perf", "consume", "--zookeeper", self.servers, "--idle-ms", "300"),
            ("perf", "simple-consume", "--broker", self.address),
        ):
            row = json.loads((await self.tool(*arguments, "--topic", "speed", "--json")).output)
            self.assertEqual(row["data.consumed.in.nMsg"], 20)
        await self.tool(
            "audit", "--tier", f"live={self.servers}", "--topic", "t", "--set", "grace.ms=0"
        )
        words = ("broker", "drain", "0", "--bootstrap-server", self.address)
        outcome = await deferToThread(
            performAtOnce, *words, "--zookeeper", self.servers, "--config", self.config
        )
        self.told.add("broker drain")
        self.assertIn("topics of Kafka 0.7 stay on broker 0: ", outcome.errors)
        self.assertIn("speed (", outcome.errors)
        withCluster = {
            name
            for name, parser in commands().items()
            if {"--zookeeper", "--broker", "--tier"} & set(parser.format_help().split())
        }
        # Load reads by Spark's data source: tests.integration.test_securespark. Dev starts a
        # cluster of its own. A decommission has what a drain has. The metadata of a stopped broker
        # are moved by tests.integration.test_clustermetadata. Those of topologies ask no broker.
        elsewhere = {"load", "dev", "broker decommission", "metadata move"}
        elsewhere |= {name for name in withCluster if name.startswith("topology ")}
        self.assertEqual(self.told, withCluster - elsewhere)

    async def translate(self, end: int) -> None:
        """C{group translate}, to where a mirror has written down that nothing is known."""
        await write(
            self.admin, "/consumers/m/mirror/t/0-0", OffsetSyncTable(entries=[(0, {})]).encode()
        )
        clusters = (
            "--from",
            self.servers,
            "--from-config",
            self.config,
            "--zookeeper",
            self.servers,
        )
        changes = json.loads(
            (
                await self.tool(
                    "group", "translate", "g", *clusters, "--mirror-group", "m", "--json"
                )
            ).output
        )["changes"]
        self.assertEqual([(each["old"], each["new"]) for each in changes], [(end, 0)])

    async def perform(self, *arguments: str, **more: Any) -> Outcome:
        words = " ".join(arguments[:2])
        self.told.add(words if words in commands() else arguments[0])
        return await super().perform(*arguments, **more)

    async def test_mirror(self) -> None:
        """
        A mirror from one such cluster to another, in which partitions are kept: it has the
        credentials and certificates that its files name.
        """
        target = await freshChroot("securetarget")
        await self.serve(target)
        await self.inCluster("produce", self.write(b"one\ntwo\nthree\n"), "--topic", "t")
        own = {"zk.digest": DIGEST, "zk.acl": "private", "broker.endpoint": self.template}
        source = {
            **own,
            "zk.connect": self.servers,
            "groupid": "mirror",
            "fetcher.backoff.ms": "20",
        }
        settings = MirrorSettings.fromProperties(
            [source], {**own, "zk.connect": target}, whitelist("t"), self.fail, isKeeping=True
        )
        mirror = MirrorService(reactor, settings)
        mirror.startService()
        self.addCleanup(mirror.stopService)
        while mirror.counters.confirmedCount < 3:
            await deferLater(reactor, 0.02)
        await mirror.stopService()
        found = await self.tool(
            "consume", "--zookeeper", target, "--topic", "t", "--from-beginning"
        )
        self.assertEqual(found.output, b"one\ntwo\nthree\n")
        [row] = json.loads((await self.inCluster("group", "describe", "mirror", "--json")).output)[
            "groups"
        ][0]["partitions"]
        self.assertEqual((row["lag"], row["offset"]), (0, row["end"]))

    async def test_brokersConsole(self) -> None:
        """
        The page that a broker serves asks the others with the certificate that C{broker.endpoint}
        names; without it, it says that they do not answer.
        """
        await self.tool(
            "produce", self.write(b"one\ntwo\n"), "--broker", self.address, "--topic", "t"
        )
        for number, more in ((1, {"broker.endpoint": self.template}), (2, {})):
            _address, broker = await self.begin(
                self.servers, number, **{"http.listener": "0", **more}
            )
            assert broker.broker.console is not None
            port = broker.broker.console.port.getHost().port
            state = (await get(port, "/api/state")).json()
            [row] = [each for each in state["brokers"] if each["id"] == 0]
            [part] = [
                each
                for topic in state["topics"]
                for each in topic["partitions"]
                if (topic["name"], each["broker"]) == ("t", 0)
            ]
            self.assertEqual(
                (bool(row["problem"]), bool(part["problem"])), (not more, not more), state
            )
            peeked = await get(port, "/api/messages?topic=t&broker=0&partition=0")
            self.assertEqual(b64encode(b"two") in peeked.body, bool(more), peeked)

    async def test_set(self) -> None:
        """What the file says can be said on the command line instead."""
        changes = [
            f"--set={key}={value}"
            for key, value in (("zk.digest", DIGEST), ("broker.endpoint", self.template))
        ]
        result = await self.perform("broker", "list", "--zookeeper", self.servers, *changes)
        self.assertEqual((result.code, result.errors), (0, ""))

    async def test_refused(self) -> None:
        """
        Without credentials ZooKeeper refuses, with wrong ones, too; without a certificate the
        broker does not answer. The password is never shown.
        """
        await self.inCluster("produce", self.write(b"one\n"), "--topic", "t")
        await self.inCluster("consume", "--topic", "t", "--from-beginning", "--group", "g")
        for arguments in (
            ("broker", "list"),
            ("topic", "list"),
            ("group", "describe"),
            ("consume", "--topic", "t", "--group", "g"),
        ):
            for more in ((), ("--set", "zk.digest=all:wrong")):
                result = await self.perform(
                    *arguments, "--zookeeper", self.servers, "--timeout-ms", "3000", *more
                )
                self.assertEqual((result.code, result.output), (1, b""), arguments)
                self.assertIn("access control", result.errors)
                self.assertNotIn("wrong", result.errors)
        result = await self.perform(
            "broker",
            "list",
            "--zookeeper",
            self.servers,
            "--config",
            self.keyless,
            "--timeout-ms",
            "3000",
        )
        self.assertEqual(result.code, 1)
        self.assertIn("broker 0 at", result.errors)
        result = await self.perform(
            "offset", "list", "--broker", self.address, "--topic", "t", "--timeout-ms", "1000"
        )
        self.assertEqual((result.code, result.output), (1, b""))
