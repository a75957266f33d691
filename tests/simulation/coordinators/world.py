"""
What the simulations of coordinators share: a clock that stands still, requests and answers that
travel by themselves, a log, and a broker that is killed and comes back.

Requests arrive in any order. Answers are late, or lost with their connection; what a client had
sent may have arrived all the same, or arrives much later. At the end all is well again, and
everything has to come to rest. A simulation of one coordinator is a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

from pylogbroker.coordinator.effects import Appended, Record
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.simulation.coordinators.log import CoordinatorLog
from tests.simulation.seeds import TRACE_COUNT_MAX, BrokenPromiseError

STEP_COUNT = 1_000
CALM_STEP_COUNT_MAX = 3_000
CALM_STEP_MS = 200
REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE)


class SimulatedClient:
    """
    A client. It has one request on its way at a time.

    @ivar version: of its requests.
    @ivar isAlive: its process runs.
    @ivar isAsleep: it sends nothing, and does not notice what arrives.
    @ivar request: the one whose answer it waits for.
    """

    def __init__(self, world: CoordinatorWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.version = 0
        self.isAlive = True
        self.isAsleep = False
        self.request: object | None = None

    @property
    def isIdle(self) -> bool:
        """Whether it can send a request."""
        return self.isAlive and not self.isAsleep and self.request is None

    def act(self) -> None:
        """Send the next request."""
        raise NotImplementedError

    def send(self, request: object, handle: Callable[[Any], None]) -> None:
        """@param handle: called with the answer, if it comes."""
        self.request = request
        self.world.requests.append((self, request, handle))


class CoordinatorWorld(ABC):
    """
    One run.

    @cvar stepsMs: how much time goes by at once.
    @ivar trace: what happened, if asked for.
    @ivar requests: on their way to the coordinator.
    @ivar late: requests that a lost connection has left somewhere on the way.
    @ivar answers: on their way back.
    @ivar unanswered: requests that have arrived, by number.
    @ivar incarnation: of the broker.
    @ivar isCalm: nothing goes wrong any more.
    @ivar isTouched: since the last check the coordinator was told of something.
    """

    stepsMs: Sequence[int] = (1, 100, 1_000, 4_000)

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.nowMs = 1_000_000
        self.isCalm = False
        self.isTouched = True
        self.isTraced = isTraced
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.log = CoordinatorLog(self.kept)
        self.clients: list[Any] = []
        self.requests: list[tuple[Any, object, Callable[[Any], None]]] = []
        self.late: list[tuple[Any, object, Callable[[Any], None]]] = []
        self.answers: list[tuple[Any, object, Callable[[Any], None], object]] = []
        self.unanswered: dict[int, object] = {}
        self.incarnation = 0
        self.fingerprint = 0
        self._requestNumber = 0

    def say(self, text: Callable[[], str]) -> None:
        """Note what happens. The text is made only if somebody reads it."""
        if self.isTraced:
            self.trace.append(f"{(self.nowMs - 1_000_000) / 1000:9.3f} {text()}")
            del self.trace[:-TRACE_COUNT_MAX]

    # -- what each simulation says by itself

    @abstractmethod
    def kept(self, key: bytes, value: bytes | None) -> None:
        """A record is in the log for good."""

    @abstractmethod
    def load(self) -> Any:
        """A new coordinator that has read the log."""

    @property
    @abstractmethod
    def coordinator(self) -> Any:
        """The one that serves."""

    @abstractmethod
    def restarted(self) -> None:
        """The broker has lost its memory: make another coordinator."""

    @abstractmethod
    def deliver(self, client: Any, request: Any, reply: Callable[[Any], None]) -> None:
        """A request arrives."""

    def isDelayable(self, client: Any, request: object) -> bool:
        """Whether a request may arrive when its client has long since gone on."""
        return False

    @abstractmethod
    def events(self) -> Mapping[Callable[[], None], float]:
        """What can happen beside what the network and the log do, and how often."""

    @abstractmethod
    def check(self) -> None:
        """What must hold between two steps."""

    @abstractmethod
    def isAtRest(self) -> bool:
        """Whether all is well, when nothing goes wrong any more."""

    @abstractmethod
    def calm(self) -> None:
        """Nothing goes wrong any more."""

    @abstractmethod
    def describe(self) -> str:
        """The state, for people."""

    # -- the run

    def run(self) -> None:
        """
        Everything in a random order, then peace.

        @raise BrokenPromiseError: something does not hold.
        """
        events = {
            self.clientActs: 34.0, self.requestArrives: 30.0, self.answerArrives: 30.0,
            self.write: 12.0, self.flush: 12.0, self.timeGoesBy: 4.0, self.connectionBreaks: 2.0,
            self.clientSleeps: 2.0, self.appendIsRefused: 0.6, self.logFails: 0.1, self.crash: 0.4,
            **self.events(),
        }  # fmt: skip
        choices = list(events)
        for event in self.random.choices(choices, list(events.values()), k=STEP_COUNT):
            event()
            self.check()
        self.comeToRest()

    def comeToRest(self) -> None:
        """
        Nothing goes wrong any more; those who sleep wake up.

        @raise BrokenPromiseError: it does not come to rest.
        """
        self.isCalm = True
        if self.log.isOffline:
            self.crash()
        self.say(lambda: "-- nothing goes wrong any more")
        for client in self.clients:
            client.isAsleep = False
        self.calm()
        for _ in range(CALM_STEP_COUNT_MAX):
            for client in self.clients:
                if client.isIdle:
                    client.act()
            while self.requests:
                self.requestArrives()
            self.log.write(self.log.pendingCount)
            self.log.flush(self.log.pendingCount)
            self.isTouched = True
            while self.answers:
                self.answerArrives()
            self.check()
            if self.isAtRest():
                return
            self.advance(CALM_STEP_MS)
        raise BrokenPromiseError(f"no rest: {self.describe()}")

    # -- clients and their connections

    def clientActs(self) -> None:
        idle = [each for each in self.clients if each.isIdle]
        if idle:
            self.random.choice(idle).act()

    def clientSleeps(self) -> None:
        """A client falls asleep, or wakes up."""
        alive = [each for each in self.clients if each.isAlive]
        if alive:
            client = self.random.choice(alive)
            client.isAsleep = not client.isAsleep
            self.say(lambda: f"{client.name} {'sleeps' if client.isAsleep else 'wakes up'}")

    def connectionBreaks(self) -> None:
        """What a client waits for does not come; what it has sent may have arrived, or not."""
        waiting = [each for each in self.clients if each.request is not None]
        if waiting:
            client = self.random.choice(waiting)
            self.say(lambda: f"{client.name} loses its connection")
            fate = self.random.random()
            for index, sent in enumerate(self.requests):
                if sent[1] is client.request:
                    if fate < 0.5:
                        self._arrive(index)
                        break
                    del self.requests[index]
                    if fate < 0.75 and self.isDelayable(client, sent[1]):
                        self.late.append(sent)
                    break
            client.request = None

    def lateArrives(self) -> None:
        """A request whose client has lost its connection arrives after all."""
        if self.late:
            self.requests.append(self.late.pop(self.random.randrange(len(self.late))))
            self._arrive(-1)

    def requestArrives(self) -> None:
        if self.requests:
            self._arrive(self.random.randrange(len(self.requests)))

    def _arrive(self, index: int) -> None:
        self.isTouched = True
        client, request, handle = self.requests.pop(index)
        self._requestNumber += 1
        number, incarnation = self._requestNumber, self.incarnation
        self.unanswered[number] = request
        self.say(lambda: f"{client.name} {number}> {request}")
        reply = partial(self._answered, client, request, handle, number, incarnation)
        self.deliver(client, request, reply)

    def _answered(
        self,
        client: Any,
        request: object,
        handle: Callable[[Any], None],
        number: int,
        incarnation: int,
        answer: object,
    ) -> None:
        if incarnation == self.incarnation:
            self.say(lambda: f"{client.name} {number}< {answer}")
            self.fingerprint = crc32(repr(answer).encode(), self.fingerprint)
            if number not in self.unanswered:
                raise BrokenPromiseError(f"{request} was answered twice")
            del self.unanswered[number]
            self.answers.append((client, request, handle, answer))

    def answerArrives(self) -> None:
        if self.answers:
            index = self.random.randrange(len(self.answers))
            client, request, handle, answer = self.answers.pop(index)
            if client.request is request:
                client.request = None
                handle(answer)

    # -- the log

    def append(
        self, incarnation: int, _partition: int, records: Sequence[Record], done: Appended
    ) -> None:
        """What a coordinator of an incarnation appends."""
        if incarnation == self.incarnation:
            self.log.append(records, self.nowMs, done)

    def write(self) -> None:
        """Some appends are written. A broker whose log has failed is started again some time."""
        if self.log.isOffline and self.random.random() < 0.1:
            self.crash()
        self.log.write(self.random.randrange(3))

    def flush(self) -> None:
        if self.log.pendingCount:
            self.isTouched = True
            self.log.flush(self.random.randrange(self.log.pendingCount + 1))

    def appendIsRefused(self) -> None:
        error = self.random.choice(REFUSALS)
        self.say(lambda: f"the oldest append is refused: {error.name}")
        self.isTouched = True
        self.log.refuse(error)

    def logFails(self) -> None:
        """The partition goes out of service, until the broker starts again."""
        if not self.log.isOffline:
            self.say(lambda: "the log fails")
            self.counts["log failed"] += 1
            self.isTouched = True
            self.log.fail()
            self.coordinator.unload(0)

    def crash(self) -> None:
        """The broker is killed, and starts again."""
        if self.log.isIdle and not self.log.isOffline and self.random.random() < 0.3:
            self.counts["compacted"] += 1
            self.log.compact(self.nowMs)
        self.counts["crashed"] += 1
        self.isTouched = True
        self.requests, self.answers, self.unanswered = [], [], {}
        for client in self.clients:
            client.request = None
        self.incarnation += 1
        lostSize = self.log.crash(self.random)
        self.counts["lost bytes"] += lostSize
        self.say(lambda: f"the broker crashes, {lostSize} bytes are lost")
        self.restarted()

    # -- time

    def timeGoesBy(self) -> None:
        self.advance(self.random.choice(self.stepsMs))

    def advance(self, ms: int) -> None:
        """Time goes by, from one deadline to the next."""
        endMs = self.nowMs + ms
        while (dueMs := self.coordinator.nextDeadlineMs()) is not None and dueMs <= endMs:
            self.isTouched = True
            self.nowMs = max(self.nowMs, dueMs)
            self.coordinator.advance()
        self.nowMs = endMs
