"""
Topics in PySpark: a real Spark session, real brokers as processes, a real ZooKeeper.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.syncclient import SimpleConsumer
from pylogbroker.types import BrokerPartition
from tests.integration.cuttingproxy import ANSWER, CuttingProxy
from tests.integration.sparkchecks import STRETCHES, faults, judge, payload
from tests.integration.sparksession import SparkCluster, sharedSession

MESSAGE_COUNT = 200_000
PLACES = [BrokerPartition(broker, partition) for broker in range(2) for partition in range(2)]

Rows = dict[BrokerPartition, list[bytes]]


class SparkCase(SynchronousTestCase):
    """Has a session, and folders."""

    def setUp(self) -> None:
        self.spark = sharedSession()
        self.folder = str(Path(self.mktemp()).absolute())

    def cluster(self, brokerCount: int = 2, **properties: str) -> SparkCluster:
        """Brokers that end with the test."""
        cluster = SparkCluster(brokerCount, **properties)
        self.addCleanup(cluster.end)
        return cluster

    def batch(self, **options: Any) -> Any:
        """What a batch reads."""
        return self.spark.read.format("pylogbroker").options(**options).load()

    def stream(self, **options: Any) -> Any:
        """What a stream reads."""
        return self.spark.readStream.format("pylogbroker").options(**options).load()

    def load(self, stream: Any) -> Any:
        """
        Append all that a stream has now to a table, from the checkpoint on; returns the query,
        which has ended.
        """
        query = (
            stream.writeStream.format("parquet")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{self.folder}/checkpoint")
        )
        return self.start(query, f"{self.folder}/table")

    def start(self, write: Any, *arguments: str) -> Any:
        """
        Start a stream, and wait until it has made its first plan. Spark gives the Python process
        that it starts for that ten seconds to say that it is there, whatever else the machine does;
        that alone is tried again.
        """
        for attempt in range(5):
            try:
                query = write.start(*arguments)
                self.addCleanup(query.stop)
                query.processAllAvailable()
            except PySparkException as error:
                if "failed to connect back" in str(error) and attempt < 4:
                    continue
                raise
            return query

    def failure(self, call: Any, *arguments: Any) -> str:
        """What a job failed with, as text."""
        return str(self.assertRaises(PySparkException, call, *arguments))


def byPlace(table: Any) -> Rows:
    """The values of each partition, in the order of the table."""
    found: Rows = defaultdict(list)
    for broker, partition, value in zip(
        *(table.column(name).to_pylist() for name in ("broker", "partition", "value")), strict=True
    ):
        found[BrokerPartition(broker, partition)].append(value)
    return found


class ReadingTests(SparkCase):
    """
    A topic on two brokers, in several segments, with plain and compressed sets and with payloads
    that are valid message sets.
    """

    def test_batchAndStream(self) -> None:
        """
        200,000 messages come back exactly, each once and in order in each partition: as a batch in
        several splits; and as a stream of micro-batches that is stopped, and goes on from its
        checkpoint with what came meanwhile.
        """
        cluster = self.cluster(log_file_size=str(4 << 20), num_partitions="2")
        counts = dict.fromkeys(PLACES, MESSAGE_COUNT // len(PLACES))
        for index, place in enumerate(PLACES):
            cluster.write(
                "clicks",
                place,
                [payload(place, number) for number in range(counts[place])],
                codec=index % 3,
            )
        read = self.batch(zookeeper=cluster.zookeeper, subscribe="clicks", minPartitions=8)
        self.assertEqual(faults(read.mapInArrow(judge, STRETCHES).collect(), counts), [])

        stream = self.stream(
            zookeeper=cluster.zookeeper,
            subscribePattern="cl.*",
            startingOffsets="earliest",
            maxBytesPerTrigger=10 << 20,
        )
        query = self.load(stream.mapInArrow(judge, STRETCHES))
        self.assertGreater(len(query.recentProgress), 2)
        for place in PLACES:
            cluster.write(
                "clicks", place, [payload(place, counts[place] + number) for number in range(500)]
            )
            counts[place] += 500
        self.load(stream.mapInArrow(judge, STRETCHES))
        self.assertEqual(
            faults(self.spark.read.parquet(f"{self.folder}/table").collect(), counts), []
        )

    def test_columns(self) -> None:
        """A table has all columns, and those that a later format will fill are null."""
        cluster = self.cluster(1)
        cluster.write("clicks", PLACES[0], [b"one", b"two"])
        rows = [
            tuple(row) for row in self.batch(brokers=cluster.listed, subscribe="clicks").collect()
        ]
        same = ("clicks", 0, 0)
        self.assertEqual(
            rows,
            [
                (None, bytearray(b"one"), *same, 0, 13, None),
                (None, bytearray(b"two"), *same, 13, 26, None),
            ],
        )


class LossTests(SparkCase):
    """Retention is quicker than a stream."""

    def test_underARunningStream(self) -> None:
        """
        Data are deleted that a running stream has not read: with failOnDataLoss it ends with an
        error that says what is missing; without it goes on with what is left.
        """
        place = BrokerPartition(0, 0)
        cluster = self.cluster(1, log_file_size="100000")
        cluster.write("clicks", place, [b"before"])
        listed = {
            "brokers": cluster.listed,
            "subscribe": "clicks",
            "startingOffsets": "earliest",
            "retryCount": "100",
            "timeoutMs": "60000",
        }
        strict, lenient = (
            self.start(
                self.stream(**listed, failOnDataLoss=flag)
                .writeStream.format("memory")
                .queryName(f"loss{flag}")
            )
            for flag in ("true", "false")
        )
        served = cluster.brokers[0].port
        cluster.restart(0, port=0)  # where nobody reads, data come and go
        cluster.write(
            "clicks",
            place,
            [b"after %04d" % number + b"." * 1_000 for number in range(1_000)],
            setCount=50,
        )
        cluster.expire("clicks", place, 3, port=served)
        with SimpleConsumer("127.0.0.1", served) as consumer:
            [latest, *_more, earliest] = consumer.getOffsetsBefore("clicks", 0, -1, 1_000)
            left = [value for value, _ in consumer.fetch("clicks", 0, earliest, 100_000).payloads()]
        self.assertGreater(latest, 900_000)
        self.assertGreater(earliest, 500_000)
        text = self.failure(strict.processAllAvailable)
        for part in (
            "DataLossError",
            "topic clicks",
            "partition 0-0",
            " 16 was deleted",
            f"the earliest offset left is {earliest}",
        ):
            self.assertIn(part, text)
        lenient.processAllAvailable()
        values = [
            bytes(row.value)
            for row in self.spark.sql("select value from lossfalse order by offset").collect()
        ]
        self.assertEqual(values[:1], [b"before"])
        self.assertEqual(values[1 : len(left) + 1], left)
        self.assertEqual(values[-1][:10], b"after 0999")

    def test_whenPlanning(self) -> None:
        """
        A batch that should begin before what is left is an error that names both offsets, or begins
        where it can; an emptied log is no less an error.
        """
        cluster = self.cluster(1, log_file_size="100000")
        cluster.write(
            "clicks",
            BrokerPartition(0, 0),
            [b"%04d" % number + b"." * 1_000 for number in range(500)],
            setCount=50,
        )
        cluster.expire("clicks", BrokerPartition(0, 0), 2)
        options = {"brokers": cluster.listed, "subscribe": "clicks"}
        left = self.batch(**options).count()
        self.assertTrue(0 < left <= 200)
        since = {**options, "startingOffsets": '{"clicks": {"0-0": 0}}'}
        self.assertIn(
            "0 was deleted; the earliest offset left is ", self.failure(self.batch(**since).count)
        )
        self.assertEqual(self.batch(**since, failOnDataLoss="false").count(), left)
        beyond = {**options, "startingOffsets": '{"clicks": {"0-0": 9000000}}'}
        self.assertIn("it was emptied or truncated", self.failure(self.batch(**beyond).count))


class MortalProxy(CuttingProxy):
    """
    Lets so many bytes of answers through, then acts.

    @ivar sizeMax: the bytes.
    """

    def __init__(self, brokerPort: int, sizeMax: int, act: Callable[[MortalProxy], None]) -> None:
        self.sizeMax = sizeMax
        self._act = act
        super().__init__(brokerPort)

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(1 << 16):
                if direction == ANSWER:
                    before, self.sizeMax = self.sizeMax, self.sizeMax - len(data)
                    if before > 0 >= self.sizeMax:
                        self._act(self)
                target.sendall(data)
        except OSError:
            pass
        self._end(source, target)


def killReaders(_proxy: MortalProxy) -> None:
    """C{kill -9} for each Python worker that Spark has forked for us."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                    parents[int(folder.name)] = int(
                        (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    )
            except OSError:
                continue  # it has ended
    for number, parent in parents.items():
        if parent in parents and ourSession(parents[parent]):
            os.kill(number, signal.SIGKILL)


def ourSession(number: int) -> bool:
    """Whether a process is a child of this one, or of a child."""
    while number > 1 and number != os.getpid():
        number = int(
            Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        )
    return number == os.getpid()


class FaultTests(SparkCase):
    """A broker or a worker goes away."""

    def setUp(self) -> None:
        super().setUp()
        self.source = self.cluster(1)
        self.written = [payload(BrokerPartition(0, 0), number) for number in range(20_000)]
        self.source.write("clicks", BrokerPartition(0, 0), self.written)

    def through(self, proxy: CuttingProxy, **options: Any) -> Any:
        """A batch that is read through a proxy, in many fetches."""
        self.addCleanup(proxy.close)
        return self.batch(
            brokers=f"0:127.0.0.1:{proxy.port}", subscribe="clicks", fetchSize=100_000, **options
        )

    def test_downWhenPlanning(self) -> None:
        """
        A broker that is down is asked again, as often as was said, and then is an error that names
        it, in place of a result without it.
        """
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        read = self.batch(
            brokers=f"{self.source.listed},7:127.0.0.1:{port}",
            subscribe="clicks",
            retryCount=1,
            timeoutMs=300,
        )
        self.assertRegex(
            self.failure(read.count),
            rf"cannot connect to 127.0.0.1:{port} within 300 ms: .* \(2 attempts in the brokers ",
        )

    def test_lineIsCut(self) -> None:
        """
        Connections that are cut in the middle of an answer, when planning and when reading, cost
        nothing but time.
        """
        proxy = CuttingProxy(self.source.brokers[0].port)
        proxy.cutNext(ANSWER)
        read = self.through(proxy)
        self.assertEqual(proxy.cutCount, 0)
        self.assertEqual(byPlace(read.toArrow()), {BrokerPartition(0, 0): self.written})
        self.assertEqual(proxy.cutCount, 1)
        mortal = MortalProxy(self.source.brokers[0].port, 1_500_000, lambda proxy: proxy.cutNow())
        self.assertEqual(
            byPlace(self.through(mortal).toArrow()), {BrokerPartition(0, 0): self.written}
        )
        self.assertLess(mortal.sizeMax, 0)

    def test_diesInTheMiddle(self) -> None:
        """
        A broker that dies when half of a split is read, and stays away, is an error that names
        topic, partition and offset; there is no result.
        """
        proxy = MortalProxy(self.source.brokers[0].port, 1_500_000, CuttingProxy.close)
        read = self.through(proxy, retryCount=1, timeoutMs=300)
        text = self.failure(read.write.parquet, f"{self.folder}/table")
        self.assertRegex(
            text, r"topic clicks, partition 0-0, offset [0-9]+: broker 0 did not answer 2 requests"
        )
        self.assertFalse(Path(self.folder, "table", "_SUCCESS").exists())

    def test_workerIsKilled(self) -> None:
        """
        A worker that is killed in the middle of a split is replaced, and no row is missing or there
        twice.
        """
        proxy = MortalProxy(self.source.brokers[0].port, 1_500_000, killReaders)
        self.assertEqual(
            byPlace(self.through(proxy).toArrow()), {BrokerPartition(0, 0): self.written}
        )
        self.assertLess(proxy.sizeMax, -3_000_000)


class SinkTests(SparkCase):
    """Writing to topics."""

    def read(self, cluster: SparkCluster, topic: str) -> list[Any]:
        """All rows of a topic but the first of each broker."""
        rows = (
            self.batch(zookeeper=cluster.zookeeper, subscribe=topic)
            .orderBy("broker", "partition", "offset")
            .collect()
        )
        return [row for row in rows if bytes(row.value) != b"first"]

    def test_batch(self) -> None:
        """
        Rows go to the topics that they name, compressed, each key to the partition that every
        producer would choose; rows without a key are spread.
        """
        cluster = self.cluster(num_partitions="2")
        for topic in ("even", "odd"):
            cluster.establish(topic)
        rows = [
            (
                "odd" if number % 2 else "even",
                None if number % 5 == 0 else f"key{number}",
                f"value {number}",
            )
            for number in range(2_000)
        ]
        frame = self.spark.createDataFrame(
            rows, "topic string, key string, value string"
        ).repartition(3)
        frame.write.format("pylogbroker").mode("append").options(
            zookeeper=cluster.zookeeper, compression="gzip", batchSize=2_000
        ).save()
        for topic in ("even", "odd"):
            found = self.read(cluster, topic)
            places = {
                row.value.decode(): BrokerPartition(row.broker, row.partition) for row in found
            }
            wanted = {value: key for name, key, value in rows if name == topic}
            self.assertEqual(len(found), len(wanted))
            self.assertEqual(set(places), set(wanted))
            byKey = {
                value: PLACES[defaultPartitioner(key, len(PLACES))]
                for value, key in wanted.items()
                if key is not None
            }
            self.assertEqual({value: places[value] for value in byKey}, byKey)
            self.assertGreater(
                len({place for value, place in places.items() if value not in byKey}), 1
            )
            self.assertGreater(len({row.offset for row in found}), 4)
            self.assertLess(
                len({row.offset for row in found}), len(found) / 4
            )  # they are in wrappers

    def test_badRows(self) -> None:
        """
        A row without a value is an error that says so; so are columns that cannot be written, and
        overwriting.
        """
        cluster = self.cluster(1)
        write = self.spark.createDataFrame(
            [("key", None)], "key string, value string"
        ).write.format("pylogbroker")
        write = write.options(brokers=cluster.listed, topic="clicks")
        self.assertIn(
            "a row without a value (key 'key')",
            self.failure(write.mode("append").save),
        )
        self.assertIn(
            "a topic cannot be overwritten: the only mode is append",
            self.failure(write.mode("overwrite").save),
        )
        wrong = (
            self.spark.createDataFrame([(1.5,)], "value double")
            .write.format("pylogbroker")
            .mode("append")
            .options(brokers=cluster.listed, topic="t")
        )
        self.assertIn("column value is of type double", self.failure(wrong.save))

    def test_streamRepeats(self) -> None:
        """
        Spark dies when a micro-batch is written and not yet noted, and repeats it. With ZooKeeper
        nothing is written twice; with a list of brokers the rows of that micro-batch are.
        """
        cluster = self.cluster(1)
        cluster.establish("from")
        values = [b"%d" % number for number in range(100)]
        cluster.write("from", BrokerPartition(0, 0), values)
        for target, times in (
            ({"zookeeper": cluster.zookeeper}, 1),
            ({"brokers": cluster.listed}, 2),
        ):
            name = "to" + next(iter(target))
            cluster.establish(name)
            checkpoint = f"{self.folder}/{name}"
            for _run in range(2):
                stream = self.stream(
                    zookeeper=cluster.zookeeper, subscribe="from", startingOffsets="earliest"
                ).where("value != 'first'")
                write = (
                    stream.select("key", "value")
                    .writeStream.format("pylogbroker")
                    .options(**target, topic=name, compression="snappy")
                )
                self.start(
                    write.option("checkpointLocation", checkpoint).trigger(availableNow=True)
                )
                for note in Path(checkpoint, "commits").iterdir():
                    note.unlink()
            self.assertEqual(
                Counter(bytes(row.value) for row in self.read(cluster, name)),
                dict.fromkeys(values, times),
            )
