"""
Spark on a cluster that lets nobody in without credentials: a real ZooKeeper whose nodes are
private, and a broker behind TLS that wants to see certificates.
"""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from pyspark.errors import PySparkException
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.load import load
from pylogbroker.cli.main import prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import BrokerConnectionError, PylogbrokerError
from pylogbroker.spark.loader import table
from tests.integration.certificates import Authority
from tests.integration.sparksession import SparkCluster, sharedSession

DIGEST = "all:secret"


class SecureSparkTests(SynchronousTestCase):
    """
    @ivar config: a consumer's property file, with credentials and a certificate.
    @ivar keyless: the same without the certificate.
    """

    def setUp(self) -> None:
        self.spark = sharedSession()
        self.folder = str(Path(self.mktemp()).absolute())
        os.makedirs(self.folder)
        authority = Authority(f"{self.folder}/certificates")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        listener = (
            f"tls:{port}:privateKey={authority.issue('broker')}:clientCAs={authority.ca}"
            ":interface=127.0.0.1"
        )
        self.cluster = SparkCluster(
            1,
            zk_digest=DIGEST,
            zk_acl="private",
            listeners=listener,
            port=str(port),
            num_partitions="1",
        )
        self.addCleanup(self.cluster.end)
        key = authority.issue("spark")
        secret = (
            f"groupid=somebody\nzk.digest={DIGEST}\nzk.acl=private\n"
            f"broker.endpoint=tls:{{host}}:{{port}}:trustRoots={authority.trustFolder()}"
        )
        self.config = self.write("config", f"{secret}:certificate={key}:privateKey={key}\n")
        self.keyless = self.write("keyless", secret)

    def write(self, name: str, text: str) -> str:
        """A file."""
        path = Path(f"{self.folder}/{name}.properties")
        path.write_text(text, encoding="utf-8")
        return str(path)

    def given(self, **options: str) -> dict[str, str]:
        """What every reader and writer is told."""
        return {"zookeeper": self.cluster.zookeeper, "config": self.config, **options}

    def send(self, *values: str, **options: str) -> None:
        """A batch to a topic."""
        rows = self.spark.createDataFrame([(value,) for value in values], "value string")
        rows.write.format("pylogbroker").mode("append").options(
            **self.given(topic="t", **options)
        ).save()

    def read(self, topic: str, **options: str) -> Any:
        """All of a topic."""
        return (
            self.spark.read.format("pylogbroker")
            .options(**self.given(subscribe=topic, **options))
            .load()
        )

    def values(self, rows: Any) -> list[str]:
        return sorted(bytes(row["value"]).decode() for row in rows.select("value").collect())

    def test_all(self) -> None:
        """
        Batches and streams are written and read, and a table is loaded, with nothing but the name
        of a file, or with what stands in it.
        """
        self.send("one", "two")
        self.assertEqual(self.values(self.read("t")), ["one", "two"])
        listed = {"brokers": self.cluster.listed, "config": self.config, "subscribe": "t"}
        self.assertEqual(
            self.values(self.spark.read.format("pylogbroker").options(**listed).load()),
            ["one", "two"],
        )
        self.stream()
        self.assertEqual(self.values(self.read("again")), ["one", "two"])
        self.load(
            "--config", self.config, "--topic", "again", "--offsets-out", f"{self.folder}/offsets"
        )
        self.assertEqual(self.values(table(self.spark, f"{self.folder}/table")), ["one", "two"])
        self.assertIn("\tagain\t0\t", Path(f"{self.folder}/offsets").read_text(encoding="utf-8"))
        own = dict(
            line.split("=", 1)
            for line in Path(self.config).read_text(encoding="utf-8").splitlines()
        )
        self.send(
            "three",
            config="",
            zookeeperDigest=DIGEST,
            zookeeperAcl="private",
            brokerEndpoint=own["broker.endpoint"],
        )
        self.load(
            "--whitelist",
            "t|again",
            *(f"--set={key}={own[key]}" for key in ("zk.digest", "broker.endpoint")),
        )
        self.assertEqual(table(self.spark, f"{self.folder}/table").count(), 5)

    def stream(self) -> None:
        """One topic to another; the number that is kept belongs to who has written it."""
        stream = (
            self.spark.readStream.format("pylogbroker")
            .options(**self.given(subscribe="t", startingOffsets="earliest"))
            .load()
        )
        options = self.given(topic="again", checkpointLocation=f"{self.folder}/checkpoint")
        query = (
            stream.select("value")
            .writeStream.format("pylogbroker")
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        admin = KazooClient(hosts=self.cluster.zookeeper, auth_data=[("digest", DIGEST)])
        admin.start()
        try:
            [acl] = admin.get_acls(f"/pylogbroker/sinks/{query.id}")[0]
        finally:
            admin.stop()
            admin.close()
        self.assertEqual((acl.id.scheme, acl.id.id.partition(":")[0]), ("digest", "all"))

    def load(self, *arguments: str) -> None:
        """To a table."""
        with open(f"{self.folder}/output", "wb") as file:
            streams = Streams(-1, file.fileno(), io.StringIO())
            options = prepare(
                ["load", f"{self.folder}/table", "--zookeeper", self.cluster.zookeeper, *arguments],
                streams,
            )
            self.assertEqual(load(options, streams), 0)

    def test_refused(self) -> None:
        """
        Without credentials, or with wrong ones, ZooKeeper refuses; without a certificate, the
        broker. The password is never shown.
        """
        self.send("one")
        for digest in ("", "all:wrong-secret"):
            own = {"config": "", "timeoutMs": "5000", "retryCount": "0"} | (
                {"zookeeperDigest": digest} if digest else {}
            )
            text = str(self.assertRaises(PySparkException, self.read("t", **own).collect))
            self.assertIn("ZookeeperError", text)
            self.assertNotIn("secret", text)
        text = str(
            self.assertRaises(
                PySparkException,
                self.read("t", config=self.keyless, timeoutMs="2000", retryCount="0").collect,
            )
        )
        self.assertIn(BrokerConnectionError.__name__, text)
        error = self.assertRaises(PylogbrokerError, self.load, "--topic", "t")
        self.assertIn("NoAuth", str(error))
        self.assertNotIn("secret", str(error))
