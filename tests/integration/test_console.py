"""
The console as people have it: C{twistd pylogbroker} as a process, a real ZooKeeper, a real browser.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.threads import blockingCallFromThread
from twisted.trial.unittest import TestCase

from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC, METRICS_TOPIC
from pylogbroker.console.standalone import ClusterConsole, KafkaClusterConsole
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.tasks.reports.containermetrics import StandbyMetrics, StoreMetrics
from pylogbroker.tasks.reports.jobconfig import PlannedStep, PlannedTopic, configOf
from pylogbroker.types import TopicPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import createParents
from tests.console.test_tasks import JOB, TASK, metrics
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.chromium import ENTER, TAB, Chromium
from tests.integration.chroots import freshChroot, registered
from tests.integration.threaded import BrokerCase, inThread

HOSTILE_TOPIC = "<img src=x onerror=\"document.title='gotcha'\">"
HOSTILE = b"<script>document.title='gotcha'</script>"
_CONSOLE = re.compile(r"Metrics and console are served on .*:(\d+)")


def inReactor(act: Callable[..., Any], *arguments: Any) -> Any:
    """
    Call a function on the reactor's thread, one that returns a Deferred or a coroutine, and wait.
    """
    return blockingCallFromThread(reactor, lambda: ensureDeferred(act(*arguments)))  # type: ignore[arg-type]


class ConsoleTests(TestCase):
    """What a person sees."""

    timeout = 240

    def start(self, **properties: str) -> None:
        self.servers = inReactor(freshChroot, "console")
        self.broker = BrokerProcess(
            os.path.abspath(self.mktemp()),
            {**registered(self.servers), "http.listener": "0", **properties},
        )
        os.makedirs(os.path.dirname(self.broker.directory), exist_ok=True)
        self.broker.start()
        self.addCleanup(self.broker.kill)
        self.port = int(self.broker.waitForLine(_CONSOLE).group(1))
        self.producer = SyncProducer("127.0.0.1", self.broker.port)
        self.addCleanup(self.producer.close)
        self.browser = Chromium()
        self.addCleanup(self.browser.close)
        self.browser.open(f"http://127.0.0.1:{self.port}/")

    async def _join(self) -> tuple[ConsumerConnector, MessageStream]:
        settings = {
            "zk.connect": self.servers,
            "groupid": "readers<b>",
            "rebalance.backoff.ms": "100",
            "fetcher.backoff.ms": "20",
            "autocommit.interval.ms": "100",
            "autooffset.reset": "smallest",
            "queuedchunks.max": "1",
            "fetch.size": "20000",
        }
        consumer = ConsumerConnector(reactor, settings)
        await consumer.connect()
        streams: dict[str, list[MessageStream]] = await consumer.createMessageStreams({"orders": 1})
        return consumer, streams["orders"][0]

    async def _read(self, stream: MessageStream, messageCount: int) -> None:
        left = messageCount
        async for _message in stream:
            left -= 1
            if not left:
                return

    def lag(self) -> float:
        """The sum of lags as the group's card tells it, in KiB; -1: it does not."""
        found = re.search(
            r"lag ([0-9.]+) (B|KiB|MiB)$",
            self.browser.text("#groups .group > div:first-child").strip(),
        )
        return float(found[1]) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024}[found[2]] if found else -1

    def send(self, messageCount: int, size: int = 1000) -> None:
        for partition in range(2):
            self.producer.send("orders", partition, [b"x" * size] * (messageCount // 2))

    @inThread
    def test_page(self) -> None:
        """
        Topics appear, the chart moves while messages flow, lag grows and shrinks, what is hostile
        shows as text; and the page complains of nothing.
        """
        self.start()
        browser = self.browser
        browser.waitFor(
            "the broker", lambda: f"127.0.0.1:{self.broker.port}" in browser.text("#brokers")
        )
        self.assertIn("registered", browser.text("#brokers"))
        self.assertIn("No topics yet", browser.text("main"))
        self.assertIn("No client has to wait", browser.text("main"))

        # Topics appear, with their names as text.
        self.send(20)
        self.producer.send(
            HOSTILE_TOPIC, 0, [HOSTILE, b'{"a": [1, "\xc3\xa9"]}', b"\x00\xffbinary"]
        )
        browser.waitFor("the topic", lambda: "orders" in browser.text("#topics"))
        browser.waitFor("the other one", lambda: HOSTILE_TOPIC in browser.text("#topics"))
        browser.type("#filter", "ord")
        browser.waitFor("the filter", lambda: HOSTILE_TOPIC not in browser.text("#topics"))
        self.assertIn("1 of 2 topics", browser.text("main"))
        browser.type("#filter", "img")
        browser.click("#topics tr:first-child button.fold")
        browser.waitFor("partitions", lambda: "partition 0-0" in browser.text("#topics"))

        # The chart moves while messages flow.
        def line() -> str:
            return str(
                browser.run(
                    "return document.querySelector('#chart path.line.in')?.getAttribute('d') ?? ''"
                )
            )

        def flow() -> bool:
            self.send(200)
            return bool(re.search(r"bytes in [0-9.]+ [KM]iB/s", browser.text("#chart .legend")))

        browser.waitFor("bytes in", flow)
        before = browser.waitFor("a line", line)
        self.send(200)
        browser.waitFor("another line", lambda: line() != before)
        self.assertRegex(browser.text("#tiles .in dd"), r"[1-9].* [KM]iB/s")

        # What is hostile shows as text, in each form.
        browser.run("window.scrollTo(0, document.body.scrollHeight)")
        browser.click("#topics tr:first-child td:last-child button")
        browser.waitFor("messages", lambda: HOSTILE.decode() in browser.text("#messages-list"))
        self.assertIn("\\u0000", browser.text("#messages-list"))
        browser.run(
            "arguments[0]; const form = document.querySelector('#messages-form-of'); form.value ="
            " 'json'; form.dispatchEvent(new Event('change'))",
            0,
        )
        self.assertIn('{\n  "a": [\n    1,\n    "é"\n  ]\n}', browser.text("#messages-list"))
        browser.run(
            "const form = document.querySelector('#messages-form-of'); form.value = 'hex';"
            " form.dispatchEvent(new Event('change'))"
        )
        self.assertIn("000000  00 ff 62 69 6e 61 72 79", browser.text("#messages-list"))
        strangers = "main img, dialog img, #messages-list script"
        self.assertEqual(
            browser.run(
                "return [document.title, document.querySelectorAll(arguments[0]).length]", strangers
            ),
            ["pylogbroker", 0],
        )
        browser.click("#messages-close")
        self.lookAtRecords()

        # Lag grows while nobody reads, and shrinks when somebody does.
        self.send(1000)
        consumer, stream = inReactor(self._join)
        self.addCleanup(consumer.shutdown)
        inReactor(self._read, stream, 10)
        first = browser.waitFor("a lag", lambda: max(self.lag(), 0))
        self.assertIn("readers<b>", browser.text("#groups h3"))
        self.assertIn(consumer.consumerId, browser.text("#groups table"))
        self.send(4000)
        grown = browser.waitFor("a larger lag", lambda: self.lag() > first + 3000 and self.lag())
        inReactor(self._read, stream, 3000)
        shrunk = browser.waitFor("a smaller lag", lambda: 0 <= self.lag() < grown - 1000)
        self.assertTrue(shrunk)

        self.assertEqual(browser.errors(), [])
        self.producer.confirm("orders", 0)
        self.producer.close()
        self.assertEqual(self.broker.stop(), 0)
        browser.waitFor("that the broker is gone", lambda: "no answer" in browser.text("#status"))

    def lookAtRecords(self) -> None:
        """A topic of today's Kafka: key, header, time and value of a record, and a tombstone."""
        address = SocketAddress("127.0.0.1", self.broker.port)
        with KafkaCluster([address], timeoutMs=60_000) as cluster:
            cluster.partitions("current", isCreating=True)
            made = Record(0, 1_700_000_000_123, HOSTILE, b"the value", (("<b>name", b"<i>x"),))
            gone = Record(0, 1_700_000_000_124, b"gone", None)
            RecordWriter(cluster).write(TopicPartition("current", 0), [made, gone])
        browser = self.browser
        browser.type("#filter", "current")
        button = "#topics tr[data-topic=current] td:last-child button"
        browser.waitFor(
            "the topic", lambda: browser.run(f"return !!document.querySelector('{button}')")
        )
        browser.run("document.querySelector('#messages-form-of').value = 'text'")
        browser.click(button)
        browser.waitFor("records", lambda: "the value" in browser.text("#messages-list"))
        shown = browser.text("#messages-list")
        for text in (
            "offset 0, 2023-11-14T22:13:20.123Z",
            HOSTILE.decode(),
            "<b>name: <i>x",
            "gone",
            "no value",
        ):
            self.assertIn(text, shown)
        browser.click("#messages-close")

    async def _enter(self, path: str, data: bytes | None) -> None:
        """Create a node of ZooKeeper with its parents, or delete it."""
        zookeeper = ZookeeperClient(reactor, self.servers, 10_000)
        await zookeeper.connect(30_000)
        try:
            if data is None:
                await zookeeper.delete(path)
            else:
                await createParents(zookeeper, path)
                await zookeeper.create(path, data)
        finally:
            await zookeeper.close()

    @inThread
    def test_troubles(self) -> None:
        """
        A broker that has disappeared is shown as down, and the dot is not green; a group's sum says
        what it does not know, and its idle members are named.
        """
        self.start()
        browser = self.browser
        self.send(20)
        self.producer.confirm("orders", 0)
        for path, data in (
            ("/brokers/ids/7", b"gone-1:127.0.0.1:1"),
            ("/brokers/topics/orders/7", b"1"),
            ("/consumers/late/ids/late_idle", b'{ "orders": 1 }'),
            ("/consumers/late/offsets/orders/0-0", b"0"),
            ("/consumers/late/offsets/orders/7-0", b"0"),
        ):
            inReactor(self._enter, path, data)
        browser.waitFor("broker 7", lambda: "127.0.0.1:1" in browser.text("#brokers"))
        inReactor(self._enter, "/brokers/ids/7", None)
        inReactor(self._enter, "/brokers/topics/orders/7", None)
        browser.waitFor("that it is down", lambda: "down" in browser.text("#brokers"))
        self.assertEqual(browser.run("return document.querySelector('#status').className"), "bad")
        self.assertIn("1 of 2 brokers in trouble", browser.text("#status"))
        sums = "#groups .group > div:first-child"
        browser.waitFor("the group", lambda: "lag at least" in browser.text(sums))
        self.assertIn("not known of 1 partition", browser.text(sums))
        self.assertIn("without partitions: late_idle", browser.text(sums))
        self.assertEqual(browser.errors(), [])

    def marked(self, group: str) -> list[str]:
        """The texts of a group's card that are marked as trouble."""
        found: list[str] = self.browser.run(
            "return [...document.querySelectorAll(`.group[data-group=${arguments[0]}]"
            " .bad`)].map((each) => each.textContent)",
            group,
        )
        return found

    @inThread
    def test_marks(self) -> None:
        """
        A lag that nobody works off is marked, in its row and in the sum: without an owner at once,
        with one when its offset has not moved for a minute. No lag is not marked, owner or not.
        """
        self.start()
        browser = self.browser
        browser.run("window.nowMs = 1; Date.now = () => window.nowMs")
        self.send(20)
        self.producer.confirm("orders", 0)
        self.producer.confirm("orders", 1)
        for path, data in (
            ("/consumers/done/offsets/orders/0-0", b"10100"),
            ("/consumers/done/offsets/orders/0-1", b"10100"),
            ("/consumers/late/offsets/orders/0-0", b"0"),
            ("/consumers/late/offsets/orders/0-1", b"10100"),
            ("/consumers/slow/ids/slow_a", b'{ "orders": 1 }'),
            ("/consumers/slow/owners/orders/0-0", b"slow_a-0"),
            ("/consumers/slow/owners/orders/0-1", b"slow_a-0"),
            ("/consumers/slow/offsets/orders/0-0", b"5050"),
            ("/consumers/slow/offsets/orders/0-1", b"10100"),
        ):
            inReactor(self._enter, path, data)
        browser.waitFor("the last group", lambda: "lag 4.9 KiB" in browser.text("#groups"))
        self.assertEqual(self.marked("done"), [])
        self.assertEqual(self.marked("slow"), [])
        self.assertEqual(
            self.marked("late"),
            ["lag 9.9 KiB, all of it without an owner", "no owner", "9.9 KiB"],
        )
        browser.run("window.nowMs += 60000")
        browser.waitFor("the mark", lambda: self.marked("slow"))
        self.assertEqual(
            self.marked("slow"), ["lag 4.9 KiB, all of it at offsets that do not move", "4.9 KiB"]
        )
        inReactor(self._enter, "/consumers/slow/offsets/orders/0-0", None)
        inReactor(self._enter, "/consumers/slow/offsets/orders/0-0", b"6060")
        browser.waitFor("a move", lambda: not self.marked("slow"))
        self.assertEqual(browser.errors(), [])

    async def _serveCluster(self, pageTemplate: str) -> ClusterConsole:
        console = ClusterConsole(reactor, "0", self.servers, pageTemplate=pageTemplate)
        console.privilegedStartService()
        console.startService()
        return console

    def topicRows(self) -> list[list[str]]:
        """The cells of the topics' rows; nothing unless there are two, with all rates."""
        texts = self.browser.run(
            "return [...document.querySelectorAll('#topics tr')].map((row) => row.innerText)"
        )
        return [] if len(texts) < 2 or "–" in "".join(texts) else [t.split("\t") for t in texts]

    @inThread
    def test_scope(self) -> None:
        """
        Each figure says whose it is. A broker's page has the traffic of that broker, and nothing in
        its own columns for topics that it does not have; the page of a cluster has no columns and
        no section for what only a broker knows, but a link to the broker's page.
        """
        self.start()
        browser = self.browser
        self.send(20)
        other = BrokerProcess(os.path.abspath(self.mktemp()), registered(self.servers, 1))
        other.start()
        self.addCleanup(other.kill)
        producer = SyncProducer("127.0.0.1", other.port)
        self.addCleanup(producer.close)
        producer.send("elsewhere", 0, [b"x" * 1000])
        producer.confirm("elsewhere", 0)
        rows = browser.waitFor("both topics, with their rates", self.topicRows)
        self.assertEqual(rows[0][:3], ["elsewhere", "2", "1010 B"])
        self.assertEqual(rows[0][4:6], ["", ""])
        self.assertEqual(rows[1][:3], ["orders", "2", "19.7 KiB"])
        self.assertRegex(rows[1][4], "/s$")
        self.assertRegex(rows[1][5], "/s$")
        self.assertEqual(browser.text("#traffic-title"), "Traffic of broker 0")
        self.assertEqual(browser.text("#tiles .size dd"), "19.7 KiB")
        self.assertIn("1010 B", browser.text("#brokers"))

        def isElsewhere() -> bool:
            producer.send("elsewhere", 0, [b"x" * 1000])
            found = self.topicRows()
            return bool(found) and found[0][3] != "0 B/s" == browser.text("#tiles .in dd")

        browser.waitFor("traffic of the other broker alone", isElsewhere)

        page = f"http://127.0.0.1:{self.port}/"
        console = inReactor(self._serveCluster, page.replace("127.0.0.1", "{host}"))
        self.addCleanup(console.stopService)
        browser.open(f"http://127.0.0.1:{console.port.getHost().port}/")
        browser.waitFor("both topics", self.topicRows)
        self.assertEqual(browser.text("#traffic-title"), "Traffic of all brokers")
        for absent in ("this broker", "Back pressure", "bytes out", "not known"):
            self.assertNotIn(absent, browser.text("main"))
        self.assertEqual(
            browser.run(
                "return [...document.querySelectorAll('#brokers a')].map((link) => link.href)"
            ),
            [page, page],
        )
        self.assertEqual(browser.errors(), [])

    @inThread
    def test_replicas(self) -> None:
        """A broker whose metadata are in ZooKeeper shows who has and leads each partition."""
        self.start(**{"metadata.store": "zookeeper", "broker.rack": "cellar"})
        browser = self.browser
        with KafkaCluster([SocketAddress("127.0.0.1", self.broker.port)]) as cluster:
            cls = messages.CreateTopicsRequest
            topic = cls.CreatableTopic(name="clicks", numPartitions=2, replicationFactor=1)
            found = cluster.change(ApiKey.CREATE_TOPICS, cls(topics=[topic], timeoutMs=10_000))
            self.assertEqual([each.errorCode for each in found.topics], [0])
        browser.waitFor("the map", lambda: "clicks-1" in browser.text("#map"))
        self.assertEqual(browser.text("#map-sum"), "2 partitions, 0 in trouble, 0 without a leader")
        head = browser.text("#map thead")
        for text in ("broker 0", "rack cellar", "leads 2, 2 of 2 in sync"):
            self.assertIn(text, head)
        cells = browser.run(
            "return [...document.querySelectorAll('#map tbody tr')].map((row) =>"
            " [...row.children].map((cell) => [cell.tagName, cell.scope ?? '', cell.textContent]))"
        )
        self.assertEqual(
            cells,
            [[["TH", "row", f"clicks-{index}"], ["TD", "", "leader"]] for index in range(2)],
        )
        self.assertEqual(browser.errors(), [])

    @inThread
    def test_switchedOff(self) -> None:
        """
        With C{http.messages=false} there is no button to look at messages with; and on a narrow
        screen the page is no wider than that.
        """
        self.start(**{"http.messages": "false", "enable.zookeeper": "false"})
        self.send(2)
        browser = self.browser
        browser.emulate(360, 740)
        browser.waitFor("the topic", lambda: "orders" in browser.text("#topics"))
        self.assertEqual(
            browser.run("return document.querySelectorAll('#topics td:last-child button').length"),
            0,
        )
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth"), 360)
        self.assertIn("No groups of today's Kafka", browser.text("#no-groups"))
        self.assertEqual(browser.errors(), [])


class KafkaClusterTests(BrokerCase):
    """The stand-alone console of a cluster of today's Kafka."""

    timeout = 240

    async def _serveConsole(self) -> KafkaClusterConsole:
        console = KafkaClusterConsole(
            reactor, "0", {"bootstrap.servers": self.broker.bootstrapServers}
        )
        await console.listen()
        console.startService()
        return console

    @inThread
    def test_page(self) -> None:
        """Brokers, topics with rates, groups with lag in records, and records with their keys."""
        self.serve()
        cluster = KafkaCluster(
            [SocketAddress(self.broker.host, self.broker.port)], timeoutMs=60_000
        )
        self.addCleanup(lambda: cluster.close())
        cluster.partitions("orders", isCreating=True)
        place = TopicPartition("orders", 0)
        writer = RecordWriter(cluster)
        writer.write(place, [Record(0, 0, b"user 7", HOSTILE)] * 5)
        member = KafkaGroupMember(cluster, "readers<b>", ["orders"])
        member.join()
        member.commit({place: 2})
        console = self.inReactor(self._serveConsole)
        self.addCleanup(console.stopService)
        browser = Chromium()
        self.addCleanup(browser.close)
        browser.open(f"http://127.0.0.1:{console.port.getHost().port}/")
        browser.waitFor("the topic", lambda: "orders" in browser.text("#topics"))
        browser.waitFor("the lag", lambda: "lag 3 records" in browser.text("#groups"))
        self.assertIn("readers<b>", browser.text("#groups"))
        self.assertIn("controller", browser.text("#brokers"))

        def isMoving() -> bool:
            writer.write(place, [Record(0, 0, b"user 7", b"x" * 1000)])
            return browser.text("#tiles .in dd") not in ("–", "0 B/s")

        browser.waitFor("bytes in", isMoving)
        browser.run(
            "[...document.querySelectorAll('#topics tr')]"
            ".find((row) => row.dataset.topic === 'orders').lastChild.firstChild.click()"
        )
        browser.waitFor("records", lambda: "user 7" in browser.text("#messages-list"))
        for absent in ("this broker", "Back pressure", "ZooKeeper", "not known"):
            self.assertNotIn(absent, browser.text("main"))
        self.assertEqual(browser.errors(), [])

    def focused(self, browser: Chromium) -> str:
        return str(browser.run("return document.activeElement.textContent.trim()"))

    def pressUntil(self, browser: Chromium, text: str) -> None:
        """Go on with the tab key until what has the focus has a text."""
        for _turn in range(50):
            browser.press(TAB)
            if self.focused(browser) == text:
                return
        self.fail(f"the tab key does not lead to {text!r}")

    @inThread
    def test_tasks(self) -> None:
        """
        Jobs with their plan as a picture, containers and tasks: a dead one is marked, hostile names
        show as text, the keyboard reaches all, and a narrow screen is enough.
        """
        self.serve()
        cluster = KafkaCluster([SocketAddress(self.broker.host, self.broker.port)])
        self.addCleanup(lambda: cluster.close())
        nowMs = int(time.time() * 1000)
        steps = (
            PlannedStep("words", "stream", reads="words"),
            PlannedStep("turn", "repartition", "", ("words",), "turned", "turned"),
            PlannedStep("to", "to", "<b>", parents=("turn", "gone"), writes="counts"),
        )
        turned = PlannedTopic("repartition", "turned", "string", "long")
        hostile = configOf(JOB, {"words": 1})
        topics = (*hostile.topics, turned)
        hostile = replace(hostile, job=HOSTILE_TOPIC, steps=steps, topics=topics)
        restored = replace(TASK, stores=(StoreMetrics("s", None, 40, 100),), phase="starting")
        counted = replace(TASK, counters={"late": 12, "dropped": 0})
        standbys = (StandbyMetrics(0, False, 12_345), StandbyMetrics(1, False, None))
        reports = [
            metrics("new", counted),
            metrics("second", restored, standbys=standbys, standbyCount=2),
        ]
        for topic, records in (
            (
                CONFIG_TOPIC,
                [(each.job, each.encode(), 0) for each in (hostile, configOf(JOB, {"words": 1}))],
            ),
            (
                METRICS_TOPIC,
                [
                    *((each.key, each.encode(), 0) for each in reports),
                    ("count/old", metrics("old", TASK).encode(), 95_000),
                ],
            ),
        ):
            cluster.partitions(topic, isCreating=True)
            made = [Record(0, nowMs - age, key.encode(), value) for key, value, age in records]
            RecordWriter(cluster).write(TopicPartition(topic, 0), made)
        console = self.inReactor(self._serveConsole)
        self.addCleanup(console.stopService)
        browser = Chromium()
        self.addCleanup(browser.close)
        browser.open(f"http://127.0.0.1:{console.port.getHost().port}/")
        browser.waitFor("the link", lambda: browser.text("#pages"))
        self.pressUntil(browser, "Tasks")
        browser.press(ENTER)
        browser.waitFor("the jobs", lambda: HOSTILE_TOPIC in browser.text("#jobs"))
        self.assertIn(f"Job {HOSTILE_TOPIC}", browser.text("#job-title"))
        self.assertIn("no container", browser.text("#jobs"))
        places = browser.run(
            "return Object.fromEntries([...document.querySelectorAll('#plan title')].map((each) =>"
            " [each.textContent, each.parentNode.getBoundingClientRect().left]))"
        )
        self.assertEqual(
            sorted(places, key=lambda name: float(places[name])),
            [
                "words: input, 1 partition",
                "words: stream",
                "turned: repartition",
                "to: to, <b>",
                "counts: output",
            ],
        )

        self.pressUntil(browser, "count")
        browser.press(ENTER)
        browser.waitFor("the other job", lambda: browser.text("#job-title") == "Job count")
        rows = (
            "return [...document.querySelectorAll(`${arguments[0]} tr`)]"
            ".map((row) => row.innerText)"
        )
        texts = browser.run(rows, "#containers")
        self.assertEqual([text.split("\t")[0] for text in texts], ["new", "old", "second"])
        self.assertRegex(texts[1], r"\tno report for [0-9]+ s: it may be dead$")
        self.assertRegex(texts[2], r"\t1 task restoring$")
        self.assertEqual(
            [text.split("\t")[1] for text in browser.run(rows, "#tasks")], ["new", "old", "second"]
        )
        self.assertEqual(
            [text.split("\t") for text in browser.run(rows, "#standbys")],
            [
                ["0", "second", "node", "behind", "12,345"],
                ["1", "second", "node", "stores are opened", "–"],
            ],
        )
        self.assertIn("s restoring, 40 % of 100", browser.text("#tasks"))
        self.assertIn("late 12", browser.text("#tasks"))
        self.assertNotIn("dropped", browser.text("#tasks"))
        self.assertEqual(
            browser.run(
                "return [...document.querySelectorAll('#plan text')]"
                ".map((each) => each.textContent)"
            ),
            ["count", "1 task", "words", "input, 1 partition", "counts", "output"],
        )
        self.assertIn(
            "reads words; writes counts",
            browser.run("return document.querySelector('#plan svg').getAttribute('aria-label')"),
        )

        self.pressUntil(browser, "0")
        browser.press(" ")
        browser.waitFor("the partition", lambda: "words-0" in browser.text("#tasks"))
        self.assertEqual(self.focused(browser), "0")
        self.assertIn("at 7 of 9", browser.text("#tasks"))
        browser.emulate(360, 740)
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth"), 360)
        strangers = "return [document.title, document.querySelectorAll('main img').length]"
        self.assertEqual(browser.run(strangers), ["Tasks – pylogbroker", 0])
        self.assertEqual(browser.errors(), [])
