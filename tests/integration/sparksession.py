"""
One Spark session for all tests of this process, and clusters of real brokers for them: starting a
session takes longer than all that a test does with it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from contextlib import chdir
from itertools import count
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from pylogbroker.syncclient import SyncProducer
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.types import BrokerPartition
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.zookeeperprocess import sharedZookeeper

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDS = ("java", "spark")
QUIET = """\
appender.none.type=Null
appender.none.name=none
rootLogger.level=off
rootLogger.appenderRef.none.ref=none
"""
"""
For log4j, in whose log every task that a test lets fail leaves a page. Without an appender Spark
would take its own settings.
"""

QUICK_START = """
import sys
sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
"""
"""
For Python's C{sitecustomize}: Spark puts PySpark as a zip file first on the path of each Python
that it starts, which has no compiled modules. So starting takes four times as long as with the
installed one, and on a busy machine longer than the ten seconds that it allows.
"""

_session: list[Any] = []
_numbers = count()


def startSession(folder: str) -> Any:
    """
    Two cores; a task is tried three times. The workers import this tree, and what there is to write
    goes to the folder.
    """
    os.environ.update(
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_DIRS=folder,
        SPARK_CONF_DIR=folder,
    )
    Path(folder, "sitecustomize.py").write_text(QUICK_START, encoding="utf-8")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (folder, str(ROOT), os.environ.get("PYTHONPATH")))
    )
    Path(folder, "log4j2.properties").write_text(QUIET, encoding="utf-8")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").appName("pylogbroker")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.driver.memory": "1g",
        "spark.python.authenticate.socketTimeout": "120s",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Spark's processes keep this folder as their own, and must not lose it with a test's.
    with chdir(folder):
        return builder.getOrCreate()


def sharedSession() -> Any:
    """
    One for all tests of this process; it goes when the process ends.
    """
    if not _session:
        folder = tempfile.mkdtemp(prefix="pylogbroker-spark-")
        session = startSession(folder)
        _session.append(session)

        def end() -> None:
            session.stop()
            shutil.rmtree(folder, ignore_errors=True)

        atexit.register(end)
    activate(_session[0])
    return _session[0]


def activate(session: Any) -> None:
    """
    Spark looks for the sink of a stream in the session of the Java thread that serves ours, and
    finds none when another one serves ours by now: a test of the gate has met that.
    """
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


class SparkCluster:
    """
    Brokers in a ZooKeeper's chroot of their own.

    @ivar zookeeper: the option.
    """

    def __init__(self, brokerCount: int = 2, **properties: str) -> None:
        """
        @param properties: of all brokers, with C{_} for the dots.
        """
        shared = sharedZookeeper().servers
        chroot = f"/spark{next(_numbers)}"
        admin = KazooClient(hosts=shared)
        admin.start()
        admin.ensure_path(chroot)
        admin.stop()
        admin.close()
        self.zookeeper = shared + chroot
        self.folder = tempfile.mkdtemp(prefix="pylogbroker-spark-brokers-")
        self._properties = {key.replace("_", "."): value for key, value in properties.items()}
        self.brokers = [self._broker(number).start() for number in range(brokerCount)]

    def _broker(self, number: int, **more: str) -> BrokerProcess:
        own = {
            "brokerid": str(number),
            "enable.zookeeper": "true",
            "zk.connect": self.zookeeper,
            "hostname": "127.0.0.1",
            "zk.sessiontimeout.ms": "2000",
        }
        return BrokerProcess(f"{self.folder}/logs{number}", {**own, **self._properties, **more})

    def restart(self, number: int, port: int | None = None) -> None:
        """A broker ends and comes back, on its port or another."""
        before = self.brokers[number]
        if before.isRunning:
            before.stop()
        self.brokers[number] = self._broker(
            number, port=str(before.port if port is None else port)
        ).start()

    def expire(
        self, topic: str, place: BrokerPartition, keepCount: int, port: int | None = None
    ) -> None:
        """
        Retention deletes all but some segments, while the broker is not there: its own looks a
        minute after its start for the first time.
        """
        self.brokers[place.broker].stop()
        segments = sorted(
            Path(f"{self.folder}/logs{place.broker}/{topic}-{place.partition}").glob("*.kafka")
        )
        for segment in segments[:-keepCount]:
            segment.unlink()
        self.restart(place.broker, port)

    @property
    def listed(self) -> str:
        """The option C{brokers}."""
        return ",".join(
            f"{number}:127.0.0.1:{broker.port}" for number, broker in enumerate(self.brokers)
        )

    def end(self) -> None:
        """Nothing is left of it."""
        for broker in self.brokers:
            if broker.isRunning:
                broker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def establish(self, topic: str) -> None:
        """
        Have a topic on all brokers, with a message in partition 0 of each: a producer stays with
        the brokers that have it.
        """
        for number in range(len(self.brokers)):
            self.write(topic, BrokerPartition(number, 0), [b"first"])
        with ZookeeperMetadata(self.zookeeper) as view:
            while len({partition.broker for partition in view.partitions(topic)}) < len(
                self.brokers
            ):
                time.sleep(0.02)

    def write(
        self,
        topic: str,
        place: BrokerPartition,
        payloads: list[bytes],
        codec: int = 0,
        setCount: int = 500,
    ) -> None:
        """Put messages into a partition, so many in a set; they are visible when this returns."""
        with SyncProducer("127.0.0.1", self.brokers[place.broker].port) as producer:
            for start in range(0, len(payloads), setCount):
                producer.send(
                    topic, place.partition, payloads[start : start + setCount], codec=codec
                )
            producer.confirm(topic, place.partition)
