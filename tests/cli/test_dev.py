"""
Tests for C{dev} in L{pylogbroker.cli.commands.dev}, also with a ZooKeeper.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.dev import brokerPage, page
from pylogbroker.cli.main import prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.programs import standalonezookeeper
from pylogbroker.programs.brokertap import Options
from pylogbroker.records.messageset import encodeSet
from tests.broker.client import connect
from tests.cli.commands import CommandCase, Process, performAtOnce, reactor
from tests.cli.test_zookeeper import FailingFileSystem, ZookeeperCase
from tests.contracts.zookeeperbench import freePort

API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
"""An ApiVersions request of today's protocol, without its client's name."""


class BrokerTests(CommandCase):
    """C{dev} alone."""

    timeout = 120

    async def served(self, *options: str) -> tuple[Process, Any, str, str]:
        """The command's process, the broker's address, and the directory of its data."""
        protocol, process = self.spawn("dev", "--port", "0", *options)
        await protocol.said(b"offset list")
        found = re.search(
            r"broker     (127\.0\.0\.1:\d+)\ndata       (\S+),", protocol.output.decode()
        )
        assert found is not None, (protocol.output, protocol.errors)
        return protocol, process, found[1], found[2]

    async def test_bothProtocols(self) -> None:
        """
        It serves clients of today's Kafka and of Kafka 0.7 on one port, without a ZooKeeper. Ctrl-C
        ends it with status 0, and the data goes.
        """
        protocol, process, address, directory = await self.served()
        self.assertIn("which goes", protocol.output.decode())
        self.assertIn(f"bootstrap.servers={address}", protocol.output.decode())
        client = await connect(self, f"tcp:{address}")
        client.send(API_VERSIONS)
        self.assertEqual((await client.answer())[:6], b"\0\0\0\7\0\0")  # number 7, no error
        producer = SyncProducer(reactor, f"tcp:{address}")
        await producer.send("lines", 0, encodeSet([b"x"]))
        await producer.confirm("lines", 0)
        await producer.close()
        self.assertEqual(os.listdir(directory), ["log"])
        os.kill(process.pid, signal.SIGINT)
        result = await protocol.ended
        self.assertEqual((result.code, result.errors), (0, ""))
        self.assertFalse(os.path.exists(directory))

    async def test_data(self) -> None:
        """With a directory the data stays."""
        data = self.mktemp()
        protocol, process, _address, directory = await self.served("--data", data)
        self.assertEqual(directory, data)
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual((await protocol.ended).code, 0)
        self.assertIn(".kafka_cleanshutdown", os.listdir(os.path.join(data, "log")))

    async def test_wrong(self) -> None:
        """What is wrong with the broker's properties is an error."""
        result = await self.perform("dev", "--port", "0", "--set", "num.partitions=none")
        self.assertEqual((result.code, "num.partitions=none" in result.errors), (1, True))


class ClusterTests(CommandCase):
    """C{dev} with C{--brokers}."""

    timeout = 120

    async def served(self, *options: str) -> tuple[Process, Any, dict[int, str]]:
        """The command's process, and the addresses of the brokers by id."""
        protocol, process = self.spawn(
            *("dev", "--brokers", "2", "--port", "0", "--zookeeper-port", "0", *options)
        )
        await protocol.said(b"pylogbroker-console")
        found = re.findall(r"broker (\d) +(127\.0\.0\.1:\d+)", protocol.output.decode())
        self.assertEqual(len(found), 2, (protocol.output, protocol.errors))
        return protocol, process, {int(number): address for number, address in found}

    async def test_brokers(self) -> None:
        """
        The brokers are one cluster, in one process; Ctrl-C ends it with status 0, and the data
        goes.
        """
        protocol, process, addresses = await self.served()
        result = await deferToThread(
            performAtOnce, "broker", "list", "--bootstrap-server", addresses[2], "--json"
        )
        self.assertEqual(result.code, 0, result.errors)
        listed = {each["broker"]: each for each in result.document()["brokers"]}
        self.assertEqual(
            {number: f"{each['host']}:{each['port']}" for number, each in listed.items()}, addresses
        )
        self.assertTrue(all(each["answers"] for each in listed.values()))
        found = re.search(r"data       (\S+), which goes", protocol.output.decode())
        assert found is not None
        self.assertEqual(sorted(os.listdir(found[1])), ["broker1", "broker2", "zookeeper"])
        os.kill(process.pid, signal.SIGINT)
        ended = await protocol.ended
        self.assertEqual((ended.code, ended.errors), (0, ""))
        self.assertFalse(os.path.exists(found[1]))

    async def test_processes(self) -> None:
        """
        Each has a process. One that is killed is told, with how to start it again, and Ctrl-C ends
        the others.
        """
        data = self.mktemp()
        protocol, process, _ = await self.served("--processes", "--data", data)
        first, second = map(int, re.findall(rb"process (\d+)\n", protocol.output))
        os.kill(second, signal.SIGKILL)
        await protocol.said(b"signal 9")
        self.assertIn(b"broker 2", protocol.errors)
        self.assertIn(os.path.join(data, "broker2.properties").encode(), protocol.errors)
        os.kill(process.pid, signal.SIGINT)
        self.assertEqual((await protocol.ended).code, 0)
        self.assertRaises(ProcessLookupError, os.kill, first, 0)
        log = os.path.join(data, "broker1")
        self.assertIn(".kafka_cleanshutdown", os.listdir(log))


class DevTests(ZookeeperCase):
    """A cluster in one command."""

    async def test_round(self) -> None:
        """
        It has a broker that is registered and serves; Ctrl-C takes the registration away, and ends
        all of it with status 0. The data stays.
        """
        data = self.mktemp()
        protocol, process = self.spawn(
            *("dev", "--zookeeper", "--data", data, "--port", "0", "--zookeeper-port", "0")
        )
        servers = await self.served(protocol)
        client = await self.connected(servers)
        value = (await client.get("/brokers/ids/0"))[0].decode()
        address = value.partition(":")[2]
        self.assertIn(f"broker     {address}, number 0", protocol.output.decode())
        self.assertIn("which stays", protocol.output.decode())
        producer = SyncProducer(reactor, f"tcp:{address}")
        await producer.send("first", 0, encodeSet([b"x"]))
        await producer.confirm("first", 0)
        await producer.close()
        _result, gone = client.exists_and_watch("/brokers/ids/0")
        await _result
        os.kill(process.pid, signal.SIGINT)
        self.assertEqual((await gone).kind, "deleted")
        result = await protocol.ended
        self.assertEqual((result.code, result.errors), (0, ""))
        self.assertIn(".kafka_cleanshutdown", os.listdir(os.path.join(data, "log")))
        self.assertIn("first-0", os.listdir(os.path.join(data, "log")))

    async def test_temporary(self) -> None:
        """Without a directory the data goes at the end."""
        protocol, process = self.spawn("dev", "--zookeeper", "--port", "0", "--zookeeper-port", "0")
        await self.served(protocol)
        found = re.search(r"data       (\S+), which goes", protocol.output.decode())
        assert found is not None
        self.assertTrue(os.path.isdir(found[1]))
        self.assertEqual((await self.ended(protocol, process)).code, 0)
        self.assertFalse(os.path.exists(found[1]))

    async def test_zookeeperEnds(self) -> None:
        """
        A ZooKeeper that ends by itself ends the command with an error, and the broker in order.
        """
        self.patch(standalonezookeeper, "RealFileSystem", FailingFileSystem)
        data, port = self.mktemp(), str(freePort())
        arguments = ("dev", "--zookeeper", "--data", data, "--port", "0", "--zookeeper-port", port)
        ended = Deferred.fromCoroutine(self.perform(*arguments))
        client = await self.connected(f"127.0.0.1:{port}")
        while await client.exists("/brokers/ids/0") is None:
            await deferLater(reactor, 0.01)
        await self.fillUp(f"127.0.0.1:{port}")
        result = await ended
        self.assertEqual((result.code, "server has ended" in result.errors), (1, True))
        self.assertIn(".kafka_cleanshutdown", os.listdir(os.path.join(data, "log")))

    async def test_wrong(self) -> None:
        """What is wrong with the broker's properties is an error, and ZooKeeper is stopped."""
        result = await self.perform(
            "dev",
            "--zookeeper",
            "--data",
            self.mktemp(),
            "--port",
            "0",
            "--zookeeper-port",
            "0",
            "--set",
            "num.partitions=none",
        )
        self.assertEqual((result.code, "num.partitions=none" in result.errors), (1, True))

    async def test_noTemporaryDirectory(self) -> None:
        """A machine without room for a temporary directory is told so."""
        self.patch(__import__("tempfile"), "tempdir", "/nowhere")
        result = await self.perform("dev")
        self.assertEqual((result.code, "temporary directory" in result.errors), (1, True))


class PageTests(SynchronousTestCase):
    """What to do next."""

    def test_brokersCommands(self) -> None:
        """As below, of a broker without ZooKeeper."""
        for address, named in (("127.0.0.1:9092", False), ("127.0.0.1:1234", True)):
            text = brokerPage(address, "/tmp/a b", True)
            lines = [shlex.split(line) for line in text.splitlines() if line.startswith("  ")]
            for line in lines[:2]:
                self.assertIn(address, line)
            for line in lines[2:]:
                self.assertEqual("--broker" in line, named)
                prepare(
                    ["produce", "/dev/null", *line[3:]] if line[1] == "produce" else line[1:],
                    Streams(0, 1, io.StringIO()),
                )
            self.assertEqual([line[1] for line in lines[2:]], ["produce", "consume", "offset"])

    def test_commands(self) -> None:
        """
        Each line of the page is a command that its own parser takes; the ports are named where they
        are not the default.
        """
        for address, named in (("127.0.0.1:9092", False), ("127.0.0.1:1234", True)):
            text = page("127.0.0.1:2181", address, 0, "/tmp/a b", False)
            lines = [shlex.split(line) for line in text.splitlines() if line.startswith("  ")]
            for line in lines[:-1]:
                self.assertEqual("--broker" in line, named and "--zookeeper" not in line)
                prepare(
                    ["produce", "/dev/null", *line[3:]] if line[1] == "produce" else line[1:],
                    Streams(0, 1, io.StringIO()),
                )
            self.assertEqual(
                [line[1] for line in lines[:-1]],
                ["produce", "consume", "offset", "produce", "consume", "group"],
            )
            options = Options()
            options.parseOptions(lines[-1][lines[-1].index("pylogbroker") + 1 :])
            settings = options.settings
            self.assertEqual(
                (settings.brokerId, settings.zkConnect, settings.logDir),
                (1, "127.0.0.1:2181", "/tmp/a b/log1"),
            )
