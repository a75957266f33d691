"""
Tasks under C{kill -9}: two containers count words, while they, the broker, or all of them are
killed, and folders of stores are deleted. In the end the counts must be those of the input.

  - At least once: no count is below the truth, nor above it by more than the messages that were
  handed to a task more than once.
  - Exactly once: each count is exact. What each store has on disk, and what is restored from the
  changelog alone, is what the input says.

Kills are ordered by progress, not by time: a slow machine only makes a run slow.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pylogbroker.config.kafka.tasksettings import EXACTLY_ONCE
from pylogbroker.tasks.serdes import INTEGER
from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.taskmember import CHANGELOG, HANDLED, INPUT, JOB, STORE

PARTITION_COUNT = 4
CONTAINER_COUNT = 2
WORD_COUNT = 40
TIMEOUT_SECONDS = 60
STALL_SECONDS = 120
POLL_SECONDS = 0.02

PROPERTIES = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
SETTINGS = {
    "commit.interval.ms": "100",
    "consumer.session.timeout.ms": "1000",
    "consumer.heartbeat.interval.ms": "200",
    "consumer.max.poll.interval.ms": "20000",
    "request.timeout.ms": "3000",
    "max.poll.records": "50",
}

CONTAINER, BROKER, BOTH, STATE = VICTIMS = ("container", "broker", "both", "container and state")


class NotCountedError(Exception):
    """A count is not what the promise says."""


class TaskKillFigures(NamedTuple):
    """
    What a run was made of.

    @ivar kills: by what was killed.
    @ivar restartCount: containers that ended by themselves after an error, and were started again.
    @ivar handledCount: messages that were handed to tasks, each time that they were.
    @ivar standbyCount: C{num.standby.replicas}.
    @ivar aboveCount: by how much the counts are above the truth, all together.
    """

    messageCount: int
    kills: dict[str, int]
    restartCount: int
    handledCount: int
    standbyCount: int
    aboveCount: int
    seconds: float


class TaskKillTrial:
    """One run."""

    def __init__(
        self,
        seed: int,
        guarantee: str,
        killCount: int,
        stepMax: int = 120,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """
        @param guarantee: C{processing.guarantee}.
        @param stepMax: messages that are handled between two kills, at most.
        """
        self._random = Random(seed)
        self._guarantee = guarantee
        self._killCount = killCount
        self._stepMax = stepMax
        self._say = say
        self._folder = Path(tempfile.mkdtemp(prefix="pylogbroker-tasks-"))
        self._broker = BackgroundBroker(PROPERTIES)
        self._containers: list[subprocess.Popen[bytes] | None] = [None] * CONTAINER_COUNT
        self._victims: list[str] = []
        self._kills: Counter[str] = Counter()
        self._restartCount = 0
        self._messages: list[tuple[str, int]] = []  # word and partition, in order
        # Some runs have one folder of stores for both, as on one machine.
        self._isSharing = self._random.random() < 0.5
        # Of the others, some have stand-bys; then a task may move back and forth, too.
        self._standbyCount = 0 if self._isSharing else self._random.randrange(2)

    def run(self) -> TaskKillFigures:
        """
        @raise NotCountedError: the promise is broken.
        """
        begun = monotonic()
        self._broker.start()
        try:
            self._fill()
            self._work()
            self._finish()
            found = self._changelog()
            above = self._check(found)
            self._checkStores(found)
            self._checkRestored(found)
            handledCount = self._handledCount()
        finally:
            self._kill(range(CONTAINER_COUNT))
            self._broker.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return TaskKillFigures(
            len(self._messages),
            dict(self._kills),
            self._restartCount,
            handledCount,
            self._standbyCount,
            above,
            monotonic() - begun,
        )

    # -- input and containers

    def _fill(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrapServers})
        for waiting in admin.create_topics([NewTopic(INPUT, PARTITION_COUNT)]).values():
            waiting.result(TIMEOUT_SECONDS)
        producer = Producer(
            {"bootstrap.servers": self._broker.bootstrapServers, "enable.idempotence": True}
        )
        # Twice what the kills take, since messages are handled again, too.
        for _ in range(self._killCount * self._stepMax):
            number = self._random.randrange(WORD_COUNT)
            word, partition = f"word{number}", number % PARTITION_COUNT
            self._messages.append((word, partition))
            producer.produce(INPUT, INTEGER.encode(1), word.encode(), partition=partition)
        if producer.flush(TIMEOUT_SECONDS):
            raise NotCountedError("the input could not be filled")

    def _stateDir(self, number: int) -> Path:
        return self._folder / ("state" if self._isSharing else f"state{number}")

    def _start(self, isUntilEnd: bool = False) -> None:
        for number, container in enumerate(self._containers):
            if container is not None and container.poll() is not None:
                if not isUntilEnd:
                    self._restartCount += 1
                elif container.returncode == 0:
                    continue
                container = None
            if container is None:
                self._containers[number] = self._spawn(number, self._stateDir(number), isUntilEnd)

    def _spawn(self, number: int, stateDir: Path, isUntilEnd: bool) -> subprocess.Popen[bytes]:
        given = {
            "id": str(number),
            "handled": str(self._folder / f"handled{number}"),
            "isUntilEnd": isUntilEnd,
            "properties": {
                **SETTINGS,
                "bootstrap.servers": self._broker.bootstrapServers,
                "state.dir": str(stateDir),
                "processing.guarantee": self._guarantee,
                "num.standby.replicas": str(self._standbyCount),
            },
        }
        with open(self._folder / f"log{number}", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.integration.taskmember", json.dumps(given)],
                stdout=log,
                stderr=log,
            )

    def _handled(self) -> list[tuple[int, int]]:
        """Partition and offset of each message, each time that it was handed to a task."""
        found: list[tuple[int, int]] = []
        for path in self._folder.glob("handled*"):
            data = path.read_bytes()
            found += HANDLED.iter_unpack(data[: len(data) // HANDLED.size * HANDLED.size])
        return found

    def _handledCount(self) -> int:
        sizes = (path.stat().st_size for path in self._folder.glob("handled*"))
        return sum(sizes) // HANDLED.size

    # -- kills

    def _work(self) -> None:
        for turn in range(self._killCount):
            goal = self._handledCount() + self._random.randint(1, self._stepMax)
            self._await(partial(self._isAt, goal))
            self._killSomething()
            self._say(f"{turn + 1} of {self._killCount} kills, {self._handledCount()} handled")

    def _await(self, isTrue: Callable[[], bool], isUntilEnd: bool = False) -> None:
        count, at = -1, monotonic()
        while not isTrue():
            self._start(isUntilEnd)
            sleep(POLL_SECONDS)
            if self._handledCount() != count:
                count, at = self._handledCount(), monotonic()
            elif self._isAllHandled() and not isUntilEnd:
                return
            elif monotonic() - at > STALL_SECONDS:
                raise NotCountedError(
                    f"{count} messages were handled, and no more in {STALL_SECONDS} s; the logs"
                    f" are in {self._folder}"
                )

    def _isAt(self, goal: int) -> bool:
        return self._handledCount() >= goal

    def _isAllHandled(self) -> bool:
        return len(set(self._handled())) == len(self._messages)

    def _killSomething(self) -> None:
        if not self._victims:
            self._victims = list(VICTIMS)
            self._random.shuffle(self._victims)
        victim = self._victims.pop()
        self._kills[victim] += 1
        if victim in (BROKER, BOTH):
            self._broker.kill()
        if victim == BOTH:
            self._kill(range(CONTAINER_COUNT))
        elif victim in (CONTAINER, STATE):
            number = self._random.randrange(CONTAINER_COUNT)
            self._kill([number])
            if victim == STATE and not self._isSharing:
                shutil.rmtree(self._stateDir(number), ignore_errors=True)
            elif victim == STATE:  # those that the other one has are in use
                self._kill(range(CONTAINER_COUNT))
                shutil.rmtree(self._stateDir(number), ignore_errors=True)
        if victim in (BROKER, BOTH):
            self._broker.start()

    def _kill(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            container = self._containers[number]
            if container is not None:
                container.kill()
                container.wait()
                self._containers[number] = None

    def _finish(self) -> None:
        """Let them come to the end of the input, and end."""
        for container in self._containers:
            if container is not None:
                container.send_signal(signal.SIGTERM)
                container.wait(TIMEOUT_SECONDS)
        self._containers = [None] * CONTAINER_COUNT
        self._await(lambda: self._isEnded() and self._isAllHandled(), isUntilEnd=True)
        self._containers = [None] * CONTAINER_COUNT

    def _isEnded(self) -> bool:
        return all(each is not None and each.poll() == 0 for each in self._containers)

    # -- the outcome

    def _truth(self) -> Counter[str]:
        return Counter(word for word, _partition in self._messages)

    def _changelog(self) -> dict[str, int]:
        """What the changelog says: the last committed value of each word."""
        reader = Consumer(
            {
                "bootstrap.servers": self._broker.bootstrapServers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        places = [TopicPartition(CHANGELOG, each) for each in range(PARTITION_COUNT)]
        ends = {
            each.partition: reader.get_watermark_offsets(each, TIMEOUT_SECONDS)[1]
            for each in places
        }
        reader.assign(
            [TopicPartition(CHANGELOG, each.partition, OFFSET_BEGINNING) for each in places]
        )
        found: dict[str, int] = {}
        until = monotonic() + TIMEOUT_SECONDS
        while monotonic() < until:
            message: Any = reader.poll(0.1)
            if message is not None and not message.error():
                found[message.key().decode()] = INTEGER.decode(message.value())
            elif all(
                each.offset >= ends[each.partition] or not ends[each.partition]
                for each in reader.position(places)
            ):
                reader.close()
                return found
        raise NotCountedError("the changelog cannot be read to its end")

    def _check(self, found: dict[str, int]) -> int:
        """@return: by how much the counts are above the truth."""
        truth = self._truth()
        again: Counter[str] = Counter()
        words: dict[tuple[int, int], str] = {}
        offsets: Counter[int] = Counter()
        for word, partition in self._messages:
            words[partition, offsets[partition]] = word
            offsets[partition] += 1
        for place, count in Counter(self._handled()).items():
            again[words[place]] += count - 1
        for word, count in truth.items():
            mostCount = count + (0 if self._guarantee == EXACTLY_ONCE else again[word])
            if not count <= found.get(word, 0) <= mostCount:
                raise NotCountedError(
                    f"{word}: {found.get(word)} were counted, {count} were sent, and"
                    f" {again[word]} handled again; the logs are in {self._folder}"
                )
        return sum(found.values()) - truth.total()

    def _checkStores(self, found: dict[str, int]) -> None:
        """Each store on disk, of the container that had the task last, is as the changelog."""
        stored: dict[str, int] = {}
        for number in range(PARTITION_COUNT):
            newest = None
            for folder in self._folder.glob(f"state*/{JOB}/{number}/{STORE}"):
                engine = RocksDbEngine(str(folder), self._damaged)
                if engine.mark is not None and (newest is None or engine.mark.offset > newest[0]):
                    entries = {
                        key.decode(): INTEGER.decode(value)
                        for key, value in engine.range(None, None)
                    }
                    newest = engine.mark.offset, entries
                engine.close()
            if newest is not None:
                stored.update(newest[1])
        self._compare("the stores", stored, found)

    def _checkRestored(self, found: dict[str, int]) -> None:
        """What a container restores from the changelog alone is the same."""
        folder = self._folder / "restored"
        container = self._spawn(CONTAINER_COUNT, folder, isUntilEnd=True)
        if container.wait(TIMEOUT_SECONDS):
            raise NotCountedError(f"a container failed; the logs are in {self._folder}")
        restored: dict[str, int] = {}
        for number in range(PARTITION_COUNT):
            engine = RocksDbEngine(str(folder / JOB / str(number) / STORE), self._damaged)
            restored |= {
                key.decode(): INTEGER.decode(value) for key, value in engine.range(None, None)
            }
            engine.close()
        self._compare("what was restored", restored, found)

    def _damaged(self, reason: str) -> None:
        raise NotCountedError(f"a store is damaged: {reason}; it is in {self._folder}")

    def _compare(self, what: str, one: dict[str, int], other: dict[str, int]) -> None:
        if one != other:
            wrong = {
                word: (one.get(word), other.get(word))
                for word in one.keys() | other.keys()
                if one.get(word) != other.get(word)
            }
            raise NotCountedError(
                f"{what} and the changelog differ: {wrong}; all is in {self._folder}"
            )
