"""
Certificates, allow-lists and ZooKeeper's credentials, at real sockets and a real ZooKeeper.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from typing import Any

from kazoo.client import KazooClient
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import TestCase

from pylogbroker import syncclient
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import (
    BrokerConnectionError,
    NoAuthException,
    PylogbrokerError,
    RemoteUnknownError,
    ZookeeperError,
)
from pylogbroker.producer.producer import Producer
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeOffsets
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import EARLIEST
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.integration.certificates import Authority
from tests.integration.chroots import freshChroot
from tests.integration.rawclient import RawClient

RULES = """
loader   produce  clicks
reader   fetch    clicks status
*        both     public-*
"""


class SecurityCase(TestCase):
    """A broker behind TLS, and an authority whose certificates it wants to see."""

    timeout = 120

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())
        self.events: list[LogEvent] = []
        observer: Any = self.events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def lines(self, what: str) -> list[str]:
        """What was logged, with a word in it."""
        texts = [
            formatEvent(event)
            for event in self.events
            if event.get("log_namespace", "").startswith("pylogbroker.broker")
        ]
        return [text for text in texts if what in text]

    async def serve(
        self, rules: str | None = None, clientCAs: bool = True, **properties: str
    ) -> LocalBroker:
        listener = f"tls:0:privateKey={self.authority.issue('broker')}:interface=127.0.0.1"
        if clientCAs:
            listener += f":clientCAs={self.authority.ca}"
        given = {
            "listeners": listener,
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        if rules is not None:
            path = os.path.join(self.authority.folder, "allow.txt")
            with open(path, "w") as file:
                file.write(rules)
            given["allow.file"] = path
        self.broker = broker = LocalBroker(reactor, given)
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    def template(self, name: str | None, authority: Authority | None = None) -> str:
        own = (
            ""
            if name is None
            else ":certificate={0}:privateKey={0}".format((authority or self.authority).issue(name))
        )
        return f"tls:{{host}}:{{port}}:trustRoots={self.authority.trustFolder()}{own}"

    def endpoint(self, name: str | None, authority: Authority | None = None) -> str:
        return self.template(name, authority).format(host="127.0.0.1", port=self.broker.port)

    async def refused(self, asking: Any, *kinds: type[BaseException]) -> Any:
        try:
            await asking
        except kinds as error:
            return error
        raise self.failureException(f"nothing of {kinds}")

    async def produce(
        self,
        name: str | None,
        topic: str,
        payload: bytes = b"x",
        authority: Authority | None = None,
    ) -> None:
        """Send, and prove that the broker has taken it."""
        producer = SyncProducer(reactor, self.endpoint(name, authority), connectTimeoutMs=3000)
        try:
            await producer.send(topic, 0, [payload])
            await producer.confirm(topic, 0)
        finally:
            await producer.close().addErrback(lambda _failure: None)

    def consumer(self, name: str | None, authority: Authority | None = None) -> SimpleConsumer:
        consumer = SimpleConsumer(
            reactor, self.endpoint(name, authority), timeoutMs=5000, connectTimeoutMs=3000
        )
        self.addCleanup(consumer.close)
        return consumer

    async def fetch(self, name: str | None, topic: str) -> list[bytes]:
        return [
            payload
            for payload, _ in (await self.consumer(name).fetch(topic, 0, 0, 1 << 16)).payloads()
        ]

    async def stored(self, topic: str) -> int:
        """Bytes that the broker has of a topic."""
        logs = self.broker.broker.service.directory.logs
        return sum(log.logEndOffset for place, log in logs.items() if place.topic == topic)


class CertificateTests(SecurityCase):
    """A connection without the right certificate gets nothing."""

    async def test_right(self) -> None:
        """With a certificate of the authority, all is as without TLS."""
        await self.serve()
        await self.produce("loader", "clicks", b"one")
        self.assertEqual(await self.fetch("reader", "clicks"), [b"one"])
        self.assertEqual(self.lines("TLS"), [])

    async def test_none(self) -> None:
        """Without one: no answer, nothing stored, one line in the log however often it is tried."""
        await self.serve()
        for _attempt in range(3):
            await self.refused(self.produce(None, "clicks"), PylogbrokerError)
            await self.refused(
                self.consumer(None).fetch("clicks", 0, 0, 100), BrokerConnectionError
            )
        self.assertEqual(await self.stored("clicks"), 0)
        self.assertEqual(len(self.lines("did not get past TLS")), 1, self.lines(""))
        self.assertIn("certificate", self.lines("did not get past TLS")[0])

    async def test_another(self) -> None:
        """One of another authority is as good as none, whatever name is in it."""
        await self.serve()
        stranger = Authority(self.mktemp())
        await self.refused(self.produce("loader", "clicks", authority=stranger), PylogbrokerError)
        self.assertEqual(await self.stored("clicks"), 0)

    async def test_plain(self) -> None:
        """Who does not speak TLS gets nothing but the end."""
        broker = await self.serve()

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", broker.port), 30) as plain:
                plain.sendall(encodeOffsets("clicks", 0, EARLIEST, 1))
                answer = b""
                while data := plain.recv(1000):
                    answer += data
                return answer

        answer = await deferToThread(talk)
        self.assertTrue(answer == b"" or answer[0] == 0x15, answer)  # nothing, or an alert of TLS
        self.assertEqual(len(self.lines("did not get past TLS")), 1)

    async def test_notAsked(self) -> None:
        """Without C{clientCAs} a certificate is not needed."""
        await self.serve(clientCAs=False)
        await self.produce(None, "clicks", b"one")
        self.assertEqual(await self.fetch(None, "clicks"), [b"one"])

    async def test_wrongBroker(self) -> None:
        """A client does not talk to a broker that it cannot trust."""
        await self.serve()
        stranger = Authority(self.mktemp())
        endpoint = f"tls:127.0.0.1:{self.broker.port}:trustRoots={stranger.trustFolder()}"
        consumer = SimpleConsumer(reactor, endpoint, timeoutMs=2000, connectTimeoutMs=2000)
        self.addCleanup(consumer.close)
        await self.refused(consumer.fetch("clicks", 0, 0, 100), BrokerConnectionError)

    async def test_endlessHandshake(self) -> None:
        """
        Who begins a handshake and does not go on is cut off; who is through, and idle, is not.
        """
        broker = await self.serve(reader_idle_ms="100")
        consumer = self.consumer("reader")
        await consumer.fetch("clicks", 0, 0, 100)

        def stay() -> bytes:
            with socket.create_connection(("127.0.0.1", broker.port), 30) as plain:
                plain.sendall(b"\x16\x03\x01")
                try:
                    return plain.recv(100)
                except ConnectionResetError:
                    return b""

        self.assertEqual(await deferToThread(stay), b"")
        self.assertEqual(len(self.lines("TLS handshake: cut off")), 1)
        service = broker.broker.service
        self.assertEqual(
            (
                len(service.connections.open),
                len(service.connections.handshaking),
                service.counters.connections.slowCount,
            ),
            (1, 0, 1),
        )

    async def test_oldTls(self) -> None:
        """TLS before 1.2 is not spoken."""
        broker = await self.serve(clientCAs=False)

        def talk() -> None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            with (
                socket.create_connection(("127.0.0.1", broker.port), 30) as plain,
                context.wrap_socket(plain),
            ):
                pass

        with self.assertRaises(OSError):
            await deferToThread(talk)


class ClosedTests(SecurityCase):
    """
    A connection that the broker has closed, over TLS, which goes on handing out what arrives, and
    over plain TCP.
    """

    notKnown = struct.pack(">ih", 2, 77)

    def connect(self, port: int, isTls: bool) -> RawClient:
        plain = socket.create_connection(("127.0.0.1", port), 30)
        if not isTls:
            return RawClient.over(plain)
        context = ssl.create_default_context(cafile=self.authority.ca)
        context.load_cert_chain(self.authority.issue("loader"))
        return RawClient.over(context.wrap_socket(plain, server_hostname="localhost"))

    async def both(
        self, properties: dict[str, str] | None = None
    ) -> list[tuple[LocalBroker, bool]]:
        plain = LocalBroker(reactor, properties or {})
        self.addCleanup(plain.stop)
        await plain.start()
        return [(await self.serve(None, True, **(properties or {})), True), (plain, False)]

    async def test_smuggled(self) -> None:
        """
        A payload whose bytes are a request does not become one when the request before it was
        refused; the answers before it arrive.
        """
        for broker, isTls in await self.both():
            inner = encodeProduce("smuggled", 0, encodeSet([b"nobody sent this as a request"]))
            frame = encodeProduce("clicks", 0, encodeSet([inner]))
            middle = frame.index(inner)

            def talk(
                broker: LocalBroker = broker,
                isTls: bool = isTls,
                frame: bytes = frame,
                middle: int = middle,
            ) -> list[int]:
                with self.connect(broker.port, isTls) as client:
                    client.produce("status", 0, encodeSet([b"one"]))
                    client.send(
                        encodeOffsets("status", 0, EARLIEST, 1) + self.notKnown + frame[:middle]
                    )
                    answer = decodeOffsets(client.receiveBody())[1]
                    self.assertTrue(client.isClosed())
                    try:
                        client.send(frame[middle:])
                    except OSError:
                        self.assertFalse(isTls)  # TCP tells the client that nobody reads
                    return answer

            self.assertEqual(await deferToThread(talk), [0])
            counters = broker.broker.service.counters.connections
            while broker.broker.service.connections.open:
                await deferLater(reactor, 0.01)
            self.assertEqual(
                {place.topic for place in broker.broker.service.directory.logs}, {"status"}
            )
            self.assertEqual(counters.malformedCount, 1)

    async def test_neverEnds(self) -> None:
        """Who was refused and neither reads nor closes loses its place among the connections."""
        for broker, isTls in await self.both({"reader.idle.ms": "100"}):

            def stay(broker: LocalBroker = broker, isTls: bool = isTls) -> RawClient:
                client = self.connect(broker.port, isTls)
                client.send(self.notKnown)
                return client

            client = await deferToThread(stay)
            self.addCleanup(client.close)
            service = broker.broker.service
            while service.connections.open or not service.counters.connections.malformedCount:
                await deferLater(reactor, 0.01)
            self.assertEqual(
                (service.connections.closing, service.counters.connections.slowCount),
                ({}, int(isTls)),
            )
        self.assertEqual(
            len(self.lines("does not end its side of a connection that was closed: cut off")), 1
        )


class ThreadTests(SecurityCase):
    """The clients for threads speak TLS, too."""

    async def test_exchange(self) -> None:
        """
        What one sends, to the last before it is closed, the other reads; both show their
        certificates.
        """
        await self.serve(RULES)
        loader, reader = self.endpoint("loader"), self.endpoint("reader")

        def run() -> list[bytes]:
            with syncclient.SyncProducer(*syncclient.endpoint(loader)) as producer:
                producer.send("clicks", 0, [b"one"])
                producer.confirm("clicks", 0)
                producer.send("clicks", 0, [b"two" * 100_000])
            with syncclient.SimpleConsumer(*syncclient.endpoint(reader)) as consumer:
                found = list(consumer.fetch("clicks", 0, 0, 1 << 20).payloads())
                assert consumer.getOffsetsBefore("clicks", 0, EARLIEST, 1) == [0]
            return [payload for payload, _nextOffset in found]

        self.assertEqual(await deferToThread(run), [b"one", b"two" * 100_000])
        self.assertEqual(self.lines("did not get past TLS"), [])

    async def test_refused(self) -> None:
        """
        Without a certificate, or with a stranger's, there is nothing to be had; neither from a
        broker that is not the one, nor by plain TCP.
        """
        broker = await self.serve()
        other = Authority(self.mktemp(), "somebody else")

        def refused(description: str) -> None:
            with syncclient.SimpleConsumer(
                *syncclient.endpoint(description), timeoutMs=5_000, connectTimeoutMs=1_000
            ) as consumer:
                self.assertRaises(BrokerConnectionError, consumer.fetch, "t", 0, 0, 100)

        def run() -> None:
            for description in descriptions:
                refused(description)

        address = f"127.0.0.1:{broker.port}"
        descriptions = (
            self.endpoint(None),
            self.endpoint("stranger", other),
            address,
            f"tls:{address}:trustRoots={other.trustFolder()}",
        )
        await deferToThread(run)
        self.assertEqual(broker.broker.service.counters.requests.fetchCount, 0)


class AllowListTests(SecurityCase):
    """Topics for some."""

    async def test_allowed(self) -> None:
        """What a rule allows is done, in all kinds of requests."""
        await self.serve(RULES)
        producer = SyncProducer(reactor, self.endpoint("loader"))
        await producer.send("clicks", 0, [b"one"])
        await producer.multiSend([("clicks", 0, [b"two"]), ("public-1", 0, [b"three"])])
        await producer.close()
        consumer = self.consumer("reader")
        while (
            len(
                found := [
                    payload
                    for payload, _ in (await consumer.fetch("clicks", 0, 0, 1000)).payloads()
                ]
            )
            < 2
        ):
            pass
        self.assertEqual(found, [b"one", b"two"])
        both = await consumer.multifetch([("clicks", 0, 0, 1000), ("public-1", 0, 0, 1000)])
        self.assertEqual([len(list(part.payloads())) for part in both], [2, 1])
        self.assertEqual(await consumer.getOffsetsBefore("clicks", 0, EARLIEST, 1), [0])
        self.assertEqual(self.lines("Refused"), [])

    async def test_produceRefused(self) -> None:
        """
        A topic that is not allowed: nothing is stored, no topic comes into being, the connection
        ends, and it is logged once.
        """
        await self.serve(RULES)
        for _attempt in range(3):
            await self.refused(self.produce("reader", "clicks"), PylogbrokerError)
        await self.refused(self.produce("loader", "other"), PylogbrokerError)
        self.assertEqual(
            {place.topic for place in self.broker.broker.service.directory.logs}, set()
        )
        self.assertEqual(len(self.lines("'reader' may not produce 'clicks'")), 1, self.lines(""))
        self.assertEqual(len(self.lines("'loader' may not produce 'other'")), 1)
        self.assertEqual(self.lines("Closed the connection"), [])

    async def test_produceRefusedEarly(self) -> None:
        """
        A producer that still writes when the broker refuses it learns at once that the connection
        has ended, over TLS as over plain TCP.
        """
        await self.serve(RULES)
        producer = SyncProducer(reactor, self.endpoint("loader"))

        async def produce() -> None:
            for _request in range(300):
                await producer.send("other", 0, 200 * [bytes(1_000)])
            await producer.confirm("other", 0)

        error = await self.refused(produce(), BrokerConnectionError)
        self.assertIn("closed the connection", str(error))
        await producer.close().addErrback(lambda reason: reason.trap(BrokerConnectionError))

    async def test_fetchRefused(self) -> None:
        """
        A fetch is answered with an error; in a multifetch only the part that is not allowed is; for
        offsets the connection ends.
        """
        await self.serve(RULES)
        await self.produce("anybody", "public-1", b"seen")
        await self.refused(self.fetch("loader", "clicks"), RemoteUnknownError)
        consumer = self.consumer("loader")
        refused, allowed = await consumer.multifetch(
            [("clicks", 0, 0, 1000), ("public-1", 0, 0, 1000)]
        )
        self.assertIsInstance(refused.error, RemoteUnknownError)
        self.assertEqual([payload for payload, _ in allowed.payloads()], [b"seen"])
        await self.refused(
            consumer.getOffsetsBefore("status", 0, EARLIEST, 1), BrokerConnectionError
        )
        self.assertEqual(
            await consumer.getOffsetsBefore("clicks", 0, EARLIEST, 1), [0]
        )  # who may produce there may ask
        self.assertEqual(len(self.lines("'loader' may not fetch 'clicks'")), 1, self.lines(""))
        self.assertEqual(self.lines("code -1"), [])

    async def test_plainListener(self) -> None:
        """At a plain listener nobody has a name, and gets what everybody and C{-} gets."""
        await self.serve(RULES + "- fetch status\n")
        plain = LocalBroker(
            reactor, {"allow.file": os.path.join(self.authority.folder, "allow.txt")}
        )
        self.addCleanup(plain.stop)
        await plain.start()
        consumer = SimpleConsumer(reactor, plain.endpoint)
        self.addCleanup(consumer.close)
        self.assertIs((await consumer.fetch("status", 0, 0, 100)).error, None)
        self.assertIsInstance((await consumer.fetch("clicks", 0, 0, 100)).error, RemoteUnknownError)
        self.assertEqual(
            len(self.lines("a client without a certificate may not fetch 'clicks'")), 1
        )

    async def test_flood(self) -> None:
        """Thousands of refused names fill neither the log nor the counters."""
        broker = await self.serve(RULES, clientCAs=False)
        service = broker.broker.service
        consumer = self.consumer(None)
        for start in range(0, 1500, 250):
            await consumer.multifetch(
                [(f"topic {number}", 0, 0, 100) for number in range(start, start + 250)]
            )
        self.assertLess(len(self.lines("may not fetch")), 1010)
        self.assertEqual(len(service.counters.topics), 0)

    async def test_runOfRequests(self) -> None:
        """
        Requests that come together are judged one by one, and those before a refused one are
        carried out.
        """
        await self.serve(RULES)
        producer = SyncProducer(reactor, self.endpoint("loader"))
        first = producer.send("clicks", 0, [b"one"])
        second = producer.send("other", 0, [b"two"])
        await first
        await second.addErrback(lambda _failure: None)
        await producer.close().addErrback(lambda _failure: None)
        consumer = self.consumer("reader")
        while not (
            found := [
                payload for payload, _ in (await consumer.fetch("clicks", 0, 0, 100)).payloads()
            ]
        ):
            pass
        self.assertEqual(found, [b"one"])

    async def test_severalNames(self) -> None:
        """A certificate with two common names has no name."""
        await self.serve(RULES + "- both secret\n")
        path = self.authority.issue("loader", "reader")
        endpoint = (
            f"tls:127.0.0.1:{self.broker.port}:trustRoots={self.authority.trustFolder()}"
            f":certificate={path}:privateKey={path}"
        )
        consumer = SimpleConsumer(reactor, endpoint, timeoutMs=5000)
        self.addCleanup(consumer.close)
        self.assertIsInstance((await consumer.fetch("clicks", 0, 0, 100)).error, RemoteUnknownError)
        self.assertIs((await consumer.fetch("secret", 0, 0, 100)).error, None)


class ZookeeperTests(SecurityCase):
    """Credentials and access control lists; and a cluster behind TLS that is found by ZooKeeper."""

    async def chroot(self) -> str:
        return await freshChroot("security")

    async def client(self, servers: str, digest: str = "") -> ZookeeperClient:
        client = ZookeeperClient(reactor, servers, digest=digest)
        self.addCleanup(client.close)
        await client.connect()
        return client

    async def test_readable(self) -> None:
        """
        What a broker has created others can read and not change, unless they have its credentials.
        """
        servers = await self.chroot()
        await self.serve(
            enable_zookeeper="true",
            zk_connect=servers,
            hostname="127.0.0.1",
            port="1",
            zk_digest="broker:secret",
        )
        stranger = await self.client(servers)
        self.assertIn(b"127.0.0.1", (await stranger.get("/brokers/ids/0"))[0] or b"")
        await self.refused(stranger.set("/brokers/ids/0", b"x"), NoAuthException)
        await self.refused(stranger.create("/brokers/ids/1", b"x"), NoAuthException)
        wrong = await self.client(servers, "broker:wrong")
        await self.refused(wrong.create("/brokers/ids/1", b"x"), NoAuthException)
        right = await self.client(servers, "broker:secret")
        await right.create("/brokers/ids/1", b"x")

    async def test_readableForProducers(self) -> None:
        """
        A producer without credentials, which only reads, finds brokers by nodes that it may not
        create; if they are missing, the error names the first one.
        """
        servers = await self.chroot()
        right = await self.client(servers, "broker:secret")
        await right.create("/brokers")
        missing = Producer(reactor, {"zk.connect": servers})
        error = await self.refused(missing.start(), NoAuthException)
        self.assertIn("create /brokers/ids: ", str(error))
        await missing.close()
        await right.create("/brokers/ids")
        await right.create("/brokers/topics")
        producer = Producer(reactor, {"zk.connect": servers})
        self.addCleanup(producer.close)
        await producer.start()

    async def test_private(self) -> None:
        """C{zk.acl=private}: others cannot even read."""
        servers = await self.chroot()
        await self.serve(
            enable_zookeeper="true",
            zk_connect=servers,
            hostname="127.0.0.1",
            port="1",
            zk_digest="broker:secret",
            zk_acl="private",
        )
        stranger = await self.client(servers)
        await self.refused(stranger.get("/brokers/ids/0"), NoAuthException)

    async def test_open(self) -> None:
        """C{zk.acl=open}, or no credentials: everybody may do everything, as with 0.7."""
        servers = await self.chroot()
        await self.serve(
            enable_zookeeper="true",
            zk_connect=servers,
            hostname="127.0.0.1",
            port="1",
            zk_digest="broker:secret",
            zk_acl="open",
        )
        stranger = await self.client(servers)
        await stranger.create("/brokers/ids/1", b"x")

    async def test_refusedStart(self) -> None:
        """A broker with the wrong credentials does not start, and says why without them."""
        servers = await self.chroot()
        right = await self.client(servers, "broker:secret")
        await right.create("/brokers")
        error = await self.refused(
            self.serve(
                enable_zookeeper="true",
                zk_connect=servers,
                hostname="127.0.0.1",
                port="1",
                zk_digest="broker:wrong",
            ),
            ZookeeperError,
        )
        self.assertIn("access control", str(error))
        self.assertNotIn("wrong", str(error))
        self.assertNotIn("wrong", repr(self.broker.broker.settings))

    async def test_cluster(self) -> None:
        """
        A producer and a group find a broker behind TLS in a ZooKeeper that needs credentials, with
        their own certificates.
        """
        servers = await self.chroot()
        taken = socket.socket()
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        key = self.authority.issue("broker")
        path = os.path.join(self.authority.folder, "allow.txt")
        with open(path, "w") as file:
            file.write(RULES)
        listener = f"tls:{port}:privateKey={key}:clientCAs={self.authority.ca}:interface=127.0.0.1"
        zookeeper = {"zk.connect": servers, "zk.digest": "all:secret", "zk.acl": "private"}
        self.broker = LocalBroker(
            reactor,
            {
                **zookeeper,
                "listeners": listener,
                "port": str(port),
                "hostname": "127.0.0.1",
                "enable.zookeeper": "true",
                "allow.file": path,
            },
        )
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        producer = Producer(
            reactor, {**zookeeper, "broker.endpoint": self.template("loader"), "confirm": "true"}
        )
        await producer.send("clicks", b"one")
        await producer.close()
        consumer = ConsumerConnector(
            reactor,
            {
                **zookeeper,
                "broker.endpoint": self.template("reader"),
                "groupid": "g",
                "fetcher.backoff.ms": "20",
            },
        )
        self.addCleanup(consumer.shutdown)
        await consumer.connect()
        streams = await consumer.createMessageStreams({"clicks": 1})
        async for message in streams["clicks"][0]:
            self.assertEqual(message.value, b"one")
            break
        await consumer.commitOffsets()

        def acls() -> list[Any]:
            client = KazooClient(hosts=servers, auth_data=[("digest", "all:secret")])
            client.start(30)
            try:
                return [
                    client.get_acls(path)[0]
                    for path in (
                        "/brokers/ids/0",
                        "/consumers/g/offsets/clicks/0-0",
                        "/consumers/g/ids",
                    )
                ]
            finally:
                client.stop()
                client.close()

        for found in await deferToThread(acls):
            self.assertEqual(
                [(acl.id.scheme, acl.id.id.partition(":")[0]) for acl in found], [("digest", "all")]
            )
